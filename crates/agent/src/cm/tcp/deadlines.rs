//! When connections without an answer end, in the order of time. The principal type is
//! [`Deadlines`].

use std::collections::{BTreeMap, BTreeSet};

use protocol::Time;

use super::Key;

/// At most one deadline for each key.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Time, Key)>,
    by_key: BTreeMap<Key, Time>,
}

impl Deadlines {
    pub(super) fn next(&self) -> Option<Time> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(super) fn of(&self, key: Key) -> Option<Time> {
        self.by_key.get(&key).copied()
    }

    pub(super) fn set(&mut self, key: Key, at: Time) {
        self.forget(key);
        self.by_key.insert(key, at);
        self.by_time.insert((at, key));
    }

    pub(super) fn forget(&mut self, key: Key) {
        if let Some(at) = self.by_key.remove(&key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// Takes a key whose time has come.
    pub(super) fn take_due(&mut self, now: Time) -> Option<Key> {
        let (_, key) = self.by_time.first().copied().filter(|(at, _)| *at <= now)?;
        self.forget(key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_due_once_at_its_last_time() {
        let mut deadlines = Deadlines::default();
        deadlines.set(Key::Id(1), Time(5));
        deadlines.set(Key::Half(1), Time(5));
        deadlines.set(Key::Id(1), Time(9));
        deadlines.set(Key::Id(2), Time(1));
        deadlines.forget(Key::Id(2));
        deadlines.forget(Key::Id(2));
        assert_eq!((deadlines.next(), deadlines.of(Key::Id(1))), (Some(Time(5)), Some(Time(9))));
        assert_eq!(deadlines.take_due(Time(8)), Some(Key::Half(1)));
        assert_eq!(deadlines.take_due(Time(8)), None);
        assert_eq!(deadlines.take_due(Time(9)), Some(Key::Id(1)));
        assert_eq!((deadlines.take_due(Time(9)), deadlines.next()), (None, None));
    }
}
