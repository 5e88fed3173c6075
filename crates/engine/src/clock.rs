//! The engine's time: nanoseconds since it was opened; and the timers: when each QP must be
//! checked. They serve retry and RNR timers and other deadlines; few at a time, because lanes lose
//! nothing.
//!
//! Reading a clock costs as much as a third of a message between processes. Where a microsecond
//! does not matter, a recent reading is used again, as long as the time stamp counter says that it
//! is fresh. Principal types: [`Clock`] and [`Timers`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use protocol::Time;
use rustix::time::{ClockId, clock_gettime};

use crate::simulated::Simulated;
use crate::tsc;

/// The machine's monotonic clock.
fn raw() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// How far the machine's time of day is ahead of the monotonic clock.
fn wall_ahead() -> u64 {
    nanoseconds(ClockId::Realtime).wrapping_sub(raw())
}

/// The time of day: nanoseconds since 1970.
pub(crate) fn since_1970() -> u64 {
    nanoseconds(ClockId::Realtime)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec.cast_unsigned())
}

/// Ticks for which a reading is fresh: about a microsecond.
const FRESH: u64 = 2500;

/// A clock with its last reading.
pub(crate) struct Clock {
    born: Instant,
    nanoseconds: AtomicU64,
    /// The time stamp counter just before that reading. It is stored after `nanoseconds`, so that
    /// the reading is at least as new as this value.
    ticks: AtomicU64,
    /// The simulation that provides the time, if there is one.
    simulated: Option<Arc<dyn Simulated>>,
}

impl Clock {
    pub(crate) fn new(simulated: Option<Arc<dyn Simulated>>) -> Self {
        Self { born: Instant::now(), nanoseconds: AtomicU64::new(0), ticks: AtomicU64::new(0), simulated }
    }

    /// The simulation, if the engine runs in one.
    #[inline]
    pub(crate) fn simulated(&self) -> Option<&dyn Simulated> {
        self.simulated.as_deref()
    }

    /// The device's clock, which stamps completions: nanoseconds, the same for all processes of the
    /// host.
    pub(crate) fn raw(&self) -> u64 {
        self.simulated().map_or_else(raw, Simulated::now)
    }

    /// How far the time of day is ahead of the device's clock: a simulation begins in 1970.
    pub(crate) fn wall_ahead(&self) -> u64 {
        if self.simulated.is_some() { 0 } else { wall_ahead() }
    }

    /// The time.
    pub(crate) fn now(&self) -> Time {
        if let Some(simulated) = self.simulated() {
            return Time(simulated.now());
        }
        Time(u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The time, or a recent reading.
    pub(crate) fn about(&self) -> Time {
        if self.simulated.is_some() {
            return self.now();
        }
        let ticks = tsc::now();
        // Acquire: pairs with the release below. If the counter is behind on this processor, the
        // reading looks very old, and the clock is read.
        if ticks.wrapping_sub(self.ticks.load(Ordering::Acquire)) < FRESH {
            return Time(self.nanoseconds.load(Ordering::Relaxed));
        }
        let now = self.now();
        self.nanoseconds.store(now.0, Ordering::Relaxed);
        self.ticks.store(ticks, Ordering::Release);
        now
    }
}

/// Deadlines by QP number. An outdated deadline is harmless, because the QP knows its own.
pub(crate) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(u64, u32)>>>,
    next: AtomicU64,
}

impl Timers {
    pub(crate) fn new() -> Self {
        Self { heap: Mutex::new(BinaryHeap::new()), next: AtomicU64::new(u64::MAX) }
    }

    /// Adds a deadline `at` for `qpn`. Returns whether it is earlier than all others.
    pub(crate) fn set(&self, at: Time, qpn: u32) -> bool {
        let mut heap = self.heap.lock();
        heap.push(Reverse((at.0, qpn)));
        self.next.fetch_min(at.0, Ordering::Relaxed) > at.0
    }

    /// The nearest deadline.
    pub(crate) fn next(&self) -> Option<Time> {
        let next = self.next.load(Ordering::Relaxed);
        (next != u64::MAX).then_some(Time(next))
    }

    /// Removes and returns the QPs whose deadlines have passed.
    pub(crate) fn due(&self, now: Time) -> Vec<u32> {
        let mut due = Vec::new();
        let mut heap = self.heap.lock();
        while let Some(&Reverse((at, qpn))) = heap.peek() {
            if at > now.0 {
                break;
            }
            heap.pop();
            due.push(qpn);
        }
        self.next.store(heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at), Ordering::Relaxed);
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn about_now_is_never_far_off_and_never_ahead() {
        let clock = Clock::new(None);
        for _ in 0..10_000 {
            let before = clock.now();
            let about = clock.about();
            assert!(about <= clock.now(), "not ahead");
            // The test may have been interrupted, but then the reading is a new one.
            assert!(about.0 + 1_000_000 > before.0, "a reading is used only while it is fresh");
        }
    }

    #[test]
    fn fires_in_order_and_only_when_due() {
        let timers = Timers::new();
        assert!(timers.set(Time(30), 3));
        assert!(timers.set(Time(10), 1));
        assert!(!timers.set(Time(20), 2));
        assert_eq!(timers.next(), Some(Time(10)));
        assert_eq!(timers.due(Time(20)), [1, 2]);
        assert_eq!(timers.next(), Some(Time(30)));
        assert_eq!(timers.due(Time(30)), [3]);
        assert_eq!(timers.next(), None);
    }
}
