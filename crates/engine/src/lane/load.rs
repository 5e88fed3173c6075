//! What the bulk ring of a lane carries, and how much of the ring is in use. Principal types:
//! [`Load`] and [`BulkMemory`].

use std::sync::Arc;

use shm::{BULK, BulkTx};

use crate::budget::{Budget, Share};

/// This many bytes take long to copy: tens of microseconds.
const MUCH: u32 = 512 * 1024;
/// A lane uses more of its ring after it has carried this many times the bytes in use. So its pages
/// cost little beside the copies.
const LAPS: usize = 4;
/// How many bytes more than at first the rings of an engine may use, all together.
const MOST: usize = 64 << 20;

/// By how many bytes the rings of an engine may grow.
pub(crate) type BulkMemory = Budget<MOST>;

/// What has been carried since the lane last rested.
#[derive(Default)]
pub(crate) struct Load {
    /// Pages of the ring may be in use.
    pub(crate) bulky: bool,
    /// Bytes since the helper was last notified.
    bytes: u32,
    /// Bytes since the ring last grew.
    carried: usize,
    /// What the ring has grown by.
    grown: Option<Share<MOST>>,
}

impl Load {
    /// Counts `len` more bytes; returns whether to notify the helper that a thread is busy copying.
    #[inline]
    pub(crate) fn add(&mut self, len: u32) -> bool {
        self.bulky = true;
        self.bytes += len;
        let is_much = self.bytes >= MUCH;
        if is_much {
            self.carried += self.bytes as usize;
            self.bytes = 0;
        }
        is_much
    }

    /// Uses more of the ring, if it has carried enough for that.
    pub(crate) fn grow(&mut self, ring: &mut BulkTx, memory: &Arc<BulkMemory>) {
        let reach = ring.reach();
        if reach == BULK || self.carried < LAPS * reach {
            return;
        }
        let grows = match &mut self.grown {
            Some(share) => share.extend(reach),
            none => {
                *none = Share::of(memory, reach);
                none.is_some()
            }
        };
        if grows {
            self.carried = 0;
            ring.grow();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sending half of a fresh lane.
    fn ring() -> BulkTx {
        let (region, _) = shm::Region::create("softhca-test", shm::LANE_LEN).expect("memory");
        shm::ends(Arc::new(region), shm::Side::A).0.bulk
    }

    #[test]
    fn the_helper_is_told_once_in_many_bytes_and_what_was_used_is_given_back_later() {
        let mut load = Load::default();
        assert!(!load.bulky);
        assert_eq!((0..64).filter(|_| load.add(MUCH / 16)).count(), 4);
        assert!(load.bulky);
        assert!(!load.add(MUCH - 1) && load.add(1));
    }

    #[test]
    fn a_ring_grows_with_what_it_carries_and_gives_back_what_it_took() {
        let (memory, mut ring, mut load) = (Arc::default(), ring(), Load::default());
        let first = ring.reach();
        for _ in 0..LAPS * first / MUCH as usize {
            assert_eq!(ring.reach(), first);
            load.add(MUCH);
            load.grow(&mut ring, &memory);
        }
        assert_eq!(ring.reach(), 2 * first);
        for _ in 0..LAPS * 2 * BULK / MUCH as usize {
            load.add(MUCH);
            load.grow(&mut ring, &memory);
        }
        assert_eq!((ring.reach(), memory.used()), (BULK, BULK - first));
        drop(load);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn the_rings_of_an_engine_grow_only_so_far() {
        let memory = Arc::default();
        let mut rings: Vec<_> = (0..2 * MOST / BULK).map(|_| (ring(), Load::default())).collect();
        for (ring, load) in &mut rings {
            for _ in 0..LAPS * 2 * BULK / MUCH as usize {
                load.add(MUCH);
                load.grow(ring, &memory);
            }
        }
        let all: usize = rings.iter().map(|(ring, _)| ring.reach() - shm::REACH).sum();
        assert!(all <= MOST && all > MOST - BULK, "{all} bytes");
        assert_eq!(rings.last().map(|(ring, _)| ring.reach()), Some(shm::REACH));
    }
}
