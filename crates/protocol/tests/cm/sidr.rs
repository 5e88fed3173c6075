//! SIDR: requests for datagram services. Connections are not tested here.

use super::world::{A, B, RETRIES, World};
use softhca_protocol::cm::{Attribute, CmState, Counts, Dropped, Error, Kind, SidrReply};
use wire::cm::SidrStatus;

#[test]
fn a_question_and_its_answer() {
    let mut world = World::new();
    let id = world.sidr_request(A, B);
    world.run_for(1);
    let asked = world.incoming(B);
    let events = world.hosts[B].events_of(asked);
    assert!(matches!(&events[..], [Kind::SidrIncoming { req, .. }] if req.private_data.starts_with(b"who serves?")));
    let reply = SidrReply { qpn: wire::Qpn::new(0x77), qkey: 5, private_data: b"here", ..SidrReply::default() };
    world.call(B, |cm, now| cm.sidr_reply(now, asked, &reply)).unwrap();
    world.run_for(1);
    let events = world.hosts[A].events_of(id);
    let [Kind::SidrAnswered { rep, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((rep.status, rep.qpn.value(), rep.qkey), (SidrStatus::OK, 0x77, 5));
    assert!(rep.private_data.starts_with(b"here"));
    assert_eq!((world.state(A, id), world.state(B, asked)), (CmState::Idle, CmState::SidrAnswered));
    let facts = world.hosts[A].cm.connection(id).unwrap();
    assert_eq!((facts.remote_qpn.value(), facts.remote_qkey), (0x77, 5));
    for (host, id) in [(A, id), (B, asked)] {
        world.call(host, |cm, now| cm.destroy(now, id)).unwrap();
    }
    world.run();
    world.assert_empty();
}

#[test]
fn a_lost_answer_is_said_again_and_the_user_is_asked_once() {
    let mut world = World::new().willing();
    world.lose = vec![(B, Attribute::SidrRep), (B, Attribute::SidrRep)];
    let id = world.sidr_request(A, B);
    world.run();
    assert!(matches!(world.hosts[A].events_of(id)[..], [Kind::SidrAnswered { .. }]));
    assert_eq!((world.hosts[B].events.len(), world.times(B, Attribute::SidrRep)), (1, 3));
    world.assert_empty();
}

#[test]
fn a_sidr_req_without_an_answer_times_out() {
    let mut world = World::new().willing();
    world.cut_off = Some(B);
    let id = world.sidr_request(A, B);
    world.run();
    assert_eq!(world.hosts[A].events_of(id), [Kind::TimedOut { message: Attribute::SidrReq }]);
    assert_eq!(world.times(A, Attribute::SidrReq), 1 + usize::from(RETRIES));
    world.assert_empty();
}

#[test]
fn a_question_given_back_undecided_is_declined() {
    let mut world = World::new();
    let id = world.sidr_request(A, B);
    world.run_for(1);
    let asked = world.incoming(B);
    world.call(B, |cm, now| cm.destroy(now, asked)).unwrap();
    world.run_for(1);
    let events = world.hosts[A].events_of(id);
    assert!(matches!(events[..], [Kind::SidrAnswered { rep, .. }] if rep.status == SidrStatus::REJECTED));
}

#[test]
fn a_question_is_no_connection() {
    let mut world = World::new();
    let id = world.sidr_request(A, B);
    world.run_for(1);
    let asked = world.incoming(B);
    let reply = world.agreeing(B);
    assert!(matches!(world.call(B, |cm, now| cm.reply(now, asked, &reply)), Err(Error::State { .. })));
    assert!(matches!(world.call(A, |cm, now| cm.disconnect(now, id, &[])), Err(Error::State { .. })));
    world.call(A, |cm, now| cm.destroy(now, id)).unwrap();
    assert_eq!(world.counts(A), Counts::default());
}

#[test]
fn a_new_question_with_an_old_number_is_a_new_question() {
    let mut world = World::new().willing();
    world.sidr_request(A, B);
    world.run_for(1);
    let (_, question) = world.sent[0];
    assert!(world.claim(A, B, &question).is_err());
    assert_eq!((world.times(B, Attribute::SidrRep), world.hosts[B].events.len()), (2, 1));
    // The same number in another transaction: the peer has restarted.
    let origin = world.path(A, B).origin();
    world.hosts[B].cm.on_mad(world.now, &origin, &question.emit(77, 0)).unwrap();
    world.collect(B);
    assert_eq!((world.times(B, Attribute::SidrRep), world.hosts[B].events.len()), (3, 2));
    world.run();
    world.assert_empty();
}

#[test]
fn another_question_with_the_number_of_an_undecided_one_is_dropped() {
    let mut world = World::new();
    world.sidr_request(A, B);
    world.run_for(1);
    let (_, question) = world.sent[0];
    assert_eq!(world.claim(A, B, &question), Err(Dropped::Repeated { message: Attribute::SidrReq }));
    let origin = world.path(A, B).origin();
    let dropped = world.hosts[B].cm.on_mad(world.now, &origin, &question.emit(77, 0));
    assert!(matches!(dropped, Err(Dropped::Mismatch { message: Attribute::SidrReq, .. })), "{dropped:?}");
}
