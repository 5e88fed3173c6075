//! Object tables: one per kind, device wide, looked up by handle in O(1).
//!
//! A handle is kind (4 bits), generation (8 bits) and index (20 bits), so that a stale handle, a handle of another kind
//! and a made-up one are ordinary misses. Every object belongs to the context that made it; for any other context it does
//! not exist. Which objects refer to each other is not known here but in [`crate::objects`]. The principal type is
//! [`Table`]. See docs/abi.md, "Contexts, handles, cleaning up".

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use crate::context::ContextId;

/// What a handle names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Protection domain.
    Pd = 1,
    /// Memory region.
    Mr = 2,
    /// Completion queue.
    Cq = 3,
    /// Queue pair.
    Qp = 4,
    /// Shared receive queue.
    Srq = 5,
    /// Address handle.
    Ah = 6,
    /// Completion channel. The highest kind that still is positive as a signed number, as CREATE_CQ wants it.
    Channel = 7,
    /// XRC domain.
    Xrcd = 10,
    /// One more handle of an XRC target queue pair.
    Opened = 11,
    /// Memory window.
    Mw = 12,
    /// Device memory.
    Dm = 13,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pd => "PD",
            Self::Mr => "MR",
            Self::Cq => "CQ",
            Self::Qp => "QP",
            Self::Srq => "SRQ",
            Self::Ah => "AH",
            Self::Channel => "completion channel",
            Self::Xrcd => "XRC domain",
            Self::Opened => "opened QP",
            Self::Mw => "memory window",
            Self::Dm => "device memory",
        })
    }
}

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;

/// All objects of one kind.
#[derive(Debug)]
pub struct Table<T> {
    kind: Kind,
    slots: Vec<Slot<T>>,
    /// Freed indices, oldest first: an index rests as long as possible before its next generation.
    free: VecDeque<u32>,
    owned: BTreeMap<ContextId, BTreeSet<u32>>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u8,
    entry: Option<(ContextId, T)>,
}

impl<T> Table<T> {
    /// An empty table.
    pub fn new(kind: Kind) -> Self {
        Self { kind, slots: Vec::new(), free: VecDeque::new(), owned: BTreeMap::new(), len: 0 }
    }

    /// How many objects live.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when none lives.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `object` for `owner` and names it. None: every handle of this kind is in use.
    pub fn insert(&mut self, owner: ContextId, object: T) -> Option<u32> {
        let index = if (self.slots.len() as u32) <= INDEX_MASK && self.free.len() < 64 {
            self.slots.push(Slot { generation: 0, entry: None });
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        let slot = &mut self.slots[index as usize];
        slot.entry = Some((owner, object));
        let handle = handle(self.kind, slot.generation, index);
        self.owned.entry(owner).or_default().insert(handle);
        self.len += 1;
        Some(handle)
    }

    /// The object, if `owner` has it.
    pub fn find(&self, owner: ContextId, handle: u32) -> Option<&T> {
        match self.slots.get(self.index(handle)?)?.entry.as_ref()? {
            (holder, object) if *holder == owner => Some(object),
            _ => None,
        }
    }

    /// The object, if `owner` has it, to change it.
    pub fn find_mut(&mut self, owner: ContextId, handle: u32) -> Option<&mut T> {
        let index = self.index(handle)?;
        match self.slots.get_mut(index)?.entry.as_mut()? {
            (holder, object) if *holder == owner => Some(object),
            _ => None,
        }
    }

    /// Takes the object out, if `owner` has it; the handle is stale from now on.
    pub fn remove(&mut self, owner: ContextId, handle: u32) -> Option<T> {
        self.find(owner, handle)?;
        let index = self.index(handle)?;
        let slot = &mut self.slots[index];
        let (_, object) = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(index as u32);
        self.len -= 1;
        if let Some(handles) = self.owned.get_mut(&owner) {
            handles.remove(&handle);
            if handles.is_empty() {
                self.owned.remove(&owner);
            }
        }
        Some(object)
    }

    /// The handles of one context, for its clean-up and for `show`.
    pub fn handles(&self, owner: ContextId) -> Vec<u32> {
        self.owned.get(&owner).map(|handles| handles.iter().copied().collect()).unwrap_or_default()
    }

    /// The objects of one context.
    pub fn of(&self, owner: ContextId) -> impl Iterator<Item = (u32, &T)> + '_ {
        let handles = self.owned.get(&owner).into_iter().flatten();
        handles.filter_map(move |handle| Some((*handle, self.find(owner, *handle)?)))
    }

    /// How many objects a context has.
    pub fn count_of(&self, owner: ContextId) -> usize {
        self.owned.get(&owner).map_or(0, BTreeSet::len)
    }

    /// Every object with its owner.
    pub fn iter(&self) -> impl Iterator<Item = (ContextId, &T)> + '_ {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|(owner, object)| (*owner, object)))
    }

    /// The index that a handle claims, when its kind and generation are right.
    fn index(&self, claim: u32) -> Option<usize> {
        let index = claim & INDEX_MASK;
        let slot = self.slots.get(index as usize)?;
        (claim == handle(self.kind, slot.generation, index)).then_some(index as usize)
    }
}

fn handle(kind: Kind, generation: u8, index: u32) -> u32 {
    (kind as u32) << 28 | u32::from(generation) << INDEX_BITS | index
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: ContextId = ContextId(1);
    const BOB: ContextId = ContextId(2);

    #[test]
    fn a_handle_is_good_for_its_owner_until_it_is_removed() {
        let mut table = Table::new(Kind::Pd);
        let handle = table.insert(ALICE, "a").expect("room");
        assert_eq!(table.find(ALICE, handle), Some(&"a"));
        assert_eq!(table.find(BOB, handle), None);
        assert_eq!(table.remove(BOB, handle), None);
        assert_eq!(table.remove(ALICE, handle), Some("a"));
        assert_eq!(table.find(ALICE, handle), None);
        assert_eq!(table.remove(ALICE, handle), None);
        assert!(table.is_empty() && table.handles(ALICE).is_empty());
    }

    #[test]
    fn a_reused_index_has_another_handle() {
        let mut table = Table::new(Kind::Qp);
        let mut seen = std::collections::HashSet::new();
        for round in 0..10_000 {
            let handle = table.insert(ALICE, round).expect("room");
            assert!(round >= 16_000 || seen.insert(handle), "{handle:#x} came twice within 10,000");
            table.remove(ALICE, handle).expect("there");
        }
        assert!(table.slots.len() <= 65, "indices are used again");
    }

    #[test]
    fn other_kinds_and_made_up_handles_miss() {
        let mut table = Table::new(Kind::Cq);
        let handle = table.insert(ALICE, ()).expect("room");
        for claim in [0, u32::MAX, handle ^ 1 << 28, handle + 1, handle | 1 << 20] {
            assert_eq!(table.find(ALICE, claim), None, "{claim:#x}");
        }
    }
}
