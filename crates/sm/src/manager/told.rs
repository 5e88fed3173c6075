//! What the caller was told, so that it hears of each change once. Many traps in a short time cause
//! many sweeps, and one event at their end. Principal type: [`Told`].

use crate::event::{Problem, Up, Violation};
use std::collections::{HashMap, HashSet};
use std::time::Duration;

/// The caller hears of sweeps no more often.
const PAUSE: Duration = Duration::from_secs(1);
/// The most problems of a sweep that are told apart.
const MOST_PROBLEMS: usize = 4096;

/// The most kinds of violations at ports that are counted apart.
const MOST_VIOLATIONS: usize = 4096;

/// What the caller was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The last sweep that it heard of, and when.
    up: Option<(Up, Duration)>,
    /// What it hears next, with the sweeps since.
    next: Option<Up>,
    /// The problems of the last sweep, and of this one.
    problems: [HashSet<Problem>; 2],
    /// The traps of wrong keys, by the GUID of the port and the number of the trap.
    violations: HashMap<(u64, u16), u64>,
}

impl Told {
    /// When the caller hears of the next sweep.
    pub(super) fn due(&self) -> Option<Duration> {
        let (_, at) = self.up?;
        self.next.map(|_| at.saturating_add(PAUSE))
    }

    /// A heavy sweep is complete. `changes` is whether it has set anything.
    pub(super) fn swept(&mut self, up: Up, changes: bool) {
        let before = self.next.map_or(0, |next| next.sweeps);
        let last = self.next.or(self.up.map(|(up, _)| up));
        let is_known = last.is_some_and(|last| Up { sent: up.sent, sweeps: up.sweeps, took: up.took, ..last } == up);
        if changes || before > 0 || !is_known {
            self.next = Some(Up { sweeps: before.saturating_add(1), ..up });
        }
    }

    /// What the caller hears now, if it is due.
    pub(super) fn poll(&mut self, now: Duration) -> Option<Up> {
        if self.due().is_some_and(|due| due > now) {
            return None;
        }
        let up = self.next.take()?;
        self.up = Some((up, now));
        Some(up)
    }

    /// A heavy sweep begins.
    pub(super) fn forget_problems(&mut self) {
        let [before, now] = &mut self.problems;
        *before = std::mem::take(now);
    }

    /// Whether the caller must hear of a problem: once, as long as every sweep finds it.
    pub(super) fn is_new(&mut self, problem: &Problem) -> bool {
        let [before, now] = &mut self.problems;
        let is_new = !before.contains(problem) && !now.contains(problem);
        if now.len() < MOST_PROBLEMS {
            now.insert(problem.clone());
        }
        is_new
    }

    /// Counts a trap of a wrong key. Returns what the caller hears: the 1st, 10th, 100th … of a kind
    /// from a port.
    pub(super) fn violated(&mut self, violation: Violation) -> Option<Violation> {
        let of = (violation.guid, violation.number);
        if self.violations.len() >= MOST_VIOLATIONS && !self.violations.contains_key(&of) {
            return None;
        }
        let traps = self.violations.entry(of).or_default();
        *traps = traps.saturating_add(1);
        let is_round = 10_u64.checked_pow(traps.ilog10()) == Some(*traps);
        is_round.then_some(Violation { traps: *traps, ..violation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_caller_hears_of_ever_fewer_violations() {
        let mut told = Told::default();
        let of = |guid, number| Violation { number, guid, sender: 7, traps: 1 };
        let heard: Vec<u64> = (0..1000).filter_map(|_| told.violated(of(1, 257))).map(|heard| heard.traps).collect();
        assert_eq!(heard, [1, 10, 100, 1000]);
        assert!(told.violated(of(1, 258)).is_some() && told.violated(of(2, 257)).is_some());
        let heard = (0..10_000).filter_map(|guid| told.violated(of(guid, 259))).count();
        assert_eq!(heard, MOST_VIOLATIONS - 3);
        assert_eq!(told.violated(of(1, 258)), None);
    }
}
