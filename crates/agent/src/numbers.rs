//! Numbers that peers remember: QPNs in blocks, and keys ([`keys`]). Both are not reused for a long
//! time.
//!
//! A QPN block is 256 numbers that belong to one engine. The board says which engine, so a receiver
//! finds the engine of a packet without asking the agent. The next block, and the next number in
//! it, are random ([`pool`]). This file makes no system calls. The principal types are [`Numbers`],
//! [`QpnSpace`] and [`KeySpace`].

mod keys;
mod pool;

use std::collections::{BTreeMap, BTreeSet};

pub use keys::KeySpace;
pub use pool::Chance;
use pool::{BLOCKS, Order, Pool};

use crate::ids::ContextId;

const BLOCK_LEN: u32 = 256;

/// All numbers of an agent.
#[derive(Debug, Default)]
pub struct Numbers {
    /// QP numbers.
    pub qpns: QpnSpace,
    /// lkeys and rkeys.
    pub keys: KeySpace,
    /// SRQ numbers: a key without its generation.
    pub srq_numbers: KeySpace,
    /// The last number that labels a PD or CQ for users.
    pub labels: u32,
}

impl Numbers {
    /// All numbers. A number space is in a random order if `chance` has random words for it.
    pub fn new(chance: impl Fn() -> Option<Chance>) -> Self {
        let (qpns, keys, srq_numbers) = (QpnSpace::new(chance()), KeySpace::new(chance()), KeySpace::new(chance()));
        Self { qpns, keys, srq_numbers, labels: 0 }
    }

    /// A number that labels an object for users.
    pub fn next_label(&mut self) -> u32 {
        self.labels = self.labels.wrapping_add(1).max(1);
        self.labels
    }

    /// Frees the numbers of a context that is gone. Others may get them after some time.
    pub(crate) fn forget(&mut self, owner: ContextId) {
        self.qpns.forget(owner);
        self.keys.forget(owner);
        self.srq_numbers.forget(owner);
    }
}

/// All queue pair numbers of an agent. Block 0 is never granted: it holds QP 0 and QP 1.
#[derive(Debug)]
pub struct QpnSpace {
    blocks: BTreeMap<u32, NumberBlock>,
    pool: Pool,
    owners: BTreeMap<ContextId, ContextNumbers>,
    /// How many blocks have a single number.
    apart: u32,
}

/// The numbers of a context.
#[derive(Debug, Default)]
struct ContextNumbers {
    blocks: BTreeSet<u32>,
    /// The block from which it takes numbers.
    current: Option<u32>,
    /// How many of its blocks have a single number.
    apart: u32,
}

#[derive(Debug)]
struct NumberBlock {
    owner: ContextId,
    order: Order,
    /// How many of its numbers were given out.
    next: u32,
    used: [bool; BLOCK_LEN as usize],
    live: u32,
    /// It has a single number, and no other is taken from it.
    apart: bool,
}

/// A granted block, for the board. A return is not shown there: the context's last packets may
/// still be in flight, and receivers accept them while the board names the context. The context's
/// number is never reused, so no new packets can come from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// QPN >> 8.
    pub block: u32,
    /// The context that owns it now.
    pub owner: ContextId,
}

impl Default for QpnSpace {
    fn default() -> Self {
        Self::new(None)
    }
}

impl QpnSpace {
    /// All numbers except block 0, which holds QP 0 and QP 1, in a random order from `chance`.
    pub fn new(chance: Option<Chance>) -> Self {
        Self { blocks: BTreeMap::new(), pool: Pool::new(1, chance), owners: BTreeMap::new(), apart: 0 }
    }

    /// Takes a number for `owner`. Returns it with the block that had to be granted, if any.
    /// `None`: every number is in use.
    pub fn take(&mut self, owner: ContextId) -> Option<(u32, Option<Grant>)> {
        let current = self.owners.get(&owner).and_then(|has| has.current);
        if let Some(block) = current
            && let Some(held) = self.blocks.get_mut(&block)
            && held.next < BLOCK_LEN
        {
            return Some((held.take_next(block), None));
        }
        if let Some((number, grant)) = self.grant(owner, false) {
            return Some((number, Some(grant)));
        }
        // Every block is owned, so numbers of the own blocks are reused now.
        let blocks = &mut self.blocks;
        let room = |block: &u32| blocks.get(block).is_some_and(|held| held.live < BLOCK_LEN && !held.apart);
        let block = self.owners.get(&owner)?.blocks.iter().copied().find(room)?;
        let held = blocks.get_mut(&block)?;
        let index = held.used.iter().position(|used| !used)?;
        held.used[index] = true;
        held.live += 1;
        Some((block * BLOCK_LEN + index as u32, None))
    }

    /// Takes a number in a block of its own, which can pass to another context. `None`: half of all
    /// blocks are of this kind, or all are in use.
    pub fn take_apart(&mut self, owner: ContextId) -> Option<(u32, Grant)> {
        if self.apart >= BLOCKS / 2 {
            return None;
        }
        let (number, grant) = self.grant(owner, true)?;
        self.blocks.get_mut(&grant.block)?.next = BLOCK_LEN;
        Some((number, grant))
    }

    /// How many numbers in blocks of their own a context has.
    pub fn apart_of(&self, owner: ContextId) -> usize {
        self.owners.get(&owner).map_or(0, |has| has.apart as usize)
    }

    /// Passes the block of such a number to another context.
    pub fn pass_on(&mut self, number: u32, owner: ContextId) -> Option<Grant> {
        let block = number / BLOCK_LEN;
        let held = self.blocks.get_mut(&block).filter(|held| held.apart)?;
        let former = std::mem::replace(&mut held.owner, owner);
        self.disown(former, block, true);
        let heir = self.owners.entry(owner).or_default();
        heir.blocks.insert(block);
        heir.apart += 1;
        Some(Grant { block, owner })
    }

    /// Frees a number. A block that is used up and empty is freed too.
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
        let (owner, apart) = (held.owner, held.apart);
        self.disown(owner, block, apart);
        self.end(block);
    }

    /// Frees every block of `owner`, whose QPs are gone.
    pub fn forget(&mut self, owner: ContextId) {
        for block in self.owners.remove(&owner).into_iter().flat_map(|has| has.blocks) {
            self.end(block);
        }
    }

    /// The owner of `number`.
    pub fn owner(&self, number: u32) -> Option<ContextId> {
        self.blocks.get(&(number / BLOCK_LEN)).map(|held| held.owner)
    }

    /// Grants a block to `owner`. Returns its first number.
    fn grant(&mut self, owner: ContextId, apart: bool) -> Option<(u32, Grant)> {
        let block = self.pool.take()?;
        let order = self.pool.order();
        let mut granted = NumberBlock { owner, order, next: 0, used: [false; BLOCK_LEN as usize], live: 0, apart };
        let number = granted.take_next(block);
        self.blocks.insert(block, granted);
        let has = self.owners.entry(owner).or_default();
        has.blocks.insert(block);
        if apart {
            has.apart += 1;
            self.apart += 1;
        } else {
            has.current = Some(block);
        }
        Some((number, Grant { block, owner }))
    }

    /// Removes a block from a context.
    fn disown(&mut self, owner: ContextId, block: u32, apart: bool) {
        let Some(has) = self.owners.get_mut(&owner) else { return };
        has.blocks.remove(&block);
        has.apart -= u32::from(apart);
        if has.current == Some(block) {
            has.current = None;
        }
        if has.blocks.is_empty() {
            self.owners.remove(&owner);
        }
    }

    fn end(&mut self, block: u32) {
        if let Some(held) = self.blocks.remove(&block) {
            self.apart -= u32::from(held.apart);
            self.pool.give_back(block);
        }
    }
}

impl NumberBlock {
    fn take_next(&mut self, block: u32) -> u32 {
        let index = u32::from(self.order.number(self.next as u8));
        self.next += 1;
        self.used[index as usize] = true;
        self.live += 1;
        block * BLOCK_LEN + index
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
        // All blocks except the first and the last have been used and freed.
        for other in 2..BLOCKS - 1 {
            let (number, _) = space.take(ContextId(1000 + other)).expect("room");
            assert_eq!(number, other * 256);
            space.forget(ContextId(1000 + other));
        }
        for _ in 0..255 {
            let (number, _) = space.take(A).expect("room");
            space.give_back(number);
        }
        let (last_block, _) = space.take(A).expect("room");
        assert_eq!(last_block, (BLOCKS - 1) * 256);
        let (other, _) = space.take(B).expect("room");
        assert_eq!(other, 2 * 256, "block 1 is still owned because of {pinned:#x}");
    }
}
