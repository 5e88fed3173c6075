//! The congestion window: how many bytes connections may have under way to one host.
//!
//! The window follows the rate control of DCQCN, but it limits bytes under way. So acknowledgements
//! pace it, and no timer runs. A *round* is a window's worth of acknowledged bytes. A mark (a
//! packet with CE, or a CNP) cuts the window at most once in a round, by half of `alpha`, the
//! recent fraction of marked rounds. A round without marks brings the window half the way back to
//! its old value; after [`RETURN`] rounds, each further round adds a step. A loss halves the
//! window, and only steps widen it again. Principal type: [`CongestionWindow`].

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use protocol::Time;

/// Bytes under way at the start.
pub(crate) const WINDOW: u32 = 128 * 1024;
pub(crate) const WINDOW_MIN: u32 = 8 * 1024;
pub(crate) const WINDOW_MAX: u32 = 1024 * 1024;
/// What a round without marks or losses adds.
const STEP: u32 = 8 * 1024;
/// Losses within this time, in nanoseconds, count as one.
const ONE_LOSS: u64 = 2_000_000;
/// The value of `alpha` if all rounds are marked.
const ONE: u32 = 1024;
/// With each round, `alpha` forgets one part in this many.
const MEMORY: u32 = 16;
/// Rounds in which a window that was cut returns.
const RETURN: u8 = 5;

/// The congestion window of one host.
pub(crate) struct CongestionWindow {
    bytes: AtomicU32,
    /// Bytes acknowledged in this round. The update is not atomic: one of two concurrent updates
    /// may be lost.
    acked: AtomicU32,
    course: Mutex<Course>,
}

/// The state that decides the window's next change.
#[derive(Debug)]
struct Course {
    /// The window before it was cut.
    target: u32,
    /// The fraction of rounds that were marked, in units of 1/[`ONE`].
    alpha: u32,
    /// This round was marked.
    marked: bool,
    /// Rounds left in which the window returns to `target`.
    returns: u8,
    /// When the last loss was counted.
    lost_at: Option<Time>,
}

impl Default for CongestionWindow {
    fn default() -> Self {
        let course = Course { target: WINDOW, alpha: ONE, marked: false, returns: 0, lost_at: None };
        Self { bytes: AtomicU32::new(WINDOW), acked: AtomicU32::new(0), course: Mutex::new(course) }
    }
}

impl CongestionWindow {
    /// The window in bytes.
    pub(crate) fn bytes(&self) -> u32 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// This many bytes were acknowledged.
    pub(crate) fn progress(&self, bytes: u32) {
        let acked = self.acked.load(Ordering::Relaxed).saturating_add(bytes);
        let over = acked >= self.bytes();
        self.acked.store(if over { 0 } else { acked }, Ordering::Relaxed);
        if over {
            self.end_round();
        }
    }

    fn end_round(&self) {
        let mut course = self.course.lock();
        let marked = std::mem::take(&mut course.marked);
        course.alpha -= course.alpha / MEMORY;
        if marked {
            course.alpha += ONE / MEMORY;
        } else if course.returns > 0 {
            course.returns -= 1;
            self.set(self.bytes().midpoint(course.target));
        } else {
            self.set(self.bytes() + STEP);
        }
    }

    /// Congestion is starting: a mark has arrived.
    pub(crate) fn mark(&self) {
        let mut course = self.course.lock();
        if std::mem::replace(&mut course.marked, true) {
            return;
        }
        let bytes = self.bytes();
        (course.target, course.returns) = (bytes, RETURN);
        // Acknowledgements of packets sent before the cut end no round.
        self.acked.store(0, Ordering::Relaxed);
        self.set(bytes - (u64::from(bytes) * u64::from(course.alpha) / u64::from(2 * ONE)) as u32);
    }

    /// A packet was lost.
    pub(crate) fn lose(&self, now: Time) {
        let mut course = self.course.lock();
        if course.lost_at.is_none_or(|last| now >= last.after(ONE_LOSS)) {
            (course.lost_at, course.returns) = (Some(now), 0);
            self.set(self.bytes() / 2);
        }
    }

    fn set(&self, bytes: u32) {
        self.bytes.store(bytes.clamp(WINDOW_MIN, WINDOW_MAX), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This many rounds without marks or losses.
    fn rounds(window: &CongestionWindow, count: u32) {
        (0..count).for_each(|_| window.progress(window.bytes()));
    }

    #[test]
    fn a_round_without_trouble_widens_it_by_a_step() {
        let window = CongestionWindow::default();
        window.progress(WINDOW - 1);
        assert_eq!(window.bytes(), WINDOW);
        window.progress(1);
        assert_eq!(window.bytes(), WINDOW + STEP);
        rounds(&window, 10_000);
        assert_eq!(window.bytes(), WINDOW_MAX);
    }

    #[test]
    fn a_loss_halves_it_and_losses_at_once_are_one() {
        let window = CongestionWindow::default();
        window.lose(Time(0));
        window.lose(Time(ONE_LOSS - 1));
        assert_eq!(window.bytes(), WINDOW / 2);
        window.lose(Time(ONE_LOSS));
        assert_eq!(window.bytes(), WINDOW / 4);
        rounds(&window, 1);
        assert_eq!(window.bytes(), WINDOW / 4 + STEP, "it does not return at once");
        (2..100).for_each(|round| window.lose(Time(ONE_LOSS * round)));
        assert_eq!(window.bytes(), WINDOW_MIN);
    }

    #[test]
    fn a_mark_cuts_it_once_in_a_round_and_it_returns() {
        let window = CongestionWindow::default();
        window.mark();
        window.mark();
        assert_eq!(window.bytes(), WINDOW / 2, "nothing is known yet of how often: by half");
        rounds(&window, 1);
        assert_eq!(window.bytes(), WINDOW / 2, "the round that was marked");
        rounds(&window, 1);
        assert_eq!(window.bytes(), WINDOW / 2 + WINDOW / 4);
        rounds(&window, 4);
        assert!(window.bytes() > WINDOW * 31 / 32 && window.bytes() < WINDOW);
        rounds(&window, 2);
        assert!(window.bytes() > WINDOW, "and goes on in steps");
    }

    #[test]
    fn where_marks_are_rare_they_cut_little() {
        let window = CongestionWindow::default();
        rounds(&window, 100);
        let before = window.bytes();
        window.mark();
        let cut = before - window.bytes();
        assert!(cut > 0 && cut < before / 100, "{cut} of {before}");
        // If each round is marked, marks cut by half in the end.
        for _ in 0..100 {
            window.mark();
            rounds(&window, 1);
        }
        assert_eq!(window.bytes(), WINDOW_MIN);
        assert!(window.course.lock().alpha > ONE / 2);
    }

    /// A link with room for `room` bytes, shared by two windows. Above this, both are marked; above
    /// twice as much, both lose a packet. Returns the widths, averaged over the second half.
    fn share(room: u32, marks: bool) -> [u64; 2] {
        let (a, b) = (CongestionWindow::default(), CongestionWindow::default());
        rounds(&a, 60);
        assert!(a.bytes() > 4 * b.bytes());
        let mut sums = [0, 0];
        const ROUNDS: u64 = 4000;
        for round in 0..ROUNDS {
            let full = a.bytes() + b.bytes();
            for (window, sum) in [&a, &b].into_iter().zip(&mut sums) {
                if marks && full > room {
                    window.mark();
                } else if full > 2 * room {
                    window.lose(Time(round * 10 * ONE_LOSS));
                }
                rounds(window, 1);
                if round >= ROUNDS / 2 {
                    *sum += u64::from(window.bytes()) / (ROUNDS / 2);
                }
            }
        }
        sums
    }

    #[test]
    fn two_that_share_a_link_come_to_have_equal_parts() {
        for marks in [true, false] {
            let room = 400 * 1024;
            let [a, b] = share(room, marks);
            assert!(a.abs_diff(b) < (a + b) / 10, "marks {marks}: {a} and {b}");
            let most = u64::from(if marks { room } else { 2 * room });
            assert!(a + b > most / 2 && a + b < most + most / 8, "marks {marks}: {a} and {b} of {most}");
        }
    }
}
