//! Capture rings: records come back unchanged, records without room are counted, and invalid bytes
//! are refused.

use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use crate::capture_ring::{CAPTURE_RING_MIN, CaptureRingRx, CaptureRingTx, create_capture_ring};
use crate::region::Region;
use crate::ring::Broken;

fn capture_ring() -> (CaptureRingTx, CaptureRingRx, Region) {
    let fd = create_capture_ring(CAPTURE_RING_MIN).expect("memory");
    let rx = CaptureRingRx::map(fd.as_fd(), CAPTURE_RING_MIN).expect("a reader");
    assert!(!rx.is_attached());
    let tx = CaptureRingTx::map(fd.as_fd(), CAPTURE_RING_MIN).expect("a writer");
    assert!(!rx.is_attached());
    tx.attach();
    assert!(rx.is_attached());
    (tx, rx, Region::map(fd.as_fd(), 256 + CAPTURE_RING_MIN).expect("the memory itself"))
}

#[test]
fn records_come_back_as_they_went_and_what_has_no_room_is_counted() {
    let (mut tx, mut rx, _) = capture_ring();
    let (mut expected, mut lost, mut record) = (VecDeque::new(), 0, Vec::new());
    for round in 0..5_000_usize {
        let bytes: Vec<u8> = (0..round * 7919 % 3000).map(|at| (at ^ round) as u8).collect();
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        if tx.push(&[head, &[], tail]) {
            expected.push_back(bytes)
        } else {
            lost += 1
        }
        // The reader is sometimes slower, sometimes faster than the writer.
        for _ in 0..(round / 100) % 3 {
            let found = rx.pop(&mut record).expect("sound");
            assert_eq!(found.then(|| record.clone()), expected.pop_front());
        }
    }
    while rx.pop(&mut record).expect("sound") {
        assert_eq!(Some(&record), expected.pop_front().as_ref());
    }
    assert!(expected.is_empty() && lost > 0 && rx.lost() == lost);
}

#[test]
fn a_reader_refuses_what_no_sound_writer_writes() {
    for (at, value) in [(0, 1), (0, CAPTURE_RING_MIN as u64 + 8), (0, u64::MAX), (256, 100), (256, u64::MAX)] {
        let (mut tx, mut rx, memory) = capture_ring();
        assert!(tx.push(&[b"sound"]));
        memory.word64(at).store(value, Ordering::Relaxed);
        assert_eq!(rx.pop(&mut Vec::new()), Err(Broken), "{value} at {at}");
    }
}

#[test]
fn a_writer_believes_no_reader_that_claims_the_future() {
    let (mut tx, mut rx, memory) = capture_ring();
    memory.word64(64).store(1 << 40, Ordering::Relaxed);
    assert!(!tx.push(&[b"lost"]));
    assert_eq!(rx.pop(&mut Vec::new()), Ok(false));
    assert_eq!(rx.lost(), 1);
}

#[test]
fn odd_sizes_are_refused() {
    for room in [0, CAPTURE_RING_MIN - 1, CAPTURE_RING_MIN + 8, CAPTURE_RING_MIN / 2, usize::MAX] {
        assert!(create_capture_ring(room).is_err(), "{room}");
    }
}
