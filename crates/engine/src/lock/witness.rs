//! Which locks of the data path a thread takes, for tests that ask whether two threads have one in common. Only in builds with debug
//! assertions, and only while [`locks_taken`] runs.

use std::cell::RefCell;
use std::collections::BTreeMap;

thread_local!(static TAKEN: RefCell<Option<BTreeMap<usize, u64>>> = const { RefCell::new(None) });

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
