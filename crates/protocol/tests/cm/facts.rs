//! What each message, event and datagram says: the numbers of the connection, the values that both
//! sides agree on, the path of an answer, and the owner.

use super::world::{A, B, LIFE, SERVICE, World, outputs};
use softhca_protocol::cm::{
    Attribute, Cm, CmState, Config, Dropped, Error, Id, Mad, Origin, Output, Path, Reason, Reply, Request,
    TransportType,
};
use wire::Qpn;
use wire::cm::{Apr, Drep, Dreq, Lap, Message, Mra, Rej, Rejected, Rep, Rtu};

fn connection(world: &World, host: usize, id: Id) -> softhca_protocol::cm::Connection {
    world.hosts[host].cm.connection(id).unwrap()
}

/// The queue pair may go to RTR before the reply.
#[test]
fn an_asked_side_knows_the_request_before_it_replies() {
    let mut world = World::new();
    let request = Request { qkey: 0x8123, srq: true, ..world.asking(A, B) };
    let active = world.call(A, |cm, now| cm.request(now, &request)).unwrap();
    world.run_for(1);
    let (one, other) = (connection(&world, A, active), connection(&world, B, world.incoming(B)));
    assert_eq!((one.active, one.service_id, one.receive_psn), (true, SERVICE, request.psn));
    assert_eq!((one.responder_resources, one.initiator_depth, one.rnr_retry_count), (4, 3, 5));
    assert_eq!((other.active, other.service_id, other.state), (false, SERVICE, CmState::ReqRcvd));
    assert_eq!((other.send_psn, other.receive_psn), (request.psn, request.psn));
    assert_eq!((other.responder_resources, other.initiator_depth), (3, 4));
    assert_eq!((other.remote_qkey, other.srq), (0x8123, true));
    let Some((A, Message::Req(req))) = world.sent.last() else { panic!("{:?}", world.sent) };
    assert_eq!((req.local_qkey, req.srq), (0x8123, true));
}

#[test]
fn a_sidr_request_is_active_and_names_its_service() {
    let mut world = World::new();
    let id = world.sidr_request(A, B);
    world.run_for(1);
    let (one, other) = (connection(&world, A, id), connection(&world, B, world.incoming(B)));
    assert_eq!((one.active, one.service_id), (true, SERVICE));
    assert_eq!((other.active, other.service_id), (false, SERVICE));
}

/// For XRC, the target's queue pair is in the field of the RD end-to-end context.
#[test]
fn an_xrc_reply_names_its_queue_pair_in_the_field_of_the_context() {
    for (transport, is_xrc) in [(TransportType::Xrc, true), (TransportType::Rc, false)] {
        let mut world = World::new();
        let request = Request { transport, ..world.asking(A, B) };
        world.call(A, |cm, now| cm.request(now, &request)).unwrap();
        world.run_for(1);
        let passive = world.incoming(B);
        let reply = Reply { qpn: Qpn::new(0x77), ..world.agreeing(B) };
        world.call(B, |cm, now| cm.reply(now, passive, &reply)).unwrap();
        let Some((B, Message::Rep(rep))) = world.sent.last() else { panic!("{:?}", world.sent) };
        let expected = if is_xrc { (0x77, 0, true) } else { (0, 0x77, false) };
        assert_eq!((rep.local_eecn, rep.local_qpn.value(), rep.srq), expected);
    }
}

/// A REJ says which message it rejects.
#[test]
fn a_rej_names_the_message_and_both_numbers() {
    for replied in [false, true] {
        let mut world = World::new();
        let active = world.request(A, B);
        world.run_for(1);
        let passive = world.incoming(B);
        let (by, id, message) = if replied { (A, active, Rejected::Rep) } else { (B, passive, Rejected::Req) };
        if replied {
            world.reply(B, passive);
            world.run_for(1);
        }
        let facts = connection(&world, by, id);
        world.call(by, |cm, now| cm.reject(now, id, Reason::CONSUMER_DEFINED, &[], &[])).unwrap();
        let Some((_, Message::Rej(rej))) = world.sent.last() else { panic!("{:?}", world.sent) };
        assert_eq!(rej.message, message);
        assert_eq!((rej.local_comm_id, rej.remote_comm_id), (facts.local_comm_id, facts.remote_comm_id));
    }
    // A REP that no connection waits for.
    let mut world = World::new();
    let rep = Rep { local_comm_id: 5, remote_comm_id: 6, ..Rep::default() };
    assert!(world.claim(A, B, &Message::Rep(rep)).is_err());
    let Some((B, Message::Rej(rej))) = world.sent.last() else { panic!("{:?}", world.sent) };
    assert_eq!((rej.message, rej.local_comm_id, rej.remote_comm_id), (Rejected::Rep, 6, 5));
}

#[test]
fn an_mra_is_waited_for_as_long_as_it_says_and_for_the_way() {
    let mut world = World::new();
    world.request(A, B);
    world.run_for(1);
    let passive = world.incoming(B);
    world.call(B, |cm, _| cm.mra(passive, 20, &[])).unwrap();
    let arrival = world.now.after(super::world::LATENCY);
    world.run_for(1);
    assert_eq!(world.hosts[A].cm.next_time(), Some(arrival.after((4096 << 20) + 2 * (4096 << LIFE))));
}

#[test]
fn a_repeated_dreq_is_no_other_message() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    world.call(A, |cm, now| cm.disconnect(now, active, &[])).unwrap();
    world.run_for(1);
    assert_eq!(world.state(B, passive), CmState::DreqRcvd);
    let (_, dreq) = *world.sent.last().unwrap();
    assert_eq!(world.claim(A, B, &dreq), Err(Dropped::Repeated { message: Attribute::Dreq }));
}

#[test]
fn a_destroyed_id_is_stale_while_its_connection_ends() {
    let mut world = World::new();
    let (active, _) = world.connect(A, B);
    world.call(A, |cm, now| cm.destroy(now, active)).unwrap();
    assert_eq!(world.counts(A).ids, 1, "it waits for the DREP");
    assert_eq!(world.hosts[A].cm.state(active), Err(Error::Stale));
}

/// The transaction's number of each REQ that a communication manager with this secret sends.
fn transactions(secret: u64, count: usize) -> Vec<u64> {
    let mut cm = Cm::new(Config { secret, ..Config::default() });
    for _ in 0..count {
        cm.request(softhca_protocol::Time(0), &Request::default()).unwrap();
    }
    let transaction = |output| match output {
        Output::Send { mad, .. } => Message::parse(&mad).unwrap().0.transaction,
        Output::Event(event) => panic!("{event:?}"),
    };
    outputs(&mut cm).into_iter().map(transaction).collect()
}

#[test]
fn no_two_transactions_have_one_number_and_the_secret_decides_which() {
    let high = |secret| transactions(secret, 100).into_iter().map(|number| number >> 32).collect::<Vec<_>>();
    let mut numbers = high(0x1234_5678_0000_0001);
    assert_ne!(numbers, high(0x8765_4321_0000_0001));
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 100);
}

/// LIDs mean nothing in another subnet. The side that asks names none, and the other side answers
/// by the router that the request came from.
#[test]
fn through_routers_each_side_has_the_lid_of_its_own_router() {
    let mut world = World::new();
    let path = Path { slid: 5, dlid: 9, hop_limit: 255, ..world.path(A, B) };
    let request = Request { path, ..world.asking(A, B) };
    world.hosts[A].cm.request(world.now, &request).unwrap();
    let sent = Vec::from(outputs(&mut world.hosts[A].cm));
    let [Output::Send { path: sent_on, mad, .. }] = &sent[..] else { panic!("{sent:?}") };
    let Message::Req(req) = Message::parse(mad).unwrap().1 else { panic!("a REQ") };
    let primary = req.primary;
    assert_eq!((primary.subnet_local, primary.local_lid, primary.remote_lid), (false, 0xffff, 0xffff));
    assert_eq!(*sent_on, path);
    let origin = Origin { router: 77, sl: 3, ..path.origin() };
    world.call(B, |cm, now| cm.on_mad(now, &origin, mad)).unwrap();
    let back = connection(&world, B, world.incoming(B)).path;
    assert_eq!((back.dlid, back.sl, back.dgid, back.hop_limit), (77, 3, path.sgid, 255));
    assert_eq!(origin.back().dlid, 77, "also without a connection");
}

/// There is no connection whose path could be used.
#[test]
fn an_answer_without_a_connection_goes_back_the_way_of_the_message() {
    let mut world = World::new();
    let path = world.path(A, B);
    let origin = Origin { flow_label: 0x12345, traffic_class: 7, hop_limit: 3, sl: 2, pkey: 0x8001, ..path.origin() };
    let mad = Message::Dreq(Dreq { local_comm_id: 1, remote_comm_id: 2, ..Dreq::default() }).emit(1, 0);
    assert!(world.hosts[B].cm.on_mad(world.now, &origin, &mad).is_err());
    let Some(Output::Send { path: back, owner, .. }) = world.hosts[B].cm.poll_output() else { panic!("a DREP") };
    let expected = Path {
        sgid: path.dgid,
        dgid: path.sgid,
        flow_label: 0x12345,
        traffic_class: 7,
        hop_limit: 64,
        sl: 2,
        pkey: 0x8001,
        ..Path::default()
    };
    assert_eq!((back, owner), (expected, 0));
}

/// Every message that can arrive for a connection with these numbers.
fn messages(local_comm_id: u32, remote_comm_id: u32) -> [Mad; 8] {
    [
        Message::Mra(Mra { local_comm_id, remote_comm_id, ..Mra::default() }),
        Message::Rej(Rej { local_comm_id, remote_comm_id, ..Rej::new(Reason::CONSUMER_DEFINED) }),
        Message::Rep(Rep { local_comm_id, remote_comm_id, ..Rep::default() }),
        Message::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }),
        Message::Dreq(Dreq { local_comm_id, remote_comm_id, ..Dreq::default() }),
        Message::Drep(Drep { local_comm_id, remote_comm_id, ..Drep::default() }),
        Message::Lap(Lap { local_comm_id, remote_comm_id, ..Lap::default() }),
        Message::Apr(Apr { local_comm_id, remote_comm_id, ..Apr::default() }),
    ]
    .map(|message| message.emit(9, 0))
}

#[test]
fn a_datagram_belongs_to_the_owner_of_its_connection() {
    let mut world = World::new();
    let (active, passive) = world.connect(A, B);
    for (host, id, owner) in [(A, active, 71), (B, passive, 72)] {
        world.call(host, |cm, _| cm.set_owner(id, owner)).unwrap();
        let facts = connection(&world, host, id);
        let origin = world.path(1 - host, host).origin();
        let mut stranger = origin;
        stranger.source[15] = 99;
        for mad in messages(facts.remote_comm_id, facts.local_comm_id) {
            assert_eq!(world.hosts[host].cm.addressee(&origin, &mad), owner);
            assert_eq!(world.hosts[host].cm.addressee(&stranger, &mad), 0, "it has guessed the number");
        }
        for mad in messages(facts.remote_comm_id, facts.local_comm_id ^ 1) {
            assert_eq!(world.hosts[host].cm.addressee(&origin, &mad), 0, "no such connection");
        }
    }
    world.hosts[A].cm.disconnect(world.now, active, &[]).unwrap();
    assert!(matches!(world.hosts[A].cm.poll_output(), Some(Output::Send { owner: 71, .. })));
}

#[test]
fn a_request_belongs_to_the_owner_of_the_id_that_it_created() {
    let mut world = World::new();
    world.request(A, B);
    world.sidr_request(A, B);
    world.run_for(1);
    let origin = world.path(A, B).origin();
    let created: Vec<_> = world.hosts[B].events.iter().map(|event| event.id).collect();
    for (number, id) in created.into_iter().enumerate() {
        let mad = world.sent[number].1.emit(9, 0);
        assert_eq!(world.hosts[B].cm.addressee(&origin, &mad), 0, "it has no owner yet");
        world.hosts[B].cm.set_owner(id, 80 + number as u32).unwrap();
        assert_eq!(world.hosts[B].cm.addressee(&origin, &mad), 80 + number as u32);
        world.call(B, |cm, now| cm.destroy(now, id)).unwrap();
        assert_eq!(world.hosts[B].cm.set_owner(id, 1), Err(Error::Stale));
    }
}
