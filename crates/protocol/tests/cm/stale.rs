//! Stale connections: queue pairs that are still connected here when their owner requests another
//! connection, and numbers that are used twice.

use super::world::{A, B, Manner, World};
use softhca_protocol::cm::{Attribute, CmState, Dropped, Id, Kind, Reason, Reply, Request};
use wire::Qpn;
use wire::cm::{Message, Rejected, Req};

/// A request with the queue pair of an earlier request.
fn same_qpn(world: &mut World, qpn: Qpn) -> Request<'static> {
    Request { qpn, ..world.asking(A, B) }
}

/// A connection from A to B that was requested; `replied`: and whose REP is lost. Also returns A's
/// queue pair and B's id.
fn requested(replied: bool) -> (World, Qpn, Id) {
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let qpn = world.hosts[A].cm.connection(id).unwrap().local_qpn;
    let passive = world.incoming(B);
    if replied {
        world.lose.push((B, Attribute::Rep));
        world.reply(B, passive);
    }
    (world, qpn, passive)
}

#[test]
fn a_queue_pair_that_comes_again_ends_its_old_connection() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let qpn = world.hosts[A].cm.connection(active).unwrap().local_qpn;
    world.restart(A);
    let request = same_qpn(&mut world, qpn);
    let id = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    world.run();
    let events = world.hosts[A].events_of(id);
    assert!(matches!(&events[..], [Kind::Rejected(rej)] if rej.reason == Reason::STALE_CONNECTION), "{events:?}");
    let events = world.hosts[B].events_of(passive);
    // The restarted peer confirms the end of a connection that it does not know.
    assert!(matches!(events[2..], [Kind::PeerForgot, Kind::Disconnected { .. }, Kind::Rested]), "{events:?}");
    assert!(
        world.hosts[B]
            .dropped
            .contains(&Dropped::Rejected { message: Attribute::Req, reason: Reason::STALE_CONNECTION })
    );
    // Now the request succeeds.
    world.hosts[B].manner = Manner::Willing;
    let request = same_qpn(&mut world, qpn);
    let id = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    world.run_for(5);
    assert_eq!(world.state(A, id), CmState::RepRcvd);
}

#[test]
fn one_that_nobody_has_decided_about_goes_as_well() {
    for replied in [false, true] {
        let (mut world, qpn, passive) = requested(replied);
        world.restart(A);
        let request = same_qpn(&mut world, qpn);
        let id = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
        world.run();
        assert!(matches!(&world.hosts[A].events_of(id)[..], [Kind::Rejected(_)]));
        assert!(world.hosts[B].events_of(passive).contains(&Kind::PeerForgot));
        assert_eq!(world.state(B, passive), CmState::Idle);
    }
}

#[test]
fn one_that_ends_already_is_no_hindrance() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let qpn = world.hosts[A].cm.connection(active).unwrap().local_qpn;
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.run_for(1);
    assert_eq!(world.state(B, passive), CmState::DreqRcvd);
    let request = same_qpn(&mut world, qpn);
    world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    world.run_for(1);
    assert_ne!(world.incoming(B), passive);
}

/// `cmtime` of rdma-core makes up QP numbers. Each of its rounds begins with the same number, while
/// the connections of the round before are in TIMEWAIT.
#[test]
fn numbers_of_connections_in_timewait_can_come_again_at_once() {
    for (asker, asked) in [(A, B), (A, A)] {
        let mut world = World::new();
        let again = |world: &mut World| {
            let request = same_qpn(world, Qpn::new(0x1000));
            let request = Request { path: world.path(asker, asked), ..request };
            let active = world.call(asker, |cm, now| cm.request(now, &request)).unwrap();
            world.run_for(1);
            let passive = world.incoming(asked);
            let reply = Reply { qpn: Qpn::new(0x2000), ..world.agreeing(asked) };
            world.call(asked, |cm, now| cm.reply(now, passive, &reply)).unwrap();
            world.run_for(1);
            world.call(asker, |cm, _| cm.ready(active, &[])).unwrap();
            world.run_for(1);
            assert_eq!(world.state(asked, passive), CmState::Established);
            world.call(asker, |cm, now| cm.disconnect(now, active, &[])).unwrap();
            world.run_for(1);
            world.call(asked, |cm, now| cm.disconnect(now, passive, &[])).unwrap();
            world.run_for(1);
            assert_eq!(
                (world.state(asker, active), world.state(asked, passive)),
                (CmState::TimeWait, CmState::TimeWait)
            );
        };
        (0..3).for_each(|_| again(&mut world));
    }
}

/// Within one adapter, both sides of a connection use QP numbers of this adapter. A reply with the
/// QP number of the request names a connected queue pair. Linux rejects it, too.
#[test]
fn one_adapter_has_each_number_once() {
    let mut world = World::new();
    let id = world.request(A, A);
    world.run_for(1);
    let qpn = world.hosts[A].cm.connection(id).unwrap().local_qpn;
    let passive = world.incoming(A);
    let reply = Reply { qpn, ..world.agreeing(A) };
    world.call(A, |cm, now| cm.reply(now, passive, &reply)).unwrap();
    world.run();
    let told = world.hosts[A].events_of(id);
    assert!(matches!(&told[..], [Kind::Rejected(rej)] if rej.reason == Reason::STALE_CONNECTION), "{told:?}");
    assert_eq!(world.state(A, id), CmState::Idle);
}

#[test]
fn the_asked_answers_with_a_queue_pair_that_is_connected_here() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    let taken = world.hosts[B].cm.connection(passive).unwrap().local_qpn;
    world.restart(B);
    let id = world.request(A, B);
    world.run_for(1);
    let incoming = world.incoming(B);
    let mut reply = world.agreeing(B);
    reply.qpn = taken;
    world.call(B, |cm, now| cm.reply(now, incoming, &reply)).unwrap();
    world.run();
    let told = world.hosts[A].events_of(id);
    let [Kind::Rejected(rej)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((rej.reason, rej.message), (Reason::STALE_CONNECTION, Rejected::Rep));
    assert!(world.hosts[A].events_of(active).contains(&Kind::PeerForgot));
    let told = world.hosts[B].events_of(incoming);
    assert!(matches!(told.last(), Some(Kind::Rejected(rej)) if rej.reason == Reason::STALE_CONNECTION));
}

#[test]
fn a_number_used_twice_is_refused() {
    let mut world = World::new();
    world.request(A, B);
    world.run_for(1);
    let (_, Message::Req(first)) = world.sent[0] else { panic!() };
    let second = Req { local_qpn: Qpn::new(0x999), ..first };
    let reason = Reason::DUPLICATE_LOCAL_COMM_ID;
    let refused = Dropped::Rejected { message: Attribute::Req, reason };
    assert_eq!(world.claim(A, B, &Message::Req(second)), Err(refused));
    assert!(matches!(world.sent.last(), Some((B, Message::Rej(rej))) if rej.reason == reason));
    assert_eq!(world.hosts[B].events.len(), 1);
}

#[test]
fn two_agree_to_one_request() {
    // The passive side dies after REP, restarts, and agrees to a repetition of the REQ that was on
    // its way.
    let mut world = World::new();
    let id = world.request(A, B);
    world.run_for(1);
    let (_, req) = world.sent[0];
    let passive = world.incoming(B);
    world.reply(B, passive);
    world.run_for(1);
    world.call(A, |cm, _| cm.ready(id, &[])).unwrap();
    world.run_for(1);
    world.restart(B);
    world.claim(A, B, &req).unwrap();
    let second = world.incoming(B);
    world.reply(B, second);
    world.run_for(1);
    let told = world.hosts[B].events_of(second);
    let instance = Reason::INVALID_COMM_INSTANCE;
    assert!(matches!(told.last(), Some(Kind::Rejected(rej)) if rej.reason == instance), "{told:?}");
    assert_eq!(world.state(A, id), CmState::Established);
}

#[test]
fn requests_without_a_qp_are_never_stale() {
    let mut world = World::new();
    for _ in 0..3 {
        let request = same_qpn(&mut world, Qpn::new(0));
        world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    }
    world.run_for(1);
    assert_eq!(world.counts(B).undecided, 3);
}

/// The connection that its peer has forgotten ends with a REJ, which names its own numbers. Then it
/// answers repetitions of the old request for a while.
#[test]
fn a_forgotten_connection_is_rejected_by_its_own_numbers() {
    for (replied, next, rejected) in
        [(false, CmState::Declined, Rejected::Req), (true, CmState::TimeWait, Rejected::Other)]
    {
        let (mut world, qpn, passive) = requested(replied);
        let facts = world.hosts[B].cm.connection(passive).unwrap();
        world.restart(A);
        let request = same_qpn(&mut world, qpn);
        world.call(A, |cm, now| cm.request(now, &request)).unwrap();
        world.run_for(1);
        assert_eq!(world.state(B, passive), next);
        let told = world.sent.iter().find_map(|sent| match sent {
            (B, Message::Rej(rej)) if rej.local_comm_id == facts.local_comm_id => Some(*rej),
            _ => None,
        });
        let rej = told.expect("a REJ of the old connection");
        assert_eq!((rej.reason, rej.remote_comm_id), (Reason::STALE_CONNECTION, facts.remote_comm_id));
        assert_eq!(rej.message, rejected);
    }
}
