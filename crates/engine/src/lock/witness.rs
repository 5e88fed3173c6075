//! Which locks of the data path a thread takes and holds. Only in builds with debug assertions.
//!
//! [`locks_taken`] serves tests that ask whether two threads have a lock in common. [`held`] serves
//! the assertion that nobody holds such a lock while waiting for the agent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

thread_local! {
    static TAKEN: RefCell<Option<BTreeMap<usize, u64>>> = const { RefCell::new(None) };
    static HELD: Cell<usize> = const { Cell::new(0) };
}

/// Calls `act`; answers the locks that the calling thread has taken meanwhile, by where they lie, and how often each.
pub fn locks_taken(act: impl FnOnce()) -> BTreeMap<usize, u64> {
    TAKEN.set(Some(BTreeMap::new()));
    act();
    TAKEN.take().unwrap_or_default()
}

/// The calling thread has taken a lock.
pub(crate) fn saw<T>(lock: &T) {
    // A thread that ends may still take locks.
    let _ = TAKEN.try_with(|taken| {
        if let Some(taken) = taken.borrow_mut().as_mut() {
            *taken.entry(std::ptr::from_ref(lock).addr()).or_default() += 1;
        }
    });
}

/// The calling thread has taken a lock that it will give back.
pub(crate) fn took<T>(lock: &T) {
    saw(lock);
    let _ = HELD.try_with(|held| held.set(held.get() + 1));
}

/// The calling thread has given a lock back.
pub(crate) fn gave_back() {
    let _ = HELD.try_with(|held| held.set(held.get().saturating_sub(1)));
}

/// Locks of the data path that the calling thread holds.
pub(crate) fn held() -> usize {
    HELD.try_with(Cell::get).unwrap_or(0)
}
