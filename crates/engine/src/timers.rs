//! The timers: when each QP must be checked. They serve retry and RNR timers and other deadlines;
//! few at a time, because lanes lose nothing. The time itself is in [`crate::clock`]. Principal
//! type: [`Timers`].

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use protocol::Time;

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
