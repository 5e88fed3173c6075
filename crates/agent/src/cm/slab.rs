//! A table whose entries are named by numbers that are not reused soon: ids and memberships of the
//! connection manager.
//!
//! A number is a generation (11 bits) and an index (20 bits). It is never 0 and never negative. The
//! table does not know who owns an entry. The principal type is [`Slab`].

use std::collections::VecDeque;

const INDEX_BITS: u32 = 20;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
const GENERATIONS: u32 = 1 << 11;
/// Freed slots that wait before one of them is reused.
const REST: usize = 64;

/// The table.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<SlabSlot<T>>,
    free: VecDeque<u32>,
    len: usize,
    most: usize,
}

#[derive(Debug)]
struct SlabSlot<T> {
    generation: u32,
    entry: Option<T>,
}

impl<T> Slab<T> {
    /// An empty table with room for `most` entries.
    pub(crate) fn new(most: usize) -> Self {
        Self { slots: Vec::new(), free: VecDeque::new(), len: 0, most: most.min(INDEX_MASK as usize - REST) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether one more entry fits.
    pub(crate) fn has_room(&self) -> bool {
        self.len < self.most
    }

    /// Adds an entry and names it. Returns `None` if the table is full or if there is no memory.
    pub(crate) fn insert(&mut self, entry: T) -> Option<u32> {
        if !self.has_room() {
            return None;
        }
        let index = if self.free.len() > REST {
            self.free.pop_front()?
        } else {
            // Removal must not fail, so the memory for the freed index is reserved here.
            let freed = self.slots.len() + 1 - self.free.len();
            if self.slots.try_reserve(1).is_err() || self.free.try_reserve(freed).is_err() {
                return None;
            }
            self.slots.push(SlabSlot { generation: 1, entry: None });
            self.slots.len() as u32 - 1
        };
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        self.len += 1;
        Some(slot.generation << INDEX_BITS | index)
    }

    pub(crate) fn get(&self, name: u32) -> Option<&T> {
        let slot = self.slots.get((name & INDEX_MASK) as usize)?;
        slot.entry.as_ref().filter(|_| slot.generation == name >> INDEX_BITS)
    }

    pub(crate) fn get_mut(&mut self, name: u32) -> Option<&mut T> {
        let slot = self.slots.get_mut((name & INDEX_MASK) as usize)?;
        slot.entry.as_mut().filter(|_| slot.generation == name >> INDEX_BITS)
    }

    pub(crate) fn remove(&mut self, name: u32) -> Option<T> {
        self.get(name)?;
        let index = name & INDEX_MASK;
        let slot = &mut self.slots[index as usize];
        // With generation 0, a number could be 0.
        slot.generation = (slot.generation + 1) % GENERATIONS;
        slot.generation = slot.generation.max(1);
        self.free.push_back(index);
        self.len -= 1;
        slot.entry.take()
    }

    /// The entries of `most` slots from `start` on, and where the next ones begin, if there are
    /// any.
    pub(crate) fn some(&self, start: usize, most: usize) -> (impl Iterator<Item = (u32, &T)> + '_, Option<usize>) {
        let end = start.saturating_add(most).min(self.slots.len());
        let slots = self.slots.get(start..end).unwrap_or_default();
        let named = (start as u32..).zip(slots).filter_map(|(index, slot)| {
            let name = slot.generation << INDEX_BITS | index;
            slot.entry.as_ref().map(|entry| (name, entry))
        });
        (named, (end < self.slots.len()).then_some(end))
    }

    /// Every entry with its name.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> + '_ {
        (0..).zip(&self.slots).filter_map(|(index, slot)| {
            let name = slot.generation << INDEX_BITS | index;
            slot.entry.as_ref().map(|entry| (name, entry))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_good_until_the_entry_goes() {
        let mut slab = Slab::new(10);
        let first = slab.insert('a').expect("room");
        assert!(first != 0 && first.cast_signed() > 0);
        assert_eq!(slab.get(first), Some(&'a'));
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.remove(first), slab.len()), (None, 0));
        for claim in [0, u32::MAX, first ^ 1 << 20, first + 1] {
            assert_eq!(slab.get(claim), None, "{claim:#x}");
        }
    }

    #[test]
    fn it_is_bounded_and_names_do_not_come_again_soon() {
        let mut slab = Slab::new(2);
        assert!(slab.insert(1).is_some() && slab.insert(2).is_some() && slab.insert(3).is_none());
        let mut slab = Slab::new(2);
        let mut seen = std::collections::HashSet::new();
        for round in 0..100_000 {
            let name = slab.insert(round).expect("room");
            assert!(seen.insert(name), "{name:#x} came twice");
            slab.remove(name);
        }
        assert!(slab.slots.len() <= REST + 2);
        assert_eq!(slab.iter().count(), 0);
    }
}
