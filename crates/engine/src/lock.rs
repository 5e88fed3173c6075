//! The lock of the data path: one locked instruction to acquire, none to release.
//!
//! A message takes a dozen uncontended locks, and a locked instruction costs as much as a cache
//! miss. The release is a plain store, so it may miss a waiter that has just gone to sleep. A
//! waiter therefore sleeps for [`NAP`] at most. Use this lock only for short and rarely contended
//! sections, and `parking_lot` everywhere else. Principal type: [`RawLock`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::futex;
use rustix::time::Timespec;

/// The longest sleep of a waiter that the release has missed.
const NAP: Duration = Duration::from_micros(200);
/// Attempts before a waiter sleeps.
const TRIES: u32 = 100;

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// A mutual exclusion lock.
pub(crate) struct RawLock {
    state: AtomicU32,
    /// The number of threads that sleep or are about to sleep.
    waiting: AtomicU32,
}

/// Data behind a [`RawLock`].
pub(crate) type Mutex<T> = lock_api::Mutex<RawLock, T>;
/// A guard of this data.
pub(crate) type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;

// SAFETY: `lock` and `try_lock` return (successfully) only after they have changed the state from
// FREE to TAKEN themselves, and only `unlock` changes it back. So there is one holder at a time.
// Acquire and release order the accesses of successive holders.
unsafe impl lock_api::RawMutex for RawLock {
    #[allow(clippy::declare_interior_mutable_const, reason = "each use makes a lock of its own")]
    const INIT: Self = Self { state: AtomicU32::new(FREE), waiting: AtomicU32::new(0) };

    type GuardMarker = lock_api::GuardSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        // Acquire: pairs with the release store in `unlock`, so that all writes of the last holder
        // are visible.
        let taken = self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        #[cfg(debug_assertions)]
        if taken {
            witness::took(self);
        }
        taken
    }

    #[inline]
    unsafe fn unlock(&self) {
        #[cfg(debug_assertions)]
        witness::gave_back();
        // Release: pairs with the acquire in `try_lock`.
        self.state.store(FREE, Ordering::Release);
        // The load may happen before the store is visible. A waiter that is missed here wakes by
        // itself.
        if self.waiting.load(Ordering::Relaxed) != 0 {
            self.wake();
        }
    }
}

/// Asserts that the calling thread holds no lock of the data path before it waits for the agent. A
/// polling thread must never wait for a command. Does nothing without debug assertions.
#[inline]
pub(crate) fn assert_none_held() {
    #[cfg(debug_assertions)]
    assert_eq!(witness::held(), 0, "a lock of the data path is held over a call to the agent");
}

impl RawLock {
    #[cold]
    fn wait(&self) {
        for _ in 0..TRIES {
            if self.state.load(Ordering::Relaxed) == FREE && lock_api::RawMutex::try_lock(self) {
                return;
            }
            std::hint::spin_loop();
        }
        let nap = Timespec { tv_sec: 0, tv_nsec: i64::from(NAP.subsec_nanos()) };
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while !lock_api::RawMutex::try_lock(self) {
            // The state is checked again after every kind of wakeup.
            let _ = futex::wait(&self.state, futex::Flags::PRIVATE, TAKEN, Some(&nap));
        }
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    fn wake(&self) {
        let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
    }
}

#[cfg(debug_assertions)]
pub(crate) mod witness {
    //! Which locks of the data path a thread takes and holds. Only in builds with debug assertions.
    //!
    //! [`locks_taken`] serves tests that ask whether two threads have a lock in common. [`held`]
    //! serves the assertion that no thread holds such a lock while it waits for the agent.

    use std::cell::{Cell, RefCell};
    use std::collections::BTreeMap;

    /// In the state of a thread: [`locks_taken`] runs. The other bits count the locks that it
    /// holds.
    const RECORDS: usize = 1 << (usize::BITS - 1);

    thread_local! {
        // One word without a destructor: every lock of the data path counts here.
        static STATE: Cell<usize> = const { Cell::new(0) };
        static TAKEN: RefCell<BTreeMap<usize, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Calls `act`. Returns the locks that the calling thread takes meanwhile, by their addresses,
    /// and how often it takes each.
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[cfg(debug_assertions)]
    #[test]
    fn a_held_lock_is_counted_until_it_is_given_back() {
        let (one, other) = (Mutex::new(()), Mutex::new(()));
        assert_none_held();
        let first = one.lock();
        let second = other.try_lock().expect("free");
        assert_eq!(witness::held(), 2);
        assert!(one.try_lock().is_none());
        assert_eq!(witness::held(), 2, "a lock that was not free is not held");
        drop((first, second));
        assert_none_held();
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "a lock of the data path is held over a call to the agent")]
    fn a_call_under_a_lock_is_found() {
        let lock = Mutex::new(());
        let _held = lock.lock();
        assert_none_held();
    }

    #[test]
    fn many_threads_count_together() {
        let count = Arc::new(Mutex::new(0u64));
        let threads: Vec<_> = (0..8)
            .map(|_| {
                let count = Arc::clone(&count);
                std::thread::spawn(move || (0..20_000).for_each(|_| *count.lock() += 1))
            })
            .collect();
        for thread in threads {
            thread.join().expect("no thread fails");
        }
        assert_eq!(*count.lock(), 160_000);
    }

    #[test]
    fn a_waiter_sleeps_until_the_holder_is_done() {
        let lock = Arc::new(Mutex::new(false));
        let mut held = lock.lock();
        assert!(lock.try_lock().is_none());
        let waiter = {
            let lock = Arc::clone(&lock);
            std::thread::spawn(move || *lock.lock())
        };
        while lock_raw(&lock).waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        *held = true;
        drop(held);
        assert!(waiter.join().expect("the waiter is fine"));
    }

    fn lock_raw(lock: &Mutex<bool>) -> &RawLock {
        // SAFETY: only an atomic of it is read.
        unsafe { lock.raw() }
    }
}
