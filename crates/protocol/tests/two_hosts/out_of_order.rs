//! Out-of-order packets, if the caller keeps them: what the state machines return for them, and
//! when the peer learns of a loss. The buffer itself is tested beside its code.

use crate::corners::{answer, request, responder, summary, take};
use crate::packet::{Answers, OneByOne};
use crate::world::{A, B, Scenario, World};
use softhca_protocol::{Incoming, Nak, Outcome, Responder, Service, Step, Time};
use wire::{Operation as W, Syndrome};

fn write(psn: u32) -> wire::Headers {
    request(W::WriteOnly, psn, 0, 8)
}

fn keeping() -> Responder {
    let mut responder = responder(4);
    responder.keep_out_of_order();
    responder
}

#[test]
fn a_gap_is_told_when_the_caller_says_so_and_once() {
    let mut responder = keeping();
    assert_eq!(responder.handle(&write(2), 8), Step::OutOfOrder);
    assert_eq!(responder.handle(&write(1), 8), Step::OutOfOrder);
    assert_eq!(responder.poll_transmit(), None, "nobody hears of it yet");
    responder.missed();
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 0, 0x60)));
    // Later packets are not kept, and no further NAK is sent.
    assert!(matches!(responder.handle(&write(3), 8), Step::Ignore(_)));
    responder.missed();
    assert_eq!(responder.poll_transmit(), None);
    // The kept packets are passed in when the missing one has arrived.
    for psn in [0, 1, 2] {
        assert!(matches!(take(&mut responder, &write(psn), 8), Step::Write { .. }), "{psn}");
    }
    assert_eq!(responder.handle(&write(4), 8), Step::OutOfOrder, "another gap");
}

/// A forger of packets must hit a number: packets far from the expected number are not kept.
#[test]
fn a_packet_more_than_128_ahead_is_not_kept() {
    for (psn, early) in [(128, true), (129, false), (0x7f_ffff, false)] {
        let mut responder = keeping();
        let step = responder.handle(&write(psn), 8);
        assert_eq!((step == Step::OutOfOrder, responder.has_answers()), (early, !early), "{psn}");
    }
    let mut responder = keeping();
    assert!(matches!(responder.handle(&write(0xff_ffff), 8), Step::Reply), "a repetition");
}

/// Two READs of two packets each, whose answers arrive in another order.
#[test]
fn an_answer_that_passes_data_waits_for_it() {
    let mut world = World::new(Scenario { service: Service::Rc, mtu: 1024, psn: 0xff_fffe, ..Scenario::default() });
    world.hosts[A].requester.keep_out_of_order();
    let mut answers = Vec::new();
    for _ in 0..2 {
        world.hosts[A].read(0, 2048);
        let asked = world.hosts[A].requester.poll_transmit(Time(1)).expect("a request");
        let step = world.hosts[B].responder.handle(&asked.headers, 0);
        assert!(matches!(step, Step::Read { .. }));
        world.hosts[B].responder.finish(Outcome::Done);
        answers.extend(std::iter::from_fn(|| world.hosts[B].responder.poll_transmit()).map(|answer| answer.headers));
    }
    let requester = &mut world.hosts[A].requester;
    let mut kept = Vec::new();
    for index in [2, 1, 3, 0] {
        let early = requester.lacks_data_before(&answers[index]);
        match requester.handle_response(Time(2), &answers[index], 1024) {
            Incoming::OutOfOrder => kept.push(index),
            Incoming::Place { .. } => requester.placed(Time(2), Ok(())),
            other => panic!("{other:?}"),
        }
        assert_eq!(early, index != 0, "{index}");
    }
    assert_eq!((kept, requester.losses()), (vec![2, 1, 3], 0));
    assert!(requester.poll_transmit(Time(3)).is_none(), "nothing is asked for again");
    for index in [1, 2, 3] {
        assert!(!requester.lacks_data_before(&answers[index]));
        assert!(matches!(requester.handle_response(Time(4), &answers[index], 1024), Incoming::Place { .. }), "{index}");
        requester.placed(Time(4), Ok(()));
    }
    assert_eq!(std::iter::from_fn(|| requester.poll_completion()).count(), 2);
}

/// The NAK waits for the data before it. It does not wait for an answer to the READ that it
/// refuses, because there is no such answer.
#[test]
fn a_refusal_of_a_read_that_passes_data_waits_for_no_more_than_that() {
    let mut world = World::new(Scenario { service: Service::Rc, mtu: 1024, ..Scenario::default() });
    world.hosts[A].requester.keep_out_of_order();
    let mut answers = Vec::new();
    for outcome in [Outcome::Done, Outcome::Refused(Nak::RemoteAccess)] {
        world.hosts[A].read(0, 1024);
        let asked = world.hosts[A].requester.poll_transmit(Time(1)).expect("a request");
        let _ = world.hosts[B].responder.handle(&asked.headers, 0);
        world.hosts[B].responder.finish(outcome);
        answers.push(world.hosts[B].responder.poll_transmit().expect("an answer").headers);
    }
    let requester = &mut world.hosts[A].requester;
    assert!(requester.lacks_data_before(&answers[1]));
    assert_eq!(requester.handle_response(Time(2), &answers[1], 0), Incoming::OutOfOrder);
    assert!(matches!(requester.handle_response(Time(3), &answers[0], 1024), Incoming::Place { .. }));
    requester.placed(Time(3), Ok(()));
    assert!(!requester.lacks_data_before(&answers[1]), "it has come");
    assert_eq!(requester.handle_response(Time(3), &answers[1], 0), Incoming::Nothing);
    assert_eq!((requester.losses(), requester.fatal().is_some()), (0, true));
}

#[test]
fn data_that_does_not_come_is_asked_for_again() {
    let mut world = World::new(Scenario { service: Service::Rc, mtu: 1024, psn: 5, ..Scenario::default() });
    world.hosts[A].requester.keep_out_of_order();
    world.hosts[A].read(0, 3072);
    let asked = world.hosts[A].requester.poll_transmit(Time(1)).expect("a request");
    let _ = world.hosts[B].responder.handle(&asked.headers, 0);
    world.hosts[B].responder.finish(Outcome::Done);
    let answers: Vec<_> = std::iter::from_fn(|| world.hosts[B].responder.poll_transmit()).collect();
    let requester = &mut world.hosts[A].requester;
    assert_eq!(requester.handle_response(Time(2), &answers[1].headers, 1024), Incoming::OutOfOrder);
    requester.missed_data(Time(3), answers[1].headers.psn);
    assert_eq!(requester.losses(), 1);
    let again = requester.poll_transmit(Time(3)).expect("asked again");
    assert_eq!((again.headers.psn, again.headers.reth.len), (asked.headers.psn, 3072));
    // Later answers belong to the known loss. Ghost answers belong to no loss.
    assert_eq!(requester.handle_response(Time(4), &answers[2].headers, 1024), Incoming::Nothing);
    requester.missed_data(Time(4), answers[0].headers.psn - 1);
    assert_eq!((requester.losses(), requester.fatal()), (1, None));
}

#[test]
fn an_ack_lacks_the_data_that_it_names_and_a_read_response_does_not() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].write(0, &[1; 2000]);
    world.hosts[A].read(0, 2048);
    let requester = &mut world.hosts[A].requester;
    while requester.poll_transmit(Time(1)).is_some() {}
    let lacks = |operation, psn, syndrome| requester.lacks_data_before(&answer(operation, psn, syndrome));
    for (psn, expected) in [(100, false), (101, false), (102, true), (103, true)] {
        assert_eq!(lacks(W::Acknowledge, psn, Syndrome::ACK), expected, "ACK of {psn}");
    }
    for (psn, expected) in [(101, false), (102, false), (103, true)] {
        assert_eq!(lacks(W::ReadResponseMiddle, psn, Syndrome::ACK), expected, "data of {psn}");
        assert_eq!(lacks(W::Acknowledge, psn, Syndrome::RnrNak(1)), expected, "RNR NAK of {psn}");
    }
}

/// The requester retransmits everything after the wait, so nothing is missing that could be late.
#[test]
fn during_the_wait_for_a_receiver_no_answer_is_kept() {
    let mut world = World::new(Scenario::default());
    world.hosts[A].requester.keep_out_of_order();
    world.hosts[A].read(0, 8);
    let requester = &mut world.hosts[A].requester;
    assert!(requester.poll_transmit(Time(1)).is_some());
    for (syndrome, expected) in [(Syndrome::RnrNak(1), Incoming::Nothing), (Syndrome::ACK, Incoming::Nothing)] {
        assert_eq!(requester.handle_response(Time(2), &answer(W::Acknowledge, 100, syndrome), 0), expected);
    }
    assert_eq!((requester.losses(), requester.poll_timeout()), (0, Some(Time(10_002))));
}
