//! Datagrams of the connection manager that a fault rule delays or reorders.
//!
//! A bounded number of outgoing and incoming datagrams wait. Nothing blocks while they wait. The
//! principal type is [`DelayedDatagrams`].

use std::collections::BTreeMap;

use protocol::Time;
use protocol::cm::{Mad, Origin, Path};

use crate::management::ReceivedMad;

/// Maximum number of datagrams that wait. Further ones are lost, as in a network whose queues are
/// full.
const MOST: usize = 1024;
/// How long a reordered datagram waits for the next one, in nanoseconds.
const NEXT: u64 = 1_000_000;

/// A datagram that waits.
pub(super) enum DelayedDatagram {
    /// On its way out, with its owner and the words that captures show.
    Out { path: Path, mad: Box<Mad>, owner: u32, words: String },
    /// On its way in.
    In { origin: Origin, arrived: Box<ReceivedMad> },
}

impl DelayedDatagram {
    fn leaves(&self) -> bool {
        matches!(self, Self::Out { .. })
    }
}

/// The waiting datagrams, by due time and order of arrival. The flag says whether the datagram
/// becomes due as soon as another one has passed.
#[derive(Default)]
pub(super) struct DelayedDatagrams {
    waiting: BTreeMap<(Time, u64), (DelayedDatagram, bool)>,
    order: u64,
}

impl DelayedDatagrams {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// When the first datagram is due.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.waiting.first_key_value().map(|((at, _), _)| *at)
    }

    /// Keeps a datagram until `until`; without `until`, the datagram is due at once. If
    /// `overtaken`, it is due as soon as another datagram has passed. Returns false if the datagram
    /// is lost.
    pub(super) fn keep(&mut self, now: Time, until: Option<Time>, overtaken: bool, waiting: DelayedDatagram) -> bool {
        if self.waiting.len() >= MOST {
            return false;
        }
        let at = until.unwrap_or(now).max(if overtaken { now.after(NEXT) } else { now });
        self.order += 1;
        self.waiting.insert((at, self.order), (waiting, overtaken));
        true
    }

    /// A datagram has passed, out or in. Reordered datagrams of this direction are due now.
    pub(super) fn pass(&mut self, now: Time, leaves: bool) {
        let ours = |waits: &(DelayedDatagram, bool)| waits.1 && waits.0.leaves() == leaves;
        let keys: Vec<_> = self.waiting.iter().filter(|(_, waits)| ours(waits)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(waits) = self.waiting.remove(&key) {
                self.waiting.insert((now.min(key.0), key.1), waits);
            }
        }
    }

    /// Takes the first datagram that is due.
    pub(super) fn take(&mut self, now: Time) -> Option<DelayedDatagram> {
        let due = self.waiting.first_entry().filter(|first| first.key().0 <= now)?;
        Some(due.remove().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(owner: u32) -> DelayedDatagram {
        DelayedDatagram::Out { path: Path::default(), mad: Box::new([0; 256]), owner, words: String::new() }
    }

    fn taken(late: &mut DelayedDatagrams, now: u64) -> Vec<u32> {
        std::iter::from_fn(|| late.take(Time(now)))
            .map(|waiting| match waiting {
                DelayedDatagram::Out { owner, .. } => owner,
                DelayedDatagram::In { .. } => 0,
            })
            .collect()
    }

    #[test]
    fn they_come_when_they_are_due_and_behind_the_next() {
        let mut late = DelayedDatagrams::default();
        assert!(late.keep(Time(0), Some(Time(70)), false, waiting(1)));
        assert!(late.keep(Time(0), Some(Time(30)), false, waiting(2)));
        assert!(late.keep(Time(0), None, true, waiting(3)));
        assert_eq!((late.next_time(), taken(&mut late, 29)), (Some(Time(30)), vec![]));
        assert_eq!(taken(&mut late, 70), [2, 1]);
        late.pass(Time(71), false);
        assert!(taken(&mut late, 72).is_empty(), "that one came in");
        late.pass(Time(72), true);
        assert_eq!((taken(&mut late, 72), late.is_empty()), (vec![3], true));
        // If no other datagram follows, it is due after `NEXT`.
        assert!(late.keep(Time(80), None, true, waiting(4)));
        assert_eq!((taken(&mut late, 79 + NEXT), taken(&mut late, 80 + NEXT)), (vec![], vec![4]));
    }

    #[test]
    fn late_datagrams_above_the_limit_are_lost() {
        let mut late = DelayedDatagrams::default();
        let kept = (0..2000).filter(|_| late.keep(Time(0), None, true, waiting(0))).count();
        assert_eq!(kept, MOST);
    }
}
