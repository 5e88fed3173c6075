//! Datagrams of the connection manager that a rule has wait: because they are late, or come behind another one.
//!
//! They wait in bounded number, on their way out or in; nobody waits for them. Principal type: [`Late`].

use std::collections::BTreeMap;

use protocol::Time;
use protocol::cm::{Mad, Origin, Path};

use crate::management::Arrived;

/// How many wait, at most: what comes beyond is lost, as in a network whose queues are full.
const MOST: usize = 1024;
/// How long one waits for the next, in nanoseconds.
const NEXT: u64 = 1_000_000;

/// A datagram that waits.
pub(super) enum Waiting {
    /// To leave: for whom it is told, and with which words.
    Out { path: Path, mad: Box<Mad>, owner: u32, words: String },
    /// To come in.
    In { origin: Origin, arrived: Box<Arrived> },
}

impl Waiting {
    fn leaves(&self) -> bool {
        matches!(self, Self::Out { .. })
    }
}

/// All that wait, by when they are due and in which order they came; with whether one comes as soon as the next has passed.
#[derive(Default)]
pub(super) struct Late {
    waiting: BTreeMap<(Time, u64), (Waiting, bool)>,
    order: u64,
}

impl Late {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first one is due.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Keeps a datagram until then (now, without), and one that is to be overtaken until another has passed. False: it is lost.
    pub(super) fn keep(&mut self, now: Time, until: Option<Time>, overtaken: bool, waiting: Waiting) -> bool {
        if self.waiting.len() >= MOST {
            return false;
        }
        let at = until.unwrap_or(now).max(if overtaken { now.after(NEXT) } else { now });
        self.order += 1;
        self.waiting.insert((at, self.order), (waiting, overtaken));
        true
    }

    /// A datagram has passed, out or in: what was to come behind it is due.
    pub(super) fn pass(&mut self, now: Time, leaves: bool) {
        let ours = |waits: &(Waiting, bool)| waits.1 && waits.0.leaves() == leaves;
        let keys: Vec<_> = self.waiting.iter().filter(|(_, waits)| ours(waits)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(waits) = self.waiting.remove(&key) {
                self.waiting.insert((now.min(key.0), key.1), waits);
            }
        }
    }

    /// Takes the first that is due.
    pub(super) fn take(&mut self, now: Time) -> Option<Waiting> {
        let due = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        Some(due.remove().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(owner: u32) -> Waiting {
        Waiting::Out { path: Path::default(), mad: Box::new([0; 256]), owner, words: String::new() }
    }

    fn taken(late: &mut Late, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| late.take(Time(now)))
            .map(|waiting| match waiting {
                Waiting::Out { owner, .. } => owner,
                Waiting::In { .. } => 0,
            })
            .collect()
    }

    #[test]
    fn they_come_when_they_are_due_and_behind_the_next() {
        let mut late = Late::default();
        assert!(late.keep(Time(0), Some(Time(70)), false, waiting(1)));
        assert!(late.keep(Time(0), Some(Time(30)), false, waiting(2)));
        assert!(late.keep(Time(0), None, true, waiting(3)));
        assert_eq!((late.next_time(), taken(&mut late, 29)), (Some(Time(30)), vec![]));
        assert_eq!(taken(&mut late, 70), [2, 1]);
        late.pass(Time(71), false);
        assert!(taken(&mut late, 72).is_empty(), "that one came in");
        late.pass(Time(72), true);
        assert_eq!((taken(&mut late, 72), late.is_empty()), (vec![3], true));
        // If there is no next one, it comes all the same.
        assert!(late.keep(Time(80), None, true, waiting(4)));
        assert_eq!((taken(&mut late, 79 + NEXT), taken(&mut late, 80 + NEXT)), (vec![], vec![4]));
    }

    #[test]
    fn what_does_not_fit_is_lost() {
        let mut late = Late::default();
        let kept = (0..2000).filter(|_| late.keep(Time(0), None, true, waiting(0))).count();
        assert_eq!(kept, MOST);
    }
}
