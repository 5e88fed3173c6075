//! Numbers that peers remember: QPNs in blocks, and keys. Both rest as long as possible before they are used again.
//!
//! A QPN block is 256 numbers that belong to one engine (the board says which), so that whoever receives a packet finds
//! its engine without asking. Blocks and the numbers in them are handed out in a circle. A key is an index and a
//! generation byte. Pure arithmetic; the principal types are [`QpnSpace`] and [`KeySpace`].

use std::collections::{BTreeMap, VecDeque};

use crate::context::ContextId;

/// How many blocks there are: QPNs have 24 bits.
const BLOCKS: u32 = 1 << 16;
const BLOCK_LEN: u32 = 256;

/// All queue pair numbers of an agent. Block 0 is never granted: it holds QP 0 and QP 1.
#[derive(Debug)]
pub struct QpnSpace {
    blocks: BTreeMap<u32, Block>,
    /// The block that each context takes numbers from.
    current: BTreeMap<ContextId, u32>,
    cursor: u32,
    /// Blocks of a single number.
    apart: u32,
}

#[derive(Debug)]
struct Block {
    owner: ContextId,
    next: u32,
    used: [bool; BLOCK_LEN as usize],
    live: u32,
    /// It has a single number, and none is taken from it any more.
    apart: bool,
}

/// A block that has been granted, for the board. A return is not shown: what a context sent last may still be on its way, and is
/// believed for as long as the board names it. The context's own number is never used again, so nothing new can come of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// QPN >> 8.
    pub block: u32,
    /// Who has it now.
    pub owner: ContextId,
}

impl Default for QpnSpace {
    fn default() -> Self {
        Self { blocks: BTreeMap::new(), current: BTreeMap::new(), cursor: 1, apart: 0 }
    }
}

impl QpnSpace {
    /// A number for `owner`, and the block it had to take for it, if any. None: every number is in use.
    pub fn take(&mut self, owner: ContextId) -> Option<(u32, Option<Grant>)> {
        if let Some(block) = self.current.get(&owner).copied()
            && let Some(held) = self.blocks.get_mut(&block)
            && held.next < BLOCK_LEN
        {
            return Some((held.take_next(block), None));
        }
        if let Some(block) = self.unowned() {
            self.cursor = if block + 1 == BLOCKS { 1 } else { block + 1 };
            let mut granted = Block { owner, next: 0, used: [false; BLOCK_LEN as usize], live: 0, apart: false };
            let number = granted.take_next(block);
            self.blocks.insert(block, granted);
            let exhausted = self.current.insert(owner, block);
            debug_assert!(exhausted.is_none_or(|old| self.blocks.get(&old).is_none_or(|held| held.live > 0)));
            return Some((number, Some(Grant { block, owner })));
        }
        // Every block is owned: only now are numbers of our own blocks used again.
        let (block, held) =
            self.blocks.iter_mut().find(|(_, held)| held.owner == owner && held.live < BLOCK_LEN && !held.apart)?;
        let index = held.used.iter().position(|used| !used)?;
        held.used[index] = true;
        held.live += 1;
        Some((block * BLOCK_LEN + index as u32, None))
    }

    /// A number in a block of its own, which can become another context's. None: half of all blocks are such, or all are in use.
    pub fn take_apart(&mut self, owner: ContextId) -> Option<(u32, Grant)> {
        if self.apart >= BLOCKS / 2 {
            return None;
        }
        let block = self.unowned()?;
        self.cursor = if block + 1 == BLOCKS { 1 } else { block + 1 };
        let mut granted = Block { owner, next: 0, used: [false; BLOCK_LEN as usize], live: 0, apart: true };
        let number = granted.take_next(block);
        granted.next = BLOCK_LEN;
        self.blocks.insert(block, granted);
        self.apart += 1;
        Some((number, Grant { block, owner }))
    }

    /// Makes the block of such a number another context's.
    pub fn pass_on(&mut self, number: u32, owner: ContextId) -> Option<Grant> {
        let block = number / BLOCK_LEN;
        let held = self.blocks.get_mut(&block).filter(|held| held.apart)?;
        held.owner = owner;
        Some(Grant { block, owner })
    }

    /// Gives a number back; a block that is used up and empty goes back too.
    pub fn give_back(&mut self, number: u32) {
        let block = number / BLOCK_LEN;
        let Some(held) = self.blocks.get_mut(&block) else { return };
        let used = &mut held.used[(number % BLOCK_LEN) as usize];
        if !std::mem::take(used) {
            return;
        }
        held.live -= 1;
        if held.live > 0 || held.next < BLOCK_LEN {
            return;
        }
        let owner = held.owner;
        self.apart -= u32::from(held.apart);
        self.blocks.remove(&block);
        if self.current.get(&owner) == Some(&block) {
            self.current.remove(&owner);
        }
    }

    /// Takes every block from `owner`, whose QPs are gone.
    pub fn forget(&mut self, owner: ContextId) {
        self.current.remove(&owner);
        self.blocks.retain(|_, held| held.owner != owner);
        self.apart = self.blocks.values().filter(|held| held.apart).count() as u32;
    }

    /// Who owns `number`.
    pub fn owner(&self, number: u32) -> Option<ContextId> {
        self.blocks.get(&(number / BLOCK_LEN)).map(|held| held.owner)
    }

    fn unowned(&self) -> Option<u32> {
        if self.blocks.len() as u32 >= BLOCKS - 1 {
            return None;
        }
        (self.cursor..BLOCKS).chain(1..self.cursor).find(|block| !self.blocks.contains_key(block))
    }
}

impl Block {
    fn take_next(&mut self, block: u32) -> u32 {
        let index = self.next;
        self.next += 1;
        self.used[index as usize] = true;
        self.live += 1;
        block * BLOCK_LEN + index
    }
}

/// Numbers of the form index << 8 | generation, never zero: lkeys and rkeys, and (without the generation) SRQ numbers.
#[derive(Debug, Default)]
pub struct KeySpace {
    generations: Vec<u8>,
    free: VecDeque<u32>,
    /// Keys whose owner is gone, and how many others still use them.
    shared: BTreeMap<u32, u32>,
}

/// Freed indices rest until this many are free, or no new index is left.
const REST: usize = 1024;

impl KeySpace {
    /// A key that is not in use. None: all 2^24 indices are.
    pub fn take(&mut self) -> Option<u32> {
        let fresh = self.generations.len() as u32 + 1;
        let index = if self.free.len() < REST && fresh < 1 << 24 {
            self.generations.push(0);
            fresh
        } else {
            self.free.pop_front()?
        };
        Some(index << 8 | u32::from(self.generations[index as usize - 1]))
    }

    /// Gives the key of a memory window back, of which `last` is the last form: the next key with its index is another than that.
    pub fn retire(&mut self, key: u32, last: u32) {
        let index = key >> 8;
        let generation = (index as usize).checked_sub(1).and_then(|slot| self.generations.get_mut(slot));
        if let Some(generation) = generation.filter(|generation| u32::from(**generation) == key & 0xff) {
            *generation = (last & 0xff) as u8;
            self.give_back(last);
        }
    }

    /// The owner of a key is gone, and others still use it.
    pub fn share(&mut self, key: u32, users: u32) {
        self.shared.insert(key, users);
    }

    /// One of those gives it back: with the last one it is free.
    pub fn give_back_last(&mut self, key: u32) {
        match self.shared.get_mut(&key) {
            Some(users) if *users > 1 => *users -= 1,
            _ => {
                self.shared.remove(&key);
                self.give_back(key);
            }
        }
    }

    /// Gives a key back; the next key with its index has another generation.
    pub fn give_back(&mut self, key: u32) {
        let index = key >> 8;
        let Some(generation) = (index as usize).checked_sub(1).and_then(|slot| self.generations.get_mut(slot)) else {
            return;
        };
        if u32::from(*generation) == key & 0xff {
            *generation = generation.wrapping_add(1);
            self.free.push_back(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContextId = ContextId(1);
    const B: ContextId = ContextId(2);

    #[test]
    fn qpns_of_two_contexts_never_share_a_block() {
        let mut space = QpnSpace::default();
        let (first, change) = space.take(A).expect("room");
        assert_eq!((first, change), (0x100, Some(Grant { block: 1, owner: A })));
        let (second, _) = space.take(B).expect("room");
        assert_eq!(second, 0x200);
        assert_eq!(space.take(A).expect("room"), (0x101, None));
        assert_eq!((space.owner(0x1ff), space.owner(0x201), space.owner(0x300)), (Some(A), Some(B), None));
        space.forget(A);
        assert_eq!(space.owner(0x1ff), None);
        assert_eq!(space.take(A).expect("room").0, 0x300, "a returned block rests");
    }

    #[test]
    fn a_number_apart_becomes_anothers_with_its_block() {
        let mut space = QpnSpace::default();
        let (first, _) = space.take(A).expect("room");
        let (apart, grant) = space.take_apart(A).expect("room");
        assert_eq!((apart, grant), (0x200, Grant { block: 2, owner: A }));
        assert_eq!(space.take(A).expect("room").0, first + 1, "others come from the block that they came from");
        assert_eq!(space.pass_on(first, B), None, "not with others in it");
        assert_eq!(space.pass_on(apart, B), Some(Grant { block: 2, owner: B }));
        space.forget(A);
        assert_eq!((space.owner(apart), space.apart), (Some(B), 1));
        space.give_back(apart);
        assert_eq!((space.owner(apart), space.apart), (None, 0));
    }

    #[test]
    fn one_qp_made_and_destroyed_walks_through_all_numbers() {
        let mut space = QpnSpace::default();
        let mut last = 0;
        for _ in 0..70_000 {
            let (number, _) = space.take(A).expect("room");
            assert_eq!(number, if last == 0 { 0x100 } else { last + 1 });
            space.give_back(number);
            space.give_back(number);
            assert!(space.blocks.values().all(|held| held.live == 0), "giving back twice is harmless");
            last = number;
        }
        assert!(space.blocks.len() <= 1);
    }

    #[test]
    fn a_live_qp_pins_its_number_when_the_circle_closes() {
        let mut space = QpnSpace::default();
        let (pinned, _) = space.take(A).expect("room");
        space.cursor = BLOCKS - 1;
        for _ in 0..255 {
            let (number, _) = space.take(A).expect("room");
            space.give_back(number);
        }
        let (last_block, _) = space.take(A).expect("room");
        assert_eq!(last_block, (BLOCKS - 1) * 256);
        let (other, _) = space.take(B).expect("room");
        assert_eq!(other, 2 * 256, "block 1 is still owned because of {pinned:#x}");
    }

    #[test]
    fn keys_come_back_with_another_generation() {
        let mut keys = KeySpace::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let key = keys.take().expect("room");
            assert!(key > 0xff && seen.insert(key), "{key:#x}");
            keys.give_back(key);
            keys.give_back(key);
        }
        assert!(keys.generations.len() <= REST + 1);
    }

    #[test]
    fn the_key_after_a_window_is_none_of_its_keys() {
        let mut keys = KeySpace::default();
        for round in 0..3 * REST {
            let key = keys.take().expect("room");
            let last = key & !0xff | (key + 100) & 0xff;
            keys.retire(key, last);
            keys.retire(key, last);
            assert_eq!(keys.free.len(), (round + 1).min(REST), "once");
            let index = (key >> 8) as usize;
            assert_eq!(u32::from(keys.generations[index - 1]), (last + 1) & 0xff);
        }
    }
}
