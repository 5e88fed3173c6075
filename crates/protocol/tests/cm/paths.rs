//! Other alternate paths for connections that are up.

use super::world::{A, B, RETRIES, World};
use softhca_protocol::cm::{Attribute, Error, Id, Kind, Path, State, Suggestion};
use wire::cm::AprStatus;

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
    // Another one may follow.
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
    assert_eq!((world.state(A, active), world.state(B, passive)), (State::Established, State::Established));
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
fn what_comes_along_the_alternate_path_is_the_peers() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    suggest(&mut world, active).unwrap();
    world.run_for(1);
    world.call(B, |cm, _| cm.answer_path(passive, AprStatus::LOADED, &[], &[])).unwrap();
    world.run_for(1);
    world.lose.push((A, Attribute::Dreq));
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    let (_, dreq) = *world.sent.last().unwrap();
    let origin = super::world::origin(&another_path(&world));
    let now = world.now;
    world.hosts[B].cm.on_mad(now, &origin, &dreq.emit(5, 0)).unwrap();
    assert_eq!(world.state(B, passive), State::DreqRcvd);
}
