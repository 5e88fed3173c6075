//! The violations of keys that have not been reported to the agent yet. Principal type: [`Untold`].

use abi::board::PORT_MAX;
use abi::private::Violation;
use protocol::Time;

use crate::lock::Mutex;

/// The shortest time between two violations of a kind of which the agent is told, in nanoseconds.
const PAUSE: u64 = 100_000_000;

/// Three kinds of violations for each port.
const PLACES: usize = 3 * PORT_MAX as usize;

/// The violations of which the agent has not been told yet, by their kind and port.
#[derive(Default)]
pub(crate) struct Untold(Mutex<[Last; PLACES]>);

/// The last violation of a kind and port that the agent was told of.
#[derive(Clone, Copy, Default)]
struct Last {
    /// It, while it waits for the helper thread.
    waiting: Option<Violation>,
    /// When it happened.
    at: Option<Time>,
}

impl Untold {
    /// Keeps a violation for the agent, unless it was told of another one a short time ago. Returns
    /// false if so.
    pub(crate) fn keep(&self, violation: Violation, now: Time) -> bool {
        let mut all = self.0.lock();
        let port = usize::from(violation.port).saturating_sub(1).min(PORT_MAX as usize - 1);
        let Some(last) = all.get_mut(usize::from(violation.kind) * PORT_MAX as usize + port) else { return false };
        let is_due = last.at.is_none_or(|at| now.0.saturating_sub(at.0) >= PAUSE);
        if is_due {
            *last = Last { waiting: Some(violation), at: Some(now) };
        }
        is_due
    }

    /// Whether the agent has to be told of one.
    pub(crate) fn is_some(&self) -> bool {
        self.0.lock().iter().any(|last| last.waiting.is_some())
    }

    pub(crate) fn take(&self) -> [Option<Violation>; PLACES] {
        self.0.lock().each_mut().map(|last| last.waiting.take())
    }
}

#[cfg(test)]
mod tests {
    use abi::private::violation::{NO_PATH, PKEY, QKEY};

    use super::*;

    #[test]
    fn the_agent_is_told_of_one_violation_of_each_kind_in_a_pause() {
        let untold = Untold::default();
        let keep_at =
            |port, kind, key, at| untold.keep(Violation { port, kind, key, ..Violation::default() }, Time(at));
        let keep = |kind, key, at| keep_at(1, kind, key, at);
        let told = || untold.take().into_iter().flatten().map(|violation| violation.key).collect::<Vec<_>>();
        assert!(keep(QKEY, 1, 5) && keep(PKEY, 2, 5));
        assert!((0..1000).all(|at| !keep(QKEY, 3, 5 + at)) && untold.is_some());
        assert_eq!((told(), told(), untold.is_some()), (vec![1, 2], vec![], false));
        assert!(!keep(QKEY, 4, 4 + PAUSE) && keep(QKEY, 5, 5 + PAUSE));
        assert!(keep(NO_PATH, 7, 0));
        assert!(keep_at(2, PKEY, 8, 6 + PAUSE), "the other port");
        assert_eq!(told(), [5, 8, 7]);
        assert!(!keep(7, 6, 10 * PAUSE), "no such kind");
    }
}
