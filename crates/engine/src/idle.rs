//! The idle policy: how long the helper thread looks for work before it sleeps, and what it
//! remembers of its sleeps. The sleep itself is in [`crate::helper`].
//!
//! A sleep and a wake-up cost the thread and its peer about ten microseconds, and the peer's bytes
//! wait meanwhile. If bytes stream with short pauses, the thread therefore keeps looking for a part
//! of the time for which it has been awake. Principal type: [`IdlePolicy`].

use std::time::{Duration, Instant};

use crate::tsc;

/// Checks without work that the thread always makes: a few microseconds.
const LOOKS: u32 = 40;
/// The thread keeps looking for this part (a half) of the time since it woke.
const PART: u64 = 2;
/// After this many rounds with work in a row, the thread counts as busy, and its wake word is
/// no longer fenced.
const BUSY: u32 = 64;
/// Lanes' bulk memory is given back if nothing has woken the thread for this long. Giving it back
/// and getting it again costs as much as copying a megabyte.
pub(crate) const QUIET: Duration = Duration::from_millis(20);

/// The state of the thread's sleeps.
#[derive(Default)]
pub(crate) struct IdlePolicy {
    /// When the last sleep began, in ticks.
    at: u64,
    /// When the last sleep ended, in ticks.
    woke: u64,
    /// All posters know that the wake word is fenced.
    pub(crate) fenced: bool,
    /// Rounds with work since the last sleep.
    worked: u32,
    /// Checks without work since the last one with work.
    looks: u32,
    /// The end of the search for work, in ticks; counts after the first [`LOOKS`].
    until: u64,
    /// Unneeded lane memory has been given back (or a stopped peer holds it), and there was no work
    /// since.
    pub(crate) gave_back: bool,
    /// Since when there was no work, if there is memory to give back.
    quiet: Option<Instant>,
}

impl IdlePolicy {
    /// The sleep has ended.
    pub(crate) fn woke(&mut self, now: u64) {
        self.woke = now;
        self.looks = 0;
    }

    /// The program has polled meanwhile, and may have used any lane memory.
    pub(crate) fn watched(&mut self, now: u64) {
        (self.gave_back, self.quiet) = (false, None);
        self.woke(now);
    }

    /// Since when there was no work; from now on, if this is the first call.
    pub(crate) fn quiet_since(&mut self) -> Instant {
        *self.quiet.get_or_insert_with(Instant::now)
    }

    /// There was work. Returns whether the thread now counts as busy.
    pub(crate) fn worked(&mut self) -> bool {
        self.looks = 0;
        (self.gave_back, self.quiet) = (false, None);
        self.worked += 1;
        self.worked == BUSY
    }

    /// There was no work. Returns whether to check again, at most for about `at_most` ticks.
    pub(crate) fn keeps_checking(&mut self, at_most: u64) -> bool {
        self.looks += 1;
        self.looks < LOOKS || self.worked > 0 && self.waits(tsc::now(), at_most)
    }

    /// Whether to keep looking after the first checks.
    fn waits(&mut self, now: u64, at_most: u64) -> bool {
        if self.looks == LOOKS {
            self.until = now + (now.saturating_sub(self.woke) / PART).min(at_most);
        }
        now < self.until
    }

    /// The thread goes to sleep; returns the ticks since the beginning of the last sleep.
    pub(crate) fn rest(&mut self, now: u64) -> u64 {
        (self.worked, self.looks) = (0, 0);
        now.saturating_sub(std::mem::replace(&mut self.at, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helper::Waker;
    use rustix::event::{PollFd, PollFlags, Timespec};

    /// Whether the thread was kicked. A thread that blocks a queue kicks it if it might not check
    /// any more.
    fn is_kicked(waker: &Waker) -> bool {
        waker.attend();
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let kick = waker.kick_fd();
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(kick, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    #[test]
    fn a_waker_without_a_thread_is_always_notified() {
        assert!(is_kicked(&Waker::new().unwrap().0));
    }

    #[test]
    fn a_thread_is_kicked_when_it_rests_and_not_when_it_is_at_work() {
        let (waker, _wake_word) = Waker::new().unwrap();
        waker.goes_to_work();
        assert!(!is_kicked(&waker));
        waker.going_to_rest();
        assert!(is_kicked(&waker));
    }

    fn after_work(woke: u64) -> IdlePolicy {
        let mut idle = IdlePolicy::default();
        idle.rest(woke / 2);
        idle.woke(woke);
        idle.worked();
        idle.looks = LOOKS;
        idle
    }

    #[test]
    fn a_thread_looks_on_for_half_of_the_time_that_it_has_been_awake_and_not_longer_than_it_may() {
        let mut idle = after_work(1000);
        assert!(idle.waits(3000, 10_000));
        idle.looks += 1;
        assert!(idle.waits(3999, 10_000) && !idle.waits(4000, 10_000));
        let mut idle = after_work(1000);
        assert!(idle.waits(3000, 10));
        idle.looks += 1;
        assert!(!idle.waits(3010, 10));
    }

    #[test]
    fn work_begins_the_looks_anew_and_a_thread_that_woke_for_nothing_looks_no_longer_than_ever() {
        let mut idle = after_work(1000);
        assert!(idle.waits(3000, 1000));
        idle.worked();
        idle.looks = LOOKS;
        assert!(idle.waits(9000, 1000), "the time counts from this look on");
        let mut idle = IdlePolicy::default();
        idle.woke(tsc::now());
        assert_eq!((1..).take_while(|_| idle.keeps_checking(u64::MAX / 4)).count() as u32, LOOKS - 1);
    }

    #[test]
    fn memory_is_given_back_once_until_there_is_work_again() {
        let mut idle = after_work(1000);
        let goes_on: [fn(&mut IdlePolicy); 2] = [|idle| _ = idle.worked(), |idle| idle.watched(1)];
        for goes_on in goes_on {
            idle.gave_back = true;
            let since = idle.quiet_since();
            idle.rest(1);
            idle.woke(2);
            assert!(idle.gave_back && idle.quiet_since() == since, "a sleep alone is nothing that has gone on");
            goes_on(&mut idle);
            assert!(!idle.gave_back && idle.quiet.is_none());
        }
    }

    #[test]
    fn sleeps_are_counted_from_the_beginning_of_one_to_that_of_the_next() {
        let mut idle = after_work(1000);
        assert_eq!(idle.rest(1700), 1200);
        assert_eq!(idle.rest(1800), 100);
        assert!((1..BUSY).all(|_| !idle.worked()) && idle.worked(), "only with the last of so many rounds it is busy");
    }
}
