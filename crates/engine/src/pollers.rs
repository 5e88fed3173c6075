//! Which thread receives from a lane. Threads with QPs and CQs of their own should not contend for
//! locks. A thread that receives from a lane for another thread's QP takes that QP's lock, too, so
//! it should skip the lane. This is only a hint: any thread may receive from any lane, and a thread
//! that must not miss anything receives from all. Principal types: [`Poller`], one CQ's part, and
//! [`Pollers`].
//!
//! A lane remembers the two CQs of the QP of its last packet ([`CqPair`]). Each CQ has a *slot*
//! with the thread that polled it last, and about when. A polling thread skips a lane if it polls
//! neither CQ itself, and another thread has polled one of them within [`PATIENCE`], because that
//! thread will receive with its next poll. Other threads do not wait longer for a thread that
//! stops. They do not wait at all for a thread that arms its CQ to sleep, or has never polled. The
//! number of slots is small, so two CQs may share one; then a thread may receive from a lane that
//! it could skip.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// A program whose CQ is never empty drives the engine at every 16th poll: then these bits of the
/// poll count are 0.
const SELDOM: u32 = 15;
/// The number of slots.
const SLOTS: usize = 32;

/// A thread that has polled counts as polling for this part of one of the helper's pauses
/// ([`crate::watchdog`]), 24 µs.
const PATIENCE: u64 = 32;
/// It updates its slot after this part of that time, because others read the word often.
const AGAIN: u64 = 8;

/// The slots of a QP's send CQ and receive CQ: each counted from 1, 0 for none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct CqPair(u32);

impl CqPair {
    /// The pair of a QP with these CQ numbers.
    #[inline]
    pub(crate) fn new(sends: Option<u32>, receives: Option<u32>) -> Self {
        let slot = |cq: Option<u32>| cq.map_or(0, |cq| 1 + cq % SLOTS as u32);
        Self(slot(sends) | slot(receives) << 16)
    }

    #[inline]
    fn slots(self) -> [Option<usize>; 2] {
        [self.0 & 0xffff, self.0 >> 16].map(|slot| (slot as usize).checked_sub(1))
    }
}

/// A pair of CQs on a cache line of its own, and with the adjacent line, which the processor
/// prefetches.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct CqPairCell(AtomicU32);

impl CqPairCell {
    #[inline]
    pub(crate) fn get(&self) -> CqPair {
        CqPair(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set(&self, cqs: CqPair) {
        if self.get() != cqs {
            self.0.store(cqs.0, Ordering::Relaxed);
        }
    }
}

/// One CQ, for the threads that poll it.
pub(crate) struct Poller {
    /// The CQ's number in its engine; CQs that were made one after the other have consecutive
    /// numbers.
    pub(crate) cq: u32,
    /// The counts of polls and rounds. Each CQ has its own counts, so that threads with CQs of
    /// their own share no word that each poll writes.
    polls: AtomicU32,
    rounds: AtomicU32,
}

impl Poller {
    fn new(cq: u32) -> Self {
        Self { cq, polls: AtomicU32::new(0), rounds: AtomicU32::new(0) }
    }

    /// Counts a poll; returns whether the bits of `seldom` are zero in the count.
    #[inline]
    pub(crate) fn is_due(&self, seldom: u32) -> bool {
        next(&self.polls) & seldom == 0
    }

    /// Counts a round; returns whether it is one of `every`.
    #[inline]
    pub(crate) fn is_turn(&self, every: u32) -> bool {
        next(&self.rounds).is_multiple_of(every)
    }
}

/// Not an atomic increment: concurrent counts may be lost.
#[inline]
fn next(count: &AtomicU32) -> u32 {
    let next = count.load(Ordering::Relaxed).wrapping_add(1);
    count.store(next, Ordering::Relaxed);
    next
}

/// The last thread that polled a CQ.
#[repr(align(128))]
#[derive(Default)]
struct PollerSlot {
    thread: AtomicUsize,
    /// The approximate time of its last poll, in ticks; 0 if it does not poll now.
    at: AtomicU64,
}

/// The calling thread, and the time.
pub(crate) struct PollingThread {
    thread: usize,
    now: u64,
    patience: u64,
}

/// The slots of an engine's CQs.
#[derive(Default)]
pub(crate) struct Pollers {
    slots: [PollerSlot; SLOTS],
    /// How many pollers were added.
    count: AtomicU32,
    seldom: Seldom,
}

/// The bits of a CQ's poll count that must be 0 to drive the engine after a poll with completions.
struct Seldom(AtomicU32);

impl Default for Seldom {
    fn default() -> Self {
        Self(AtomicU32::new(SELDOM))
    }
}

impl Pollers {
    /// Sets whether each poll drives the engine, also a poll that finds completions.
    #[cold]
    pub(crate) fn set_each(&self, each: bool) {
        self.seldom.0.store(if each { 0 } else { SELDOM }, Ordering::Relaxed);
    }

    /// Whether to drive the engine although this poll of a CQ found completions.
    pub(crate) fn is_due(&self, poller: &Poller) -> bool {
        poller.is_due(self.seldom.0.load(Ordering::Relaxed))
    }

    /// Adds a poller for another CQ.
    pub(crate) fn add(&self) -> Poller {
        Poller::new(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// The calling thread polls a CQ at about `now` and makes its round. `pause`: one of the
    /// helper's pauses, in ticks.
    #[inline]
    pub(crate) fn record_poll(&self, cq: u32, now: u64, pause: u64) -> PollingThread {
        self.record(cq, PollingThread { thread: here(), now, patience: pause / PATIENCE })
    }

    fn record(&self, cq: u32, caller: PollingThread) -> PollingThread {
        let slot = &self.slots[cq as usize % SLOTS];
        if slot.thread.load(Ordering::Relaxed) != caller.thread {
            slot.thread.store(caller.thread, Ordering::Relaxed);
        }
        if caller.now.abs_diff(slot.at.load(Ordering::Relaxed)) > caller.patience / AGAIN {
            slot.at.store(caller.now, Ordering::Relaxed);
        }
        caller
    }

    /// No thread polls the CQ for now.
    pub(crate) fn clear(&self, cq: u32) {
        self.slots[cq as usize % SLOTS].at.store(0, Ordering::Relaxed);
    }

    /// Whether another thread receives for these CQs, and the caller for neither of them.
    #[inline]
    pub(crate) fn is_polled_by_another(&self, cqs: CqPair, caller: &PollingThread) -> bool {
        let mut others = false;
        for slot in cqs.slots().into_iter().flatten() {
            let slot = &self.slots[slot % SLOTS];
            if slot.thread.load(Ordering::Relaxed) == caller.thread {
                return false;
            }
            // If the counter differs between processors, a poll may seem to lie in the future.
            others |= caller.now.abs_diff(slot.at.load(Ordering::Relaxed)) <= caller.patience;
        }
        others
    }
}

/// A number of the calling thread, unique among the live threads.
#[inline]
fn here() -> usize {
    thread_local!(static HERE: u8 = const { 0 });
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: u64 = 3200;

    fn caller(thread: usize, now: u64) -> PollingThread {
        PollingThread { thread, now, patience: PAUSE / PATIENCE }
    }

    /// The pair of a QP with one CQ.
    fn of(cq: u32) -> CqPair {
        CqPair::new(Some(cq), Some(cq))
    }

    #[test]
    fn a_lane_is_left_to_a_thread_that_polls_for_its_qp() {
        let pollers = Pollers::default();
        let one = pollers.record(1, caller(7, 10_000));
        let two = pollers.record(2, caller(8, 10_010));
        assert!(
            pollers.is_polled_by_another(of(2), &one) && pollers.is_polled_by_another(of(1), &two),
            "each skips the other's"
        );
        assert!(
            !pollers.is_polled_by_another(of(1), &one) && !pollers.is_polled_by_another(of(2), &two),
            "a thread receives for its own CQ"
        );
        assert!(
            !pollers.is_polled_by_another(CqPair::default(), &one),
            "a lane without a packet belongs to every thread"
        );
        assert!(!pollers.is_polled_by_another(CqPair::new(None, None), &one), "and one without a CQ");
        assert!(!pollers.is_polled_by_another(of(3), &one), "no thread has polled this CQ");
        // The second thread goes on polling, the first does not.
        for now in (10_010..20_000).step_by(5) {
            let two = pollers.record(2, caller(8, now));
            assert_eq!(pollers.is_polled_by_another(of(1), &two), now <= 10_000 + PAUSE / PATIENCE, "{now}");
            assert!(pollers.is_polled_by_another(of(2), &caller(7, now)), "{now}: its slot is recent");
        }
    }

    #[test]
    fn both_threads_of_a_qp_with_two_cqs_receive() {
        let pollers = Pollers::default();
        let sends = pollers.record(1, caller(7, 10_000));
        let receives = pollers.record(2, caller(8, 10_000));
        let both = CqPair::new(Some(1), Some(2));
        assert!(!pollers.is_polled_by_another(both, &sends) && !pollers.is_polled_by_another(both, &receives));
        assert!(pollers.is_polled_by_another(both, &caller(9, 10_000)));
        // No thread has polled the receive CQ: the thread that polls the send CQ receives for both.
        assert!(pollers.is_polled_by_another(CqPair::new(Some(1), Some(3)), &receives));
        assert!(pollers.is_polled_by_another(CqPair::new(Some(3), Some(1)), &receives));
        assert!(!pollers.is_polled_by_another(CqPair::new(None, Some(3)), &receives));
    }

    #[test]
    fn a_thread_that_polls_several_cqs_receives_for_all_of_them() {
        let pollers = Pollers::default();
        pollers.record(1, caller(7, 10_000));
        let visit = pollers.record(2, caller(7, 10_000));
        assert!(!pollers.is_polled_by_another(of(1), &visit) && !pollers.is_polled_by_another(of(2), &visit));
        let other = pollers.record(1, caller(8, 10_001));
        assert!(!pollers.is_polled_by_another(of(1), &other), "this thread polls the CQ now");
        assert!(pollers.is_polled_by_another(of(1), &visit));
    }

    #[test]
    fn a_poller_that_sleeps_or_has_a_clock_ahead_is_not_counted_on() {
        let pollers = Pollers::default();
        pollers.record(1, caller(7, 10_000));
        pollers.clear(1);
        assert!(!pollers.is_polled_by_another(of(1), &caller(8, 10_000)));
        pollers.record(1, caller(7, u64::MAX - 10_000));
        assert!(!pollers.is_polled_by_another(of(1), &caller(8, 10_001)));
        pollers.record(1, caller(7, 10_050));
        assert!(pollers.is_polled_by_another(of(1), &caller(8, 10_001)));
    }

    #[test]
    fn cq_numbers_that_share_a_slot_compare_equal() {
        let shared = SLOTS as u32;
        assert_eq!(CqPair::new(Some(1), Some(2)), CqPair::new(Some(1 + shared), Some(2 + shared)));
        assert_ne!(CqPair::new(Some(1), Some(2)), CqPair::new(Some(2), Some(1)));
        assert_ne!(CqPair::new(Some(0), None), CqPair::default());
    }

    #[test]
    fn two_threads_have_different_numbers() {
        let own = here();
        assert_eq!(own, here());
        std::thread::scope(|scope| assert_ne!(scope.spawn(here).join().expect("no panic"), own));
    }

    #[test]
    fn polls_and_rounds_are_counted_by_themselves() {
        let poller = Poller::new(1);
        let due = (0..64).filter(|_| poller.is_due(15)).count();
        let turns = (0..64).filter(|_| poller.is_turn(8)).count();
        assert_eq!((due, turns), (4, 8));
    }
}
