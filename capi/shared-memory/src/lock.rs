//! The lock of the table, which a signal handler and a forked child can take as well: signals are
//! blocked while a thread has the lock. It does not allocate. Principal type: [`Lock`].

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and a thread sleeps.
const AWAITED: u32 = 2;

/// A value that one thread at a time uses.
pub(crate) struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: only the thread that has the lock uses the value.
unsafe impl<T: Send> Sync for Lock<T> {}

/// The lock is taken as long as this exists.
pub(crate) struct Held<'a, T> {
    lock: &'a Lock<T>,
    signals: Signals,
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock.
    pub(crate) fn take(&self) -> Held<'_, T> {
        let signals = Signals::block();
        if self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.state.swap(AWAITED, Ordering::Acquire) != FREE {
                // An error is a wake-up, too: the loop looks again.
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, AWAITED, None);
            }
        }
        Held { lock: self, signals }
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this thread has the lock.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this thread has the lock, and the borrow of self excludes a second reference.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    fn drop(&mut self) {
        if self.lock.state.swap(FREE, Ordering::Release) == AWAITED {
            let _ = futex::wake(&self.lock.state, futex::Flags::PRIVATE, 1);
        }
        self.signals.restore();
    }
}

/// The signals that the thread blocked before, as the kernel has them: one bit for each signal,
/// from signal 1 on. The C library's functions are not used: a sanitizer replaces them, and checks
/// memory that this library has written.
struct Signals(u64);

/// All signals but the two that the C library keeps for itself, 32 and 33.
const ALL: u64 = !(1 << 31 | 1 << 32);

impl Signals {
    fn block() -> Self {
        Self(set_mask(ALL))
    }

    fn restore(&self) {
        set_mask(self.0);
    }
}

/// Sets the signals that this thread blocks. Returns the set before.
fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const mask, &raw mut before);
    // SAFETY: the kernel reads one set and writes one, of this size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, new, old, size_of::<u64>()) };
    before
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_has_the_value() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *COUNT.take() += 1));
            }
        });
        assert_eq!(*COUNT.take(), 80_000);
    }
}
