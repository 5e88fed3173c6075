//! A sparse table by 24-bit number, for QPNs and memory keys.
//!
//! Looking up touches no lock that another number's user touches: a small lock per slot, and in front of it only words that hardly
//! change. Slots come in leaves of 256. A leaf serves the block of numbers that it is given to, and the next one when that block is
//! empty, so that numbers that are never used again cost nothing; a slot knows its number, for who looked up the leaf may come too late.
//! Holding a slot's guard keeps its object in the table, which is how deregistering memory waits for copies under way.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

const FAN: usize = 256;

type Slot<T> = RwLock<Option<(u32, Arc<T>)>>;
type Leaf<T> = Box<[Slot<T>]>;
type Level<T> = Box<[OnceLock<T>]>;

/// The table. Numbers above 24 bits are simply absent.
pub(crate) struct Table<T> {
    /// By block of 256 numbers: its leaf, counted from 1, or 0.
    blocks: Level<Box<[AtomicU32]>>,
    /// By number of the leaf.
    leaves: Level<Level<Leaf<T>>>,
    used: Mutex<Used>,
}

/// Which leaves are in use.
#[derive(Default)]
struct Used {
    /// Objects of each leaf.
    counts: Vec<u32>,
    /// Leaves without any.
    free: Vec<u32>,
}

fn level<T>() -> Level<T> {
    (0..FAN).map(|_| OnceLock::new()).collect()
}

/// Where a number is: the block in two parts, and the slot in its leaf.
fn place(number: u32) -> Option<[usize; 3]> {
    let [high, a, b, c] = number.to_be_bytes();
    (high == 0).then_some([a.into(), b.into(), slot_of(c)])
}

/// Numbers in a row are often those of several threads, which are not to meet at one cache line: each message writes to the lock of a slot.
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

    fn slot(&self, number: u32) -> Option<&Slot<T>> {
        let [a, b, c] = place(number)?;
        // Acquire: pairs with the release in `enter`, so that the leaf is there.
        let leaf = self.blocks[a].get()?[b].load(Ordering::Acquire);
        Some(&self.leaf(leaf.checked_sub(1)?)?[c])
    }

    /// The object, held in the table for as long as the guard lives.
    pub(crate) fn hold(&self, number: u32) -> Option<MappedRwLockReadGuard<'_, Arc<T>>> {
        // Recursive: a gather list may name one region twice while a writer waits.
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

    /// Puts `object` at `number`; answers what stood there.
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

    /// One more object in a block, which has a leaf now.
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

    /// One object less in a block, whose leaf goes to another one when it was the last.
    fn leave(&self, block: &AtomicU32, index: u32) {
        let mut used = self.used.lock();
        let count = &mut used.counts[index as usize];
        *count -= 1;
        if *count == 0 {
            block.store(0, Ordering::Relaxed);
            used.free.push(index);
        }
    }

    /// Takes the object out, after everybody who holds it has let go.
    pub(crate) fn remove(&self, number: u32) -> Option<Arc<T>> {
        let [a, b, c] = place(number)?;
        let block = &self.blocks[a].get()?[b];
        let index = block.load(Ordering::Acquire).checked_sub(1)?;
        let (_, object) = self.leaf(index)?[c].write().take_if(|(of, _)| *of == number)?;
        self.leave(block, index);
        Some(object)
    }

    /// Every object, for the rare passes over all (closing, a dead agent).
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let leaves = self.leaves.iter().filter_map(OnceLock::get);
        let leaves = leaves.flat_map(|leaves| leaves.iter().filter_map(OnceLock::get));
        let object = |slot: &Slot<T>| slot.read_recursive().as_ref().map(|(_, object)| Arc::clone(object));
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
            let apart = slot_of(number).abs_diff(slot_of(number + 1)) * size_of::<Slot<u32>>();
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
    fn who_comes_too_late_finds_nothing() {
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
