//! Polling for a short time before a thread sleeps: a wakeup takes several times as long as most
//! answers. See [`spin`].

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A `sched_yield` that takes this long gave the processor to a program that computes, for a time
/// slice of the scheduler. Without such a program it takes a few microseconds: less than one
/// command of the peer.
const CROWDED: Duration = Duration::from_micros(200);

/// After such a yield, this many calls of [`spin`] do not poll.
const SKIPPED: u32 = 32;

/// Calls `look` until it finds something or `limit` has passed, whichever is first. Between two
/// calls, other threads get the processor.
///
/// On a machine whose processors are all busy, each yield costs a time slice, but the kernel runs a
/// thread that it wakes almost at once. There the function returns `None` early, so that the caller
/// sleeps. Then it polls on one call in 33, to notice that the machine is free again.
pub fn spin<T>(limit: Duration, look: impl FnMut() -> Option<T>) -> Option<T> {
    static SKIP: Skip = Skip(AtomicU32::new(0));
    SKIP.spin(limit, look)
}

/// How many calls still do not poll.
struct Skip(AtomicU32);

impl Skip {
    fn spin<T>(&self, limit: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        let skip = self.0.load(Ordering::Relaxed);
        if skip > 0 {
            // This is not an atomic decrement, so calls of concurrent threads may be counted once.
            self.0.store(skip - 1, Ordering::Relaxed);
            return None;
        }
        let mut before = Instant::now();
        let end = before + limit;
        while before < end {
            rustix::thread::sched_yield();
            let found = look();
            if found.is_some() {
                return found;
            }
            let now = Instant::now();
            if now.duration_since(before) > CROWDED {
                self.0.store(SKIPPED, Ordering::Relaxed);
                return None;
            }
            before = now;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::{CROWDED, SKIPPED, Skip};

    const LONG: Duration = Duration::from_secs(600);

    #[test]
    fn what_is_found_ends_the_poll() {
        let skip = Skip(AtomicU32::new(0));
        assert_eq!(skip.spin(LONG, || Some(7)), Some(7));
        assert_eq!(skip.spin(Duration::ZERO, || Some(7)), None, "no time, no look");
    }

    #[test]
    fn on_a_crowded_machine_most_calls_do_not_poll() {
        let skip = Skip(AtomicU32::new(0));
        let mut looks = 0;
        let mut slow = || {
            looks += 1;
            std::thread::sleep(2 * CROWDED);
            None::<()>
        };
        for _ in 0..=SKIPPED {
            assert_eq!(skip.spin(LONG, &mut slow), None);
        }
        skip.spin(LONG, &mut slow);
        assert_eq!(looks, 2, "one call in {} polls, once", SKIPPED + 1);
    }
}
