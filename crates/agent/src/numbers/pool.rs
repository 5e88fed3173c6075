//! Free blocks of 256 numbers, in the order in which they are given out. The principal type is
//! [`Pool`].
//!
//! An agent may serve many users. Other users and senders of packets must not be able to guess
//! numbers, so the order is random. A returned block waits for at least half a round, and then gets
//! a random place. Without randomness, as in simulations, the blocks are used in order.

use std::collections::VecDeque;

/// How many blocks of 256 numbers fit into 24 bits.
pub(crate) const BLOCKS: u32 = 1 << 16;

/// Random words.
pub type Chance = Box<dyn FnMut() -> u32 + Send>;

/// The blocks that are free.
pub(super) struct Pool {
    free: VecDeque<u16>,
    chance: Option<Chance>,
}

impl Pool {
    /// All blocks from `first` on.
    pub(super) fn new(first: u16, chance: Option<Chance>) -> Self {
        let mut pool = Self { free: (first..=u16::MAX).collect(), chance };
        for last in (1..pool.free.len()).rev() {
            let other = pool.below(last + 1).unwrap_or(last);
            pool.free.swap(last, other);
        }
        pool
    }

    /// Takes a block.
    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop_front().map(u32::from)
    }

    /// Returns a block.
    pub(super) fn give_back(&mut self, block: u32) {
        let Ok(block) = u16::try_from(block) else { return };
        self.free.push_back(block);
        let (last, half) = (self.free.len() - 1, self.free.len() / 2);
        if let Some(beyond) = self.below(last + 1 - half) {
            self.free.swap(last, half + beyond);
        }
    }

    /// The order in which the numbers of a block are given out.
    pub(super) fn order(&mut self) -> Order {
        let chance = self.word().unwrap_or(0);
        Order { step: (chance & 0xfe | 1) as u8, first: (chance >> 8) as u8 }
    }

    /// A random byte, or 0.
    pub(super) fn byte(&mut self) -> u8 {
        self.word().unwrap_or(0) as u8
    }

    fn word(&mut self) -> Option<u32> {
        self.chance.as_mut().map(|chance| chance())
    }

    /// A random number below `bound`.
    fn below(&mut self, bound: usize) -> Option<usize> {
        let word = self.word()?;
        Some(((u64::from(word) * bound as u64) >> 32) as usize)
    }
}

/// An order of the 256 numbers of a block.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    /// An odd step, so that every number is reached.
    step: u8,
    first: u8,
}

impl Order {
    /// The number of the block at this place of the order.
    pub(super) fn number(self, place: u8) -> u8 {
        place.wrapping_mul(self.step).wrapping_add(self.first)
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("free", &self.free.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Pseudo-random numbers for tests, the same in every run.
    pub(crate) fn dice() -> Option<Chance> {
        let mut state = 7_u64;
        Some(Box::new(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        }))
    }

    #[test]
    fn every_block_is_given_out_once_and_in_no_order() {
        let mut pool = Pool::new(1, dice());
        let all: Vec<u32> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(all.iter().copied().collect::<BTreeSet<_>>(), (1..BLOCKS).collect());
        let in_row = all.windows(2).filter(|pair| pair[1].abs_diff(pair[0]) == 1).count();
        assert!(in_row < 16, "{in_row} pairs in a row");
    }

    /// A client that takes all blocks and returns them does not learn the next block of another
    /// client.
    #[test]
    fn blocks_that_come_back_rest_and_their_order_is_another() {
        let mut pool = Pool::new(1, dice());
        let mut round = || -> Vec<u32> {
            let step = |_| {
                let block = pool.take().expect("a block");
                pool.give_back(block);
                block
            };
            (1..BLOCKS).map(step).collect()
        };
        let (first, second) = (round(), round());
        let place: std::collections::HashMap<u32, usize> =
            first.iter().zip(0..).map(|(block, at)| (*block, at)).collect();
        let follows = |pair: &&[u32]| {
            let [Some(one), Some(other)] = [0, 1].map(|which| place.get(&pair[which])) else { return false };
            *other == one + 1
        };
        assert!(second.windows(2).filter(follows).count() < 16, "the second round goes like the first");
        let both: Vec<u32> = first.into_iter().chain(second).collect();
        let mut last = std::collections::HashMap::new();
        for (at, block) in both.into_iter().enumerate() {
            let rest = last.insert(block, at).map_or(usize::MAX, |before| at - before);
            assert!(rest >= BLOCKS as usize / 2 - 2, "block {block} rested for {rest}");
        }
    }

    #[test]
    fn the_numbers_of_a_block_all_have_their_turn() {
        let mut pool = Pool::new(1, dice());
        for _ in 0..100 {
            let order = pool.order();
            assert_eq!((0..=255).map(|place| order.number(place)).collect::<BTreeSet<_>>().len(), 256);
        }
        let in_order = Pool::new(1, None).order();
        assert_eq!((in_order.number(0), in_order.number(9)), (0, 9));
    }
}
