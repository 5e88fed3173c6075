//! The rules of the reliable connection, one by one: what is retransmitted after a loss, what is
//! answered, what waits.

use crate::packet::OneByOne;
use crate::world::{A, B, BASE, RKEY, Scenario, World};
use softhca_protocol::{Operation, SendOp, Status, Time, timeout};
use wire::{Headers, Operation as W, Psn};

fn world() -> World {
    World::new(Scenario::default())
}

/// Four packets at an MTU of 1024.
pub(crate) const LONG: usize = 4000;

pub(crate) fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|index| (7 * index + (index >> 8)) as u8).collect()
}

pub(crate) fn is(operation: W) -> impl Fn(&Headers) -> bool {
    move |headers| headers.opcode.operation == operation
}

pub(crate) fn psns(world: &World, host: usize) -> Vec<u32> {
    world.sent.iter().filter(|sent| sent.0 == host).map(|sent| sent.1.psn.value()).collect()
}

#[test]
fn a_message_in_pieces() {
    let mut world = world();
    world.hosts[B].receives.push_back(LONG);
    world.hosts[A].send(&pattern(LONG));
    world.run();
    assert_eq!(world.operations(A), [W::SendFirst, W::SendMiddle, W::SendMiddle, W::SendLast]);
    assert_eq!(psns(&world, A), [100, 101, 102, 103]);
    assert_eq!(world.operations(B), [W::Acknowledge]);
    assert_eq!(psns(&world, B), [103]);
    assert_eq!(world.hosts[B].received[0].0, pattern(LONG));
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

#[test]
fn messages_without_bytes() {
    let mut world = world();
    world.hosts[B].receives.extend([0, 0]);
    world.hosts[A].send(&[]);
    let nowhere = SendOp { remote_addr: u64::MAX, rkey: 0xbad, imm: 7, ..SendOp::default() };
    for operation in [Operation::Write, Operation::WriteImm, Operation::Read] {
        world.hosts[A].post(SendOp { operation, ..nowhere }, Vec::new());
    }
    world.run();
    // Neither address nor key of an empty message is checked.
    assert_eq!(world.operations(A), [W::SendOnly, W::WriteOnly, W::WriteOnlyImm, W::ReadRequest]);
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 4]);
    assert_eq!(world.hosts[B].received[1].1.imm, Some(7));
}

#[test]
fn one_ack_answers_a_batch() {
    let mut world = world();
    for _ in 0..10 {
        world.hosts[B].receives.push_back(8);
        world.hosts[A].send(b"message");
    }
    world.run();
    assert_eq!(psns(&world, B), [109]);
    let (_, ack) = world.sent.last().expect("an ACK");
    assert_eq!((ack.aeth.msn, ack.aeth.syndrome), (10, wire::Syndrome::ACK));
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 10]);
}

#[test]
fn an_ack_never_passes_the_answer_to_a_read() {
    let mut world = world();
    world.hosts[B].receives.extend([8, 8]);
    world.hosts[A].send(b"before");
    world.hosts[A].read(0, 3000);
    world.hosts[A].send(b"after");
    world.run();
    assert_eq!(world.operations(B), [W::ReadResponseFirst, W::ReadResponseMiddle, W::ReadResponseLast, W::Acknowledge]);
    // A READ takes as many packet numbers as its answer has packets.
    assert_eq!(psns(&world, A), [100, 101, 104]);
    assert_eq!(psns(&world, B), [101, 102, 103, 104]);
    let msns: Vec<_> =
        world.sent[3..].iter().filter(|sent| sent.1.opcode.has_aeth()).map(|sent| sent.1.aeth.msn).collect();
    assert_eq!(msns, [2, 2, 3]);
}

#[test]
fn a_lost_packet_is_asked_for_once_and_everything_from_it_on_sent_again() {
    let mut world = world();
    world.hosts[B].receives.push_back(LONG);
    world.lose_nth(A, 0, is(W::SendMiddle));
    world.hosts[A].send(&pattern(LONG));
    world.run();
    assert_eq!(psns(&world, A), [100, 101, 102, 103, 101, 102, 103]);
    let nak = &world.sent[4].1;
    assert_eq!((nak.aeth.syndrome.as_u8(), nak.psn), (0x60, Psn::new(101)));
    assert_eq!(world.count(B, W::Acknowledge), 2, "one NAK, one ACK");
    assert_eq!(world.hosts[B].received[0].0, pattern(LONG));
    assert_eq!(world.now, Time(4000), "no timer was needed");
}

#[test]
fn a_lost_end_is_sent_again_after_the_timeout() {
    let mut world = world();
    world.hosts[B].receives.push_back(LONG);
    world.lose_nth(A, 0, is(W::SendLast));
    world.hosts[A].send(&pattern(LONG));
    world.run();
    assert_eq!(psns(&world, A), [100, 101, 102, 103, 100, 101, 102, 103]);
    assert_eq!(world.now, Time(2000).after(timeout(10).expect("a time")));
    assert_eq!(world.hosts[B].received.len(), 1);
}

#[test]
fn a_lost_ack_makes_repetitions_that_are_not_carried_out() {
    let mut world = world();
    world.hosts[B].receives.push_back(LONG);
    world.lose_nth(B, 0, is(W::Acknowledge));
    world.hosts[A].send(&pattern(LONG));
    world.run();
    assert_eq!(psns(&world, B), [103, 103], "repetitions are acknowledged with the newest number");
    assert_eq!(world.hosts[B].received.len(), 1);
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
}

#[test]
fn a_read_resumes_at_the_first_missing_packet() {
    let mut world = world();
    world.hosts[B].memory[..LONG].copy_from_slice(&pattern(LONG));
    world.lose_nth(B, 0, is(W::ReadResponseMiddle));
    world.hosts[A].read(0, LONG);
    world.run();
    let requests: Vec<_> = world.sent.iter().filter(|sent| sent.0 == A).map(|sent| sent.1).collect();
    assert_eq!(requests.len(), 2);
    assert_eq!((requests[1].psn, requests[1].reth.va, requests[1].reth.len), (Psn::new(101), BASE + 1024, 2976));
    assert_eq!(world.operations(B)[4..], [W::ReadResponseFirst, W::ReadResponseMiddle, W::ReadResponseLast]);
    assert_eq!(world.hosts[A].local[0], pattern(LONG));
    assert_eq!(world.now, Time(4000), "the packets behind the missing one told, no timer was needed");
}

#[test]
fn a_read_whose_end_is_lost_resumes_after_the_timeout() {
    let mut world = world();
    world.hosts[B].memory[..LONG].copy_from_slice(&pattern(LONG));
    world.lose_nth(B, 0, is(W::ReadResponseLast));
    world.hosts[A].read(0, LONG);
    world.run();
    assert_eq!(psns(&world, A), [100, 103]);
    assert_eq!(world.hosts[A].local[0], pattern(LONG));
}

#[test]
fn an_answer_that_passes_a_read_says_that_it_was_lost() {
    let mut world = world();
    world.hosts[B].receives.push_back(8);
    world.lose_nth(B, 0, is(W::ReadResponseOnly));
    world.hosts[A].read(0, 8);
    world.hosts[A].send(b"after");
    world.run();
    assert_eq!(psns(&world, A), [100, 101, 100, 101]);
    assert_eq!(world.hosts[A].completions, [(0, Status::Success), (1, Status::Success)]);
    assert_eq!(world.hosts[B].received.len(), 1);
    assert_eq!(world.now, Time(4000));
}

#[test]
fn an_atomic_is_carried_out_once_however_often_it_is_sent() {
    let mut world = world();
    let mut lost = 0;
    world.lose = Box::new(move |_, headers| {
        let hit = headers.opcode.operation == W::AtomicAcknowledge && lost < 3;
        lost += u32::from(hit);
        hit
    });
    world.hosts[A].fetch_add(0, 5);
    world.run();
    assert_eq!(world.count(A, W::FetchAdd), 4);
    assert_eq!((world.hosts[B].atomics, world.hosts[B].word(0)), (1, 5));
    assert_eq!(world.hosts[A].local[0], [0; 8], "the word as it was the first time");
}

#[test]
fn as_many_atomics_are_remembered_as_were_agreed() {
    for depth in [1, 4, 16] {
        let mut world = World::new(Scenario { rd_atomic: depth, ..Scenario::default() });
        let mut lost = 0;
        // The answers to everything that may be under way, twice.
        world.lose = Box::new(move |_, headers| {
            let hit = headers.opcode.operation == W::AtomicAcknowledge && lost < 2 * u32::from(depth);
            lost += u32::from(hit);
            hit
        });
        for _ in 0..depth {
            world.hosts[A].fetch_add(0, 5);
        }
        world.run();
        assert_eq!((world.hosts[B].atomics, world.hosts[B].word(0)), (depth.into(), 5 * u64::from(depth)));
        let words = world.hosts[A].local.iter().map(|word| u64::from_ne_bytes(word[..8].try_into().expect("a word")));
        assert!(words.eq((0..u64::from(depth)).map(|before| 5 * before)), "each got its own answer");
    }
}

#[test]
fn no_more_reads_at_once_than_agreed() {
    let mut world = World::new(Scenario { rd_atomic: 2, ..Scenario::default() });
    for _ in 0..3 {
        world.hosts[A].read(0, 8);
    }
    let now = world.now;
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(now).is_some());
    assert!(requester.poll_transmit(now).is_some());
    assert_eq!(requester.poll_transmit(now), None);
    requester.handle_timeout(requester.poll_timeout().expect("answers are awaited"));
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 3]);
}

#[test]
fn a_fence_waits_for_reads_and_atomics() {
    let mut world = world();
    world.hosts[B].receives.extend([8, 8]);
    world.hosts[A].read(0, 8);
    world.hosts[A].send(b"not so");
    world.hosts[A].fetch_add(0, 1);
    world.hosts[A].post(SendOp { fence: true, ..SendOp::default() }, b"fenced".to_vec());
    world.run();
    let order: Vec<_> = world.sent.iter().map(|sent| sent.1.opcode.operation).collect();
    let place = |wanted| order.iter().position(|&sent| sent == wanted).expect("sent");
    let fenced = order.iter().rposition(|&sent| sent == W::SendOnly).expect("sent");
    assert!(place(W::SendOnly) < place(W::ReadResponseOnly), "an unfenced SEND does not wait");
    assert!(fenced > place(W::AtomicAcknowledge));
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 4]);
}

#[test]
fn a_receiver_that_is_not_ready_gets_the_same_packet_after_its_time() {
    let mut world = world();
    world.post_receive_later(B, 30_000, 100);
    world.hosts[A].send(b"early");
    world.hosts[A].write(0, b"behind");
    world.run();
    // The receiver's RNR time is 10 µs: the tries are at 0, 12, 24 and 36 µs.
    assert_eq!(psns(&world, A), [100, 101, 100, 101, 100, 101, 100, 101]);
    assert_eq!(world.operations(B).len(), 4, "three RNR NAKs, one ACK; what follows them is dropped in silence");
    assert_eq!(world.now, Time(38_000));
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
}

#[test]
fn a_receiver_that_is_never_ready_ends_the_connection() {
    let mut world = World::new(Scenario { rnr_retry: 2, ..Scenario::default() });
    world.hosts[A].write(0, b"fine");
    world.hosts[A].send(b"early");
    world.hosts[A].write(0, b"behind");
    world.run();
    assert_eq!(world.count(A, W::SendOnly), 3);
    assert_eq!(world.hosts[A].statuses(), [Status::Success, Status::RnrRetryExcErr, Status::WrFlushErr]);
    assert_eq!(
        world.hosts[A].requester.failure().expect("failed").reason.to_string(),
        "QP 0x12 had no receive request for packet 101 in 3 tries (rnr_retry 2)"
    );
}

#[test]
fn write_with_immediate_waits_for_a_receive_request_at_its_end() {
    let mut world = world();
    world.post_receive_later(B, 5_000, 0);
    let op = SendOp { operation: Operation::WriteImm, remote_addr: BASE, rkey: RKEY, imm: 9, ..SendOp::default() };
    world.hosts[A].post(op, pattern(LONG));
    world.run();
    assert_eq!(psns(&world, A), [100, 101, 102, 103, 103], "only the last packet needs one");
    assert_eq!(world.hosts[B].memory[..LONG], pattern(LONG));
    assert_eq!(world.hosts[B].received[0].1.byte_len, LONG as u32);
}

#[test]
fn silence_ends_the_connection_after_all_retries() {
    let mut world = World::new(Scenario { retry_cnt: 3, ..Scenario::default() });
    world.lose = Box::new(|from, headers| from == A && headers.psn.since(Psn::new(101)) >= 0);
    world.hosts[A].write(0, b"heard");
    world.hosts[A].write(0, b"unheard");
    world.hosts[A].write(0, b"behind");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success, Status::RetryExcErr, Status::WrFlushErr]);
    assert_eq!(psns(&world, A), [100, 101, 102, 101, 102, 101, 102, 101, 102]);
    // The first ACK restarted the timer at 2 µs. After that, no answer came.
    assert_eq!(world.now, Time(2_000 + 4 * timeout(10).expect("a time")));
    let failure = world.hosts[A].requester.failure().expect("failed");
    assert_eq!(
        failure.reason.to_string(),
        "QP 0x12 did not acknowledge packet 101 within 4 tries (timeout code 10, retry_cnt 3)"
    );
}

#[test]
fn progress_forgives() {
    // Every other packet is lost, and one retry is allowed: each loss is followed by progress.
    let mut world = World::new(Scenario { retry_cnt: 1, ..Scenario::default() });
    let mut count = 0;
    world.lose = Box::new(move |from, _| {
        count += u32::from(from == A);
        from == A && count % 2 == 1
    });
    for _ in 0..5 {
        world.hosts[A].write(0, b"data");
        world.run();
    }
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 5]);
}

#[test]
fn without_a_timeout_the_requester_waits_for_ever() {
    let mut world = World::new(Scenario { timeout: 0, ..Scenario::default() });
    world.lose = Box::new(|from, _| from == A);
    world.hosts[A].write(0, b"data");
    world.run();
    assert_eq!((world.hosts[A].completions.len(), world.hosts[A].requester.outstanding()), (0, 1));
}

#[test]
fn answers_to_nothing_are_ignored() {
    let mut world = world();
    world.hosts[A].write(0, b"data");
    let now = world.now;
    let requester = &mut world.hosts[A].requester;
    let request = requester.poll_transmit(now).expect("a packet");
    for psn in [99, 101, 0x80_0000] {
        for syndrome in [0x1f, 0x20, 0x60, 0x61, 0x62, 0x63, 0x64] {
            let mut ghost = Headers { psn: Psn::new(psn), ..request.headers };
            ghost.opcode.operation = W::Acknowledge;
            ghost.aeth.syndrome = wire::Syndrome::from_u8(syndrome);
            let _ = requester.handle_response(now, &ghost, 0);
            ghost.opcode.operation = W::ReadResponseOnly;
            let _ = requester.handle_response(now, &ghost, 4);
        }
    }
    assert_eq!((requester.poll_completion(), requester.poll_transmit(now)), (None, None));
    assert_eq!(requester.failure(), None);
}

#[test]
fn long_messages_ask_for_acknowledgement_on_the_way() {
    let mut world = World::new(Scenario { mtu: 256, ..Scenario::default() });
    world.hosts[A].write(0, &pattern(256 * 100));
    world.run();
    let asking: Vec<_> =
        world.sent.iter().filter(|sent| sent.0 == A && sent.1.ack_req).map(|sent| sent.1.psn.value() - 100).collect();
    assert_eq!(asking, [31, 63, 95, 99]);
}

#[test]
fn the_longest_read_fills_the_window_and_the_next_request_waits() {
    let mut world = World::new(Scenario { mtu: 256, ..Scenario::default() });
    let requester = &mut world.hosts[A].requester;
    let longest = SendOp { operation: Operation::Read, length: 1 << 31, ..SendOp::default() };
    requester.post(longest).expect("room");
    requester.post(SendOp { slot: 1, ..SendOp::default() }).expect("room");
    assert!(requester.poll_transmit(Time(0)).is_some());
    assert_eq!(requester.sq_psn(), Psn::new(100 + (1 << 23)));
    assert_eq!(requester.poll_transmit(Time(0)), None);
    // One more byte exceeds the maximum message.
    requester.post(SendOp { length: (1 << 31) + 1, ..longest }).expect("room");
    requester.flush();
    let mut requester = World::new(Scenario::default()).hosts.into_iter().next().expect("a host").requester;
    requester.post(SendOp { length: (1 << 31) + 1, ..longest }).expect("room");
    assert_eq!(requester.poll_transmit(Time(0)), None);
    assert_eq!(requester.fatal(), Some(Status::LocLenErr));
}

#[test]
fn a_request_that_cannot_be_gathered_fails_in_its_place() {
    let mut world = world();
    world.hosts[A].read(0, LONG);
    world.hosts[A].unreadable = Some(world.hosts[A].write(0, b"gone"));
    world.hosts[A].write(0, b"behind");
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success, Status::LocProtErr, Status::WrFlushErr]);
    assert_eq!(world.operations(A), [W::ReadRequest], "nothing of it and nothing behind it is sent");
    // Later requests are flushed.
    world.hosts[A].write(0, b"too late");
    world.run();
    assert_eq!(world.hosts[A].statuses()[3..], [Status::WrFlushErr]);
}

#[test]
fn data_that_cannot_be_placed_fails_its_request() {
    for atomic in [false, true] {
        let mut world = world();
        let slot = if atomic { world.hosts[A].fetch_add(0, 1) } else { world.hosts[A].read(0, LONG) };
        world.hosts[A].write(0, b"behind");
        world.hosts[A].unwritable = Some(slot);
        world.run();
        assert_eq!(world.hosts[A].statuses(), [Status::LocProtErr, Status::WrFlushErr]);
    }
}

#[test]
fn a_flush_ends_everything_in_order() {
    let mut world = world();
    world.lose = Box::new(|_, _| true);
    world.hosts[A].read(0, 8);
    world.hosts[A].write(0, b"data");
    let now = world.now;
    let host = &mut world.hosts[A];
    while host.requester.poll_transmit(now).is_some() {}
    host.requester.flush();
    world.run();
    assert_eq!(world.hosts[A].completions, [(0, Status::WrFlushErr), (1, Status::WrFlushErr)]);
    assert_eq!(world.hosts[A].requester.poll_timeout(), None);
}

#[test]
fn draining_ends_what_was_begun_and_begins_nothing() {
    let mut world = world();
    world.hosts[A].write(0, &pattern(LONG));
    let now = world.now;
    let first = world.hosts[A].requester.poll_run(now).expect("a packet");
    assert_eq!(first.len, 1024);
    let requester = &mut world.hosts[A].requester;
    requester.drain();
    assert!(requester.drained(), "what was not sent was not begun");
    requester.resume();
    let _ = requester.poll_transmit(now);
    requester.drain();
    assert!(!requester.drained());
    world.hosts[A].write(0, b"behind");
    // The first packet is lost; the next ones make the receiver ask for it.
    world.run();
    assert!(world.hosts[A].requester.drained());
    assert_eq!(world.hosts[A].completions, [(0, Status::Success)]);
    world.hosts[A].requester.resume();
    world.run();
    assert_eq!(world.hosts[A].completions, [(0, Status::Success), (1, Status::Success)]);
}

#[test]
fn an_idle_queue_pair_is_small() {
    use softhca_protocol::{Requester, Responder};
    let size = std::mem::size_of::<Requester>() + std::mem::size_of::<Responder>();
    assert!(size <= 576, "{size} bytes, without what the first post and max_dest_rd_atomic take");
}
