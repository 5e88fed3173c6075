//! The state of a responder that another responder continues from: what the first one remembers,
//! and what the second one then does with repetitions and with the next packets.

use crate::corners::{request, responder, summary, take};
use crate::packet::Answers;
use crate::world::{BASE, RKEY};
use softhca_protocol::{Access, Carried, Fault, KEPT, Kept, Open, Outcome, Responder, ResponseData, Standing, Step};
use wire::feth::{placement, selectivity};
use wire::{AtomicEth, Feth, Headers, Operation as W, Psn};

fn atomic(psn: u32) -> Headers {
    Headers { atomic: AtomicEth { va: BASE, rkey: RKEY, swap_add: 1, compare: 0 }, ..request(W::FetchAdd, psn, 0, 0) }
}

fn flush(psn: u32) -> Headers {
    Headers {
        feth: Feth { placement: placement::GLOBAL, selectivity: selectivity::RANGE },
        ..request(W::Flush, psn, 0, 8)
    }
}

fn serving(max_dest_rd_atomic: u8) -> Responder {
    let mut responder = responder(max_dest_rd_atomic);
    responder.set_access(Access(14 | Access::FLUSH_GLOBAL.0));
    responder
}

/// Carries out a request of each kind that is remembered, and the beginning of a SEND.
fn first() -> Responder {
    let mut responder = serving(4);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 64, 3000), 0);
    assert!(matches!(responder.handle(&atomic(3), 0), Step::Atomic { .. }));
    responder.finish(Outcome::AtomicDone(77));
    assert!(matches!(take(&mut responder, &request(W::AtomicWrite, 4, 0, 8), 8), Step::AtomicWrite { .. }));
    assert!(matches!(take(&mut responder, &flush(5), 0), Step::Flush { .. }));
    let _ = take(&mut responder, &request(W::SendFirst, 6, 0, 0), 1024);
    responder
}

fn continued(standing: &Standing) -> Responder {
    let mut responder = serving(4);
    responder.resume(standing);
    responder
}

#[test]
fn everything_that_another_responder_needs_is_in_it() {
    let kept = |first, packets, msn, va, what| {
        let (first, va, answered) = (Psn::new(first), BASE + va, false);
        Some(Kept { first, packets, va, rkey: RKEY, xrc_srq: 0, msn, what, answered })
    };
    let Standing { expected, msn, open, answers } = first().standing();
    assert_eq!((expected, msn, open), (Psn::new(7), 4, Open::Send { done: 1024 }));
    let first = [
        kept(0, 3, 1, 64, Carried::Read { len: 3000 }),
        kept(3, 1, 2, 0, Carried::Atomic { value: 77 }),
        kept(4, 1, 3, 0, Carried::Written),
        kept(5, 1, 4, 0, Carried::Flushed),
    ];
    assert_eq!(answers[..4], first);
    assert_eq!(answers[4..], [None; KEPT - 4]);
}

#[test]
fn what_was_answered_is_marked() {
    let mut responder = first();
    for _ in 0..3 {
        assert!(responder.poll_transmit().is_some());
    }
    let answered = responder.standing().answers.map(|kept| kept.is_some_and(|kept| kept.answered));
    assert_eq!(answered[..4], [true, false, false, false]);
}

#[test]
fn the_newest_are_kept_if_there_are_too_many() {
    let count = KEPT as u32 + 4;
    for begun in [count, count + 3] {
        let mut responder = responder(count as u8);
        for psn in 0..begun {
            let _ = take(&mut responder, &request(W::ReadRequest, psn, 0, 8), 0);
            assert!(responder.poll_transmit().is_some());
        }
        let kept = responder.standing().answers.map(|kept| kept.expect("all places are used").first.value());
        assert_eq!(kept.to_vec(), (begun - KEPT as u32..begun).collect::<Vec<_>>());
    }
}

#[test]
fn the_next_responder_goes_on_and_sends_nothing_by_itself() {
    let mut responder = continued(&first().standing());
    assert!(!responder.has_answers() && responder.poll_transmit().is_none());
    let step = take(&mut responder, &request(W::SendLast, 7, 0, 0), 100);
    assert!(matches!(step, Step::Receive { offset: 1024, len: 100, first: false, last: Some(_) }), "{step:?}");
    assert_eq!((responder.msn(), summary(responder.poll_transmit())), (5, Some((W::Acknowledge, 7, 0x1f))));
}

#[test]
fn the_next_responder_answers_repetitions_and_carries_out_nothing_twice() {
    let mut responder = continued(&first().standing());
    assert_eq!(responder.handle(&request(W::ReadRequest, 1, 64 + 1024, 1976), 0), Step::Reply);
    for (psn, offset, len) in [(1, 1024, 1024), (2, 2048, 952)] {
        let answer = responder.poll_transmit().expect("the data again");
        assert_eq!((answer.headers.psn, answer.headers.aeth.msn), (Psn::new(psn), 1));
        assert_eq!(answer.source, ResponseData::Read { va: BASE + 64, rkey: RKEY, offset, len, xrc_srq: 0 });
    }
    assert_eq!(responder.handle(&atomic(3), 0), Step::Reply);
    let answer = responder.poll_transmit().expect("the old value again").headers;
    assert_eq!((answer.opcode.operation, answer.atomic_ack, answer.aeth.msn), (W::AtomicAcknowledge, 77, 2));
    for (headers, msn) in [(request(W::AtomicWrite, 4, 0, 8), 3), (flush(5), 4)] {
        assert_eq!(responder.handle(&headers, 0), Step::Reply);
        let answer = responder.poll_transmit().expect("confirmed again").headers;
        assert_eq!((answer.opcode.operation, answer.aeth.msn), (W::ReadResponseOnly, msn));
    }
    assert!(matches!(responder.handle(&flush(4), 0), Step::Ignore(Fault::Forgotten { .. })));
}

/// The requester may have got every answer already, and then it sends as many requests as were
/// agreed.
#[test]
fn the_next_responder_has_room_for_as_many_requests_as_were_agreed() {
    let standing = Standing { open: Open::None, ..first().standing() };
    let mut responder = continued(&standing);
    for psn in 7..11 {
        assert!(matches!(take(&mut responder, &request(W::ReadRequest, psn, 0, 8), 0), Step::Read { .. }), "{psn}");
    }
    let answers = std::iter::from_fn(|| responder.poll_transmit()).map(|answer| answer.headers.psn.value());
    assert_eq!(answers.collect::<Vec<_>>(), [7, 8, 9, 10]);
}

/// A responder with less room keeps the newest, and replaces the oldest of them first.
#[test]
fn a_responder_with_less_room_remembers_the_newest() {
    let standing = Standing { open: Open::None, ..first().standing() };
    for (room, known) in [(0, [false; 3]), (3, [true; 3])] {
        let mut responder = serving(room);
        responder.resume(&standing);
        assert!(matches!(responder.handle(&request(W::ReadRequest, 0, 64, 3000), 0), Step::Ignore(_)));
        let again = [atomic(3), request(W::AtomicWrite, 4, 0, 8), flush(5)];
        assert_eq!(again.map(|headers| responder.handle(&headers, 0) == Step::Reply), known, "room for {room}");
        assert_eq!((responder.expected_psn(), responder.msn()), (Psn::new(7), 4));
    }
    let mut responder = serving(3);
    responder.resume(&standing);
    let _ = take(&mut responder, &request(W::ReadRequest, 7, 0, 8), 0);
    assert!(matches!(responder.handle(&atomic(3), 0), Step::Ignore(_)), "the oldest made room");
    assert_eq!(responder.handle(&flush(5), 0), Step::Reply);
}

/// A caller that carries out another responder's step has only the outcome to hand over.
#[test]
fn the_outcome_of_another_responders_step_is_kept_once() {
    let mut responder = responder(1);
    assert_eq!(responder.take_outcome(), None);
    responder.finish(Outcome::AtomicDone(5));
    assert_eq!((responder.take_outcome(), responder.take_outcome()), (Some(Outcome::AtomicDone(5)), None));
    assert_eq!(responder.expected_psn(), Psn::new(0));
    let _ = take(&mut responder, &request(W::WriteOnly, 0, 0, 8), 8);
    assert_eq!(responder.take_outcome(), None, "its own step");
}
