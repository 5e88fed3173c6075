//! Connections between two clients of one agent: the usual way, and every other way.

use abi::Errno;
use abi::qp::state;
use abi::ucma::connection::{Accept, ConnParam, Connect, Disconnect, Ece, InitQpAttr, Listen, Notify, Reject, event};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{command, port_space};

use crate::common::TestAgent;
use crate::harness::{Channel, TCP, UDP, here, param};

/// A listener, and a client whose request it has received.
struct Pair {
    agent: TestAgent,
    server: Channel,
    client: Channel,
    listener: u32,
    active: u32,
    passive: u32,
}

impl Pair {
    fn asked() -> Self {
        let agent = TestAgent::start();
        let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
        let listener = server.listener(100, TCP, here(0), 5);
        let to = here(server.port(listener));
        let active = client.routed(200, TCP, to);
        client.connect(active, param(0x1234, b"hello"));
        let (passive, _) = server.request(100);
        Self { agent, server, client, listener, active, passive }
    }

    fn connected() -> Self {
        let mut pair = Self::asked();
        pair.server.accept(300, pair.passive, param(0x4321, b"welcome"));
        pair.client.expect(pair.active, event::CONNECT_RESPONSE);
        pair.client.use_it(pair.active);
        pair.server.expect(pair.passive, event::ESTABLISHED);
        pair
    }

    /// Checks that nothing is left when both have gone.
    fn leaves_nothing(self) {
        drop((self.server, self.client));
        self.agent.eventually("status", |status| {
            let manager = &status["manager"];
            manager["ids"] == 0 && manager["events"] == 0 && manager["connections"] == manager["resting"]
        });
    }
}

#[test]
fn connecting() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(100, TCP, here(0), 5);
    let port = server.port(listener);
    let active = client.routed(200, TCP, here(port));
    let init = client.qp_attr(active, state::INIT);
    assert_eq!((init.port_num, init.qp_state), (1, u32::from(state::INIT)));
    let ece = Ece { vendor_id: 0x1234, attr_mod: 0x5678_9abc };
    client.ok(command::CONNECT, &Connect { conn_param: param(0x1234, b"hello"), id: active, reserved: 0, ece }, &[]);

    let (passive, request) = server.request(100);
    let asked = request.conn();
    assert_eq!((asked.qp_num, &asked.private_data[..6]), (0x1234, &b"hello\0"[..]));
    assert_eq!(asked.private_data_len, 56);
    assert_eq!((asked.responder_resources, asked.initiator_depth), (2, 4), "as the receiver sees them");
    assert_eq!((asked.retry_count, asked.rnr_retry_count), (7, 6));
    assert_eq!(request.answer.ece, ece);
    let (local, remote, _) = server.addresses(passive);
    let port_of_active = client.port(active);
    assert_eq!(local, Some(abi::ucma::sockaddr::Sockaddr::Ip(here(port))));
    assert_eq!(remote, Some(abi::ucma::sockaddr::Sockaddr::Ip(here(port_of_active))));
    let rtr = server.qp_attr(passive, state::RTR);
    assert_eq!(rtr.dest_qp_num, 0x1234);
    let answer = ConnParam { responder_resources: 2, initiator_depth: 3, ..param(0x4321, b"welcome") };
    let accepted = Ece { vendor_id: 0x1234, attr_mod: 8 };
    server.ok(command::ACCEPT, &Accept { uid: 300, conn_param: answer, id: passive, reserved: 0, ece: accepted }, &[]);

    let response = client.expect(active, event::CONNECT_RESPONSE);
    assert_eq!(response.answer.ece, accepted);
    let told = response.conn();
    assert_eq!((told.qp_num, &told.private_data[..8], told.private_data_len), (0x4321, &b"welcome\0"[..], 196));
    assert_eq!((told.responder_resources, told.initiator_depth), (3, 2));
    let (rtr, rts) = (client.qp_attr(active, state::RTR), client.qp_attr(active, state::RTS));
    assert_eq!((rtr.dest_qp_num, rtr.ah_attr.is_global), (0x4321, 1));
    assert!((1..=5).contains(&rtr.path_mtu));
    client.use_it(active);
    let established = server.expect(passive, event::ESTABLISHED);
    assert_eq!(established.answer.uid, 300);
    let peer = server.qp_attr(passive, state::RTS);
    assert_eq!(peer.sq_psn, rtr.rq_psn);
    assert_eq!(server.qp_attr(passive, state::RTR).rq_psn, rts.sq_psn);
    assert_eq!(server.qp_attr(passive, state::RTR).path_mtu, rtr.path_mtu);

    let shown = agent.ask("show");
    let ids = shown["manager"]["ids"].as_array().expect("a list");
    assert_eq!(ids.iter().filter(|id| id["state"] == "ESTABLISHED").count(), 2, "{shown}");

    client.disconnect(active);
    server.expect(passive, event::DISCONNECTED);
    server.disconnect(passive);
    client.expect(active, event::DISCONNECTED);
    client.expect(active, event::TIMEWAIT_EXIT);
    server.expect(passive, event::TIMEWAIT_EXIT);
    assert_eq!(client.destroy(active), 5);
    assert_eq!(server.destroy(passive), 3);
    assert_eq!(server.destroy(listener), 1);
    agent.eventually("status", |status| status["manager"]["connections"] == 0);
}

#[test]
fn connecting_without_a_listener_is_rejected_with_8() {
    let agent = TestAgent::start();
    let mut client = Channel::open(&agent.dir);
    let active = client.routed(1, TCP, here(1));
    client.connect(active, param(1, &[]));
    let rejected = client.expect(active, event::REJECTED);
    assert_eq!(rejected.status(), 8);
    assert!(rejected.sentence.contains("nobody listens"), "{}", rejected.sentence);
    client.refused(command::DISCONNECT, &Disconnect { id: active ^ 1 }, Errno::ENOENT);
    client.destroy(active);
    agent.eventually("status", |status| status["manager"]["connections"] == status["manager"]["resting"]);
}

#[test]
fn rejecting() {
    let mut pair = Pair::asked();
    pair.server.refused(command::REJECT, &Reject { id: pair.passive, reason: 3, ..Reject::default() }, Errno::EINVAL);
    pair.server.reject(pair.passive, b"go away");
    let rejected = pair.client.expect(pair.active, event::REJECTED);
    assert_eq!((rejected.status(), &rejected.conn().private_data[..8]), (28, &b"go away\0"[..]));
    assert_eq!(rejected.conn().private_data_len, 148);
    assert!(rejected.sentence.contains("declined"), "{}", rejected.sentence);
    pair.server.refused(
        command::ACCEPT,
        &Accept { uid: 1, conn_param: param(1, &[]), id: pair.passive, ..Accept::default() },
        Errno::EINVAL,
    );
    pair.server.refused(command::REJECT, &Reject { id: pair.listener, ..Reject::default() }, Errno::EINVAL);
    pair.leaves_nothing();
}

#[test]
fn the_active_side_rejects_the_reply() {
    let mut pair = Pair::asked();
    pair.server.accept(300, pair.passive, param(0x4321, &[]));
    pair.client.expect(pair.active, event::CONNECT_RESPONSE);
    pair.client.reject(pair.active, b"no");
    assert_eq!(pair.server.expect(pair.passive, event::REJECTED).status(), 28);
    pair.leaves_nothing();
}

/// As with Linux, which sends no answer in this case: the client repeats its request, and then
/// there is room.
#[test]
fn a_full_backlog_makes_callers_wait() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(1, TCP, here(0), 2);
    let to = here(server.port(listener));
    let mut ids = Vec::new();
    for uid in 10..13 {
        let id = client.routed(uid, TCP, to);
        client.connect(id, param(uid as u32, &[]));
        ids.push(id);
    }
    // Three ids of the client, the listener, and two that wait.
    agent.eventually("status", |status| status["manager"]["ids"] == 6);
    assert!(!client.is_readable());
    for number in [10, 11] {
        assert_eq!(server.request(1).1.conn().qp_num, number);
    }
    let (passive, request) = server.request(1);
    assert_eq!(request.conn().qp_num, 12);
    server.accept(300, passive, param(0x4321, &[]));
    client.expect(ids[2], event::CONNECT_RESPONSE);
}

/// The listener is slightly late. If the machine was too busy for that, tries again.
#[test]
fn a_request_just_before_listen_reaches_the_listener() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    for _ in 0..100 {
        let listener = server.create(1, TCP);
        server.bind(listener, here(0));
        let id = client.routed(10, TCP, here(server.port(listener)));
        client.connect(id, param(0x1234, &[]));
        server.ok(command::LISTEN, &Listen { id: listener, backlog: 1 }, &[]);
        while !server.is_readable() && !client.is_readable() {
            std::thread::yield_now();
        }
        if server.is_readable() {
            let (passive, request) = server.request(1);
            assert_eq!(request.conn().qp_num, 0x1234);
            server.accept(300, passive, param(0x4321, &[]));
            client.expect(id, event::CONNECT_RESPONSE);
            return;
        }
        assert_eq!(client.expect(id, event::REJECTED).status(), 8);
        server.destroy(listener);
    }
    panic!("nobody was heard");
}

/// IP addresses in the port space of InfiniBand.
#[test]
fn the_ib_port_space_has_ip_addresses_too() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(1, port_space::IB, here(0), 2);
    let port = server.port(listener);
    let id = client.routed(10, port_space::IB, here(port));
    client.connect(id, param(0x1234, b"to you"));
    let (passive, request) = server.request(1);
    assert_eq!(&request.conn().private_data[..7], b"to you\0");
    let (local, remote, _) = server.addresses(passive);
    assert_eq!((local, remote), (Some(Sockaddr::Ip(here(port))), client.addresses(id).0));
    server.accept(300, passive, param(0x4321, b""));
    client.expect(id, event::CONNECT_RESPONSE);
    // There is no listener.
    let id = client.routed(11, port_space::IB, here(port + 1));
    client.connect(id, param(0x1235, b""));
    assert_eq!(client.expect(id, event::REJECTED).status(), 8);
}

#[test]
fn disconnecting() {
    // In every stage DISCONNECT is an error or does nothing, and the other side learns what it
    // must.
    let mut pair = Pair::asked();
    pair.client.disconnect(pair.active);
    pair.server.accept(300, pair.passive, param(1, &[]));
    pair.client.expect(pair.active, event::CONNECT_RESPONSE);
    pair.client.use_it(pair.active);
    pair.server.expect(pair.passive, event::ESTABLISHED);
    // Both sides at once.
    pair.client.disconnect(pair.active);
    pair.server.disconnect(pair.passive);
    pair.server.expect(pair.passive, event::DISCONNECTED);
    pair.client.expect(pair.active, event::DISCONNECTED);
    pair.client.disconnect(pair.active);
    pair.leaves_nothing();
    let mut pair = Pair::connected();
    pair.server.disconnect(pair.passive);
    pair.client.expect(pair.active, event::DISCONNECTED);
    pair.client.disconnect(pair.active);
    pair.server.expect(pair.passive, event::DISCONNECTED);
    let listener = pair.listener;
    pair.server.refused(command::DISCONNECT, &Disconnect { id: listener }, Errno::EINVAL);
    pair.leaves_nothing();
}

#[test]
fn data_may_come_before_the_last_word() {
    let mut pair = Pair::asked();
    pair.server.accept(300, pair.passive, param(0x4321, &[]));
    pair.client.expect(pair.active, event::CONNECT_RESPONSE);
    let notify = Notify { id: pair.passive, event: abi::event::kind::COMM_EST };
    pair.server.ok(command::NOTIFY, &notify, &[]);
    pair.server.expect(pair.passive, event::ESTABLISHED);
    pair.client.use_it(pair.active);
    assert!(!pair.server.is_readable(), "once is enough");
    pair.server.refused(command::NOTIFY, &notify, Errno::EISCONN);
    let other = Notify { id: pair.passive, event: abi::event::kind::PATH_MIG };
    pair.server.refused(command::NOTIFY, &other, Errno::EINVAL);
    pair.leaves_nothing();
}

#[test]
fn a_peer_dies_in_every_stage() {
    // After the request, the requesting side goes.
    let mut pair = Pair::asked();
    drop(std::mem::replace(&mut pair.client, Channel::open(&pair.agent.dir)));
    pair.agent.eventually("status", |status| status["manager"]["ids"] == 2);
    let accept = Accept { uid: 1, conn_param: param(1, &[]), id: pair.passive, ..Accept::default() };
    pair.server.refused(command::ACCEPT, &accept, Errno::EINVAL);
    pair.leaves_nothing();
    // After the request, the requested side goes.
    let mut pair = Pair::asked();
    drop(std::mem::replace(&mut pair.server, Channel::open(&pair.agent.dir)));
    let rejected = pair.client.expect(pair.active, event::REJECTED);
    assert!(!rejected.sentence.is_empty());
    pair.leaves_nothing();
    // The request was not even read.
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(1, TCP, here(0), 2);
    let active = client.routed(2, TCP, here(server.port(listener)));
    client.connect(active, param(1, &[]));
    assert!(server.is_readable());
    server.destroy(listener);
    assert!(!server.is_readable());
    client.expect(active, event::REJECTED);
    // Accepted, but not used yet.
    let mut pair = Pair::asked();
    pair.server.accept(300, pair.passive, param(1, &[]));
    drop(std::mem::replace(&mut pair.client, Channel::open(&pair.agent.dir)));
    pair.server.expect(pair.passive, event::REJECTED);
    pair.leaves_nothing();
    // Connected.
    let mut pair = Pair::connected();
    drop(std::mem::replace(&mut pair.client, Channel::open(&pair.agent.dir)));
    pair.server.expect(pair.passive, event::DISCONNECTED);
    pair.server.disconnect(pair.passive);
    pair.leaves_nothing();
    let mut pair = Pair::connected();
    drop(std::mem::replace(&mut pair.server, Channel::open(&pair.agent.dir)));
    pair.client.expect(pair.active, event::DISCONNECTED);
    pair.leaves_nothing();
}

#[test]
fn calls_out_of_turn_change_nothing() {
    let mut pair = Pair::asked();
    let (active, passive) = (pair.active, pair.passive);
    let accept = |id| Accept { uid: 1, conn_param: param(1, &[]), id, ..Accept::default() };
    let again = Connect { conn_param: param(1, &[]), id: active, ..Connect::default() };
    pair.client.refused(command::CONNECT, &again, Errno::EINVAL);
    pair.client.refused(command::ACCEPT, &accept(active), Errno::EINVAL);
    pair.client.refused(command::ACCEPT, &accept(passive), Errno::ENOENT);
    pair.server.refused(command::ACCEPT, &Accept { id: passive, ..Accept::default() }, Errno::EINVAL);
    let attr = InitQpAttr { response: 1, id: active, qp_state: u32::from(state::RTR) };
    pair.client.refused(command::INIT_QP_ATTR, &attr, Errno::EINVAL);
    let long = Accept { uid: 1, conn_param: param(1, &[7; 197]), id: passive, ..Accept::default() };
    pair.server.refused(command::ACCEPT, &long, Errno::EINVAL);
    pair.server.accept(300, passive, param(1, &[7; 196]));
    pair.client.expect(active, event::CONNECT_RESPONSE);
    let to = here(1);
    let id = pair.client.routed(5, TCP, to);
    let long = Connect { conn_param: param(1, &[7; 57]), id, ..Connect::default() };
    pair.client.refused(command::CONNECT, &long, Errno::EINVAL);
    let not_valid = Connect { conn_param: ConnParam { valid: 0, ..param(1, &[]) }, id, ..Connect::default() };
    pair.client.refused(command::CONNECT, &not_valid, Errno::EINVAL);
    pair.client.connect(id, param(2, &[7; 56]));
    assert_eq!(pair.client.expect(id, event::REJECTED).status(), 8);
    pair.leaves_nothing();
}

#[test]
fn a_queue_pair_that_asks_again_has_lost_its_connection() {
    let mut pair = Pair::connected();
    let to = here(pair.server.port(pair.listener));
    let again = pair.client.routed(5, TCP, to);
    pair.client.connect(again, param(0x1234, &[]));
    let gone = pair.server.expect(pair.passive, event::DISCONNECTED);
    assert!(gone.sentence.contains("another one"), "{}", gone.sentence);
    pair.leaves_nothing();
}

#[test]
fn a_datagram_listener_takes_no_connection() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(1, UDP, here(0), 2);
    let active = client.routed(2, TCP, here(server.port(listener)));
    client.connect(active, param(1, &[]));
    assert_eq!(client.expect(active, event::REJECTED).status(), 8);
}

#[test]
fn thousands_of_connections_leave_nothing() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(1, TCP, here(0), 0);
    let to = here(server.port(listener));
    for round in 0..2_000_u64 {
        let active = client.routed(round + 10, TCP, to);
        client.connect(active, param(0x100 + round as u32, &[]));
        let (passive, _) = server.request(1);
        server.accept(round + 10, passive, param(0x10_0000 + round as u32, &[]));
        client.expect(active, event::CONNECT_RESPONSE);
        client.use_it(active);
        server.expect(passive, event::ESTABLISHED);
        client.destroy(active);
        server.expect(passive, event::DISCONNECTED);
        server.destroy(passive);
    }
    let status = agent.ask("status");
    assert_eq!(status["manager"]["ids"], 1, "{status}");
    assert!(!server.is_readable() && !client.is_readable());
    drop((server, client));
    agent.eventually("status", |status| status["manager"]["connections"] == 0 && status["manager"]["timers"] == 0);
}

#[test]
fn a_user_who_decides_nothing_does_not_keep_others_from_connecting() {
    let agent = TestAgent::start_as(&agent::Config { system: true, ..agent::Config::default() });
    let (mut server, mut client) = (Channel::open(&agent.dir), Channel::open(&agent.dir));
    let listeners: Vec<u32> = (0..2).map(|_| server.listener(1, TCP, here(0), 1024)).collect();
    let ports: Vec<u16> = listeners.iter().map(|id| server.port(*id)).collect();
    let mut rejected = 0;
    for round in 0..1030 {
        let id = client.routed(5, TCP, here(ports[round % 2]));
        client.connect(id, param(0x1000 + round as u32, &[]));
        if client.is_readable() {
            assert_eq!(client.expect(id, event::REJECTED).status(), 3);
            rejected += 1;
        }
    }
    assert_eq!(rejected, 6, "1024 of one user may be undecided");
    // A decided request makes room.
    let (passive, _) = server.request(1);
    server.accept(2, passive, param(0x20_0000, &[]));
    assert_eq!(client.event().answer.event, event::CONNECT_RESPONSE);
    let id = client.routed(6, TCP, here(ports[0]));
    client.connect(id, param(0x5000, &[]));
    while server.is_readable() {
        server.event();
    }
    // A channel with very many events and ids ends as fast as any other.
    drop((server, client));
    agent.eventually("status", |status| status["manager"]["ids"] == 0 && status["manager"]["channels"] == 0);
}
