//! Repetitions: the last message is sent again, byte for byte, to a peer that has not received it,
//! and to no other host.

use super::world::{A, B, World};
use softhca_protocol::cm::{Attribute, CmState, Dropped, Id, Kind, Reason, Request, Suggestion};
use wire::Qpn;
use wire::cm::{Apr, AprStatus, Lap, Message, Rej, Rep};

/// REQ was answered with REP.
fn answered(world: &mut World) -> (Id, Id) {
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.reply(B, passive);
    (id, passive)
}

#[test]
fn a_lost_rej_is_sent_again_with_the_same_private_data() {
    let mut world = World::new();
    let (id, passive) = answered(&mut world);
    world.run_for(1);
    world.lose.push((A, Attribute::Rej));
    world.call(A, |cm, now| cm.reject(now, id, Reason::NO_QP, b"none", b"sorry")).unwrap();
    world.run_for(3_000);
    let told = world.hosts[B].events_of(passive);
    assert!(
        matches!(told.last(), Some(Kind::Rejected(rej)) if rej.reason == Reason::NO_QP && rej.private_data.starts_with(b"sorry")),
        "{told:?}"
    );
}

#[test]
fn a_lost_drep_is_sent_again_with_the_same_private_data() {
    let mut world = World::new();
    // The packet life time is long, so that the time-wait is longer than the time between retries.
    let request = Request { ack_timeout: 20, ..world.asking(A, B) };
    let active = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    world.run_for(1);
    let passive = world.incoming(B);
    world.reply(B, passive);
    world.run_for(1);
    world.call(A, |cm, _| cm.ready(active, &[])).unwrap();
    world.run_for(1);
    world.lose.push((B, Attribute::Drep));
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.run_for(1);
    world.call(B, |cm, now| cm.disconnect(now, passive, b"farewell")).unwrap();
    world.run_for(3_000);
    let told = world.hosts[A].events_of(active);
    let farewell = told
        .iter()
        .any(|kind| matches!(kind, Kind::Disconnected { private_data: Some(data) } if data.starts_with(b"farewell")));
    assert!(farewell, "{told:?}");
}

#[test]
fn a_repeated_req_after_a_late_rej_gets_the_rej_again() {
    let mut world = World::new();
    let (id, passive) = answered(&mut world);
    world.hosts[A].cm.on_time(world.now);
    let (_, req) = world.sent[0];
    world.call(B, |cm, now| cm.reject(now, passive, Reason::NO_RESOURCES, &[], &[])).unwrap();
    assert_eq!(world.state(B, passive), CmState::TimeWait);
    let before = world.sent.len();
    assert!(world.claim(A, B, &req).is_err());
    assert!(matches!(&world.sent[before..], [(B, Message::Rej(rej))] if rej.reason == Reason::NO_RESOURCES));
    world.run_for(1);
    assert_eq!(world.state(A, id), CmState::Idle);
}

#[test]
fn a_repeated_req_after_a_received_rej_is_dropped() {
    let mut world = World::new();
    let (id, passive) = answered(&mut world);
    world.run_for(1);
    let (_, req) = world.sent[0];
    world.call(A, |cm, now| cm.reject(now, id, Reason::CONSUMER_DEFINED, &[], &[])).unwrap();
    world.run_for(1);
    assert_eq!(world.state(B, passive), CmState::Declined);
    let before = world.sent.len();
    assert_eq!(world.claim(A, B, &req), Err(Dropped::Repeated { message: Attribute::Req }));
    assert_eq!(world.sent.len(), before);
}

#[test]
fn an_answer_to_who_never_asked_is_not_even_rejected() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.run_for(1);
    world.call(B, |cm, now| cm.disconnect(now, passive, &[])).unwrap();
    let facts = world.hosts[B].cm.connection(passive).unwrap();
    assert_eq!(facts.state, CmState::TimeWait);
    let rep = Rep { local_comm_id: facts.remote_comm_id, remote_comm_id: facts.local_comm_id, ..Rep::default() };
    let before = world.sent.len();
    assert!(matches!(world.claim(A, B, &Message::Rep(rep)), Err(Dropped::Mismatch { .. })));
    assert_eq!(world.sent.len(), before);
}

#[test]
fn an_adapter_alone_can_only_give_up() {
    let mut world = World::new();
    let (_, passive) = answered(&mut world);
    let facts = world.hosts[B].cm.connection(passive).unwrap();
    let mut rej = Rej { local_comm_id: facts.remote_comm_id, info_len: 8, ..Rej::new(Reason::CONSUMER_DEFINED) };
    rej.info = wire::cm::Data::new(&world.hosts[A].ca_guid.to_be_bytes()).unwrap();
    assert!(matches!(world.claim(A, B, &Message::Rej(rej)), Err(Dropped::Unknown { .. })));
    assert_eq!(world.state(B, passive), CmState::RepSent);
    rej.reason = Reason::TIMEOUT;
    rej.info_len = 7;
    assert!(matches!(world.claim(A, B, &Message::Rej(rej)), Err(Dropped::Unknown { .. })));
    rej.info_len = 8;
    world.claim(A, B, &Message::Rej(rej)).unwrap();
    assert_eq!(world.state(B, passive), CmState::Declined);
}

#[test]
fn more_than_was_asked_for_is_not_used() {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    let mut reply = world.agreeing(B);
    (reply.responder_resources, reply.initiator_depth) = (16, 16);
    world.call(B, |cm, now| cm.reply(now, passive, &reply)).unwrap();
    world.run_for(1);
    let facts = world.hosts[A].cm.connection(id).unwrap();
    assert_eq!((facts.responder_resources, facts.initiator_depth), (4, 3));
}

#[test]
fn an_alternate_path_holds_when_both_want_it() {
    for failover_accepted in 0..3 {
        let mut world = World::new();
        let mut request = world.asking(A, B);
        let mut other = request.path;
        (other.sgid[15], other.dgid[15]) = (101, 102);
        request.alternate = Some(other);
        let id = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
        world.run_for(1);
        let passive = world.incoming(B);
        let mut reply = world.agreeing(B);
        reply.failover_accepted = failover_accepted;
        world.call(B, |cm, now| cm.reply(now, passive, &reply)).unwrap();
        world.run_for(1);
        let [one, back] =
            [(A, id), (B, passive)].map(|(host, id)| world.hosts[host].cm.connection(id).unwrap().alternate);
        if failover_accepted == 0 {
            assert_eq!((one, back.map(|path| (path.sgid, path.dgid))), (Some(other), Some((other.dgid, other.sgid))));
        } else {
            assert_eq!((one, back), (None, None));
        }
    }
}

#[test]
fn suggestions_and_their_answers_belong_together() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let suggestion = Suggestion { path: world.path(A, B), remote_response_timeout: 18, ..Suggestion::default() };
    world.call(A, |cm, now| cm.load_path(now, active, &suggestion)).unwrap();
    let facts = world.hosts[A].cm.connection(active).unwrap();
    let apr = Apr { local_comm_id: facts.remote_comm_id, remote_comm_id: facts.local_comm_id, ..Apr::default() };
    // Another transaction: the late answer to an earlier suggestion.
    assert!(matches!(world.claim(B, A, &Message::Apr(apr)), Err(Dropped::Unexpected { .. })));
    assert_eq!(world.hosts[A].cm.connection(active).unwrap().alternate, None);

    let facts = world.hosts[B].cm.connection(passive).unwrap();
    let lap = Lap {
        local_comm_id: facts.remote_comm_id,
        remote_comm_id: facts.local_comm_id,
        remote_qpn: Qpn::new(facts.local_qpn.value() + 1),
        ..Lap::default()
    };
    let from = world.path(A, B).origin();
    let dropped = world.hosts[B].cm.on_mad(world.now, &from, &Message::Lap(lap).emit(3, 0));
    assert!(matches!(dropped, Err(Dropped::Mismatch { .. })), "{dropped:?}");

    // The end of the connection removes the suggestion at once.
    world.run_for(1);
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.run_for(1);
    assert_eq!(world.state(B, passive), CmState::DreqRcvd);
    assert!(world.call(B, |cm, _| cm.answer_path(passive, AprStatus::LOADED, &[], &[])).is_err());
}
