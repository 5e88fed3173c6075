//! Corner cases of the reliable connection, in which a packet must arrive at an exact time. Each
//! test delivers the packets itself, without a network.

use crate::packet::{Answer, Answers, OneByOne};
use crate::world::{A, B, BASE, RKEY, Scenario, World};
use softhca_protocol::{
    Access, Fault, Incoming, Nak, Outcome, Responder, ResponderConfig, ResponseData, SendOp, Service, Status, Step,
    Time,
};
use wire::{AtomicEth, Headers, Opcode, Operation as W, Psn, Reth, Syndrome, Transport};

pub(crate) fn responder(max_dest_rd_atomic: u8) -> Responder {
    let mut responder = Responder::new(Service::Rc);
    let (rq_psn, access) = (Psn::new(0), Access(14));
    responder.configure(ResponderConfig {
        mtu: 1024,
        rq_psn,
        max_dest_rd_atomic,
        access,
        ..ResponderConfig::default()
    });
    responder
}

pub(crate) fn request(operation: W, psn: u32, at: u64, len: u32) -> Headers {
    Headers {
        opcode: Opcode::new(Transport::Rc, operation),
        psn: Psn::new(psn),
        ack_req: true,
        reth: Reth { va: BASE + at, rkey: RKEY, len },
        ..Headers::default()
    }
}

pub(crate) fn take(responder: &mut Responder, request: &Headers, len: u32) -> Step {
    let step = responder.handle(request, len);
    responder.finish(Outcome::Done);
    step
}

pub(crate) fn answer(operation: W, psn: u32, syndrome: Syndrome) -> Headers {
    let mut headers = request(operation, psn, 0, 0);
    headers.aeth.syndrome = syndrome;
    headers
}

pub(crate) fn summary(response: Option<Answer>) -> Option<(W, u32, u8)> {
    response.map(|it| (it.headers.opcode.operation, it.headers.psn.value(), it.headers.aeth.syndrome.as_u8()))
}

#[test]
fn a_late_ack_spares_what_was_to_be_sent_again() {
    let mut world = World::new(Scenario::default());
    for _ in 0..3 {
        world.hosts[A].write(0, &[0; 2000]);
    }
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    let expiry = requester.poll_timeout().expect("a timer");
    requester.handle_timeout(expiry);
    // Everything must be retransmitted, but the answer to the first three of six packets was only
    // late.
    let _ = requester.handle_response(expiry, &answer(W::Acknowledge, 102, Syndrome::ACK), 0);
    let next = requester.poll_transmit(expiry).expect("the fourth packet");
    assert_eq!((next.headers.psn, next.headers.opcode.operation, next.offset), (Psn::new(103), W::WriteLast, 1024));
    // Now the rest is answered too.
    let _ = requester.handle_response(expiry, &answer(W::Acknowledge, 105, Syndrome::ACK), 0);
    assert_eq!((requester.poll_transmit(expiry), requester.poll_timeout()), (None, None));
    assert_eq!(std::iter::from_fn(|| requester.poll_completion()).count(), 3);
}

#[test]
fn a_repeated_rnr_nak_counts_once() {
    let mut world = World::new(Scenario { rnr_retry: 1, ..Scenario::default() });
    world.hosts[A].send(b"early");
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    for now in [1, 2, 3] {
        let _ = requester.handle_response(Time(now), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
        assert_eq!(requester.poll_transmit(Time(now)), None);
    }
    assert_eq!(requester.poll_timeout(), Some(Time(10_001)), "from the first one on");
    // A sequence NAK during the wait does not shorten it.
    let nak = Syndrome::Nak(wire::NakCode::PsnSequence);
    let _ = requester.handle_response(Time(4), &answer(W::Acknowledge, 100, nak), 0);
    assert_eq!(requester.poll_transmit(Time(4)), None);
    assert!(requester.poll_transmit(Time(10_001)).is_some());
    // An ACK ends a wait: the request was received after all.
    let _ = requester.handle_response(Time(10_002), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
    assert_eq!(requester.fatal(), Some(Status::RnrRetryExcErr));
}

#[test]
fn an_ack_ends_the_wait_for_a_receiver() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].send(b"early");
    world.hosts[A].write(0, b"behind");
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    let _ = requester.handle_response(Time(1), &answer(W::Acknowledge, 100, Syndrome::RnrNak(1)), 0);
    // A repetition of the request by the network found a receive request.
    let _ = requester.handle_response(Time(2), &answer(W::Acknowledge, 100, Syndrome::ACK), 0);
    assert_eq!(requester.poll_transmit(Time(2)).expect("at once").headers.psn, Psn::new(101));
}

#[test]
fn each_message_has_its_own_tries_for_a_receiver() {
    let mut world = World::new(Scenario { rnr_retry: 1, ..Scenario::default() });
    for after in [5_000, 20_000] {
        world.post_receive_later(B, after, 100);
        world.hosts[A].send(b"early");
    }
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success; 2]);
}

#[test]
fn a_read_completes_only_when_its_data_is_placed() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].read(0, 8);
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(0)).is_some());
    let response = answer(W::ReadResponseOnly, 100, Syndrome::ACK);
    let Incoming::Place { .. } = requester.handle_response(Time(1), &response, 8) else { panic!("data") };
    assert_eq!(requester.poll_completion(), None);
    requester.placed(Time(1), Ok(()));
    assert!(requester.poll_completion().is_some());
    requester.placed(Time(1), Ok(()));
    assert_eq!(requester.handle_response(Time(2), &response, 8), Incoming::Nothing, "a ghost now");
}

#[test]
fn a_nak_that_was_not_sent_yet_is_taken_back() {
    let mut responder = responder(1);
    assert_eq!(take(&mut responder, &request(W::WriteOnly, 1, 0, 8), 8), Step::Reply);
    assert!(matches!(take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8), Step::Write { .. }));
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 0, 0x1f)));
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn every_gap_has_its_nak() {
    let mut world = World::new(Scenario::default());
    let mut lost = Vec::new();
    world.lose = Box::new(move |from, headers| {
        let hit = from == A && [102, 105].contains(&headers.psn.value()) && !lost.contains(&headers.psn);
        if hit {
            lost.push(headers.psn);
        }
        hit
    });
    world.hosts[A].write(0, &[3; 8000]);
    world.run();
    assert_eq!(world.hosts[A].statuses(), [Status::Success]);
    assert!(world.now < Time(20_000), "both gaps were reported, no timer was needed");
}

#[test]
fn the_answer_to_a_read_is_the_ack_of_what_came_before() {
    let mut responder = responder(1);
    let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8);
    let _ = take(&mut responder, &request(W::ReadRequest, 1, 0, 8), 0);
    assert_eq!(summary(responder.poll_transmit()), Some((W::ReadResponseOnly, 1, 0x1f)));
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn a_part_of_a_read_is_answered_as_it_is_asked_for() {
    let mut responder = responder(1);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 3000), 0);
    while responder.poll_transmit().is_some() {}
    assert_eq!(responder.handle(&request(W::ReadRequest, 1, 1024, 1100), 0), Step::Reply);
    let pieces: Vec<_> = std::iter::from_fn(|| responder.poll_transmit()).collect();
    let sources: Vec<_> = pieces.iter().map(|piece| piece.source).collect();
    let piece = |offset, len| ResponseData::Read { va: BASE, rkey: RKEY, offset, len, xrc_srq: 0 };
    assert_eq!(sources, [piece(1024, 1024), piece(2048, 76)]);
    assert_eq!(pieces[0].headers.opcode.operation, W::ReadResponseFirst);
    assert_eq!(pieces[1].headers.psn, Psn::new(2));
}

#[test]
fn the_middle_of_an_answer_is_one_run() {
    let mut responder = responder(1);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 6000), 0);
    let mut run = |most| responder.poll_packets(most).map(|(packets, _)| packets);
    let numbers = |packets: Option<Vec<Headers>>| packets.map(|all| all.iter().map(|one| one.psn.value()).collect());
    assert_eq!(numbers(run(9)), Some(vec![0]), "the first packet has another opcode");
    assert_eq!(numbers(run(2)), Some(vec![1, 2]));
    assert_eq!(numbers(run(9)), Some(vec![3, 4]));
    responder.untransmit(1);
    let (packets, source) = responder.poll_packets(9).expect("the one that had no room");
    assert_eq!((packets.len(), packets[0].psn), (1, Psn::new(4)));
    assert_eq!(source, ResponseData::Read { va: BASE, rkey: RKEY, offset: 4096, len: 1024, xrc_srq: 0 });
    assert_eq!(responder.poll_packets(9).map(|(packets, _)| packets[0].opcode.operation), Some(W::ReadResponseLast));
    assert!(responder.poll_packets(9).is_none());
}

#[test]
fn a_read_that_fails_in_the_middle_of_a_run_is_refused_there() {
    let mut responder = responder(1);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 6000), 0);
    let _ = (responder.poll_packets(1), responder.poll_packets(9));
    responder.read_failed(2, Nak::RemoteAccess);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 3, 0x62)));
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn an_answer_that_was_taken_back_was_not_given() {
    let mut responder = responder(1);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 8), 0);
    let first = responder.poll_transmit();
    responder.untransmit(0);
    assert_eq!(responder.poll_transmit(), first, "it comes again");
    responder.untransmit(0);
    // The only slot is not answered yet, so a second READ is one too many.
    assert_eq!(take(&mut responder, &request(W::ReadRequest, 1, 0, 8), 0), Step::Reply);
    assert!(responder.dead().is_some());
    // The answers due before the refusal are still sent first.
    assert_eq!(responder.poll_transmit(), first);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 1, 0x61)));
    responder.untransmit(0);
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 1, 0x61)));
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn a_packet_that_is_dropped_is_as_if_it_had_never_come() {
    let mut responder = responder(1);
    for _ in 0..2 {
        let Step::Write { .. } = responder.handle(&request(W::WriteOnly, 0, 0, 8), 8) else { panic!("a WRITE") };
        responder.finish(Outcome::Dropped);
        assert_eq!((responder.expected_psn(), responder.poll_transmit()), (Psn::new(0), None));
    }
}

#[test]
fn the_message_count_wraps() {
    let mut responder = responder(0);
    for psn in 0..0x100_0001u32 {
        let _ = take(&mut responder, &request(W::WriteOnly, psn, 0, 0), 0);
    }
    assert_eq!((responder.msn(), responder.expected_psn()), (1, Psn::new(1)));
}

#[test]
fn only_the_last_packet_is_solicited() {
    let mut world = World::new(Scenario::default());
    world.hosts[B].receives.push_back(3000);
    world.hosts[A].post(SendOp { solicited: true, ..SendOp::default() }, vec![0; 3000]);
    world.run();
    let flags: Vec<_> = world.sent.iter().map(|sent| sent.1.solicited).collect();
    assert_eq!(flags, [false, false, true, false]);
    assert!(world.hosts[B].received[0].1.solicited);
}

#[test]
fn a_packet_that_is_not_sent_starts_no_timer() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].write(0, b"data");
    let requester = &mut world.hosts[A].requester;
    let run = requester.poll_run(Time(0)).expect("a packet");
    assert_eq!(requester.poll_timeout(), None);
    requester.sent(Time(0), &run);
    assert!(requester.poll_timeout().is_some());
}

#[test]
fn a_repeated_atomic_on_another_word_is_dropped() {
    let mut responder = responder(1);
    let mut atomic = request(W::FetchAdd, 0, 0, 0);
    atomic.atomic = AtomicEth { va: BASE, rkey: RKEY, swap_add: 1, compare: 0 };
    let Step::Atomic { .. } = responder.handle(&atomic, 0) else { panic!("an atomic") };
    responder.finish(Outcome::AtomicDone(7));
    for (va, rkey) in [(BASE + 8, RKEY), (BASE, RKEY + 1)] {
        atomic.atomic = AtomicEth { va, rkey, ..atomic.atomic };
        assert!(matches!(responder.handle(&atomic, 0), Step::Ignore(Fault::Forgotten { .. })));
    }
}

#[test]
fn a_requester_that_goes_on_needs_no_repetition() {
    let mut responder = responder(1);
    let first = request(W::ReadRequest, 0, 0, 8);
    let _ = take(&mut responder, &first, 0);
    assert!(responder.poll_transmit().is_some());
    // The network repeats the first READ, and the requester sends a second one. The only slot now
    // belongs to the second.
    assert_eq!(responder.handle(&first, 0), Step::Reply);
    let _ = take(&mut responder, &request(W::ReadRequest, 1, 0, 8), 0);
    assert_eq!(summary(responder.poll_transmit()), Some((W::ReadResponseOnly, 1, 0x1f)));
    assert!(!responder.has_answers());
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn the_longest_message_and_one_byte_more() {
    let mut responder = Responder::new(Service::Rc);
    responder.configure(ResponderConfig { mtu: 32768, ..ResponderConfig::default() });
    for psn in 0..65536 {
        let step = take(&mut responder, &request([W::SendFirst, W::SendMiddle][psn.min(1) as usize], psn, 0, 0), 32768);
        assert!(matches!(step, Step::Receive { .. }));
    }
    assert_eq!(take(&mut responder, &request(W::SendLast, 65536, 0, 0), 1), Step::Reply);
    assert!(matches!(responder.dead().expect("refused").fault, Fault::Length { .. }));
}

#[test]
fn only_the_last_bytes_of_a_read_are_the_last() {
    let mut world = World::new(Scenario { read_piece: 2, ..Scenario::default() });
    world.hosts[A].read(0, 4096);
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    for (psn, operation) in [
        (100, W::ReadResponseFirst),
        (101, W::ReadResponseLast),
        (102, W::ReadResponseFirst),
        (103, W::ReadResponseLast),
    ] {
        let incoming = requester.handle_response(Time(1), &answer(operation, psn, Syndrome::ACK), 1024);
        let offset = 1024 * (psn - 100);
        assert_eq!(incoming, Incoming::Place { slot: 0, offset, len: 1024, last: psn == 103 });
        requester.placed(Time(1), Ok(()));
    }
}
