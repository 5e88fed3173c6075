//! Other alternate paths for established connections (LAP, APR). The paths of REQ are not tested
//! here.

use super::world::{A, B, RETRIES, World};
use softhca_protocol::cm::{Attribute, CmState, Error, Id, Kind, Path, Suggestion};
use wire::Qpn;
use wire::cm::{AprStatus, Lap, Message};

fn another_path(world: &World) -> Path {
    let mut path = world.path(A, B);
    path.sgid[15] += 100;
    path.dgid[15] += 100;
    path
}

fn suggest(world: &mut World, id: Id) -> Result<(), Error> {
    let path = another_path(world);
    let suggestion = Suggestion { path, ack_timeout: 15, remote_response_timeout: 18, private_data: b"or this way" };
    world.call(A, |cm, now| cm.load_path(now, id, &suggestion))
}

#[test]
fn a_suggestion_is_accepted() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    suggest(&mut world, active).unwrap();
    assert!(matches!(suggest(&mut world, active), Err(Error::State { .. })));
    world.run_for(1);
    let told = world.hosts[B].events_of(passive);
    let Some(Kind::PathSuggested(lap)) = told.last() else { panic!("{told:?}") };
    assert!(lap.private_data.starts_with(b"or this way"));
    world.call(B, |cm, _| cm.mra(passive, 22, &[])).unwrap();
    world.run_for(10_000);
    assert_eq!(world.times(A, Attribute::Lap), 1);
    world.call(B, |cm, _| cm.answer_path(passive, AprStatus::LOADED, b"i", b"p")).unwrap();
    world.run_for(1);
    let told = world.hosts[A].events_of(active);
    assert!(matches!(told[1..], [Kind::Later(_), Kind::PathAnswered(apr)] if apr.status == AprStatus::LOADED));
    let path = another_path(&world);
    assert_eq!(world.hosts[A].cm.connection(active).unwrap().alternate, Some(path));
    let other = world.hosts[B].cm.connection(passive).unwrap().alternate.unwrap();
    assert_eq!((other.sgid, other.dgid), (path.dgid, path.sgid));
    assert!(world.hosts[A].cm.next_time().is_none());
    // Another suggestion may follow.
    suggest(&mut world, active).unwrap();
    world.run_for(1);
    assert!(matches!(world.hosts[B].events_of(passive).last(), Some(Kind::PathSuggested(_))));
}

#[test]
fn a_lost_answer_is_said_again() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    world.lose.push((B, Attribute::Apr));
    suggest(&mut world, active).unwrap();
    world.run_for(1);
    world.call(B, |cm, _| cm.answer_path(passive, AprStatus::REJECTED, &[], &[])).unwrap();
    world.run_for(5_000);
    assert_eq!((world.times(A, Attribute::Lap), world.times(B, Attribute::Apr)), (2, 2));
    let told = world.hosts[A].events_of(active);
    assert!(matches!(told.last(), Some(Kind::PathAnswered(apr)) if apr.status == AprStatus::REJECTED));
    assert_eq!(world.hosts[A].cm.connection(active).unwrap().alternate, None);
    assert_eq!(world.hosts[B].events_of(passive).len(), 3);
}

#[test]
fn no_answer_leaves_the_connection_as_it_is() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    suggest(&mut world, active).unwrap();
    world.run();
    assert_eq!(world.hosts[A].events_of(active).last(), Some(&Kind::TimedOut { message: Attribute::Lap }));
    assert_eq!(world.times(A, Attribute::Lap), 1 + usize::from(RETRIES));
    assert_eq!((world.state(A, active), world.state(B, passive)), (CmState::Established, CmState::Established));
}

#[test]
fn the_end_of_the_connection_is_the_end_of_the_suggestion() {
    for by in [A, B] {
        let mut world = World::new();
        let (active, passive) = world.connect(A, B);
        suggest(&mut world, active).unwrap();
        world.run_for(1);
        let id = [active, passive][by];
        world.call(by, |cm, now| cm.disconnect(now, id, &[])).unwrap();
        world.run_for(1);
        let id = [active, passive][1 - by];
        world.call(1 - by, |cm, now| cm.disconnect(now, id, &[])).unwrap();
        assert!(matches!(
            world.call(B, |cm, _| cm.answer_path(passive, AprStatus::LOADED, &[], &[])),
            Err(Error::State { .. })
        ));
        world.run();
        assert!(world.hosts[A].events_of(active).contains(&Kind::Rested));
        assert_eq!(world.times(A, Attribute::Lap), 1);
    }
}

#[test]
fn only_the_asker_suggests() {
    let mut world = World::new();
    let (_, passive) = world.connect(A, B);
    let path = world.path(B, A);
    let suggestion = Suggestion { path, ..Suggestion::default() };
    assert!(matches!(world.call(B, |cm, now| cm.load_path(now, passive, &suggestion)), Err(Error::State { .. })));
}

#[test]
fn a_dreq_along_the_alternate_path_is_accepted() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    suggest(&mut world, active).unwrap();
    world.run_for(1);
    world.call(B, |cm, _| cm.answer_path(passive, AprStatus::LOADED, &[], &[])).unwrap();
    world.run_for(1);
    world.lose.push((A, Attribute::Dreq));
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    let (_, dreq) = *world.sent.last().unwrap();
    let origin = another_path(&world).origin();
    let now = world.now;
    world.hosts[B].cm.on_mad(now, &origin, &dreq.emit(5, 0)).unwrap();
    assert_eq!(world.state(B, passive), CmState::DreqRcvd);
}

/// The status of the last APR.
fn refusal(world: &World) -> Option<AprStatus> {
    match world.sent.last() {
        Some((B, Message::Apr(apr))) => Some(apr.status),
        _ => None,
    }
}

#[test]
fn a_suggestion_for_no_connection_or_for_another_queue_pair_is_refused() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    suggest(&mut world, active).unwrap();
    let Some((A, Message::Lap(lap))) = world.sent.last().copied() else { panic!("{:?}", world.sent.last()) };
    let origin = world.path(A, B).origin();
    let now = world.now;
    for (wrong, status) in [
        (Lap { remote_comm_id: lap.remote_comm_id ^ 1, ..lap }, AprStatus::INVALID_COMM_ID),
        (Lap { local_comm_id: lap.local_comm_id ^ 1, ..lap }, AprStatus::INVALID_COMM_ID),
        (Lap { remote_qpn: Qpn::new(lap.remote_qpn.value() ^ 1), ..lap }, AprStatus::INVALID_QPN),
    ] {
        let mad = Message::Lap(wrong).emit(77, 0);
        assert!(world.call(B, |cm, _| cm.on_mad(now, &origin, &mad)).is_err());
        assert_eq!(refusal(&world), Some(status));
        let Some((B, Message::Apr(apr))) = world.sent.last() else { panic!("an APR") };
        assert_eq!((apr.local_comm_id, apr.remote_comm_id), (wrong.remote_comm_id, wrong.local_comm_id));
    }
    // A host that does not belong to the connection gets no answer.
    let stranger = another_path(&world).origin();
    let sent = world.sent.len();
    let mad = Message::Lap(Lap { remote_qpn: Qpn::new(1), ..lap }).emit(78, 0);
    assert!(world.call(B, |cm, _| cm.on_mad(now, &stranger, &mad)).is_err());
    assert_eq!(world.sent.len(), sent);
    // This did not disturb the correct answer.
    world.run_for(1);
    assert!(matches!(world.hosts[B].events_of(passive).last(), Some(Kind::PathSuggested(_))));
}

#[test]
fn the_path_in_use_is_no_alternate() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let before = world.hosts[B].events_of(passive).len();
    world.lose.push((B, Attribute::Apr));
    let path = world.path(A, B);
    let suggestion = Suggestion { path, ack_timeout: 15, remote_response_timeout: 18, private_data: &[] };
    world.call(A, |cm, now| cm.load_path(now, active, &suggestion)).unwrap();
    world.run_for(5_000);
    // Its user gets no event. A peer that missed the answer gets it again.
    assert_eq!(world.hosts[B].events_of(passive).len(), before);
    assert_eq!((world.times(A, Attribute::Lap), world.times(B, Attribute::Apr)), (2, 2));
    let told = world.hosts[A].events_of(active);
    assert!(matches!(told.last(), Some(Kind::PathAnswered(apr)) if apr.status == AprStatus::IS_CURRENT), "{told:?}");
    assert_eq!(world.hosts[B].cm.connection(passive).unwrap().alternate, None);
    suggest(&mut world, active).unwrap();
    world.run_for(1);
    assert!(matches!(world.hosts[B].events_of(passive).last(), Some(Kind::PathSuggested(_))));
}

/// Only the sender of a LAP knows the packet life time. The peer takes it from the timeout.
#[test]
fn the_packet_life_time_of_a_loaded_path_is_the_senders_own() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let path = Path { packet_life: 11, ..another_path(&world) };
    let suggestion = Suggestion { path, ack_timeout: 15, remote_response_timeout: 18, private_data: &[] };
    world.call(A, |cm, now| cm.load_path(now, active, &suggestion)).unwrap();
    world.run_for(1);
    world.call(B, |cm, _| cm.answer_path(passive, AprStatus::LOADED, &[], &[])).unwrap();
    world.run_for(1);
    let life = |host: usize, id| world.hosts[host].cm.connection(id).unwrap().alternate.map(|path| path.packet_life);
    assert_eq!((life(A, active), life(B, passive)), (Some(11), Some(14)));
}
