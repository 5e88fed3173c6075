//! What the caller was told, so that it hears of each change once. Many traps in a short time cause
//! many sweeps, and one event at their end. Principal type: [`Told`].

use crate::event::{Problem, Up};
use std::collections::HashSet;
use std::time::Duration;

/// The caller hears of sweeps no more often.
const PAUSE: Duration = Duration::from_secs(1);
/// The most problems of a sweep that are told apart.
const MOST_PROBLEMS: usize = 4096;

/// What the caller was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The last sweep that it heard of, and when.
    up: Option<(Up, Duration)>,
    /// What it hears next, with the sweeps since.
    next: Option<Up>,
    /// The problems of the last sweep, and of this one.
    problems: [HashSet<Problem>; 2],
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
}
