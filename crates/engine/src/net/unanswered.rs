//! Probes whose answer waits until the program has posted receive requests again.
//!
//! An answer says that everything before the probe has been received; it lets the sender of
//! unreliable traffic go on. A program that posts as it receives may have to wait for a processor.
//! It then runs out of receive requests, and later messages are lost. A receiver with a processor
//! of its own would lose none. So while the receive requests are few, compared with the program's
//! usual number, the answer waits for a short time ([`ANSWER_DELAY`]). No answer is kept back
//! longer. Principal type: [`Unanswered`].

use protocol::Time;
use wire::probe::Probe;

/// This many receive requests suffice for all that a sender may send without an answer.
const ENOUGH: u32 = 100;
/// How long an answer waits, in nanoseconds. Processes often wait that long for a processor.
const ANSWER_DELAY: u64 = 20_000_000;
/// Hosts whose probes wait, at most.
const HOSTS: usize = 64;

/// A probe, its source, its destination, and its hop limit.
pub(crate) type Asked = (Probe, [u8; 16], [u8; 16], u8);

/// The waiting probes of one QP, and the program's usual number of receive requests.
#[derive(Default)]
pub(crate) struct Unanswered {
    probes: Vec<Asked>,
    until: Time,
    /// The largest number of receive requests so far.
    most: u32,
    /// How many requests were posted. A probe does not wait for a program that never posts again.
    posted: u32,
}

impl Unanswered {
    /// The program has posted a receive request and now has `left` unused ones.
    pub(crate) fn posted(&mut self, left: u32) {
        self.posted = self.posted.saturating_add(1);
        self.most = self.most.max(left);
    }

    /// Whether the answer to a probe has to wait; if so, stores the probe.
    pub(crate) fn waits(&mut self, asked: &Asked, left: u32, depth: u32, now: Time) -> bool {
        if self.posted <= depth || self.suffice(left) {
            return false;
        }
        if self.probes.is_empty() {
            self.until = now.after(ANSWER_DELAY);
        }
        // An answer also covers all earlier probes of the host.
        self.probes.retain(|(_, from, ..)| from != &asked.1);
        if self.probes.len() == HOSTS {
            self.probes.remove(0);
        }
        self.probes.push(*asked);
        true
    }

    /// The probes that can be answered now.
    pub(crate) fn due(&mut self, left: u32, now: Time) -> Vec<Asked> {
        if self.probes.is_empty() {
            return Vec::new();
        }
        if !self.suffice(left) {
            if now < self.until {
                return Vec::new();
            }
            // The program's usual number seems to be lower.
            self.most = left;
        }
        std::mem::take(&mut self.probes)
    }

    /// When to check again, if a probe waits.
    pub(crate) fn until(&self) -> Option<Time> {
        (!self.probes.is_empty()).then_some(self.until)
    }

    fn suffice(&self, left: u32) -> bool {
        left >= ENOUGH.min(self.most / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEPTH: u32 = 512;

    fn asked(cookie: u64, host: u8) -> Asked {
        (Probe { cookie, ..Probe::default() }, [host; 16], [0; 16], 0)
    }

    fn cookies(due: &[Asked]) -> Vec<u64> {
        due.iter().map(|(probe, ..)| probe.cookie).collect()
    }

    /// A program that has filled its queue and posted one more request.
    fn used() -> Unanswered {
        let mut unanswered = Unanswered::default();
        (1..=DEPTH).for_each(|left| unanswered.posted(left));
        unanswered.posted(DEPTH);
        unanswered
    }

    #[test]
    fn ack_waits_until_enough_receives_are_posted() {
        let mut unanswered = used();
        assert!(!unanswered.waits(&asked(1, 1), ENOUGH, DEPTH, Time(0)));
        assert!(unanswered.waits(&asked(2, 1), ENOUGH - 1, DEPTH, Time(0)));
        assert!(unanswered.waits(&asked(3, 2), 7, DEPTH, Time(5)));
        assert!(unanswered.waits(&asked(4, 1), 0, DEPTH, Time(9)));
        assert_eq!(unanswered.until(), Some(Time(ANSWER_DELAY)));
        unanswered.posted(ENOUGH - 1);
        assert_eq!(unanswered.due(ENOUGH - 1, Time(10)), []);
        unanswered.posted(ENOUGH);
        assert_eq!(cookies(&unanswered.due(ENOUGH, Time(10))), [3, 4], "the last of each host");
        assert_eq!(unanswered.until(), None);
        assert_eq!(unanswered.due(ENOUGH, Time(10)), []);
    }

    #[test]
    fn a_moment_ends_and_teaches() {
        let mut unanswered = used();
        assert!(unanswered.waits(&asked(1, 1), 60, DEPTH, Time(0)));
        assert_eq!(unanswered.due(60, Time(ANSWER_DELAY - 1)), []);
        assert_eq!(cookies(&unanswered.due(60, Time(ANSWER_DELAY))), [1]);
        assert!(!unanswered.waits(&asked(2, 1), 30, DEPTH, Time(ANSWER_DELAY)), "sixty are normal now");
        assert!(unanswered.waits(&asked(3, 1), 29, DEPTH, Time(ANSWER_DELAY)));
        assert_eq!(cookies(&unanswered.due(0, Time(2 * ANSWER_DELAY))), [3]);
        assert!(!unanswered.waits(&asked(4, 1), 0, DEPTH, Time(2 * ANSWER_DELAY)), "it posts no more");
    }

    #[test]
    fn ack_does_not_wait_for_a_program_that_posts_once() {
        let mut unanswered = Unanswered::default();
        (1..=DEPTH).for_each(|left| unanswered.posted(left));
        assert!(!unanswered.waits(&asked(1, 1), 0, DEPTH, Time(0)));
        let mut one_by_one = Unanswered::default();
        (0..10).for_each(|_| one_by_one.posted(1));
        assert!(!one_by_one.waits(&asked(1, 1), 0, 1, Time(0)), "nor who never had more than one");
    }

    #[test]
    fn hosts_that_wait_have_a_bound() {
        let mut unanswered = used();
        for host in 0..=HOSTS as u8 {
            assert!(unanswered.waits(&asked(host.into(), host), 0, DEPTH, Time(0)));
        }
        assert_eq!(cookies(&unanswered.due(0, Time(ANSWER_DELAY))), (1..=HOSTS as u64).collect::<Vec<_>>());
    }
}
