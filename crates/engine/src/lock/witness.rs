//! Records which locks of the data path a thread takes and holds. Only in builds with debug
//! assertions.
//!
//! [`locks_taken`] serves tests that check whether two threads use a common lock. [`held`] serves
//! the assertion that no thread holds such a lock while it waits for the agent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

thread_local! {
    static TAKEN: RefCell<Option<BTreeMap<usize, u64>>> = const { RefCell::new(None) };
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Calls `act`; returns the locks that the calling thread took meanwhile, by address, and how often
/// it took each.
pub fn locks_taken(act: impl FnOnce()) -> BTreeMap<usize, u64> {
    TAKEN.set(Some(BTreeMap::new()));
    act();
    TAKEN.take().unwrap_or_default()
}

/// The calling thread has taken a lock.
pub(crate) fn saw<T>(lock: &T) {
    // The thread-local is gone when a thread that ends takes locks.
    let _ = TAKEN.try_with(|taken| {
        if let Some(taken) = taken.borrow_mut().as_mut() {
            *taken.entry(std::ptr::from_ref(lock).addr()).or_default() += 1;
        }
    });
}

/// The calling thread has taken a lock that it will release.
pub(crate) fn took<T>(lock: &T) {
    saw(lock);
    let _ = HELD.try_with(|held| held.set(held.get() + 1));
}

/// The calling thread has released a lock.
pub(crate) fn gave_back() {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(1)));
}

/// How many locks of the data path the calling thread holds.
pub(crate) fn held() -> usize {
    HELD.try_with(Cell::get).unwrap_or(0)
}
