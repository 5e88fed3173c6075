//! The shared progress mode, for programs that poll only for completions of their own requests, and
//! in between spin on memory or compute. If such a program had all the work for a millisecond, its
//! peers would wait. If peers notified the helper while the program polls, the helper would take
//! the processor from the program. Principal type: [`ProgressMode`].
//!
//! So in this mode, the program uses the wake word, too. After a poll that finds nothing, and after
//! a post, the program will poll again: it *is polling*, and disarms the wake word. After a poll
//! that finds something, the program may stop polling, so it arms the wake word and checks once
//! more. A thread with work does not arm the wake word while the program is polling. If the program
//! stops without having found anything, a timer wakes the thread.
//!
//! The wake word is fenced meanwhile ([`shm::wake_word`]), so that arming needs no
//! system call. [`crate::stall`] decides when the mode begins.

mod polls;

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

/// How often the program may stop after a poll that found nothing while work waits. After that,
/// peers notify even while it polls.
const MISSED_STOPS_MAX: u32 = 4;

/// How program and thread share the work.
#[derive(Default)]
pub(crate) struct ProgressMode {
    /// When the mode ends, in ticks. 0: it is off.
    until: AtomicU64,
    /// The last poll found nothing, so the program will poll again.
    polling: AtomicBool,
    /// A timer will fire.
    guarded: AtomicBool,
    /// How often the program has stopped after a poll that found nothing.
    missed_stops: AtomicU32,
}

/// When to wake a peer on a lane that has armed its wake word.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Wake {
    #[default]
    AtOnce,
    Later,
    /// Later, and a wake-up is pending.
    Owed,
}

/// What to do after a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Polled {
    /// Nothing more.
    Polling,
    /// Set a timer.
    Unguarded,
    /// Arm the wake word.
    MayStop,
    /// Nothing: the wake word belongs to the thread.
    Unchanged,
    /// Wake the thread: it handles everything again.
    Over,
}

impl ProgressMode {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0
    }

    /// Starts the mode. All posters know that the wake word is fenced.
    pub(crate) fn begin(&self, until: u64) {
        self.missed_stops.store(0, Ordering::Relaxed);
        self.polling.store(false, Ordering::Relaxed);
        self.until.store(until.max(1), Ordering::Relaxed);
    }

    /// Whether the program is polling and will poll again. Call this after the wake word is
    /// disarmed.
    pub(crate) fn is_polling(&self) -> bool {
        // Pairs with the fence in `polled`: either the program's arming comes after the thread's
        // disarming, or the thread sees that the program may have stopped.
        fence(Ordering::SeqCst);
        self.is_on() && self.polling.load(Ordering::Relaxed)
    }

    /// The program has polled; `found` says whether it got something.
    pub(crate) fn polled(&self, found: bool, now: u64) -> Polled {
        let until = self.until.load(Ordering::Relaxed);
        if now >= until {
            self.until.store(0, Ordering::Relaxed);
            self.polling.store(false, Ordering::Relaxed);
            return if until == 0 { Polled::Unchanged } else { Polled::Over };
        }
        if self.missed_stops.load(Ordering::Relaxed) >= MISSED_STOPS_MAX {
            return Polled::Unchanged;
        }
        if found {
            if !self.polling.load(Ordering::Relaxed) {
                return Polled::Unchanged;
            }
            self.polling.store(false, Ordering::Relaxed);
            // Pairs with the fence in `is_polling`.
            fence(Ordering::SeqCst);
            return Polled::MayStop;
        }
        if !self.polling.load(Ordering::Relaxed) {
            self.polling.store(true, Ordering::SeqCst);
            // Either this thread sees that the timer has fired, or `fired` sees that the program is
            // polling.
            if !self.guarded.swap(true, Ordering::SeqCst) {
                return Polled::Unguarded;
            }
        }
        Polled::Polling
    }

    /// The timer has fired; `stopped`: the program has not polled lately. Returns whether to set it
    /// again.
    pub(crate) fn fired(&self, stopped: bool) -> bool {
        self.guarded.store(false, Ordering::SeqCst);
        if !self.polling.load(Ordering::SeqCst) {
            return false;
        }
        if stopped {
            self.polling.store(false, Ordering::Relaxed);
            self.missed_stops.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        !self.guarded.swap(true, Ordering::SeqCst)
    }

    /// The program is about to sleep on an event, so it does not spin any more. Returns whether
    /// that ends the mode.
    pub(crate) fn end(&self) -> bool {
        self.is_on() && {
            self.polling.store(false, Ordering::SeqCst);
            self.until.swap(0, Ordering::SeqCst) != 0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use shm::{Notifier, WakeWordView};

    use super::*;
    use crate::helper::Waker;

    fn began() -> ProgressMode {
        let progress_mode = ProgressMode::default();
        assert_eq!(progress_mode.polled(true, 5), Polled::Unchanged);
        progress_mode.begin(1000);
        progress_mode
    }

    #[test]
    fn a_program_that_finds_nothing_is_polling_until_it_finds_something() {
        let progress_mode = began();
        assert!(!progress_mode.is_polling());
        assert_eq!(progress_mode.polled(true, 10), Polled::Unchanged, "the thread has armed the wake word");
        for (now, first) in [(20, Polled::Unguarded), (30, Polled::Polling)] {
            assert_eq!(progress_mode.polled(false, now), first, "one timer is enough");
            assert_eq!(progress_mode.polled(false, now), Polled::Polling);
            assert!(progress_mode.is_polling());
            assert_eq!(progress_mode.polled(true, now), Polled::MayStop);
            assert!(!progress_mode.is_polling());
        }
    }

    #[test]
    fn the_timer_is_set_for_as_long_as_the_program_is_polling() {
        let progress_mode = began();
        assert_eq!(progress_mode.polled(false, 10), Polled::Unguarded);
        assert!(progress_mode.fired(false), "it goes on polling");
        assert_eq!(progress_mode.polled(true, 20), Polled::MayStop);
        assert!(!progress_mode.fired(false));
        assert_eq!(progress_mode.polled(false, 30), Polled::Unguarded);
        assert!(!progress_mode.fired(true) && !progress_mode.is_polling(), "it has stopped");
        assert_eq!(progress_mode.polled(false, 40), Polled::Unguarded);
    }

    #[test]
    fn a_program_that_stops_without_a_find_is_not_relied_on_again_and_again() {
        let progress_mode = began();
        for _ in 0..MISSED_STOPS_MAX {
            assert_eq!(progress_mode.polled(false, 10), Polled::Unguarded);
            assert!(!progress_mode.fired(true));
        }
        assert_eq!(progress_mode.polled(false, 10), Polled::Unchanged);
        progress_mode.begin(1000);
        assert_eq!(progress_mode.polled(false, 10), Polled::Unguarded);
    }

    #[test]
    fn it_is_over_once_by_the_time_or_when_the_program_sleeps() {
        let progress_mode = began();
        assert_eq!(progress_mode.polled(false, 999), Polled::Unguarded);
        assert_eq!(
            (progress_mode.polled(false, 1000), progress_mode.polled(false, 1001)),
            (Polled::Over, Polled::Unchanged)
        );
        assert!(!progress_mode.is_on() && !progress_mode.is_polling() && !progress_mode.end());
        let progress_mode = began();
        assert_eq!(progress_mode.polled(false, 999), Polled::Unguarded);
        assert!(progress_mode.end() && !progress_mode.end());
        assert!(!progress_mode.is_on() && !progress_mode.is_polling());
    }

    /// A waker whose thread sleeps, and the peers' view of it.
    fn asleep() -> (Waker, WakeWordView) {
        let (waker, fd) = Waker::new().expect("a waker");
        let view = WakeWordView::map(fd.as_fd()).expect("its wake word");
        waker.progress_mode.begin(u64::MAX);
        waker.wake_word.arm();
        (waker, view)
    }

    #[test]
    fn peers_do_not_notify_while_the_program_is_polling_and_notify_when_it_has_found_something() {
        let (waker, view) = asleep();
        for _ in 0..3 {
            assert!(view.armed().is_some());
            for _ in 0..3 {
                assert!(waker.polled() && !waker.polled_in_shared_mode(false));
                assert_eq!(view.armed(), None);
            }
            assert!(waker.polled() && waker.polled_in_shared_mode(true), "it has to look once more");
        }
        let word = view.armed();
        assert!(waker.polled() && !waker.polled_in_shared_mode(true));
        assert_eq!(view.armed(), word, "it need not be armed again");
    }

    #[test]
    fn the_wake_word_stays_disarmed_although_a_thread_that_was_at_work_arms_it() {
        let (waker, view) = asleep();
        assert!(!waker.polled_in_shared_mode(false));
        waker.wake_word.arm();
        assert!(!waker.polled_in_shared_mode(false));
        assert_eq!(view.armed(), None);
    }

    #[test]
    fn the_thread_hears_of_a_program_that_was_taken_for_gone_and_disarms_the_wake_word_after_all() {
        let (waker, view) = asleep();
        let kicked = || Notifier::from(waker.kick_fd().try_clone_to_owned().expect("a descriptor")).drain();
        assert_eq!(waker.progress_mode.polled(false, 10), Polled::Unguarded);
        waker.silence();
        assert!(view.armed().is_none() && !kicked(), "it is polling");
        // Here the program loses its processor; the timer fires, and the thread goes to sleep.
        assert_eq!(waker.progress_mode.polled(false, 20), Polled::Polling);
        assert!(!waker.progress_mode.fired(true) && !waker.progress_mode.is_polling());
        waker.wake_word.arm();
        waker.silence();
        assert!(view.armed().is_some() || kicked(), "nobody would see what peers send");
    }

    #[test]
    fn the_thread_hears_when_a_polling_program_goes_to_sleep_and_when_it_is_over() {
        let (waker, _view) = asleep();
        let kicked = || Notifier::from(waker.kick_fd().try_clone_to_owned().expect("a descriptor")).drain();
        assert!(!waker.polled_in_shared_mode(false) && !kicked());
        assert!(waker.hand_over() && kicked());
        assert!(!waker.hand_over() && !kicked());
        waker.progress_mode.begin(1);
        assert!(!waker.polled_in_shared_mode(true) && kicked() && !waker.polled());
    }
}
