//! Atomics and immediate data, the extensions of RFC 7306, and SENDs with Invalidate: between two
//! streams, and as literal segments.

mod common;

use common::{BASE, Host, REGION, SEND, exchange, first, ok, pair, pair_with, post, read, untagged};
use softhca_iwarp::rdmap::{Atomic, AtomicRequest, AtomicResponse};
use softhca_iwarp::{
    Config, Event, Immediate, Operation, PostError, Reason, Received, Request, Side, Stag, Status, fpdu,
};

fn atomic(offset: u64, atomic: Atomic) -> Operation {
    Operation::Atomic { target: Stag(REGION), target_to: BASE + offset, atomic }
}

const ADD: Atomic = Atomic::FetchAdd { add: 1, boundaries: 0 };

/// The target of an atomic, as the program sees it.
fn value(host: &Host, offset: usize) -> u64 {
    let bytes = &host.ram.regions[&Stag(REGION)].bytes[offset..];
    u64::from_ne_bytes(*bytes.first_chunk().expect("8 bytes"))
}

fn set(host: &mut Host, offset: usize, value: u64) {
    let region = host.ram.regions.get_mut(&Stag(REGION)).expect("each host of a pair has it");
    region.bytes[offset..][..8].copy_from_slice(&value.to_ne_bytes());
}

/// What a work request has brought.
fn result(host: &Host, work: u64) -> u64 {
    u64::from_ne_bytes(*host.ram.works[&work].first_chunk().expect("8 bytes"))
}

/// The reason of the Terminate message, and who sent it.
fn terminated(host: &Host) -> Option<(Side, Reason)> {
    host.events.iter().find_map(|event| match event {
        Event::Terminated { by, terminate } => Some((*by, terminate.reason)),
        _ => None,
    })
}

#[test]
fn iw_atomic_returns_the_value_before_and_keeps_to_its_masks() {
    let (mut one, mut two) = pair();
    set(&mut two, 0, 0x00ff_ffff_0000_7fff);
    let fields = Atomic::FetchAdd { add: 0x0001_0001_0001_0001, boundaries: 0x8000_8000_8000_8000 };
    let (compare, compare_mask) = (0x01ff_ffff_0001_ffff, 0xff00_0000_ffff_0000);
    let swaps = Atomic::CompareSwap { swap: u64::MAX, swap_mask: 0xff, compare, compare_mask };
    let misses = Atomic::CompareSwap { swap: 7, swap_mask: u64::MAX, compare: 1, compare_mask: u64::MAX };
    post(&mut one, 1, atomic(0, fields), &[0; 8]);
    post(&mut one, 2, atomic(0, swaps), &[0; 8]);
    post(&mut one, 3, atomic(0, misses), &[0; 8]);
    exchange(&mut one, &mut two);
    let (summed, swapped) = (0x0100_0000_0001_8000, 0x0100_0000_0001_80ff);
    assert_eq!([1, 2, 3].map(|work| result(&one, work)), [0x00ff_ffff_0000_7fff, summed, swapped]);
    assert_eq!(value(&two, 0), swapped);
    assert_eq!(one.completions(), ok(1..=3));
}

#[test]
fn iw_atomic_a_response_with_another_number_is_refused() {
    let answer = |id, msn| {
        let mut payload = [0; AtomicResponse::LEN];
        AtomicResponse { id, value: 7 }.emit(&mut payload);
        let (mut one, _) = pair();
        post(&mut one, 1, atomic(0, ADD), &[0; 8]);
        one.transmit();
        one.receive(&first(&untagged(0x41, 0x4b, 3, msn, 0, &payload)));
        one
    };
    let one = answer(1, 1);
    assert_eq!((one.completions(), result(&one, 1)), (ok([1]), 7));
    for (id, msn, reason) in [(2, 1, Reason::RdmapUnspecified), (1, 2, Reason::UntaggedMsn)] {
        let one = answer(id, msn);
        assert_eq!(terminated(&one), Some((Side::Us, reason)));
        assert_eq!((one.completions(), result(&one, 1)), (vec![(1, Status::Flushed)], 0));
    }
}

#[test]
fn iw_atomic_takes_its_turn_among_reads_and_counts_for_the_ord() {
    let (mut one, mut two) = pair_with(2, None, Config::default());
    post(&mut one, 1, read(0), &[0; 8]);
    post(&mut one, 2, atomic(0, ADD), &[0; 8]);
    post(&mut one, 3, atomic(0, ADD), &[0; 8]);
    post(&mut one, 4, read(0), &[0; 8]);
    one.transmit();
    assert_eq!(one.output.len(), fpdu::size(18 + 28) + fpdu::size(18 + 52), "one READ and one atomic");
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), ok(1..=4));
    assert_eq!(result(&one, 3), result(&one, 2) + 1);
    assert_eq!(value(&two, 0), result(&one, 2) + 2);

    let (mut none, _) = pair_with(0, None, Config::default());
    let request = Request { work: 1, operation: atomic(0, ADD), len: 0, fence: false };
    assert_eq!(none.stream.post(request), Err(PostError::NoReads));
}

#[test]
fn iw_atomic_that_is_refused_says_why_and_changes_nothing() {
    let cases = [
        (Stag(0x9999), BASE, Reason::ProtectionStag, Status::RemoteAccess),
        (Stag(REGION), BASE + 8192, Reason::ProtectionBounds, Status::RemoteAccess),
        (Stag(REGION), BASE + 8188, Reason::RdmapUnspecified, Status::RemoteOperation),
        (Stag(REGION), u64::MAX - 7, Reason::ProtectionWrap, Status::RemoteAccess),
    ];
    for (target, target_to, reason, status) in cases {
        let (mut one, mut two) = pair();
        let before = two.ram.regions.clone();
        post(&mut one, 1, Operation::Atomic { target, target_to, atomic: ADD }, &[0; 8]);
        exchange(&mut one, &mut two);
        assert_eq!(terminated(&two), Some((Side::Us, reason)));
        assert_eq!(one.completions(), [(1, status)], "{reason}");
        assert_eq!(two.ram.regions, before, "{reason}");
    }
    let mut payload = [0; AtomicRequest::LEN];
    AtomicRequest { id: 1, target: Stag(REGION), target_to: BASE, atomic: ADD }.emit(&mut payload);
    payload[3] = 1;
    let (_, mut two) = pair();
    two.receive(&first(&untagged(0x41, 0x4a, 1, 1, 0, &payload)));
    assert_eq!(terminated(&two), Some((Side::Us, Reason::RdmapOpcode)), "no such operation");
}

#[test]
fn iw_ird_atomics_count_as_reads() {
    let (_, mut two) = pair_with(2, None, Config::default());
    let before = value(&two, 0);
    for msn in 1..=3 {
        let mut payload = [0; AtomicRequest::LEN];
        AtomicRequest { id: msn, target: Stag(REGION), target_to: BASE, atomic: ADD }.emit(&mut payload);
        two.receive(&first(&untagged(0x41, 0x4a, 1, msn, 0, &payload)));
    }
    assert_eq!(terminated(&two), Some((Side::Us, Reason::RdmapStream)));
    assert_eq!(value(&two, 0), before + 2);
}

#[test]
fn iw_immediate_takes_a_receive_request_in_the_order_of_sends() {
    let (mut one, mut two) = pair();
    for id in 1..=4 {
        two.ram.post_receive(id, 16);
    }
    let immediate = |byte, solicited| Immediate { data: [byte; 8], solicited };
    let write = Operation::Write { stag: Stag(REGION), to: BASE, immediate: Some(immediate(2, true)) };
    post(&mut one, 1, SEND, b"before");
    post(&mut one, 2, write, &[9; 3000]);
    post(&mut one, 3, Operation::Immediate(immediate(3, false)), b"");
    post(&mut one, 4, SEND, b"after");
    exchange(&mut one, &mut two);
    assert_eq!(one.completions(), ok(1..=4));
    let seen = |event: &Event| match event {
        Event::Received(it) => Some((it.receive, it.len, it.solicited, it.immediate)),
        _ => None,
    };
    let received: Vec<_> = two.events.iter().filter_map(seen).collect();
    let expected = [(1, 6, false, None), (2, 0, true, Some([2; 8])), (3, 0, false, Some([3; 8])), (4, 5, false, None)];
    assert_eq!(received, expected);
    assert_eq!(two.ram.regions[&Stag(REGION)].bytes[..3000], [9; 3000], "the WRITE is placed before");
    assert_eq!([2, 3].map(|receive| two.ram.receives[&receive].clone()), [[0; 16], [0; 16]]);
}

#[test]
fn iw_immediate_without_a_receive_request_ends_the_stream() {
    let (mut one, mut two) = pair();
    post(&mut one, 1, Operation::Immediate(Immediate { data: [1; 8], solicited: false }), b"");
    exchange(&mut one, &mut two);
    assert_eq!(terminated(&one), Some((Side::Peer, Reason::UntaggedNoBuffer)));
}

/// What the peer of a SEND with Invalidate has seen.
fn invalidate(stag: u32, solicited: bool) -> (Host, Host) {
    let (mut one, mut two) = pair();
    two.ram.post_receive(1, 16);
    post(&mut one, 1, Operation::Send { invalidate: Some(Stag(stag)), solicited }, b"mine");
    exchange(&mut one, &mut two);
    (one, two)
}

#[test]
fn iw_invalidate_closes_the_region_before_the_message_is_delivered() {
    for solicited in [false, true] {
        let (one, two) = invalidate(REGION, solicited);
        let received = Received { receive: 1, len: 4, solicited, invalidated: Some(Stag(REGION)), immediate: None };
        assert_eq!(two.events, [Event::Received(received), Event::Ready]);
        assert_eq!((one.completions(), two.ram.regions.len()), (ok([1]), 0));
    }
}

#[test]
fn iw_invalidate_of_an_unknown_region_ends_the_stream() {
    let (one, two) = invalidate(0x9999, false);
    let failed = Event::ReceiveFailed { receive: 1, status: Status::RemoteInvalidRequest };
    assert_eq!((&two.events[0], terminated(&two)), (&failed, Some((Side::Us, Reason::ProtectionStag))));
    assert_eq!(terminated(&one), Some((Side::Peer, Reason::ProtectionStag)));
    assert!(two.ram.regions.contains_key(&Stag(REGION)));
}
