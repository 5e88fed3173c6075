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

/// The violations of a kind and port.
#[derive(Clone, Copy, Default)]
struct Last {
    /// The one of which the agent is told next.
    waiting: Option<Violation>,
    /// When the agent was told of the last one.
    told: Option<Time>,
}

impl Last {
    /// When the agent may be told of what waits.
    fn due(&self) -> Option<Time> {
        let allowed = self.told.map_or(Time(0), |told| Time(told.0.saturating_add(PAUSE)));
        self.waiting.map(|_| allowed)
    }

    fn is_due(&self, now: Time) -> bool {
        self.due().is_some_and(|due| due <= now)
    }
}

impl Untold {
    /// Keeps a violation for the agent, unless another one waits. Returns false if so.
    pub(crate) fn keep(&self, violation: Violation) -> bool {
        let mut all = self.0.lock();
        let port = usize::from(violation.port).saturating_sub(1).min(PORT_MAX as usize - 1);
        let Some(last) = all.get_mut(usize::from(violation.kind) * PORT_MAX as usize + port) else { return false };
        let is_first = last.waiting.is_none();
        last.waiting.get_or_insert(violation);
        is_first
    }

    /// When the agent has to be told of the next one.
    pub(crate) fn due(&self) -> Option<Time> {
        self.0.lock().iter().filter_map(Last::due).min()
    }

    /// Those of which the agent has to be told now.
    pub(crate) fn take(&self, now: Time) -> [Option<Violation>; PLACES] {
        self.0.lock().each_mut().map(|last| {
            let is_due = last.is_due(now);
            if is_due {
                last.told = Some(now);
            }
            last.waiting.take_if(|_| is_due)
        })
    }
}

#[cfg(test)]
mod tests {
    use abi::private::violation::{NO_PATH, PKEY, QKEY};

    use super::*;

    #[test]
    fn the_agent_is_told_of_one_violation_of_each_kind_in_a_pause() {
        let untold = Untold::default();
        let keep_at = |port, kind, key| untold.keep(Violation { port, kind, key, ..Violation::default() });
        let keep = |kind, key| keep_at(1, kind, key);
        let told = |at| untold.take(Time(at)).into_iter().flatten().map(|violation| violation.key).collect::<Vec<_>>();
        assert!(keep(QKEY, 1) && keep(PKEY, 2));
        assert!((0..1000).all(|_| !keep(QKEY, 3)));
        assert_eq!((untold.due(), told(5), told(5), untold.due()), (Some(Time(0)), vec![1, 2], vec![], None));
        // What comes in the pause is told at its end.
        assert!(keep(QKEY, 4) && !keep(QKEY, 5));
        assert_eq!((told(4 + PAUSE), untold.due(), told(5 + PAUSE)), (vec![], Some(Time(5 + PAUSE)), vec![4]));
        assert!(keep(NO_PATH, 7));
        assert!(keep_at(2, PKEY, 8), "the other port");
        assert_eq!(told(6 + PAUSE), [8, 7]);
        assert!(!keep(7, 6), "no such kind");
    }
}
