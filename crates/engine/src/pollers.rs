//! Which thread receives from a lane. Threads with QPs and CQs of their own should not contend for
//! locks. A thread that receives from a lane for another thread's QP takes that QP's lock, too, so
//! it should leave the lane alone. This is only a hint: any thread may receive from any lane, and a
//! thread that must not miss anything receives from all. Principal types: [`Poller`], one CQ's
//! part, and [`Pollers`].
//!
//! A lane remembers its *concern*: the two CQs of the QP of its last packet. Each CQ has a *seat*:
//! the thread that polled it last, and about when. A polling thread skips a lane if it has neither
//! seat itself, and another thread with one of the seats has made a round within [`PATIENCE`],
//! because that thread will receive with its next poll. A thread that stops is not waited for any
//! longer. A thread that arms its CQ to sleep, or has never polled, is not waited for at all. The
//! number of seats is small, so two CQs may share one; then a thread may receive from a lane that
//! it could skip.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The number of seats.
const SEATS: usize = 32;

/// A thread that has polled counts as polling for this part of one of the helper's pauses
/// ([`crate::watchdog`]), 24 µs.
const PATIENCE: u64 = 32;
/// It updates its seat after this part of that time, because others read the word often.
const AGAIN: u64 = 8;

/// The seats of a QP's send CQ and receive CQ: each counted from 1, 0 for none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct Concern(u32);

impl Concern {
    /// The concern of a QP with these CQ numbers.
    #[inline]
    pub(crate) fn new(sends: Option<u32>, receives: Option<u32>) -> Self {
        let seat = |who: Option<u32>| who.map_or(0, |who| 1 + who % SEATS as u32);
        Self(seat(sends) | seat(receives) << 16)
    }

    #[inline]
    fn seats(self) -> [Option<usize>; 2] {
        [self.0 & 0xffff, self.0 >> 16].map(|seat| (seat as usize).checked_sub(1))
    }
}

/// A concern on a cache line of its own, and with the adjacent line, which the processor
/// prefetches.
#[repr(align(128))]
#[derive(Default)]
pub(crate) struct Apart(AtomicU32);

impl Apart {
    #[inline]
    pub(crate) fn get(&self) -> Concern {
        Concern(self.0.load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn set(&self, whom: Concern) {
        if self.get() != whom {
            self.0.store(whom.0, Ordering::Relaxed);
        }
    }
}

/// One CQ, as a thread sees it that makes a round for it.
pub(crate) struct Poller {
    /// The CQ's number in its engine; CQs that were made one after the other have consecutive
    /// numbers.
    pub(crate) who: u32,
    /// Counts of polls and rounds. Not the engine's, so that threads with CQs of their own share no
    /// word that each poll writes.
    polls: AtomicU32,
    rounds: AtomicU32,
}

impl Poller {
    fn new(who: u32) -> Self {
        Self { who, polls: AtomicU32::new(0), rounds: AtomicU32::new(0) }
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
struct Seat {
    thread: AtomicUsize,
    /// About when, in ticks; 0: it does not poll now.
    at: AtomicU64,
}

/// A thread that makes a round.
pub(crate) struct Visitor {
    thread: usize,
    now: u64,
    patience: u64,
}

/// The seats of an engine's CQs.
#[derive(Default)]
pub(crate) struct Pollers {
    seats: [Seat; SEATS],
    /// How many pollers were added.
    count: AtomicU32,
}

impl Pollers {
    /// Adds a poller for another CQ.
    pub(crate) fn add(&self) -> Poller {
        Poller::new(self.count.fetch_add(1, Ordering::Relaxed))
    }

    /// The calling thread polls a CQ at about `now` and makes its round. `pause`: one of the
    /// helper's pauses, in ticks.
    #[inline]
    pub(crate) fn sit(&self, who: u32, now: u64, pause: u64) -> Visitor {
        self.seat(who, Visitor { thread: here(), now, patience: pause / PATIENCE })
    }

    fn seat(&self, who: u32, visitor: Visitor) -> Visitor {
        let seat = &self.seats[who as usize % SEATS];
        if seat.thread.load(Ordering::Relaxed) != visitor.thread {
            seat.thread.store(visitor.thread, Ordering::Relaxed);
        }
        if visitor.now.abs_diff(seat.at.load(Ordering::Relaxed)) > visitor.patience / AGAIN {
            seat.at.store(visitor.now, Ordering::Relaxed);
        }
        visitor
    }

    /// No thread polls the CQ for now.
    pub(crate) fn rise(&self, who: u32) {
        self.seats[who as usize % SEATS].at.store(0, Ordering::Relaxed);
    }

    /// Whether another thread receives for these CQs, and the caller for neither of them.
    #[inline]
    pub(crate) fn is_seen_to(&self, whom: Concern, visitor: &Visitor) -> bool {
        let mut others = false;
        for seat in whom.seats().into_iter().flatten() {
            let seat = &self.seats[seat % SEATS];
            if seat.thread.load(Ordering::Relaxed) == visitor.thread {
                return false;
            }
            // If the counter differs between processors, a poll may seem to lie in the future.
            others |= visitor.now.abs_diff(seat.at.load(Ordering::Relaxed)) <= visitor.patience;
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

    fn visitor(thread: usize, now: u64) -> Visitor {
        Visitor { thread, now, patience: PAUSE / PATIENCE }
    }

    /// The concern of a QP with one CQ.
    fn of(who: u32) -> Concern {
        Concern::new(Some(who), Some(who))
    }

    #[test]
    fn a_lane_is_left_to_the_thread_that_polls_for_it_and_to_nobody_who_has_stopped() {
        let pollers = Pollers::default();
        let one = pollers.seat(1, visitor(7, 10_000));
        let two = pollers.seat(2, visitor(8, 10_010));
        assert!(pollers.is_seen_to(of(2), &one) && pollers.is_seen_to(of(1), &two), "each by the other");
        assert!(!pollers.is_seen_to(of(1), &one) && !pollers.is_seen_to(of(2), &two), "its own it sees to itself");
        assert!(!pollers.is_seen_to(Concern::default(), &one), "what has brought nothing yet is everybody's");
        assert!(!pollers.is_seen_to(Concern::new(None, None), &one), "so is what is for no CQ");
        assert!(!pollers.is_seen_to(of(3), &one), "nobody has ever polled");
        // The second thread goes on polling, the first does not.
        for now in (10_010..20_000).step_by(5) {
            let two = pollers.seat(2, visitor(8, now));
            assert_eq!(pollers.is_seen_to(of(1), &two), now <= 10_000 + PAUSE / PATIENCE, "{now}");
            assert!(pollers.is_seen_to(of(2), &visitor(7, now)), "{now}: its word is never as old as that");
        }
    }

    #[test]
    fn a_queue_pair_with_two_queues_is_left_alone_by_none_of_their_threads() {
        let pollers = Pollers::default();
        let sends = pollers.seat(1, visitor(7, 10_000));
        let receives = pollers.seat(2, visitor(8, 10_000));
        let both = Concern::new(Some(1), Some(2));
        assert!(!pollers.is_seen_to(both, &sends) && !pollers.is_seen_to(both, &receives));
        assert!(pollers.is_seen_to(both, &visitor(9, 10_000)));
        // No thread has polled the receive CQ: the thread that polls the send CQ receives for both.
        assert!(pollers.is_seen_to(Concern::new(Some(1), Some(3)), &receives));
        assert!(pollers.is_seen_to(Concern::new(Some(3), Some(1)), &receives));
        assert!(!pollers.is_seen_to(Concern::new(None, Some(3)), &receives));
    }

    #[test]
    fn a_thread_that_polls_several_queues_sees_to_all_of_them_and_one_that_takes_over_to_the_last() {
        let pollers = Pollers::default();
        pollers.seat(1, visitor(7, 10_000));
        let visit = pollers.seat(2, visitor(7, 10_000));
        assert!(!pollers.is_seen_to(of(1), &visit) && !pollers.is_seen_to(of(2), &visit));
        let other = pollers.seat(1, visitor(8, 10_001));
        assert!(!pollers.is_seen_to(of(1), &other), "it polls for it itself now");
        assert!(pollers.is_seen_to(of(1), &visit));
    }

    #[test]
    fn a_poller_that_sleeps_or_has_a_clock_ahead_is_not_counted_on() {
        let pollers = Pollers::default();
        pollers.seat(1, visitor(7, 10_000));
        pollers.rise(1);
        assert!(!pollers.is_seen_to(of(1), &visitor(8, 10_000)));
        pollers.seat(1, visitor(7, u64::MAX - 10_000));
        assert!(!pollers.is_seen_to(of(1), &visitor(8, 10_001)));
        pollers.seat(1, visitor(7, 10_050));
        assert!(pollers.is_seen_to(of(1), &visitor(8, 10_001)));
    }

    #[test]
    fn queues_that_share_a_seat_are_told_apart_by_nothing_and_other_numbers_by_their_seats() {
        let shared = SEATS as u32;
        assert_eq!(Concern::new(Some(1), Some(2)), Concern::new(Some(1 + shared), Some(2 + shared)));
        assert_ne!(Concern::new(Some(1), Some(2)), Concern::new(Some(2), Some(1)));
        assert_ne!(Concern::new(Some(0), None), Concern::default());
    }

    #[test]
    fn threads_are_told_apart() {
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
