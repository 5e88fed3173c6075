//! Numbers of the form index << 8 | generation, never zero: lkeys and rkeys, and (without the
//! generation) SRQ numbers.
//!
//! Indices come in blocks of 256 that belong to one context. So a context cannot derive another's
//! keys from its own, and an engine has few blocks to search. A freed index waits until its context
//! has many, and returns with another generation. This file makes no system calls. The principal
//! type is [`KeySpace`].

use std::collections::{BTreeMap, HashMap, VecDeque};

use super::pool::{Chance, Order, Pool};
use crate::ids::ContextId;

/// Freed indices of a context wait until this many are free, or until no new index is left.
const REST: usize = 1024;
const BLOCK_LEN: u32 = 256;

/// All keys of an agent.
#[derive(Debug)]
pub struct KeySpace {
    pool: Pool,
    blocks: HashMap<u32, KeyBlock>,
    owners: BTreeMap<ContextId, ContextKeys>,
    /// Keys whose owner has ended, and how many others still use each.
    shared: BTreeMap<u32, u32>,
}

#[derive(Debug)]
struct KeyBlock {
    /// `None`: the owner has ended, and others use its keys.
    owner: Option<ContextId>,
    generations: [u8; BLOCK_LEN as usize],
    live: u32,
}

/// The keys of a context.
#[derive(Debug, Default)]
struct ContextKeys {
    blocks: Vec<u32>,
    /// The order of its newest block, and how many numbers of this block were given out.
    current: Option<(Order, u32)>,
    /// Freed indices, oldest first.
    free: VecDeque<u32>,
}

impl Default for KeySpace {
    fn default() -> Self {
        Self::new(None)
    }
}

impl KeySpace {
    /// All keys, in a random order from `chance`.
    pub fn new(chance: Option<Chance>) -> Self {
        Self { pool: Pool::new(0, chance), blocks: HashMap::new(), owners: BTreeMap::new(), shared: BTreeMap::new() }
    }

    /// Takes an unused key for `owner`. `None`: all indices are in use, or there is no memory.
    pub fn take(&mut self, owner: ContextId) -> Option<u32> {
        let Self { pool, blocks, owners, .. } = self;
        let has = owners.entry(owner).or_default();
        let rested = if has.free.len() >= REST { has.free.pop_front() } else { None };
        let index = match rested {
            Some(index) => index,
            None => match has.fresh(owner, pool, blocks) {
                Some(index) => index,
                None => has.free.pop_front()?,
            },
        };
        let block = blocks.get_mut(&(index / BLOCK_LEN))?;
        block.live += 1;
        Some(index << 8 | u32::from(block.generations[(index % BLOCK_LEN) as usize]))
    }

    /// Frees the key of a memory window, whose latest key is `last`. The next key with this index
    /// differs from all keys of the window, unless the window has had all 256.
    pub fn retire(&mut self, key: u32, last: u32) {
        if let Some(generation) = self.generation(key) {
            *generation = (last & 0xff) as u8;
            self.give_back(last);
        }
    }

    /// The owner of a key has ended, and `users` others still use the key.
    pub fn share(&mut self, key: u32, users: u32) {
        self.shared.insert(key, users);
    }

    /// One of these users gives the key up. The last one frees it.
    pub fn give_back_last(&mut self, key: u32) {
        match self.shared.get_mut(&key) {
            Some(users) if *users > 1 => *users -= 1,
            _ => {
                self.shared.remove(&key);
                self.give_back(key);
            }
        }
    }

    /// Frees a key. The next key with its index has another generation.
    pub fn give_back(&mut self, key: u32) {
        let Some(generation) = self.generation(key) else { return };
        *generation = generation.wrapping_add(1);
        let index = key >> 8;
        let Some(block) = self.blocks.get_mut(&(index / BLOCK_LEN)) else { return };
        block.live = block.live.saturating_sub(1);
        match block.owner.and_then(|owner| self.owners.get_mut(&owner)) {
            // `fresh` has reserved the memory.
            Some(has) => has.free.push_back(index),
            None if block.live == 0 => self.end(index / BLOCK_LEN),
            None => {}
        }
    }

    /// Ends a context. Its blocks are freed at once, except blocks with keys that others still use.
    pub fn forget(&mut self, owner: ContextId) {
        let Some(has) = self.owners.remove(&owner) else { return };
        for number in has.blocks {
            let Some(block) = self.blocks.get_mut(&number) else { continue };
            block.owner = None;
            if block.live == 0 {
                self.end(number);
            }
        }
    }

    fn end(&mut self, number: u32) {
        self.blocks.remove(&number);
        self.pool.give_back(number);
    }

    /// The generation of a key that is, or seems to be, in use.
    fn generation(&mut self, key: u32) -> Option<&mut u8> {
        let index = key >> 8;
        let generation = &mut self.blocks.get_mut(&(index / BLOCK_LEN))?.generations[(index % BLOCK_LEN) as usize];
        (u32::from(*generation) == key & 0xff).then_some(generation)
    }
}

impl ContextKeys {
    /// An index that this context has not had yet, from a new block if necessary.
    fn fresh(&mut self, owner: ContextId, pool: &mut Pool, blocks: &mut HashMap<u32, KeyBlock>) -> Option<u32> {
        if self.current.is_none_or(|(_, given)| given == BLOCK_LEN) {
            // Also reserves memory for freed indices, so that freeing never fails.
            let room = (self.blocks.len() + 1) * BLOCK_LEN as usize;
            self.free.try_reserve(room.saturating_sub(self.free.len())).ok()?;
            self.blocks.try_reserve(1).ok()?;
            blocks.try_reserve(1).ok()?;
            let number = pool.take()?;
            let generations = std::array::from_fn(|_| pool.byte());
            blocks.insert(number, KeyBlock { owner: Some(owner), generations, live: 0 });
            self.blocks.push(number);
            self.current = Some((pool.order(), 0));
        }
        let (order, given) = self.current.as_mut()?;
        let block = *self.blocks.last()?;
        while *given < BLOCK_LEN {
            let index = block * BLOCK_LEN + u32::from(order.number(*given as u8));
            *given += 1;
            // A key is never 0.
            if index != 0 {
                return Some(index);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContextId = ContextId(1);
    const B: ContextId = ContextId(2);

    #[test]
    fn keys_come_back_with_another_generation() {
        let mut keys = KeySpace::default();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            let key = keys.take(A).expect("room");
            assert!(key > 0xff && seen.insert(key), "{key:#x}");
            keys.give_back(key);
            keys.give_back(key);
        }
        assert!(keys.blocks.len() <= REST / 256 + 1);
    }

    #[test]
    fn the_key_after_a_window_is_none_of_its_keys() {
        let mut keys = KeySpace::default();
        for round in 0..3 * REST {
            let key = keys.take(A).expect("room");
            let last = key & !0xff | (key + 100) & 0xff;
            keys.retire(key, last);
            keys.retire(key, last);
            assert_eq!(keys.owners[&A].free.len(), (round + 1).min(REST), "once");
            let next = keys.generation(key & !0xff | (last + 1) & 0xff);
            assert!(next.is_some(), "one after the last");
        }
    }

    #[test]
    fn contexts_have_blocks_of_their_own_and_leave_nothing() {
        let mut keys = KeySpace::default();
        let (a, b) = (keys.take(A).expect("room"), keys.take(B).expect("room"));
        assert_ne!(a >> 16, b >> 16);
        let imported = keys.take(A).expect("room");
        assert_eq!(imported >> 16, a >> 16);
        keys.give_back(a);
        keys.share(imported, 2);
        keys.forget(A);
        assert_eq!(keys.blocks.len(), 2, "others use a key of it");
        keys.give_back_last(imported);
        assert_eq!(keys.blocks.len(), 2);
        keys.give_back_last(imported);
        keys.give_back(b);
        keys.forget(B);
        assert!(keys.blocks.is_empty() && keys.owners.is_empty() && keys.shared.is_empty());
    }

    /// A context that has made many keys cannot derive those of others.
    #[test]
    fn keys_of_others_do_not_follow_ones_own() {
        let mut state = 1_u64;
        let mut keys = KeySpace::new(Some(Box::new(move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        })));
        let mut near = 0;
        for round in 0..1_000 {
            let mine = keys.take(ContextId(2 * round)).expect("room");
            let theirs = keys.take(ContextId(2 * round + 1)).expect("room");
            near += u32::from((mine >> 16).abs_diff(theirs >> 16) <= 1);
        }
        assert!(near < 10, "{near} of 1,000 keys lie beside the one before");
    }
}
