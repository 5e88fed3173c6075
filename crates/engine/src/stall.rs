//! Whether the helper thread comes late again and again: a program that polls only for the completions of what it posts, and then spins on its
//! memory, or works, seems to go on polling, and what peers write meanwhile waits for the thread's next look. Principal type: [`StallDetector`].
//!
//! Such a program stops right after each burst of polls, and each time something waits. One that lost its processor polled for long before, as a rule.
//! Where it goes on like that, the two share the work otherwise ([`crate::progress_mode`]); after a while the thread tries again how it is.

use std::time::Duration;

use crate::watchdog::PAUSE;

/// So many times in a row, something has waited for a program that stopped soon after it began.
const TIMES: u32 = 4;
/// What is soon.
const SOON: Duration = Duration::from_millis(2);
/// For so many pauses they share it: one second.
pub(crate) const SHARED_FOR: u64 = Duration::from_secs(1).as_nanos() as u64 / PAUSE.as_nanos() as u64;

/// How often the thread was late: its own count.
#[derive(Default)]
pub(crate) struct StallDetector(u32);

impl StallDetector {
    /// The thread has left the work to the program for this long, until the program had stopped. `waited`: there was something to do. Says
    /// whether it is so again and again.
    pub(crate) fn took_over(&mut self, after: Duration, waited: bool) -> bool {
        self.0 = if waited && after < SOON { self.0 + 1 } else { 0 };
        let again = self.0 == TIMES;
        if again {
            self.0 = 0;
        }
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_for_which_something_waits_each_time_is_found_out_and_has_to_be_seen_anew() {
        let mut stalls = StallDetector::default();
        for _ in 0..3 {
            assert!((1..TIMES).all(|_| !stalls.took_over(PAUSE, true)));
            assert!(stalls.took_over(PAUSE, true));
        }
    }

    #[test]
    fn a_program_that_lost_its_processor_or_has_ended_is_another_matter() {
        for (after, waited) in [(3 * SOON, true), (PAUSE, false)] {
            let mut stalls = StallDetector::default();
            for _ in 0..10 {
                assert!((1..TIMES).all(|_| !stalls.took_over(PAUSE, true)));
                assert!(!stalls.took_over(after, waited));
            }
        }
    }
}
