//! Which locks of the data path a thread takes and holds. Only in builds with debug assertions.
//!
//! [`locks_taken`] serves tests that ask whether two threads have a lock in common. [`held`] serves
//! the assertion that no thread holds such a lock while it waits for the agent.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

/// In the state of a thread: [`locks_taken`] runs. The other bits count the locks that it holds.
const RECORDS: usize = 1 << (usize::BITS - 1);

thread_local! {
    // One word without a destructor: every lock of the data path counts here.
    static STATE: Cell<usize> = const { Cell::new(0) };
    static TAKEN: RefCell<BTreeMap<usize, u64>> = const { RefCell::new(BTreeMap::new()) };
}

/// Calls `act`. Returns the locks that the calling thread takes meanwhile, by their addresses, and
/// how often it takes each.
pub fn locks_taken(act: impl FnOnce()) -> BTreeMap<usize, u64> {
    TAKEN.take();
    STATE.set(STATE.get() | RECORDS);
    act();
    STATE.set(STATE.get() & !RECORDS);
    TAKEN.take()
}

/// The calling thread has taken a lock of another kind, which [`held`] does not count.
#[inline]
pub(crate) fn saw<T>(lock: &T) {
    if STATE.get() & RECORDS != 0 {
        record(std::ptr::from_ref(lock).addr());
    }
}

/// The calling thread has taken a lock that it will give back.
#[inline]
pub(crate) fn took<T>(lock: &T) {
    STATE.set(STATE.get() + 1);
    saw(lock);
}

/// The calling thread has given a lock back. It may have been taken by another thread.
#[inline]
pub(crate) fn gave_back() {
    if held() != 0 {
        STATE.set(STATE.get() - 1);
    }
}

/// Locks of the data path that the calling thread holds.
#[inline]
pub(crate) fn held() -> usize {
    STATE.get() & !RECORDS
}

#[cold]
fn record(lock: usize) {
    TAKEN.with_borrow_mut(|taken| *taken.entry(lock).or_default() += 1);
}
