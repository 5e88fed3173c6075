//! What the caller was told, so that it hears of each change once. Many traps in a short time cause
//! many sweeps, and one event at their end. Principal type: [`Told`].

use super::Manager;
use crate::event::{Event, Problem, Up};
use std::collections::HashSet;
use std::time::Duration;

/// The caller hears of sweeps no more often.
const PAUSE: Duration = Duration::from_secs(1);

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
}

impl Manager {
    /// A heavy sweep is complete. `changes` is whether it has set anything.
    pub(super) fn tell_up(&mut self, up: Up, changes: bool) {
        let told = &mut self.told;
        let before = told.next.map_or(0, |next| next.sweeps);
        let last = told.next.or(told.up.map(|(up, _)| up));
        let is_known = last.is_some_and(|last| Up { sent: up.sent, sweeps: up.sweeps, ..last } == up);
        if changes || before > 0 || !is_known {
            told.next = Some(Up { sweeps: before.saturating_add(1), ..up });
        }
        self.tell_what_is_due();
    }

    /// Tells what was kept back.
    pub(super) fn tell_what_is_due(&mut self) {
        if self.told.due().is_none_or(|due| due <= self.now)
            && let Some(up) = self.told.next.take()
        {
            self.told.up = Some((up, self.now));
            self.event(Event::Up(up));
        }
    }

    /// A heavy sweep begins.
    pub(super) fn forget_problems(&mut self) {
        let [before, now] = &mut self.told.problems;
        *before = std::mem::take(now);
    }

    /// Something is wrong. The caller hears of it once, as long as every sweep finds it.
    pub(super) fn problem(&mut self, problem: Problem) {
        let [before, now] = &mut self.told.problems;
        let is_new = !before.contains(&problem) && !now.contains(&problem);
        if now.len() < super::MOST_WAITING {
            now.insert(problem.clone());
        }
        if is_new {
            self.event(Event::Problem(problem));
        }
    }
}
