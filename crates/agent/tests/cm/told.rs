//! A channel that was opened to be told. Its event socket brings the events, and a full event
//! socket loses none. A backlog counts requests that the client has not read. Quiet commands have
//! no reply.

use abi::Errno;
use abi::envelope::{RequestEnvelope, request};
use abi::layout::Record;
use abi::open::{Open, OpenAnswer, flag, profile};
use abi::ucma::connection::{Disconnect, JoinMcast, NextEvent, NextEventAnswer, WriteCmEvent, event, known};
use abi::ucma::event_message;
use abi::ucma::id::{CreateIdAnswer, DestroyId, DestroyIdAnswer, Taken, Wake};
use abi::ucma::sockaddr::Sockaddr;
use abi::ucma::{build, command};
use rustix::net::RecvFlags;
use shm::socket::Socket;

use crate::common::TestAgent;
use crate::harness::{Channel, TCP, UDP, bind, here, param, resolve};

const ROOM: usize = size_of::<NextEventAnswer>() + 512;

/// The next message of the event socket, which must be there already.
#[track_caller]
fn message(channel: &Channel) -> Vec<u8> {
    let mut bytes = vec![0; ROOM];
    let (_, len) = rustix::net::recv(&channel.event_socket, &mut bytes[..], RecvFlags::DONTWAIT).expect("a message");
    bytes.truncate(len);
    bytes
}

/// The next event, as the event socket brings it.
#[track_caller]
fn told(channel: &Channel) -> NextEventAnswer {
    channel.wait();
    NextEventAnswer::read(&message(channel)).expect("an event")
}

fn write(channel: &mut Channel, id: u32, status: u32) {
    channel.ok(
        command::WRITE_CM_EVENT,
        &WriteCmEvent { id, event: event::USER, status, ..WriteCmEvent::default() },
        &[],
    );
}

#[test]
fn told_events() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::told(&agent.dir), Channel::told(&agent.dir));
    let listener = server.listener(100, TCP, here(0), 2);
    let to = here(server.port(listener));
    let active = client.create(200, TCP);
    client.ok(command::BIND, &bind(active, here(0)), &[]);
    client.ok(command::RESOLVE_ADDR, &resolve(active, to), &[]);
    let event = told(&client);
    assert_eq!((event.event.event, event.event.uid, event.counts), (event::ADDR_RESOLVED, 200, active));
    assert_eq!(event.known, known::ADDRESSES | known::INIT);
    assert_eq!(event.addresses, client.addresses(active).2);
    client.refused(command::NEXT_EVENT, &NextEvent { reserved: 0 }, Errno::ENOSPC);
    let answer = client.call(command::NEXT_EVENT, &NextEvent { reserved: 0 }, &[], ROOM);
    assert_eq!(answer.status, Errno::EAGAIN.to_status(), "it is not in the channel any more");
    client.ok(command::RESOLVE_ROUTE, &abi::ucma::address::ResolveRoute { id: active, timeout_ms: 2000 }, &[]);
    assert_eq!(told(&client).event.event, event::ROUTE_RESOLVED);
    client.connect(active, param(0x1234, b"hello"));
    let asked = told(&server);
    assert_eq!((asked.event.event, asked.event.uid, asked.counts), (event::CONNECT_REQUEST, 100, listener));
    assert_ne!((asked.event.id, asked.known & known::RTS), (listener, 0));
    client.destroy(active);
    server.destroy(asked.event.id);
    let body = DestroyId { response: 1, id: listener, reserved: 0 };
    let answer: DestroyIdAnswer = server.call(command::DESTROY_ID, &body, &[], 8).get(0);
    assert_eq!((answer.events_reported, answer.event_bytes), (1, 0));
    let refused = server.refused(command::WAKE, &Wake { count: 1 << 17, reserved: 0 }, Errno::EINVAL);
    assert!(refused.contains("131072"), "{refused}");
    server.ok(command::WAKE, &Wake { count: 2, reserved: 0 }, &[]);
    assert_eq!(
        (message(&server), message(&server), server.is_readable()),
        (vec![event_message::WOKEN], vec![event_message::WOKEN], false)
    );
    let mut asks = Channel::open(&agent.dir);
    asks.refused(command::WAKE, &Wake { count: 1, reserved: 0 }, Errno::EINVAL);
}

#[test]
fn a_full_bell_loses_nothing_and_keeps_the_order() {
    const COUNT: u32 = 3000;
    let agent = TestAgent::start();
    let mut channel = Channel::told(&agent.dir);
    let id = channel.create(7, TCP);
    for status in 0..COUNT {
        write(&mut channel, id, status);
    }
    for status in 0..COUNT {
        assert_eq!(told(&channel).event.status, status);
    }
    assert!(!channel.is_readable());
    // Events that have found no room yet go with their id.
    for status in 0..COUNT {
        write(&mut channel, id, status);
    }
    let body = DestroyId { response: 1, id, reserved: 0 };
    let answer: DestroyIdAnswer = channel.call(command::DESTROY_ID, &body, &[], 8).get(0);
    assert!(answer.events_reported > COUNT && answer.events_reported < 2 * COUNT, "{answer:?}");
    assert_eq!(answer.event_bytes, 0);
    for status in 0..answer.events_reported - COUNT {
        assert_eq!(told(&channel).event.status, status);
    }
    assert!(!channel.is_readable());
}

#[test]
fn events_of_memberships_are_asked_for() {
    let agent = TestAgent::start();
    let mut channel = Channel::told(&agent.dir);
    let id = channel.create(1, UDP);
    channel.bind(id, here(0));
    let (addr, addr_size) = Sockaddr::Ip(([239, 1, 2, 3], 0).into()).emit();
    let join = JoinMcast { response: 1, uid: 77, id, addr_size, addr, ..JoinMcast::default() };
    let member = channel.call(command::JOIN_MCAST, &join, &[], 4).get::<CreateIdAnswer>(0).id;
    assert_eq!(message(&channel), [event_message::ASK]);
    let answer: NextEventAnswer = channel.call(command::NEXT_EVENT, &NextEvent { reserved: 0 }, &[], ROOM).get(0);
    assert_eq!((answer.event.event, answer.event.id, answer.counts), (event::MULTICAST_JOIN, member, 0));
    let body = DestroyId { response: 1, id: member, reserved: 0 };
    let answer: DestroyIdAnswer = channel.call(command::LEAVE_MCAST, &body, &[], 8).get(0);
    assert_eq!((answer.events_reported, answer.event_bytes), (1, 0));
}

#[test]
fn a_backlog_counts_the_requests_that_nobody_has_got() {
    let agent = TestAgent::start();
    let (mut server, mut client) = (Channel::told(&agent.dir), Channel::open(&agent.dir));
    let listener = server.listener(100, TCP, here(0), 1);
    let to = here(server.port(listener));
    let ask = |client: &mut Channel| {
        let id = client.routed(1, TCP, to);
        // Each request has its own QP.
        client.connect(id, param(id & 0xff, &[]));
        id
    };
    // The QP of a request, which tells the id that sent it.
    let asked = |request: &NextEventAnswer| {
        assert_eq!(request.event.event, event::CONNECT_REQUEST);
        request.event.param.as_conn().qp_num
    };
    let first = ask(&mut client);
    assert_eq!(asked(&told(&server)), first & 0xff);
    let second = ask(&mut client);
    // The requesting ids, the listener, and one request.
    agent.eventually("status", |status| status["manager"]["ids"] == 4);
    assert!(!server.is_readable());
    // TAKEN cannot count more requests than there were. So of two ids that repeat their requests,
    // one gets in.
    let third = ask(&mut client);
    server.ok(command::TAKEN, &Taken { id: listener, count: 1000 }, &[]);
    assert!([second & 0xff, third & 0xff].contains(&asked(&told(&server))));
    agent.eventually("status", |status| status["manager"]["ids"] == 6);
    assert!(!server.is_readable());
    assert!(!client.is_readable(), "nobody is turned away");
}

#[test]
fn quiet_commands_have_no_reply_and_their_order() {
    let agent = TestAgent::start();
    let mut channel = Channel::open(&agent.dir);
    let id = channel.create(1, TCP);
    for status in 0..3 {
        let body = WriteCmEvent { id, event: event::USER, status, ..WriteCmEvent::default() };
        channel.quiet(&build(command::WRITE_CM_EVENT, &body, &[], 0));
        channel.quiet(&build(command::DISCONNECT, &Disconnect { id: 0xdead }, &[], 0));
    }
    // A command that waits for a reply gets its own reply.
    write(&mut channel, id, 3);
    for status in 0..4 {
        assert_eq!(channel.expect(id, event::USER).status(), status);
    }
}

#[test]
fn flags_that_are_not_known_are_refused() {
    let agent = TestAgent::start();
    for (node, flags) in [(abi::ucma::NODE, 2), ("uverbs0", flag::TOLD), ("uverbs0", 1 << 31)] {
        let socket = Socket::connect(&agent.dir.join(node)).expect("connected");
        let open = Open { flags, ..Open::new(profile::MAINLINE) };
        socket.send(open.bytes(), &[]).expect("sent");
        let mut bytes = [0; 16];
        let received = socket.recv(&mut bytes).expect("an answer");
        let answer = OpenAnswer::read(&bytes[..received.len]).expect("whole");
        assert_eq!(answer.status, Errno::EINVAL.to_status(), "{node} {flags}");
    }
    let mut channel = Channel::open(&agent.dir);
    let request = build(command::WAKE, &Wake { count: 0, reserved: 0 }, &[], 0);
    let envelope = RequestEnvelope { sequence: 1, flags: !request::QUIET };
    assert_eq!(channel.enveloped(&envelope, &request), Errno::EINVAL.to_status());
}
