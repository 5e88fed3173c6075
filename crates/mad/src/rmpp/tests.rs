//! A sender and a receiver in simulated time, with losses, reordering and hostile segments.

use super::*;
use proptest::prelude::*;
use std::time::Duration;
use wire::mad::{METHOD_GET_TABLE, RESPONSE};
use wire::rmpp::{FLAG_FIRST, FLAG_LAST, TYPE_ABORT, TYPE_ACK, TYPE_DATA, TYPE_STOP};

const MS: Duration = Duration::from_millis(1);

fn headers() -> Mad {
    let mut mad = [0; MAD_LEN];
    let method = METHOD_GET_TABLE | RESPONSE;
    Header { base_version: 1, class: CLASS_SA, class_version: 2, method, transaction: 9, ..Header::default() }
        .emit_to(&mut mad);
    mad[45] = 14;
    mad
}

fn sender(len: usize) -> Sender {
    patient(len, 3)
}

fn patient(len: usize, retries: u32) -> Sender {
    let data = (0..len).map(|byte| byte as u8).collect();
    Sender::new(&headers(), data, 10 * MS, retries).expect("not too long")
}

fn receiver() -> Receiver {
    Receiver::new(&headers(), Limits { longest: 1 << 20, window: 4, patience: 100 * MS }, Duration::ZERO)
}

fn all(sender: &mut Sender, now: Duration) -> Vec<Mad> {
    std::iter::from_fn(|| sender.poll_transmit(now)).collect()
}

/// Runs both sides until both have ended. `loses` says which datagrams are lost.
fn run(sender: &mut Sender, receiver: &mut Receiver, mut loses: impl FnMut() -> bool, backwards: bool) {
    let mut now = Duration::ZERO;
    for _ in 0..10_000 {
        let mut segments = all(sender, now);
        if backwards {
            segments.reverse();
        }
        for mad in segments {
            if !loses() {
                receiver.handle(&mad, now);
            }
        }
        if let Some(mad) = receiver.poll_transmit()
            && !loses()
        {
            sender.handle(&mad);
        }
        if sender.outcome().is_some() {
            return;
        }
        now += MS;
        sender.handle_timeout(now);
    }
    panic!("it does not end");
}

#[test]
fn lengths_and_flags_are_those_of_the_specification() {
    let mut sender = sender(450);
    let [first] = all(&mut sender, MS)[..] else { panic!("one segment before the first ACK") };
    let header = segment_of(&first);
    // Each of the three segments counts the 20 bytes of the class's header.
    assert_eq!((header.kind, header.segment, header.length), (TYPE_DATA, 1, 3 * 20 + 450));
    assert_eq!(header.flags, FLAG_ACTIVE | FLAG_FIRST);
    assert_eq!(first[45], 14, "headers are repeated");
    let ack = Segment { kind: TYPE_ACK, segment: 1, length: 9, ..blank() };
    sender.handle(&answer(&first, ack));
    let rest = all(&mut sender, MS);
    let seen: Vec<_> = rest.iter().map(segment_of).map(|s| (s.segment, s.flags, s.length)).collect();
    assert_eq!(seen, [(2, FLAG_ACTIVE, 0), (3, FLAG_ACTIVE | FLAG_LAST, 20 + 50)]);
    assert_eq!(rest[1][45], 14);
    sender.handle(&answer(&first, Segment { segment: 3, ..ack }));
    assert_eq!(sender.outcome(), Some(Outcome::Delivered));
    let [only] = all(&mut self::sender(0), MS)[..] else { panic!("one segment") };
    assert_eq!((segment_of(&only).flags, segment_of(&only).length), (FLAG_ACTIVE | FLAG_FIRST | FLAG_LAST, 20));
}

#[test]
fn an_ack_goes_the_other_way() {
    let mut receiver = receiver();
    let first = all(&mut sender(450), MS)[0];
    receiver.handle(&first, MS);
    let ack = receiver.poll_transmit().expect("an ACK");
    assert_eq!(Header::of(&ack).method, METHOD_GET_TABLE);
    assert_eq!((segment_of(&ack).segment, segment_of(&ack).length), (1, 5));
    assert_eq!(turn_around(&first, 5)[3], METHOD_GET_TABLE | RESPONSE);
    assert_eq!((segment_of(&turn_around(&first, 5)).segment, segment_of(&turn_around(&first, 5)).length), (0, 5));
}

proptest! {
    #[test]
    fn a_message_arrives_whole(len in 0..6000_usize, seed in any::<u64>(), loss in 0..30_u64, backwards in any::<bool>()) {
        let (mut sender, mut receiver) = (patient(len, 200), receiver());
        let mut state = seed;
        let loses = || {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % 100 < loss
        };
        run(&mut sender, &mut receiver, loses, backwards);
        prop_assert_eq!(sender.outcome(), Some(Outcome::Delivered));
        let message = receiver.take().expect("a message");
        prop_assert_eq!(&message[..wire::sa::DATA][..24], &headers()[..24]);
        prop_assert!(message[wire::sa::DATA..].iter().enumerate().all(|(nth, byte)| *byte == nth as u8));
        prop_assert_eq!(message.len(), wire::sa::DATA + len);
        prop_assert_eq!(receiver.take(), None);
    }

    #[test]
    fn hostile_datagrams_end_the_transaction_at_most(bytes in proptest::collection::vec(any::<[u8; 12]>(), 0..40)) {
        let (mut sender, mut receiver) = (sender(5000), receiver());
        for rmpp in bytes {
            let mut mad = headers();
            mad[24..36].copy_from_slice(&rmpp);
            mad[24] = 1;
            mad[25] %= 6;
            mad[28..31].fill(0);
            mad[32..34].fill(0);
            receiver.handle(&mad, MS);
            all(&mut sender, MS);
            sender.handle(&mad);
        }
    }
}

#[test]
fn a_silent_receiver_ends_the_transaction_after_the_retries() {
    let mut sender = sender(450);
    let mut seen = 0;
    for tick in 0..100 {
        let now = tick * 10 * MS;
        sender.handle_timeout(now);
        seen += all(&mut sender, now).len();
    }
    assert_eq!(sender.outcome(), Some(Outcome::Aborted(Status::TooManyRetries)));
    assert_eq!(seen, 4 + 1, "four times the segment, and an ABORT");
    assert_eq!(sender.deadline(), None);
}

#[test]
fn wrong_acks_abort() {
    for (segment, length, expected) in [(1, 0, Status::NewWindowTooSmall), (2, 5, Status::SegmentTooBig)] {
        let mut sender = sender(450);
        let first = all(&mut sender, MS)[0];
        sender.handle(&answer(&first, Segment { kind: TYPE_ACK, segment, length, ..blank() }));
        assert_eq!(sender.outcome(), Some(Outcome::Aborted(expected)));
        let last = sender.poll_transmit(MS).expect("an ABORT");
        assert_eq!((segment_of(&last).kind, segment_of(&last).status), (TYPE_ABORT, expected as u8));
        assert_eq!(Header::of(&last).method, METHOD_GET_TABLE | RESPONSE);
    }
}

#[test]
fn a_stop_or_abort_of_the_peer_ends_both_sides() {
    for kind in [TYPE_STOP, TYPE_ABORT] {
        let (mut sender, mut receiver) = (sender(450), receiver());
        let first = all(&mut sender, MS)[0];
        receiver.handle(&first, MS);
        let stop = Segment { kind, status: 1, ..blank() };
        sender.handle(&answer(&first, stop));
        receiver.handle(&with_headers(&first, stop), MS);
        assert_eq!((sender.outcome(), receiver.outcome()), (Some(Outcome::Ended(1)), Some(Outcome::Ended(1))));
        assert_eq!(receiver.take(), None);
    }
}

#[test]
fn a_message_above_the_limit_is_stopped_and_its_memory_is_free() {
    let mut sender = sender(5000);
    let limits = Limits { longest: 1000, window: 64, patience: MS };
    let mut receiver = Receiver::new(&headers(), limits, Duration::ZERO);
    run(&mut sender, &mut receiver, || false, false);
    assert_eq!(receiver.outcome(), Some(Outcome::Aborted(Status::ResourcesExhausted)));
    assert_eq!(sender.outcome(), Some(Outcome::Ended(Status::ResourcesExhausted as u8)));
}

#[test]
fn half_a_message_is_aborted_when_patience_ends() {
    let mut receiver = receiver();
    receiver.handle(&all(&mut sender(450), MS)[0], MS);
    receiver.poll_transmit();
    receiver.handle_timeout(100 * MS);
    assert_eq!(receiver.outcome(), None, "the segment has renewed its patience");
    receiver.handle_timeout(101 * MS);
    assert_eq!(receiver.outcome(), Some(Outcome::Aborted(Status::TimeTooLong)));
    assert_eq!(segment_of(&receiver.poll_transmit().expect("an ABORT")).kind, TYPE_ABORT);
}

#[test]
fn a_last_segment_that_is_too_long_aborts() {
    let mut receiver = receiver();
    let mut only = all(&mut sender(10), MS)[0];
    let header = Segment { length: 221, ..segment_of(&only) };
    put_segment(&mut only, header);
    receiver.handle(&only, MS);
    assert_eq!(receiver.outcome(), Some(Outcome::Aborted(Status::InconsistentLast)));
}

/// An acknowledgement may close the window. A receiver that never opens it again ends the message.
#[test]
fn a_window_that_stays_closed_ends_the_message() {
    let mut sender = patient(1000, 2);
    assert_eq!(all(&mut sender, Duration::ZERO).len(), 1);
    sender.handle(&answer(&headers(), Segment { kind: TYPE_ACK, segment: 1, length: 1, ..blank() }));
    for late in 1..=4 {
        assert!(all(&mut sender, late * 20 * MS).is_empty() || sender.outcome().is_some());
        sender.handle_timeout(late * 20 * MS);
    }
    assert_eq!(sender.outcome(), Some(Outcome::Aborted(Status::TooManyRetries)));
}
