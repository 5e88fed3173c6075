//! Object tables: one per kind, device wide, with lookup by handle in O(1).
//!
//! A handle consists of kind (4 bits), generation (8 bits) and index (20 bits). So a stale handle,
//! a handle of another kind and an invented handle are not found. Every object belongs to the
//! context that created it, and other contexts cannot find it. Clients decide how many objects
//! there are, so if there is no memory to grow, the command is refused. [`crate::objects`] knows
//! which objects refer to each other. The principal type is [`Table`]. See docs/abi.md, "Contexts,
//! handles, cleaning up".

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::ids::ContextId;

/// The kind of an object.
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
    /// Completion channel. This is the highest kind whose handles are positive as signed numbers;
    /// CREATE_CQ requires that.
    Channel = 7,
    /// XRC domain.
    Xrcd = 10,
    /// A further handle of an XRC target queue pair.
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
/// Freed indices that wait before one is reused.
const REST: usize = 64;
/// No index.
const NONE: u32 = u32::MAX;

/// All objects of one kind.
#[derive(Debug)]
pub struct Table<T> {
    kind: Kind,
    slots: Vec<Slot<T>>,
    /// Freed indices, oldest first, so that an index waits as long as possible before its next
    /// generation.
    free: VecDeque<u32>,
    owned: BTreeMap<ContextId, List>,
    len: usize,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u8,
    /// The neighbours in the list of the owner's objects.
    before: u32,
    after: u32,
    entry: Option<(ContextId, T)>,
}

/// The objects of one context, in the order of creation.
#[derive(Debug)]
struct List {
    first: u32,
    last: u32,
    len: usize,
}

impl<T> Table<T> {
    /// Bytes of one object in the table.
    pub const EACH: usize = size_of::<Slot<T>>() + size_of::<u32>();

    /// An empty table.
    pub fn new(kind: Kind) -> Self {
        Self { kind, slots: Vec::new(), free: VecDeque::new(), owned: BTreeMap::new(), len: 0 }
    }

    /// How many objects exist.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds `object` for `owner` and returns its handle. `None`: every handle of this kind is in
    /// use, or there is no memory.
    pub fn insert(&mut self, owner: ContextId, object: T) -> Option<u32> {
        let fresh = (self.slots.len() as u32) <= INDEX_MASK && self.free.len() < REST && self.grow(1);
        let index = if fresh {
            self.slots.push(Slot { generation: 0, before: NONE, after: NONE, entry: None });
            self.slots.len() as u32 - 1
        } else {
            self.free.pop_front()?
        };
        let list = self.owned.entry(owner).or_insert(List { first: index, last: NONE, len: 0 });
        list.len += 1;
        let before = std::mem::replace(&mut list.last, index);
        if let Some(slot) = self.slots.get_mut(before as usize) {
            slot.after = index;
        }
        let slot = &mut self.slots[index as usize];
        (slot.before, slot.after) = (before, NONE);
        slot.entry = Some((owner, object));
        self.len += 1;
        Some(handle(self.kind, slot.generation, index))
    }

    /// Reserves memory for `more` objects, and for their indices when they are freed. Returns false
    /// if there is none.
    fn grow(&mut self, more: usize) -> bool {
        let free = self.slots.len().saturating_add(more).saturating_sub(self.free.len());
        self.slots.try_reserve(more).is_ok() && self.free.try_reserve(free).is_ok()
    }

    /// The object, if it belongs to `owner`.
    pub fn find(&self, owner: ContextId, handle: u32) -> Option<&T> {
        match self.slots.get(self.index(handle)?)?.entry.as_ref()? {
            (holder, object) if *holder == owner => Some(object),
            _ => None,
        }
    }

    /// The object, if it belongs to `owner`, for a change.
    pub fn find_mut(&mut self, owner: ContextId, handle: u32) -> Option<&mut T> {
        let index = self.index(handle)?;
        match self.slots.get_mut(index)?.entry.as_mut()? {
            (holder, object) if *holder == owner => Some(object),
            _ => None,
        }
    }

    /// Removes the object, if it belongs to `owner`. Its handle is stale from then on.
    pub fn remove(&mut self, owner: ContextId, handle: u32) -> Option<T> {
        self.find(owner, handle)?;
        let index = self.index(handle)?;
        let slot = &mut self.slots[index];
        let (_, object) = slot.entry.take()?;
        slot.generation = slot.generation.wrapping_add(1);
        let (before, after) = (slot.before, slot.after);
        // `grow` has reserved the memory.
        self.free.push_back(index as u32);
        self.len -= 1;
        if let Some(slot) = self.slots.get_mut(before as usize) {
            slot.after = after;
        }
        if let Some(slot) = self.slots.get_mut(after as usize) {
            slot.before = before;
        }
        if let Some(list) = self.owned.get_mut(&owner) {
            list.len -= 1;
            if list.first == index as u32 {
                list.first = after;
            }
            if list.last == index as u32 {
                list.last = before;
            }
            if list.len == 0 {
                self.owned.remove(&owner);
            }
        }
        Some(object)
    }

    /// The handles of one context, for `show`.
    pub fn handles(&self, owner: ContextId) -> Vec<u32> {
        self.of(owner).map(|(handle, _)| handle).collect()
    }

    /// Owner and handle of the object at an index, or `Some(None)` for a free index. `None`: there
    /// are no more indices. A caller can look at all objects in pieces, while objects are created
    /// and destroyed.
    pub fn at(&self, index: usize) -> Option<Option<(ContextId, u32)>> {
        let slot = self.slots.get(index)?;
        Some(slot.entry.as_ref().map(|(owner, _)| (*owner, handle(self.kind, slot.generation, index as u32))))
    }

    /// The objects that a context created after its object `before`, or all its objects if there is
    /// no `before`.
    pub fn of_after(&self, owner: ContextId, before: Option<u32>) -> impl Iterator<Item = (u32, &T)> + '_ {
        let known = before.and_then(|handle| self.index(handle)).and_then(|index| self.slots.get(index));
        let next = match (before, known) {
            (Some(_), Some(slot)) => slot.after,
            (Some(_), None) => NONE,
            (None, _) => self.owned.get(&owner).map_or(NONE, |list| list.first),
        };
        self.from(next)
    }

    /// The first handles of a context, `most` at most, to destroy its objects in pieces.
    pub fn first_of(&self, owner: ContextId, most: usize) -> Vec<u32> {
        self.of(owner).map(|(handle, _)| handle).take(most).collect()
    }

    /// The objects of one context, in the order of creation.
    pub fn of(&self, owner: ContextId) -> impl Iterator<Item = (u32, &T)> + '_ {
        self.of_after(owner, None)
    }

    /// The objects of a list, from index `next` on.
    fn from(&self, mut next: u32) -> impl Iterator<Item = (u32, &T)> + '_ {
        std::iter::from_fn(move || {
            let index = next;
            let slot = self.slots.get(index as usize)?;
            next = slot.after;
            let (_, object) = slot.entry.as_ref()?;
            Some((handle(self.kind, slot.generation, index), object))
        })
    }

    /// How many objects a context has.
    pub fn count_of(&self, owner: ContextId) -> usize {
        self.owned.get(&owner).map_or(0, |list| list.len)
    }

    /// Every object with its owner.
    pub fn iter(&self) -> impl Iterator<Item = (ContextId, &T)> + '_ {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref().map(|(owner, object)| (*owner, object)))
    }

    /// The index in a handle, if its kind and generation are valid.
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
    fn growth_without_memory_is_refused_and_harms_nothing() {
        let mut table = Table::new(Kind::Mr);
        let first = table.insert(ALICE, 1).expect("room");
        assert!(!table.grow(usize::MAX / 2) && !table.grow(isize::MAX as usize / Table::<i32>::EACH + 1));
        let second = table.insert(ALICE, 2).expect("room");
        assert_eq!(table.find(ALICE, first), Some(&1));
        assert_eq!(table.remove(ALICE, second), Some(2));
    }

    #[test]
    fn a_contexts_objects_are_a_list_that_any_may_leave() {
        let mut table = Table::new(Kind::Mw);
        let handles: Vec<u32> = (0..6).map(|number| table.insert(ALICE, number).expect("room")).collect();
        let of_bob = table.insert(BOB, 100).expect("room");
        for (gone, rest) in [(3, vec![0, 1, 2, 4, 5]), (0, vec![1, 2, 4, 5]), (5, vec![1, 2, 4])] {
            assert_eq!(table.remove(ALICE, handles[gone]), Some(gone as i32));
            assert_eq!(table.of(ALICE).map(|(_, number)| *number).collect::<Vec<_>>(), rest.clone());
            assert_eq!(table.count_of(ALICE), rest.len());
        }
        assert_eq!(table.first_of(ALICE, 2), [handles[1], handles[2]]);
        let after = |handle| table.of_after(ALICE, Some(handle)).map(|(handle, _)| handle).collect::<Vec<_>>();
        assert_eq!((after(handles[1]), after(handles[4])), (vec![handles[2], handles[4]], vec![]));
        assert!(after(handles[3]).is_empty(), "it is gone");
        let all: Vec<_> = (0..).map_while(|index| table.at(index)).collect();
        assert_eq!((all.len(), all[0], all[6]), (7, None, Some((BOB, of_bob))));
        assert_eq!(all.into_iter().flatten().filter(|(owner, _)| *owner == ALICE).count(), 3);
        table.insert(ALICE, 7).expect("room");
        for handle in table.handles(ALICE) {
            table.remove(ALICE, handle).expect("there");
        }
        assert_eq!((table.count_of(ALICE), table.len(), table.handles(BOB)), (0, 1, vec![of_bob]));
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
