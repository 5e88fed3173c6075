//! End-to-end credits: how a requester uses what a responder says about its receive requests. A
//! receiver that is not ready does not get a window full of packets, and the queue never stops for
//! good.

use crate::corners::answer;
use crate::packet::OneByOne;
use crate::reliable::pattern;
use crate::world::{A, Scenario, World};
use softhca_protocol::{Incoming, Operation, Requester, SendOp, Status, Time};
use wire::{Aeth, Headers, NakCode, Operation as W, Syndrome};

const MTU: usize = 1024;
/// The codes of no credits, one credit and six credits.
const NONE: u8 = 0;
const ONE: u8 = 1;
const SIX: u8 = 5;

fn world() -> World {
    World::new(Scenario { mtu: MTU as u32, ..Scenario::default() })
}

/// Sends everything that may be sent. Returns the packet numbers, counted from the connection's
/// first, and whether each packet requests an acknowledgement.
fn burst(requester: &mut Requester) -> Vec<(u32, bool)> {
    let packets = std::iter::from_fn(|| requester.poll_transmit(Time(1)));
    packets.map(|packet| (packet.headers.psn.value() - 100, packet.headers.ack_req)).collect()
}

/// An ACK up to `number`, with `msn` completed messages and this credit code.
fn ack(number: u32, msn: u32, code: u8) -> Headers {
    let aeth = Aeth { syndrome: Syndrome::Ack(code), msn };
    Headers { aeth, ..answer(W::Acknowledge, 100 + number, aeth.syndrome) }
}

fn hear(requester: &mut Requester, headers: &Headers) {
    let _ = requester.handle_response(Time(1), headers, 0);
}

/// A requester whose peer has received one message and given these credits.
fn told(world: &mut World, code: u8) -> &mut Requester {
    world.hosts[A].send(b"first");
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester), [(0, true)]);
    hear(requester, &ack(0, 1, code));
    requester
}

#[test]
fn while_nobody_says_anything_there_is_no_limit() {
    let mut world = world();
    for _ in 0..5 {
        world.hosts[A].send(b"message");
    }
    assert_eq!(burst(&mut world.hosts[A].requester).len(), 5);
}

#[test]
fn without_a_credit_one_packet_goes_and_asks() {
    let mut world = world();
    told(&mut world, NONE);
    world.hosts[A].send(&pattern(3 * MTU));
    world.hosts[A].send(b"behind");
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester), [(1, true)]);
    // The first packet was accepted: the rest of the message needs no more credit. The next message
    // does.
    hear(requester, &ack(1, 1, NONE));
    assert_eq!(burst(requester), [(2, false), (3, true)]);
    hear(requester, &ack(3, 2, NONE));
    assert_eq!(burst(requester), [(4, true)]);
    hear(requester, &ack(4, 3, NONE));
    let ends = std::iter::from_fn(|| requester.poll_completion());
    assert_eq!(ends.map(|end| end.status).collect::<Vec<_>>(), [Status::Success; 3]);
}

#[test]
fn as_many_go_as_there_are_credits() {
    let mut world = world();
    told(&mut world, ONE);
    for _ in 0..8 {
        world.hosts[A].send(b"message");
    }
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester), [(1, true)]);
    hear(requester, &ack(1, 2, SIX));
    assert_eq!(burst(requester).len(), 6);
    // An older answer, or one whose credits are rounded down, withdraws nothing.
    hear(requester, &ack(2, 3, ONE));
    assert_eq!(burst(requester), []);
    hear(requester, &ack(7, 8, NONE));
    assert_eq!(burst(requester), [(8, true)], "limited");
}

#[test]
fn writes_reads_and_atomics_need_no_credit() {
    let mut world = world();
    told(&mut world, NONE);
    world.hosts[A].write(0, &pattern(2 * MTU));
    world.hosts[A].read(0, 100);
    world.hosts[A].fetch_add(0, 1);
    world.hosts[A].send(b"message");
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester).len(), 4, "all but the last");
    // The pieces count as messages.
    hear(requester, &ack(2, 2, SIX));
    assert_eq!(burst(requester), [(5, true)]);
}

#[test]
fn the_last_answer_may_be_repeated_with_more_credits() {
    let mut world = world();
    told(&mut world, NONE);
    for _ in 0..3 {
        world.hosts[A].send(b"message");
    }
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester), [(1, true)]);
    hear(requester, &ack(0, 1, SIX));
    assert_eq!(burst(requester), [(2, true), (3, true)]);
    // A responder that sends no credits any more sets no limit.
    hear(requester, &ack(3, 4, 31));
    for _ in 0..9 {
        world.hosts[A].send(b"message");
    }
    assert_eq!(burst(&mut world.hosts[A].requester).len(), 9);
}

#[test]
fn a_limited_message_that_is_lost_is_sent_again() {
    let mut world = world();
    told(&mut world, NONE);
    world.hosts[A].send(&pattern(2 * MTU));
    world.hosts[A].send(b"behind");
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester), [(1, true)]);
    hear(requester, &answer(W::Acknowledge, 101, Syndrome::Nak(NakCode::PsnSequence)));
    assert_eq!(burst(requester), [(1, true)], "once more, and limited as before");
    let at = requester.poll_timeout().expect("a timer");
    requester.handle_timeout(at);
    assert_eq!(requester.poll_transmit(at).map(|packet| packet.headers.psn.value()), Some(101));
}

/// Only a repetition of the last ACK may tell of new receive requests. An older one, or a repeated
/// answer to a READ, is out of date.
#[test]
fn a_ghost_answer_that_is_not_the_last_ack_gives_no_credit() {
    let mut world = world();
    told(&mut world, NONE);
    world.hosts[A].read(0, 8);
    let requester = &mut world.hosts[A].requester;
    assert_eq!(burst(requester), [(1, false)]);
    let data = Headers { aeth: ack(1, 2, NONE).aeth, ..answer(W::ReadResponseOnly, 101, Syndrome::ACK) };
    assert!(matches!(requester.handle_response(Time(1), &data, 8), Incoming::Place { .. }));
    requester.placed(Time(1), Ok(()));
    for _ in 0..3 {
        world.hosts[A].send(b"message");
    }
    let requester = &mut world.hosts[A].requester;
    hear(requester, &ack(0, 2, SIX));
    hear(requester, &Headers { aeth: ack(1, 2, SIX).aeth, ..data });
    assert_eq!(burst(requester), [(2, true)], "limited");
    hear(requester, &ack(1, 2, SIX));
    assert_eq!(burst(requester).len(), 2, "the last answer is repeated, now with credits");
}

/// The codes of two and three credits are the numbers.
#[test]
fn a_local_request_is_no_message_and_each_piece_of_a_read_is_one() {
    let mut local = world();
    told(&mut local, 2);
    local.hosts[A].write(0, b"second");
    local.hosts[A].post(SendOp { operation: Operation::LocalInv, ..SendOp::default() }, Vec::new());
    local.hosts[A].send(b"third");
    let requester = &mut local.hosts[A].requester;
    assert_eq!(burst(requester), [(1, true)]);
    assert!(requester.poll_local(Time(1)).is_some());
    requester.local_done(Ok(()));
    assert_eq!(burst(requester), [(2, true)], "the third message has a credit");

    let mut pieces = World::new(Scenario { mtu: MTU as u32, read_piece: 2, ..Scenario::default() });
    told(&mut pieces, 3);
    pieces.hosts[A].read(0, 4 * MTU);
    pieces.hosts[A].send(b"fourth");
    pieces.hosts[A].send(b"fifth");
    let requester = &mut pieces.hosts[A].requester;
    assert_eq!(burst(requester).len(), 3, "two pieces and the fourth message");
}
