//! A sparse table by 24-bit number, for QPNs and memory keys.
//!
//! A look-up shares no written cache line with the users of other numbers: it takes a small lock
//! per slot, and before this reads only words that hardly change. Slots come in leaves of 256. A
//! leaf serves one block of numbers at a time, and another block when that one is empty, so numbers
//! that are never used again cost nothing. A slot stores its number, because a look-up of the leaf
//! may be outdated. A held slot guard keeps the object in the table: this is how a deregistration
//! waits for copies under way. Principal type: [`Table`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

const FAN: usize = 256;

type TableSlot<T> = RwLock<Option<(u32, Arc<T>)>>;
type Leaf<T> = Box<[TableSlot<T>]>;
type Level<T> = Box<[OnceLock<T>]>;

/// The table. Numbers above 24 bits are absent.
pub(crate) struct Table<T> {
    /// For each block of 256 numbers: its leaf, counted from 1; 0 for none.
    blocks: Level<Box<[AtomicU32]>>,
    /// The leaves, by their number.
    leaves: Level<Level<Leaf<T>>>,
    used: Mutex<Used>,
}

/// Which leaves are in use.
#[derive(Default)]
struct Used {
    /// The number of objects in each leaf.
    counts: Vec<u32>,
    /// The empty leaves.
    free: Vec<u32>,
}

fn level<T>() -> Level<T> {
    (0..FAN).map(|_| OnceLock::new()).collect()
}

/// The position of a number: the block in two parts, and the slot in its leaf.
fn place(number: u32) -> Option<[usize; 3]> {
    let [high, a, b, c] = number.to_be_bytes();
    (high == 0).then_some([a.into(), b.into(), slot_of(c)])
}

/// Neighbouring numbers often belong to different threads. They must not share a cache line,
/// because each message writes the lock of a slot.
fn slot_of(number: u8) -> usize {
    number.rotate_left(u8::BITS / 2).into()
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { blocks: level(), leaves: level(), used: Mutex::default() }
    }

    fn leaf(&self, index: u32) -> Option<&Leaf<T>> {
        let index = index as usize;
        self.leaves.get(index / FAN)?.get()?[index % FAN].get()
    }

    fn slot(&self, number: u32) -> Option<&TableSlot<T>> {
        let [a, b, c] = place(number)?;
        // Acquire: pairs with the release in `enter`, so that the leaf is initialized.
        let leaf = self.blocks[a].get()?[b].load(Ordering::Acquire);
        Some(&self.leaf(leaf.checked_sub(1)?)?[c])
    }

    /// The object, held in the table during the life of the guard.
    pub(crate) fn hold(&self, number: u32) -> Option<MappedRwLockReadGuard<'_, Arc<T>>> {
        // Recursive: a thread that holds a region may look it up again while a writer waits.
        let slot = self.slot(number)?;
        #[cfg(debug_assertions)]
        crate::lock::witness::saw(slot);
        let guard = slot.read_recursive();
        let own = |held: &'_ Option<(u32, Arc<T>)>| held.as_ref().is_some_and(|(of, _)| *of == number);
        if !own(&guard) {
            return None;
        }
        RwLockReadGuard::try_map(guard, |held| held.as_ref().map(|(_, object)| object)).ok()
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<T>> {
        self.hold(number).map(|object| Arc::clone(&object))
    }

    /// Puts `object` at `number`. Returns the previous object.
    pub(crate) fn insert(&self, number: u32, object: Arc<T>) -> Option<Arc<T>> {
        let [a, b, c] = place(number).expect("numbers of this table have 24 bits");
        let block = &self.blocks[a].get_or_init(|| (0..FAN).map(|_| AtomicU32::new(0)).collect())[b];
        let index = self.enter(block);
        let before = self.leaf(index).and_then(|leaf| leaf[c].write().replace((number, object)));
        if before.is_some() {
            self.leave(block, index);
        }
        before.map(|(_, object)| object)
    }

    /// Counts one more object in a block, and gives the block a leaf if it has none. Returns the
    /// leaf.
    fn enter(&self, block: &AtomicU32) -> u32 {
        let mut used = self.used.lock();
        if let Some(index) = block.load(Ordering::Relaxed).checked_sub(1) {
            used.counts[index as usize] += 1;
            return index;
        }
        let index = used.free.pop().unwrap_or_else(|| {
            used.counts.push(0);
            used.counts.len() as u32 - 1
        });
        used.counts[index as usize] = 1;
        let [high, low] = [index as usize / FAN, index as usize % FAN];
        self.leaves[high].get_or_init(level)[low].get_or_init(|| (0..FAN).map(|_| RwLock::new(None)).collect());
        // Release: pairs with the acquire in `slot`.
        block.store(index + 1, Ordering::Release);
        index
    }

    /// Counts one object less in a block. After the last object its leaf is free for another block.
    fn leave(&self, block: &AtomicU32, index: u32) {
        let mut used = self.used.lock();
        let count = &mut used.counts[index as usize];
        *count -= 1;
        if *count == 0 {
            block.store(0, Ordering::Relaxed);
            used.free.push(index);
        }
    }

    /// Removes the object, after all holders have released it.
    pub(crate) fn remove(&self, number: u32) -> Option<Arc<T>> {
        let [a, b, c] = place(number)?;
        let block = &self.blocks[a].get()?[b];
        let index = block.load(Ordering::Acquire).checked_sub(1)?;
        let (_, object) = self.leaf(index)?[c].write().take_if(|(of, _)| *of == number)?;
        self.leave(block, index);
        Some(object)
    }

    /// All objects, for rare passes over the whole table (close, a dead agent).
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let leaves = self.leaves.iter().filter_map(OnceLock::get);
        let leaves = leaves.flat_map(|leaves| leaves.iter().filter_map(OnceLock::get));
        let object = |slot: &TableSlot<T>| slot.read_recursive().as_ref().map(|(_, object)| Arc::clone(object));
        leaves.flat_map(|leaf| (0..=u8::MAX).filter_map(move |number| object(&leaf[slot_of(number)]))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_apart_and_come_back() {
        let table = Table::new();
        for number in [0u32, 1, 255, 256, 0x1_0000, 0xff_ffff] {
            assert!(table.insert(number, Arc::new(number)).is_none());
        }
        assert_eq!(table.all().len(), 6);
        assert_eq!(table.find(256).as_deref(), Some(&256));
        assert!(table.find(257).is_none());
        assert!(table.find(0x100_0000).is_none());
        assert_eq!(table.remove(256).as_deref(), Some(&256));
        assert!(table.hold(256).is_none());
    }

    #[test]
    fn each_number_has_a_slot_of_its_own_and_neighbours_are_lines_apart() {
        let slots: std::collections::HashSet<usize> = (0..=u8::MAX).map(slot_of).collect();
        assert_eq!((slots.len(), slots.iter().max()), (FAN, Some(&(FAN - 1))));
        for number in 0..u8::MAX {
            let apart = slot_of(number).abs_diff(slot_of(number + 1)) * size_of::<TableSlot<u32>>();
            assert!(apart >= 256, "{number}: {apart} bytes");
        }
        let table = Table::new();
        (0..1000u32).for_each(|number| drop(table.insert(number, Arc::new(number))));
        assert!(table.all().iter().map(|object| **object).eq(0..1000), "in the order of their numbers");
    }

    #[test]
    fn numbers_that_are_never_used_again_cost_nothing() {
        let table = Table::new();
        table.insert(7, Arc::new(7));
        for number in 256..100_000 {
            assert!(table.insert(number, Arc::new(number)).is_none());
            assert_eq!(table.find(number).as_deref(), Some(&number));
            assert_eq!(table.remove(number).as_deref(), Some(&number));
            assert!(table.find(number).is_none() && table.remove(number).is_none());
        }
        assert_eq!(table.used.lock().counts.len(), 2, "leaves");
        assert_eq!(table.find(7).as_deref(), Some(&7));
        assert_eq!(table.insert(7, Arc::new(8)).as_deref(), Some(&7));
        assert_eq!((table.remove(7).as_deref(), table.all().len()), (Some(&8), 0));
        assert_eq!(table.used.lock().free.len(), 2);
    }

    #[test]
    fn find_never_returns_an_object_with_another_number() {
        let table = Table::new();
        std::thread::scope(|scope| {
            let seeker =
                scope.spawn(|| (0..200_000).filter(|_| table.find(0x105).is_some_and(|of| *of != 0x105)).count());
            for round in 0..20_000 {
                let number = if round % 2 == 0 { 0x105 } else { 0x205 };
                table.insert(number, Arc::new(number));
                table.remove(number);
            }
            assert_eq!(seeker.join().expect("no panic"), 0);
        });
    }
}
