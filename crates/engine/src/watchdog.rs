//! The watchdog's schedule: how long a polling program may go on before it must show that it still
//! polls. The pauses are the times between two settings of the helper's timers, which are in
//! [`crate::helper`]. Principal type: [`Watchdog`].
//!
//! In a virtual machine, setting a timer takes longer than a message to another host. A program
//! that has polled for long without stopping will probably go on, so its pauses become longer.
//! After a stop they start short again. Times are ticks; the helper measures their rate.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The first pause.
pub(crate) const PAUSE: Duration = Duration::from_micros(780);
/// A pause is this part of the time for which the program has polled.
const STEADY: u64 = 8;
/// A pause is at most this many times the first pause: 6 ms.
const LONGEST: u64 = 8;
/// A program that does not poll for this part of [`PAUSE`] has stopped.
pub(crate) const GAP: u32 = 8;
/// A program that has just sent a packet waits for the answer. So it sets the timer this part of a
/// pause early.
const EARLY: u64 = 8;
/// [`PAUSE`] in ticks before the tick rate is known. If it is too long, the thread makes one
/// unneeded check.
const FIRST: u64 = 1_000_000;

/// The pauses of one program.
pub(crate) struct Watchdog {
    /// [`PAUSE`] in ticks.
    first: AtomicU64,
    /// Since when the program has polled without stopping.
    since: AtomicU64,
    /// When a timer was last set, the length of the pause after that, and of the next one.
    set_at: AtomicU64,
    this: AtomicU64,
    next: AtomicU64,
    /// The program has stopped meanwhile, and the timers are set for longer pauses than it has now.
    stopped: AtomicBool,
}

/// Which timers to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Set {
    /// The timer whose turn it is, for two pauses.
    One(Duration),
    /// Both: for one pause, and for two.
    Both(Duration),
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        let zero = || AtomicU64::new(0);
        Self {
            first: AtomicU64::new(FIRST),
            since: zero(),
            set_at: zero(),
            this: AtomicU64::new(FIRST),
            next: AtomicU64::new(FIRST),
            stopped: AtomicBool::new(false),
        }
    }

    /// The tick rate has been measured: [`PAUSE`] is this many ticks.
    pub(crate) fn measured(&self, ticks: u64) {
        self.first.store(ticks.max(1), Ordering::Relaxed);
    }

    /// How many ticks [`PAUSE`] is.
    pub(crate) fn ticks(&self) -> u64 {
        self.first.load(Ordering::Relaxed)
    }

    /// The program begins to poll.
    pub(crate) fn begin(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
    }

    /// The program polls now, and last polled at `before`.
    #[inline]
    pub(crate) fn polled(&self, before: u64, now: u64) {
        if now.saturating_sub(before) > self.first.load(Ordering::Relaxed) / u64::from(GAP) {
            self.gap(now);
        }
    }

    #[cold]
    fn gap(&self, now: u64) {
        self.since.store(now, Ordering::Relaxed);
        let first = self.first.load(Ordering::Relaxed);
        if self.this.swap(first, Ordering::Relaxed).max(self.next.swap(first, Ordering::Relaxed)) > first {
            self.stopped.store(true, Ordering::Relaxed);
        }
    }

    /// The timers to set now, if the pause is over. Of several concurrent callers, only one gets
    /// them.
    #[inline]
    pub(crate) fn put_off(&self, now: u64, early: bool) -> Option<Set> {
        let this = self.this.load(Ordering::Relaxed);
        let limit = if early { this - this / EARLY } else { this };
        let before = self.set_at.load(Ordering::Relaxed);
        let is_over = now.saturating_sub(before) > limit;
        let told = is_over && self.set_at.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        told.then(|| self.set(now))
    }

    #[cold]
    fn set(&self, now: u64) -> Set {
        if self.stopped.swap(false, Ordering::Relaxed) {
            return Set::Both(self.restart(now));
        }
        let (this, next) = (self.next.load(Ordering::Relaxed), self.length(now));
        self.this.store(this, Ordering::Relaxed);
        self.next.store(next, Ordering::Relaxed);
        Set::One(self.time(this + next))
    }

    /// Both timers are being set; returns the length of a pause.
    pub(crate) fn restart(&self, now: u64) -> Duration {
        let pause = self.length(now);
        self.set_at.store(now, Ordering::Relaxed);
        self.this.store(pause, Ordering::Relaxed);
        self.next.store(pause, Ordering::Relaxed);
        self.time(pause)
    }

    fn length(&self, now: u64) -> u64 {
        let first = self.first.load(Ordering::Relaxed);
        let steady = now.saturating_sub(self.since.load(Ordering::Relaxed)) / STEADY;
        steady.clamp(first, first.saturating_mul(LONGEST))
    }

    fn time(&self, ticks: u64) -> Duration {
        let nanos = u128::from(ticks) * PAUSE.as_nanos() / u128::from(self.first.load(Ordering::Relaxed));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tick is a microsecond here.
    const FIRST_PAUSE: u64 = PAUSE.as_micros() as u64;

    /// Polls each microsecond from `from` to `to`; returns when timers were set, and which.
    fn poll(watchdog: &Watchdog, from: u64, to: u64) -> Vec<(u64, Set)> {
        (from..to)
            .filter_map(|now| {
                watchdog.polled(now - 1, now);
                Some((now, watchdog.put_off(now, false)?))
            })
            .collect()
    }

    fn micros(time: Duration) -> u64 {
        time.as_micros() as u64
    }

    fn began() -> Watchdog {
        let watchdog = Watchdog::new();
        watchdog.measured(FIRST_PAUSE);
        watchdog.begin(1_000_000);
        assert_eq!(watchdog.restart(1_000_000), PAUSE);
        watchdog
    }

    #[test]
    fn a_timer_that_is_set_fires_after_the_next_but_one_is_due_and_pauses_grow() {
        let set = poll(&began(), 1_000_001, 1_500_000);
        let mut due = vec![1_000_000 + FIRST_PAUSE, 1_000_000 + 2 * FIRST_PAUSE];
        for (number, (now, set)) in set.iter().enumerate() {
            let Set::One(time) = set else { panic!("nothing has stopped") };
            // This timer is set again, after a pause and before it fires.
            assert!(due[number] < *now && *now <= due[number] + 2, "{number}: {now} {due:?}");
            due.push(now + micros(*time));
        }
        let pauses: Vec<u64> = set.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert!(pauses.is_sorted(), "{pauses:?}");
        let (short, long) = (pauses[0], *pauses.last().expect("some"));
        let longest = LONGEST * FIRST_PAUSE;
        assert!(short <= FIRST_PAUSE + 1 && (longest..=longest + 1).contains(&long), "{short} {long}");
        assert!(set.len() < 500_000 / FIRST_PAUSE as usize / 4, "{}", set.len());
    }

    #[test]
    fn a_program_that_stops_begins_anew_with_both_timers_but_not_at_each_stop() {
        let watchdog = began();
        poll(&watchdog, 1_000_001, 1_200_000);
        let now = 1_201_000;
        watchdog.polled(1_200_000, now);
        let set = poll(&watchdog, now + 1, now + 3 * FIRST_PAUSE);
        assert_eq!(set[0].1, Set::Both(PAUSE));
        assert!(set[0].0 <= now + FIRST_PAUSE + 1);
        assert_eq!(set[1], (set[0].0 + FIRST_PAUSE + 1, Set::One(2 * PAUSE)));
        // A program that stops again and again sets a timer once in a pause, like one that has just
        // begun.
        let (mut before, mut count) = (now + 3 * FIRST_PAUSE, 0);
        for _ in 0..100 {
            let now = before + 2 * FIRST_PAUSE / u64::from(GAP);
            watchdog.polled(before, now);
            count += usize::from(watchdog.put_off(now, false).is_some());
            before = now;
        }
        assert!(count <= 100 * 2 / GAP as usize, "{count}");
    }

    #[test]
    fn early_is_a_part_of_a_pause_early_and_one_of_two_is_told() {
        let watchdog = began();
        let early = 1_000_000 + FIRST_PAUSE - FIRST_PAUSE / EARLY;
        assert_eq!(watchdog.put_off(early, true), None);
        assert_eq!(watchdog.put_off(early + 2, false), None);
        assert!(watchdog.put_off(early + 2, true).is_some());
        assert_eq!(watchdog.put_off(early + 2, true), None, "it has been set");
    }
}
