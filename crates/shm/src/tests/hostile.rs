//! A peer that writes anything, anywhere, at any time. The victim must not panic, access memory
//! outside the lane, or return a piece outside the bulk ring. It may return only the results that
//! the types allow.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::{lane, untouched};
use crate::bulk::PIECE_MAX;
use crate::lane::{BULK, LANE_LEN, LaneRx, LaneTx, Side, ends};
use crate::region::Region;
use crate::ring::{
    BULK_AT, BULK_HEAD, Broken, CELLS, CELLS_AT, DIRECTION, PushError, RECORD_MAX, RING_HEAD, WAITING, cell_at,
};

#[test]
fn into_what_is_broken_nothing_goes_though_there_was_room() {
    let mut victims = Victims::new();
    // Only a few cells are left, so the producer reads the head.
    while victims.tx.ring.free_cells() > CELLS / 4 {
        victims.tx.ring.push(&[1]).expect("there is room");
    }
    victims.tx.ring.push(&[1]).expect("there is room");
    victims.region.word(RING_HEAD).store(CELLS * 2, Ordering::Relaxed);
    assert_eq!(victims.tx.ring.free_cells(), 0);
    assert!(victims.tx.ring.is_broken());
    assert_eq!(victims.tx.ring.push(&[1]), Err(PushError::Broken(Broken)));
    let slot = victims.tx.bulk.reserve(64).expect("not broken").expect("there is room");
    victims.region.word(BULK_HEAD).store(BULK as u32 * 2, Ordering::Relaxed);
    assert!(!victims.tx.bulk.idle());
    victims.tx.bulk.cancel(slot);
    assert!(victims.tx.bulk.reserve(64).is_err());
}

#[derive(Clone, Debug)]
enum Op {
    Push(usize),
    Reserve(usize),
    Pop,
    Release(u32, u32),
    Wait,
    /// A store anywhere in the lane.
    Scribble(usize, u32),
    /// A store to a control word: a value close to the current one, so that some of the stores are
    /// accepted at first.
    Nudge(usize, i8),
    /// A store to the commit word of a cell, also close to the current value.
    Commit(u32, i8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..=RECORD_MAX).prop_map(Op::Push),
        2 => (1..=PIECE_MAX).prop_map(Op::Reserve),
        4 => Just(Op::Pop),
        1 => any::<(u32, u32)>().prop_map(|(offset, len)| Op::Release(offset, len)),
        1 => (0..BULK as u32 / 64, 1..PIECE_MAX as u32).prop_map(|(line, len)| Op::Release(line * 64, len)),
        1 => Just(Op::Wait),
        1 => (0..LANE_LEN / 4, any::<u32>()).prop_map(|(word, value)| Op::Scribble(word * 4, value)),
        1 => (0..BULK_AT / 4, any::<u32>()).prop_map(|(word, value)| Op::Scribble(word * 4, value)),
        1 => (0..6_usize, any::<i8>()).prop_map(|(word, by)| Op::Nudge(word, by)),
        1 => (0..CELLS, any::<i8>()).prop_map(|(cell, by)| Op::Commit(cell, by)),
    ]
}

/// The direction from A to B. The test holds both ends, so that each end is hostile to the other.
struct Victims {
    region: Arc<Region>,
    tx: LaneTx,
    rx: LaneRx,
    tx_broken: bool,
    rx_broken: bool,
}

impl Victims {
    fn new() -> Self {
        let region = lane();
        let (tx, _) = ends(region.clone(), Side::A);
        let (_, rx) = ends(region.clone(), Side::B);
        Self { region, tx, rx, tx_broken: false, rx_broken: false }
    }

    fn act(&mut self, op: &Op) {
        match *op {
            Op::Push(len) => {
                let pushed = self.tx.ring.push(&[0xa5; RECORD_MAX][..len]);
                let broken = pushed == Err(PushError::Broken(Broken));
                assert!(broken || !self.tx_broken, "broken is for ever: {pushed:?}");
                assert!(self.tx.ring.free_cells() <= if broken { 0 } else { CELLS });
                // Reading the free space may find the ring broken, too.
                self.tx_broken = self.tx.ring.is_broken();
                assert!(self.tx_broken || !broken);
            }
            Op::Reserve(len) => {
                if let Ok(Some(slot)) = self.tx.bulk.reserve(len) {
                    assert!(slot.offset as usize + len <= BULK && slot.len as usize == len);
                }
                self.tx.bulk.idle();
            }
            Op::Pop => {
                let mut buf = [0; RECORD_MAX];
                let popped = self.rx.ring.pop(&mut buf);
                assert!(!self.rx_broken || popped == Err(Broken), "broken is for ever");
                assert!(popped.is_err() || popped.is_ok_and(|len| len.is_none_or(|len| (60..=300).contains(&len))));
                self.rx_broken |= popped.is_err();
                // The content of the record is as untrusted as the record.
                let [a, b, c, d, e, f, g, h, ..] = buf;
                self.take(u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
                self.rx.ring.publish();
            }
            Op::Release(offset, len) => self.take(offset, len),
            Op::Wait => {
                self.tx.ring.set_waiting(true);
                self.rx.ring.peer_waiting();
                self.rx.ring.clear_waiting();
            }
            Op::Scribble(at, value) => self.region.word(at).store(value, Ordering::Relaxed),
            Op::Nudge(word, by) => {
                let at = [RING_HEAD, BULK_HEAD, WAITING][word % 3] + word / 3 * DIRECTION;
                let by = if word % 3 == 1 { i32::from(by) * 64 } else { i32::from(by) };
                self.region.word(at).fetch_add(by.cast_unsigned(), Ordering::Relaxed);
            }
            Op::Commit(cell, by) => {
                let at = cell_at(cell) + 60;
                self.region.word(at).fetch_add(i32::from(by).cast_unsigned(), Ordering::Relaxed);
            }
        }
    }

    fn take(&mut self, offset: u32, len: u32) {
        if let Some(piece) = self.rx.bulk.piece(offset, len) {
            let bulk = self.region.pointer(LANE_LEN - 2 * BULK, BULK).unwrap();
            let at = piece.start() as usize - bulk.as_ptr() as usize;
            assert!(at + len as usize <= BULK && len > 0, "a piece outside the ring");
        }
        self.rx.bulk.release(offset, len);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn scribbles_break_nothing_else(ops in prop::collection::vec(op(), 1..400)) {
        let mut victims = Victims::new();
        for op in &ops {
            victims.act(op);
        }
        prop_assert!(untouched(&victims.region));
    }

    #[test]
    fn random_memory_from_the_start(words in prop::collection::vec(any::<u32>(), BULK_AT / 4),
                                    ops in prop::collection::vec(op(), 1..50)) {
        let mut victims = Victims::new();
        victims.region.copy_in(0, bytemuck::cast_slice(&words));
        for op in &ops {
            victims.act(op);
        }
        prop_assert!(untouched(&victims.region));
    }
}

#[test]
fn scribbles_at_the_same_time() {
    let mut victims = Victims::new();
    let region = victims.region.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let scribbler = std::thread::spawn(move || {
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        while !stopped.load(Ordering::Relaxed) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % (BULK_AT / 4) * 4;
            region.word(at).store((random >> 20) as u32, Ordering::Relaxed);
        }
    });
    // Each round uses new ends, because the first damage that they see is permanent.
    for round in 0..300 {
        let (tx, _) = ends(victims.region.clone(), Side::A);
        let (_, rx) = ends(victims.region.clone(), Side::B);
        victims = Victims { region: victims.region, tx, rx, tx_broken: false, rx_broken: false };
        for step in 0..400_usize {
            victims.act(&Op::Push((round * 7 + step * 13) % (RECORD_MAX + 1)));
            victims.act(&Op::Pop);
            victims.act(&Op::Reserve(1 + (round * 11 + step * 977) % PIECE_MAX));
        }
    }
    stop.store(true, Ordering::Relaxed);
    scribbler.join().unwrap();
    assert!(untouched(&victims.region));
}

#[test]
fn commit_that_nobody_may_write() {
    let commit_of_cell_0 = CELLS_AT + 60;
    let lap_1 = CELLS << 4;
    // (the word, the result of a new ring's consumer)
    let table = [
        (0, Ok(None)),
        (lap_1 | 1, Ok(Some(60))),
        (lap_1, Err(Broken)),
        (lap_1 | 6, Err(Broken)),
        (lap_1 | 15, Err(Broken)),
        (lap_1 | 2, Err(Broken)), // its second cell has no commit
        ((lap_1 + (1 << 4)) | 1, Err(Broken)),
        ((2 * lap_1) | 1, Err(Broken)),
        (u32::MAX, Err(Broken)),
    ];
    for (word, expected) in table {
        let region = lane();
        let (_, mut rx) = ends(region.clone(), Side::B);
        region.word(commit_of_cell_0).store(word, Ordering::Relaxed);
        assert_eq!(rx.ring.pop(&mut [0; RECORD_MAX]), expected, "commit word {word:#x}");
    }
}

#[test]
fn head_that_no_consumer_may_write() {
    for (head, broken) in [(0, false), (CELLS, false), (CELLS + 1, true), (u32::MAX, true), (1 << 31, true)] {
        let region = lane();
        let (mut tx, _) = ends(region.clone(), Side::A);
        for _ in 0..CELLS {
            tx.ring.push(b"x").unwrap();
        }
        region.word(RING_HEAD).store(head, Ordering::Relaxed);
        assert_eq!(tx.ring.push(b"x") == Err(PushError::Broken(Broken)), broken, "head {head:#x}");
        // A broken ring stays broken, even when the word is valid again.
        region.word(RING_HEAD).store(CELLS, Ordering::Relaxed);
        assert_eq!(tx.ring.push(b"x").is_err(), broken);
    }
}

#[test]
fn head_that_goes_back() {
    let region = lane();
    let (mut tx, _) = ends(region.clone(), Side::A);
    for _ in 0..CELLS {
        tx.ring.push(b"x").unwrap();
    }
    region.word(RING_HEAD).store(2, Ordering::Relaxed);
    assert_eq!([tx.ring.push(b"x"), tx.ring.push(b"x")], [Ok(()); 2]);
    region.word(RING_HEAD).store(1, Ordering::Relaxed);
    assert_eq!(tx.ring.push(b"x"), Err(PushError::Broken(Broken)));
}

#[test]
fn bulk_head_that_no_consumer_may_write() {
    for (head, broken) in [(0, false), (64, false), (BULK as u32 + 64, true), (u32::MAX, true)] {
        let region = lane();
        let (mut tx, _) = ends(region.clone(), Side::A);
        for _ in 0..2 {
            tx.bulk.reserve(PIECE_MAX).unwrap().unwrap();
        }
        region.word(BULK_HEAD).store(head, Ordering::Relaxed);
        assert_eq!(tx.bulk.reserve(64).is_err(), broken, "head {head:#x}");
    }
}
