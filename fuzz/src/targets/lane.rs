//! A peer that writes what it likes into the memory of a lane, between what an honest one does; and
//! the other end of a capture ring.

use std::os::fd::AsFd;
use std::sync::Arc;

use crate::Feed;
use shm::capture_ring::{CAPTURE_RING_MIN, CaptureRingRx, CaptureRingTx, create_capture_ring};
use shm::{BULK, CELLS, LANE_LEN, LaneRx, LaneTx, PIECE_MAX, PushError, RECORD_MAX, Region, Side, ends};

/// Bytes of a direction of a lane: a page of words and its cells. `shm::ring` has it for itself.
const DIRECTION: usize = 4096 + CELLS as usize * 64;

pub(crate) fn run(bytes: &[u8]) {
    let mut feed = Feed(bytes);
    if feed.byte().is_multiple_of(4) {
        capture_ring(&mut feed);
    } else {
        lane(&mut feed);
    }
}

/// What the peer sees: the same memory, mapped once more.
fn twice(len: usize) -> (Region, Region) {
    let (ours, fd) = Region::create("softhca-fuzz", len).expect("memory");
    let theirs = Region::map(fd.as_fd(), len).expect("the same memory");
    (ours, theirs)
}

fn lane(feed: &mut Feed<'_>) {
    let (ours, theirs) = twice(LANE_LEN);
    let theirs = Arc::new(theirs);
    let (mut tx, mut rx) = ends(Arc::new(ours), Side::A);
    let (mut peer_tx, mut peer_rx) = ends(Arc::clone(&theirs), Side::B);
    // Bytes of the bulk rings that only an honest peer writes are ours to watch: what we write must
    // stay in our own.
    let mut guard = [0; 256];
    let mut dead = [false; 2];
    while !feed.is_empty() {
        match feed.byte() % 16 {
            // A word where words are, then anywhere in both directions.
            0 | 1 => {
                let place = usize::from(feed.byte());
                let at = place % 2 * DIRECTION + place / 2 % 3 * 64;
                theirs.word(at).store(feed.word(), std::sync::atomic::Ordering::Relaxed);
            }
            2 => {
                // The commit word of a cell.
                let place = usize::from(feed.half());
                let at = place % 2 * DIRECTION + 4096 + place / 2 % CELLS as usize * 64 + 60;
                theirs.word(at).store(feed.word(), std::sync::atomic::Ordering::Relaxed);
            }
            3 => {
                let at = usize::from(feed.half()) * 4 % (2 * DIRECTION);
                theirs.word(at).store(feed.word(), std::sync::atomic::Ordering::Relaxed);
            }
            4 | 5 => push(&mut tx, feed.half().into(), &mut dead[0]),
            6 | 7 => pop(&mut rx, &mut dead[1]),
            8 => rx.ring.publish(),
            9 => reserve(&mut tx, feed.word()),
            10 => {
                let mut into = vec![0; usize::from(feed.half())];
                let _ = rx.bulk.take(feed.word(), &mut into);
            }
            11 => {
                let (offset, len) = (feed.word(), feed.word());
                assert!(rx.bulk.piece(offset, len).is_none() || (offset as usize) + (len as usize) <= BULK);
                rx.bulk.release(offset, len);
            }
            12 => {
                let record = feed.take(RECORD_MAX / 2);
                let _ = peer_tx.ring.push(record);
                let _ = peer_tx.bulk.put(&[1; 100]);
            }
            13 => {
                let mut record = [0; RECORD_MAX];
                let _ = peer_rx.ring.pop(&mut record);
                peer_rx.ring.publish();
            }
            14 => {
                let _ = (rx.ring.peer_waiting(), tx.bulk.idle());
                rx.ring.clear_waiting();
                tx.ring.set_waiting(feed.byte().is_multiple_of(2));
            }
            _ => assert!(tx.ring.free_cells() <= CELLS && (!dead[0] || tx.ring.free_cells() == 0)),
        }
    }
    // Behind the first words of the peer's bulk ring we have nothing to write.
    theirs.copy_out(LANE_LEN - guard.len(), &mut guard);
    assert_eq!(guard, [0; 256], "we write to our own ring only");
}

fn push(tx: &mut LaneTx, len: usize, dead: &mut bool) {
    let record = vec![0xa5; len % (RECORD_MAX + 1)];
    let result = tx.ring.push(&record);
    *dead |= result == Err(PushError::Broken(shm::Broken));
    assert_eq!(tx.ring.is_broken(), *dead, "{result:?}");
}

fn pop(rx: &mut LaneRx, dead: &mut bool) {
    let mut record = [0; RECORD_MAX];
    match rx.ring.pop(&mut record) {
        Ok(found) => {
            assert!(!*dead, "what was broken stays so");
            assert!(found.is_none_or(|len| len > 0 && len <= RECORD_MAX));
        }
        Err(shm::Broken) => *dead = true,
    }
}

fn reserve(tx: &mut LaneTx, len: u32) {
    let len = len as usize % PIECE_MAX + 1;
    match tx.bulk.reserve(len) {
        Ok(Some(slot)) => {
            assert!(slot.offset as usize + len <= BULK);
            if len.is_multiple_of(2) {
                tx.bulk.cancel(slot);
            }
        }
        Ok(None) => {}
        Err(shm::Broken) => assert!(tx.bulk.reserve(PIECE_MAX).is_err() || !tx.bulk.idle()),
    }
}

/// The words of a capture ring are its first 192 bytes.
fn capture_ring(feed: &mut Feed<'_>) {
    let fd = create_capture_ring(CAPTURE_RING_MIN).expect("memory");
    let theirs = Region::map(fd.as_fd(), CAPTURE_RING_MIN).expect("the same memory");
    let mut tx = CaptureRingTx::map(fd.as_fd(), CAPTURE_RING_MIN).expect("a capture ring");
    let mut rx = CaptureRingRx::map(fd.as_fd(), CAPTURE_RING_MIN).expect("a capture ring");
    let mut record = Vec::new();
    while !feed.is_empty() {
        match feed.byte() % 6 {
            0 => {
                let at = usize::from(feed.byte()) % 24 * 8;
                let value = u64::from(feed.word()) << (feed.byte() % 33);
                theirs.word64(at).store(value, std::sync::atomic::Ordering::Relaxed);
            }
            1 => theirs.copy_in(256 + usize::from(feed.half()) % 32_768, feed.take(16)),
            2 | 3 => drop(tx.push(&[feed.take(40), &vec![7; feed.half().into()]])),
            4 => {
                if rx.pop(&mut record).is_ok_and(|found| found) {
                    assert!(record.len() <= CAPTURE_RING_MIN);
                }
            }
            _ => drop((rx.lost(), rx.is_empty(), rx.is_attached())),
        }
    }
}
