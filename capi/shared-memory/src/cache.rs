//! Blocks that the program has freed, kept for its next allocations: each stays mapped and keeps
//! its file. A kept block is *full* while its pages may have data. It is *empty* when the machine
//! has the pages back. Pure: nothing here touches the memory or the files. Principal type:
//! [`Cache`].
//!
//! Everything is bounded: the number of blocks, their addresses, the data of full blocks, and the
//! time for which a block is full. [`Cache::surplus`] says what exceeds a bound.

use crate::table::{Piece, UNUSED};

/// The most blocks.
const MOST: usize = 64;
/// The most data of all full blocks, and of one of them. The C library also keeps at most so much
/// of what was freed.
const FULL: usize = 64 << 20;
const LARGEST_FULL: usize = FULL / 2;
/// The most addresses of all blocks.
const ADDRESSES: usize = 1 << 30;
/// A larger block is not kept.
pub(crate) const LARGEST: usize = ADDRESSES / 4;
/// How long a block stays full, in milliseconds.
const AGE: u64 = 1000;

/// A freed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) piece: Piece,
    /// When it was freed, in milliseconds.
    pub(crate) since: u64,
    /// The pages may have data.
    pub(crate) is_full: bool,
}

/// What to do about a block that exceeds a bound. The cache no longer has it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Surplus {
    /// Give its pages back, and put it back as empty.
    Data(Kept),
    /// Unmap it and close its file.
    Block(Kept),
}

/// Freed blocks, the oldest first.
#[derive(Debug)]
pub(crate) struct Cache {
    kept: [Kept; MOST],
    len: usize,
    /// The most blocks that the limit of descriptors allows.
    most: usize,
    /// The most addresses that the limit of the address space allows.
    addresses: usize,
}

impl Cache {
    pub(crate) const fn new() -> Self {
        Self { kept: [Kept { piece: UNUSED, since: 0, is_full: false }; MOST], len: 0, most: 0, addresses: 0 }
    }

    pub(crate) fn kept(&self) -> &[Kept] {
        &self.kept[..self.len]
    }

    /// A quarter of the files may be those of freed blocks, and a sixteenth of the address space.
    pub(crate) fn limit(&mut self, files: usize, space: Option<u64>) {
        self.most = (files / 4).min(MOST);
        self.addresses = space.map_or(ADDRESSES, |space| ADDRESSES.min((space / 16) as usize));
    }

    /// Whether there may be blocks at all.
    pub(crate) fn is_open(&self) -> bool {
        self.most != 0
    }

    /// Keeps a block. If there is no room, the oldest block makes room, and is returned.
    #[must_use]
    pub(crate) fn put(&mut self, kept: Kept) -> Option<Kept> {
        let oldest = if self.len == MOST { self.pop() } else { None };
        self.kept[self.len] = kept;
        self.len += 1;
        oldest
    }

    /// Takes the smallest block that is large enough, unless it would waste more than a quarter of
    /// what is asked for. Of equal ones, the newest: its pages may still be in the processor's
    /// cache.
    pub(crate) fn take(&mut self, length: usize, align: usize) -> Option<Kept> {
        let most = length + length / 4;
        let fits = |piece: &Piece| (length..=most).contains(&piece.len()) && piece.start.is_multiple_of(align);
        let all = self.kept().iter().enumerate().rev();
        let (at, _) = all.filter(|(_, kept)| fits(&kept.piece)).min_by_key(|(_, kept)| kept.piece.len())?;
        Some(self.remove(at))
    }

    /// Removes the oldest block.
    pub(crate) fn pop(&mut self) -> Option<Kept> {
        (self.len != 0).then(|| self.remove(0))
    }

    /// Removes a block that exceeds a bound now.
    pub(crate) fn surplus(&mut self, now: u64) -> Option<Surplus> {
        let total = |wanted: fn(&Kept) -> bool| -> usize {
            self.kept().iter().filter(|kept| wanted(kept)).map(|kept| kept.piece.len()).sum()
        };
        let is_much = total(|kept| kept.is_full) > FULL;
        let is_over = |kept: &Kept| kept.piece.len() > LARGEST_FULL || now.saturating_sub(kept.since) > AGE;
        let mut full = self.kept().iter().enumerate().filter(|(_, kept)| kept.is_full);
        let oldest = full.clone().next().filter(|_| is_much);
        if let Some((at, _)) = full.find(|(_, kept)| is_over(kept)).or(oldest) {
            return Some(Surplus::Data(self.remove(at)));
        }
        let is_crowded = self.len > self.most || total(|_| true) > self.addresses;
        if is_crowded { self.pop().map(Surplus::Block) } else { None }
    }

    /// Forgets all blocks.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    fn remove(&mut self, at: usize) -> Kept {
        let kept = self.kept[at];
        self.kept.copy_within(at + 1..self.len, at);
        self.len -= 1;
        kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn full(start: usize, length: usize, since: u64) -> Kept {
        Kept { piece: Piece { start, end: start + length, block: start, ..UNUSED }, since, is_full: true }
    }

    fn cache(blocks: &[Kept]) -> Cache {
        let mut cache = Cache::new();
        cache.limit(1024, None);
        assert!(blocks.iter().all(|kept| cache.put(*kept).is_none()));
        cache
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken_and_little_is_wasted() {
        let blocks = [full(MIB, 5000, 0), full(2 * MIB, 4096, 1), full(4 * MIB, 4096, 2), full(8 * MIB, 9000, 3)];
        let mut cache = cache(&blocks);
        let mut take = |length, align| cache.take(length, align).map(|kept| kept.piece.start / MIB);
        assert_eq!(take(4000, 16 * MIB), None);
        assert_eq!(take(4000, 1), Some(4));
        assert_eq!(take(4000, 2 * MIB), Some(2));
        assert_eq!(take(4000, 1), Some(1));
        assert_eq!(take(4000, 1), None, "too large");
        assert_eq!(take(9001, 1), None, "too small");
        assert_eq!(take(9000, 1), Some(8));
        assert!(cache.kept().is_empty());
    }

    #[test]
    fn data_beyond_the_bound_and_old_data_are_given_back_the_oldest_first() {
        let sizes = [30, 40, 30, 20];
        let blocks: Vec<_> = (0..4).map(|at| full(at << 30, sizes[at] * MIB, at as u64)).collect();
        let mut cache = cache(&blocks);
        assert_eq!(cache.surplus(3), Some(Surplus::Data(blocks[1])), "too large to be full at all");
        assert_eq!(cache.surplus(3), Some(Surplus::Data(blocks[0])));
        assert_eq!(cache.surplus(3), None);
        assert_eq!(cache.surplus(2 + AGE), None);
        assert_eq!(cache.surplus(3 + AGE), Some(Surplus::Data(blocks[2])));
        let empty = Kept { is_full: false, ..blocks[2] };
        assert_eq!(cache.put(empty), None);
        assert_eq!(cache.surplus(3 + AGE), None);
        assert_eq!(cache.surplus(u64::MAX), Some(Surplus::Data(blocks[3])));
        assert_eq!(cache.surplus(u64::MAX), None, "empty blocks may grow old");
    }

    #[test]
    fn the_number_of_blocks_and_their_addresses_are_bounded() {
        let blocks: Vec<_> = (0..MOST).map(|at| Kept { is_full: false, ..full(at << 30, MIB, 0) }).collect();
        let mut cache = cache(&blocks);
        assert_eq!(cache.surplus(0), None);
        assert_eq!(cache.put(full(MOST << 30, MIB, 0)), Some(blocks[0]));
        cache.limit(4 * (MOST - 1), None);
        assert_eq!(cache.surplus(0), Some(Surplus::Block(blocks[1])));
        assert_eq!(cache.surplus(0), None);
        cache.clear();
        let huge: Vec<_> = (0..5).map(|at| Kept { is_full: false, ..full(at << 30, LARGEST, 0) }).collect();
        assert!(huge.iter().all(|kept| cache.put(*kept).is_none()));
        assert_eq!(cache.surplus(0), Some(Surplus::Block(huge[0])));
        assert_eq!(cache.surplus(0), None);
        cache.limit(1024, Some(48 * LARGEST as u64));
        assert_eq!(cache.surplus(0), Some(Surplus::Block(huge[1])));
        assert_eq!(cache.surplus(0), None);
        cache.limit(3, None);
        assert!(!cache.is_open());
        assert!((0..3).all(|_| cache.surplus(0).is_some()) && cache.kept().is_empty());
    }
}
