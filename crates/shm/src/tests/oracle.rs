//! The rings against queues of the standard library: random lists of operations must have the same
//! results.

use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use crate::bulk::{self, PIECE_MAX, REACH};
use crate::memory::{CELL_DATA, Window};
use crate::region::Region;
use crate::ring::{self, BULK, CELLS, DIRECTION_LEN, Glance, PushError, RECORD_MAX};

fn direction() -> Window {
    let (region, _) = Region::create("softhca-test", DIRECTION_LEN).unwrap();
    Window::new(Arc::new(region), 0, DIRECTION_LEN)
}

#[derive(Clone, Debug)]
enum RingOp {
    Push(usize),
    Pop,
    Publish,
    Free,
}

fn ring_op() -> impl Strategy<Value = RingOp> {
    prop_oneof![
        6 => (0..=RECORD_MAX).prop_map(RingOp::Push),
        1 => prop_oneof![Just(0), Just(CELL_DATA), Just(CELL_DATA + 1), Just(RECORD_MAX)].prop_map(RingOp::Push),
        5 => Just(RingOp::Pop),
        1 => Just(RingOp::Publish),
        1 => Just(RingOp::Free),
    ]
}

/// The start position of the ring: fresh, or just before one of its counters wraps.
fn ring_start() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), ((1 << 28) - 3 * CELLS)..(1 << 28), (u32::MAX - 2 * CELLS)..u32::MAX, any::<u32>()]
}

fn cells(len: usize) -> usize {
    len.div_ceil(CELL_DATA).max(1)
}

fn run_ring(start: u32, ops: &[RingOp]) {
    let memory = direction();
    let glance = Glance::new(memory.clone());
    let (mut producer, mut consumer) = ring::used_until(memory, start);
    let mut unread: VecDeque<Vec<u8>> = VecDeque::new();
    let (mut free, mut unpublished) = (CELLS as usize, 0);
    let mut buf = [0; RECORD_MAX];
    for (number, op) in ops.iter().enumerate() {
        match *op {
            RingOp::Push(len) => {
                let record: Vec<u8> = (0..len).map(|i| (number * 31 + i * 7) as u8).collect();
                let result = producer.push(&record);
                if free < cells(len) {
                    assert_eq!(result, Err(PushError::Full));
                } else {
                    assert_eq!(result, Ok(()));
                    free -= cells(len);
                    unread.push_back(record);
                }
            }
            RingOp::Pop => {
                assert_eq!(glance.sees(consumer.position()), !unread.is_empty());
                let expected = unread.pop_front().map(|mut record| {
                    record.resize(cells(record.len()) * CELL_DATA, 0);
                    record
                });
                let popped = consumer.pop(&mut buf).unwrap();
                assert_eq!(popped.map(|len| &buf[..len]), expected.as_deref());
                unpublished += popped.map_or(0, cells);
            }
            RingOp::Publish => {
                consumer.publish();
                free += std::mem::take(&mut unpublished);
            }
            RingOp::Free => {
                let seen = producer.free_cells() as usize;
                // The producer may see too little free space, but then at least a quarter of the
                // ring.
                assert!(seen == free || (seen < free && seen >= CELLS as usize / 4), "{seen} of {free}");
            }
        }
    }
}

#[derive(Clone, Debug)]
enum BulkOp {
    Reserve(usize),
    Cancel,
    /// Releases this many pieces, by releasing the last of them.
    Release(usize),
    Idle,
    Grow,
}

fn bulk_op() -> impl Strategy<Value = BulkOp> {
    prop_oneof![
        3 => (1..=PIECE_MAX).prop_map(BulkOp::Reserve),
        3 => (1..=32_768_usize).prop_map(BulkOp::Reserve),
        1 => (1..=64_usize).prop_map(BulkOp::Reserve),
        1 => Just(BulkOp::Cancel),
        4 => (1..4_usize).prop_map(BulkOp::Release),
        1 => Just(BulkOp::Idle),
        1 => Just(BulkOp::Grow),
    ]
}

/// A piece as the oracle knows it: the reservation, its length, how much of the ring it uses
/// (skipped bytes included), and the offset after which it was made.
struct Piece {
    reservation: bulk::Reservation,
    len: usize,
    uses: usize,
    after: usize,
}

fn run_bulk(start: u32, ops: &[BulkOp]) {
    let (mut reservations, mut releases) = bulk::used_until(direction(), start);
    let mut pieces: VecDeque<Piece> = VecDeque::new();
    let mut at = start as usize % BULK;
    let mut reach = REACH;
    for op in ops {
        let used: usize = pieces.iter().map(|piece| piece.uses).sum();
        match *op {
            BulkOp::Reserve(len) => {
                let lines = len.next_multiple_of(64);
                let skipped = if at + lines > reach { BULK - at } else { 0 };
                let reservation = reservations.reserve(len).unwrap();
                assert_eq!(reservation.is_some(), used + skipped + lines <= BULK);
                assert!(reservation.is_some() || used > 0, "an empty ring has room for every piece");
                let Some(reservation) = reservation else { continue };
                let offset = reservation.offset as usize;
                assert_eq!(offset, (at + skipped) % BULK);
                let apart = |piece: &Piece| {
                    let other = piece.reservation.offset as usize;
                    offset + lines <= other || other + piece.len <= offset
                };
                assert!(pieces.iter().all(apart), "two pieces share bytes");
                let after = std::mem::replace(&mut at, offset + lines);
                pieces.push_back(Piece { reservation, len, uses: skipped + lines, after });
            }
            BulkOp::Cancel => {
                if let Some(piece) = pieces.pop_back() {
                    reservations.cancel(piece.reservation);
                    at = piece.after;
                }
            }
            BulkOp::Release(count) => {
                let mut released = pieces.drain(..count.min(pieces.len()));
                if let Some(last) = released.next_back() {
                    releases.release(last.reservation.offset, last.len as u32);
                }
            }
            BulkOp::Idle => assert_eq!(reservations.idle(), pieces.is_empty()),
            BulkOp::Grow => {
                reservations.grow();
                reach = BULK.min(reach * 2);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn ring_matches_oracle(start in ring_start(), ops in prop::collection::vec(ring_op(), 1..600)) {
        run_ring(start, &ops);
    }

    #[test]
    fn bulk_matches_oracle(
        lines in prop_oneof![Just(0), (u32::MAX / 64 - 20_000)..=(u32::MAX / 64)],
        ops in prop::collection::vec(bulk_op(), 1..200),
    ) {
        run_bulk(lines * 64, &ops);
    }
}
