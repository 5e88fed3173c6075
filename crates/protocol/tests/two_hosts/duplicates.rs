//! Duplicate requests: how a responder treats each kind. First requests are not tested here. IBA
//! 9.7.5.2.6, C9-150.

use crate::corners::{request, responder, summary, take};
use crate::packet::Answers;
use softhca_protocol::{Fault, Nak, Outcome, Responder, ResponseData, Step};
use wire::{Headers, Operation as W};

/// A READ of 3000 bytes takes packets 0 to 2, an atomic packet 3, a WRITE packet 4. All are
/// answered.
fn served() -> Responder {
    let mut responder = responder(4);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 3000), 0);
    let _ = responder.handle(&atomic(3), 0);
    responder.finish(Outcome::AtomicDone(42));
    let _ = take(&mut responder, &request(W::WriteOnly, 4, 0, 8), 8);
    while responder.poll_transmit().is_some() {}
    responder
}

fn atomic(psn: u32) -> Headers {
    let mut headers = request(W::FetchAdd, psn, 0, 0);
    (headers.atomic.va, headers.atomic.rkey) = (headers.reth.va, headers.reth.rkey);
    headers
}

#[test]
fn fault_duplicate_write_is_acknowledged_up_to_the_last_that_was_completed() {
    let mut responder = served();
    let _ = take(&mut responder, &request(W::WriteOnly, 5, 0, 8), 8);
    let _ = take(&mut responder, &request(W::WriteOnly, 6, 0, 8), 8);
    while responder.poll_transmit().is_some() {}
    assert_eq!(responder.handle(&request(W::WriteOnly, 4, 0, 8), 8), Step::Reply, "not carried out again");
    assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 6, 0x1f)));
    assert_eq!(responder.poll_transmit(), None);
}

#[test]
fn fault_duplicate_read_may_be_a_part_of_the_first_with_the_same_key() {
    let part = |at: u64, psn, len| request(W::ReadRequest, psn, at, len);
    for (again, packets) in
        [(part(0, 0, 3000), 3), (part(1024, 1, 1976), 2), (part(2048, 2, 952), 1), (part(0, 0, 9), 1)]
    {
        let mut responder = served();
        assert_eq!(responder.handle(&again, 0), Step::Reply);
        let answers: Vec<_> = std::iter::from_fn(|| responder.poll_transmit()).collect();
        assert_eq!(answers.len(), packets, "{again}");
        let bytes = answers.iter().map(|answer| match answer.source {
            ResponseData::Read { len, .. } => len,
            ResponseData::None => 0,
        });
        assert_eq!(bytes.sum::<u32>(), again.reth.len);
        assert_eq!(answers[0].headers.psn, again.psn);
    }
}

#[test]
fn fault_duplicate_that_is_another_request_or_forgotten_is_dropped() {
    let mut other_key = request(W::ReadRequest, 0, 0, 3000);
    other_key.reth.rkey += 1;
    let mut other_word = atomic(3);
    other_word.atomic.va += 8;
    let cases = [
        (other_key, "another key"),
        (request(W::ReadRequest, 0, 8, 100), "another address"),
        (request(W::ReadRequest, 1, 1024, 3000), "beyond the first"),
        (request(W::ReadRequest, 3, 0, 8), "an atomic before"),
        (other_word, "another word"),
        (atomic(0), "a READ before"),
        (atomic(0xff_fff0), "nothing that is remembered"),
        (request(W::ReadRequest, 0xff_fff0, 0, 8), "nothing that is remembered"),
    ];
    for (again, what) in cases {
        let mut responder = served();
        let step = responder.handle(&again, 0);
        assert!(matches!(step, Step::Ignore(Fault::Forgotten { .. })), "{what}: {step:?}");
        assert_eq!(responder.poll_transmit(), None, "{what}");
    }
}

#[test]
fn fault_duplicate_atomic_gets_the_answer_that_it_got() {
    let mut responder = served();
    assert_eq!(responder.handle(&atomic(3), 0), Step::Reply, "not carried out again");
    let again = responder.poll_transmit().expect("an answer");
    assert_eq!((again.headers.atomic_ack, again.headers.psn.value()), (42, 3));
}

#[test]
fn fault_duplicate_read_of_the_number_behind_a_read_is_dropped() {
    let mut responder = responder(1);
    let _ = take(&mut responder, &request(W::ReadRequest, 0, 0, 8), 0);
    let _ = take(&mut responder, &request(W::WriteOnly, 1, 0, 8), 8);
    let step = responder.handle(&request(W::ReadRequest, 1, 1024, 0), 0);
    assert!(matches!(step, Step::Ignore(Fault::Forgotten { .. })), "{step:?}");
}

/// Packet 2 is a READ, which no repeated ACK of an earlier packet may pass.
#[test]
fn fault_duplicate_packets_are_acknowledged_up_to_the_furthest() {
    for order in [[0, 3], [3, 0]] {
        let mut responder = responder(1);
        for (operation, psn) in [(W::WriteOnly, 0), (W::WriteOnly, 1), (W::ReadRequest, 2), (W::WriteOnly, 3)] {
            let _ = take(&mut responder, &request(operation, psn, 0, 8), if psn == 2 { 0 } else { 8 });
        }
        while responder.poll_transmit().is_some() {}
        for psn in order {
            assert_eq!(responder.handle(&request(W::WriteOnly, psn, 0, 8), 8), Step::Reply);
        }
        assert_eq!(summary(responder.poll_transmit()), Some((W::Acknowledge, 3, 0x1f)), "{order:?}");
    }
}

#[test]
fn fault_duplicate_read_of_closed_memory_leaves_nothing_to_send() {
    let mut responder = served();
    assert_eq!(responder.handle(&request(W::ReadRequest, 0, 0, 3000), 0), Step::Reply);
    assert!(responder.has_answers() && responder.poll_transmit().is_some());
    responder.read_failed(0, Nak::RemoteAccess);
    assert!(!responder.has_answers() && responder.poll_transmit().is_none() && responder.dead().is_none());
}
