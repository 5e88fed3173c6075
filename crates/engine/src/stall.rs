//! The stall detector: finds programs for which the helper thread is repeatedly too late. Such a
//! program polls only for completions of its own requests, and then spins on its memory or
//! computes. It seems to go on polling, and what peers write meanwhile waits for the thread's next
//! check. Principal type: [`StallDetector`].
//!
//! Such a program stops soon after each burst of polls, and each time work is waiting. A program
//! that only lost its processor has usually polled for long before. If the pattern repeats, program
//! and thread share the work ([`crate::progress_mode`]). After a while the thread checks again.

use std::time::Duration;

use crate::watchdog::PAUSE;

/// After this many stalls in a row, program and thread share the work.
const TIMES: u32 = 4;
/// The longest watch that counts as a stall.
const SOON: Duration = Duration::from_millis(2);
/// How many pauses they share the work: one second.
pub(crate) const SHARED_FOR: u64 = Duration::from_secs(1).as_nanos() as u64 / PAUSE.as_nanos() as u64;

/// How often in a row the thread was late.
#[derive(Default)]
pub(crate) struct StallDetector(u32);

impl StallDetector {
    /// The thread watched for `after`, until the program had stopped. `waited`: work was waiting.
    /// Returns whether the stall has repeated often enough.
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
