//! A sparse table by 24-bit number, for QPNs and memory keys.
//!
//! Looking up touches no lock that another number's user touches: three levels of 256, made as they are needed, and a small lock
//! per slot. Holding a slot's guard keeps its object in the table, which is how deregistering memory waits for copies under way.

use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

const FAN: usize = 256;

type Leaf<T> = Box<[RwLock<Option<Arc<T>>>]>;
type Level<T> = Box<[OnceLock<T>]>;

/// The table. Numbers above 24 bits are simply absent.
pub(crate) struct Table<T> {
    top: Level<Level<Leaf<T>>>,
}

fn level<T>() -> Level<T> {
    (0..FAN).map(|_| OnceLock::new()).collect()
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { top: level() }
    }

    fn slot(&self, number: u32) -> Option<&RwLock<Option<Arc<T>>>> {
        let [high, a, b, c] = number.to_be_bytes();
        if high != 0 {
            return None;
        }
        Some(&self.top[usize::from(a)].get()?[usize::from(b)].get()?[usize::from(c)])
    }

    /// The object, held in the table for as long as the guard lives.
    pub(crate) fn hold(&self, number: u32) -> Option<RwLockReadGuard<'_, Option<Arc<T>>>> {
        // Recursive: a gather list may name one region twice while a writer waits.
        let guard = self.slot(number)?.read_recursive();
        guard.is_some().then_some(guard)
    }

    pub(crate) fn find(&self, number: u32) -> Option<Arc<T>> {
        self.slot(number)?.read_recursive().clone()
    }

    /// Puts `object` at `number`; answers what stood there.
    pub(crate) fn insert(&self, number: u32, object: Arc<T>) -> Option<Arc<T>> {
        let [high, a, b, c] = number.to_be_bytes();
        assert_eq!(high, 0, "numbers of this table have 24 bits");
        let middle = self.top[usize::from(a)].get_or_init(level);
        let leaf = middle[usize::from(b)].get_or_init(|| (0..FAN).map(|_| RwLock::new(None)).collect());
        leaf[usize::from(c)].write().replace(object)
    }

    /// Takes the object out, after everybody who holds it has let go.
    pub(crate) fn remove(&self, number: u32) -> Option<Arc<T>> {
        self.slot(number)?.write().take()
    }

    /// Every object, for the rare passes over all (closing, a dead agent).
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let leaves =
            self.top.iter().filter_map(OnceLock::get).flat_map(|middle| middle.iter().filter_map(OnceLock::get));
        leaves.flat_map(|leaf| leaf.iter().filter_map(|slot| slot.read_recursive().clone())).collect()
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
}
