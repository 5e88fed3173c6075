//! What both halves of a queue pair notice and count. Each test delivers the packets itself.

use crate::corners::{answer, request, responder, take};
use crate::packet::OneByOne;
use crate::world::{A, Scenario, World};
use softhca_protocol::Occurrence::{
    DuplicateRequest, ImpliedNakSeqErr, LocalAckTimeoutErr, OutOfBuffer, OutOfSequence, PacketSeqErr, RnrNakRetryErr,
};
use softhca_protocol::{Outcome, Time};
use wire::{NakCode, Operation as W, Syndrome};

#[test]
fn a_responder_counts_repetitions_gaps_and_missing_receive_requests() {
    let mut responder = responder(4);
    let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8);
    assert!(!responder.tally.has_any());
    for psn in [0, 0, 2, 3] {
        let _ = responder.handle(&request(W::WriteOnly, psn, 0, 8), 8);
    }
    let _ = responder.handle(&request(W::SendOnly, 1, 0, 0), 8);
    responder.finish(Outcome::Rnr);
    assert!(responder.tally.has_any());
    let found: Vec<_> = responder.tally.take().collect();
    assert_eq!(found, [(DuplicateRequest, 2), (OutOfBuffer, 1), (OutOfSequence, 2)]);
    assert!(!responder.tally.has_any() && responder.tally.take().next().is_none());
}

#[test]
fn a_requester_counts_reports_of_its_peer_and_silence() {
    let mut world = World::new(Scenario::default());
    for _ in 0..3 {
        world.hosts[A].write(0, &[0; 2000]);
    }
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    let expiry = requester.poll_timeout().expect("a timer");
    requester.handle_timeout(Time(expiry.0 - 1));
    assert!(!requester.tally.has_any(), "it is not over");
    requester.handle_timeout(expiry);
    while requester.poll_transmit(expiry).is_some() {}
    let nak = Syndrome::Nak(NakCode::PsnSequence);
    let _ = requester.handle_response(expiry, &answer(W::Acknowledge, 102, nak), 0);
    let _ = requester.handle_response(expiry, &answer(W::Acknowledge, 102, Syndrome::RnrNak(1)), 0);
    let found: Vec<_> = requester.tally.take().collect();
    assert_eq!(found, [(LocalAckTimeoutErr, 1), (PacketSeqErr, 1), (RnrNakRetryErr, 1)]);
}

#[test]
fn a_requester_counts_answers_that_passed_the_data_of_a_read() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].read(0, 100);
    world.hosts[A].write(0, b"behind");
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(0)).is_some() {}
    let _ = requester.handle_response(Time(9), &answer(W::Acknowledge, 101, Syndrome::ACK), 0);
    assert_eq!(requester.tally.take().collect::<Vec<_>>(), [(ImpliedNakSeqErr, 1)]);
}
