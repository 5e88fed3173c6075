//! Requests that the caller carries out without a packet: when they may run, and what they wait
//! for.

use crate::packet::OneByOne;
use softhca_protocol::{Operation, Requester, RequesterConfig, SendOp, Service, Status, Time};
use wire::{Aeth, Headers, Opcode, Operation as W, Psn, Qpn, Syndrome, Transport};

const NOW: Time = Time(0);

fn requester() -> Requester {
    let mut requester = Requester::new(Service::Rc, 16);
    requester.configure(RequesterConfig { mtu: 1024, max_rd_atomic: 4, lossless: true, ..RequesterConfig::default() });
    requester
}

fn post(requester: &mut Requester, slot: u32, operation: Operation) {
    requester.post(SendOp { slot, operation, length: 8, ..SendOp::default() }).expect("room");
}

/// The peer acknowledges everything up to a packet.
fn acknowledge(requester: &mut Requester, psn: u32) {
    let opcode = Opcode { transport: Transport::Rc, operation: W::Acknowledge };
    let aeth = Aeth { syndrome: Syndrome::Ack(31), msn: 0 };
    let headers = Headers { opcode, psn: Psn::new(psn), dest_qp: Qpn::default(), aeth, ..Headers::default() };
    let _ = requester.handle_response(NOW, &headers, 0);
}

/// Slots and statuses of the completions.
fn completions(requester: &mut Requester) -> Vec<(u32, Status)> {
    std::iter::from_fn(|| requester.poll_completion()).map(|end| (end.slot, end.status)).collect()
}

#[test]
fn each_has_its_turn_when_nothing_is_under_way() {
    let mut one = requester();
    for (slot, operation) in [Operation::Write, Operation::Read, Operation::FetchAdd].into_iter().enumerate() {
        post(&mut one, slot as u32, operation);
    }
    for slot in 0..3 {
        assert_eq!(one.poll_direct(NOW).map(|op| op.slot), Some(slot));
        one.direct_done(Ok(()));
    }
    assert_eq!(one.poll_direct(NOW), None);
    assert_eq!(completions(&mut one), [0, 1, 2].map(|slot| (slot, Status::Success)));
    assert_eq!(one.sq_psn(), Psn::new(0), "no packet has a number of theirs");
}

#[test]
fn a_write_waits_for_writes_and_lets_everything_else_go_by_packets() {
    let mut one = requester();
    post(&mut one, 0, Operation::Write);
    assert!(one.poll_transmit(NOW).is_some());
    post(&mut one, 1, Operation::Write);
    // The first request is not answered, so the second must wait.
    assert_eq!(one.poll_direct(NOW), None);
    assert_eq!((one.next_direct().map(|op| op.slot), one.awaits_only_direct_kinds()), (Some(1), true));
    acknowledge(&mut one, 0);
    assert!(!one.awaits_only_direct_kinds(), "nothing is under way");
    assert_eq!(one.poll_direct(NOW).map(|op| op.slot), Some(1));
    one.direct_done(Ok(()));
    // A SEND may wait for its receiver without limit.
    for operation in [Operation::Send, Operation::WriteImm] {
        let mut two = requester();
        post(&mut two, 0, operation);
        assert!(two.poll_transmit(NOW).is_some());
        post(&mut two, 1, Operation::Write);
        assert_eq!((two.poll_direct(NOW), two.awaits_only_direct_kinds()), (None, false), "{operation}");
    }
}

/// A failed queue counts all requests as done, also those that never began. Counted back from
/// there, four thousand million requests seemed to be under way, and the search through them took
/// that long.
#[test]
fn a_queue_that_has_stopped_awaits_nothing() {
    for begun in 0..3 {
        let mut one = requester();
        // The queue is full, so that the search finds no other entry.
        for slot in 0..16 {
            post(&mut one, slot, Operation::Write);
        }
        for _ in 0..begun {
            assert!(one.poll_transmit(NOW).is_some());
        }
        assert_eq!(one.awaits_only_direct_kinds(), begun > 0);
        one.flush();
        assert_eq!((one.poll_direct(NOW), one.next_direct(), one.awaits_only_direct_kinds()), (None, None, false));
        assert!(completions(&mut one).into_iter().eq((0..16).map(|slot| (slot, Status::WrFlushErr))));
        post(&mut one, 16, Operation::Write);
        assert_eq!((one.poll_direct(NOW), one.next_direct(), one.awaits_only_direct_kinds()), (None, None, false));
        assert_eq!(completions(&mut one), [(16, Status::WrFlushErr)]);
    }
}

#[test]
fn one_that_fails_stops_the_queue() {
    let mut one = requester();
    for slot in 0..3 {
        post(&mut one, slot, Operation::FetchAdd);
    }
    assert!(one.poll_direct(NOW).is_some());
    one.direct_done(Err(Status::LocProtErr));
    assert_eq!((one.poll_direct(NOW), one.next_direct()), (None, None));
    assert!(one.poll_transmit(NOW).is_none());
    let expected = [(0, Status::LocProtErr), (1, Status::WrFlushErr), (2, Status::WrFlushErr)];
    assert_eq!(completions(&mut one), expected);
}

#[test]
fn nothing_begins_while_the_queue_drains() {
    let mut one = requester();
    one.drain();
    post(&mut one, 0, Operation::Write);
    assert_eq!(one.poll_direct(NOW), None);
    one.resume();
    assert!(one.poll_direct(NOW).is_some());
}

#[test]
fn poll_direct_returns_no_read_beyond_max_rd_atomic() {
    let mut one = requester();
    one.set_max_rd_atomic(0);
    post(&mut one, 0, Operation::Read);
    assert_eq!(one.poll_direct(NOW), None, "no READ may be under way");
}

#[test]
fn a_send_is_never_carried_out_without_a_packet_and_neither_is_anything_unreliable() {
    let mut one = requester();
    post(&mut one, 0, Operation::Send);
    assert_eq!((one.poll_direct(NOW), one.next_direct(), one.may_be_direct()), (None, None, false));
    let mut one = Requester::new(Service::Uc, 16);
    one.configure(RequesterConfig { mtu: 1024, ..RequesterConfig::default() });
    post(&mut one, 0, Operation::Write);
    assert_eq!((one.poll_direct(NOW), one.next_direct()), (None, None));
}

/// The place of the next request in the queue's memory still has an old one.
#[test]
fn an_empty_queue_returns_no_request_that_is_over() {
    let mut one = requester();
    for slot in 0..8 {
        assert!(!one.may_be_direct() && one.next_direct().is_none() && one.poll_direct(NOW).is_none(), "{slot}");
        post(&mut one, slot, Operation::Write);
        assert!(one.may_be_direct());
        assert_eq!(one.next_direct().map(|op| op.slot), Some(slot));
        assert_eq!(one.poll_direct(NOW).map(|op| op.slot), Some(slot));
        one.direct_done(Ok(()));
    }
    assert!(!one.may_be_direct() && one.next_direct().is_none() && one.poll_direct(NOW).is_none());
}

/// The peer may have carried it out already.
#[test]
fn a_request_to_be_retransmitted_goes_by_packets() {
    let mut one = requester();
    post(&mut one, 0, Operation::Write);
    assert!(one.poll_transmit(NOW).is_some());
    one.set_retry_cnt(1);
    let nak = Headers {
        opcode: Opcode { transport: Transport::Rc, operation: W::Acknowledge },
        aeth: Aeth { syndrome: Syndrome::Nak(wire::NakCode::PsnSequence), msn: 0 },
        ..Headers::default()
    };
    let _ = one.handle_response(NOW, &nak, 0);
    assert_eq!((one.poll_direct(NOW), one.next_direct()), (None, None));
    assert!(one.poll_transmit(NOW).is_some());
}
