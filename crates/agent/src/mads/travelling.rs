//! The datagrams that are on their way inside of an agent. Each user's wait in a queue of their
//! own, and the queues take turns: a user with many does not delay those of others. The principal
//! type is [`Travelling`].

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::way::Datagram;

/// While a user has so many datagrams on their way, nothing of this user is sent again.
const CROWD: usize = 1024;

/// Datagrams on their way, by the user whose program asked for them; 0 is the agent itself.
#[derive(Debug, Default)]
pub(super) struct Travelling {
    queues: BTreeMap<u32, VecDeque<Datagram>>,
    /// The user whose datagram went last.
    last: u32,
}

impl Travelling {
    /// Adds a datagram behind the others of its user.
    pub(super) fn push(&mut self, datagram: Datagram) {
        self.queues.entry(datagram.owner).or_default().push_back(datagram);
    }

    /// Takes the next datagram: the first one of the next user.
    pub(super) fn pop(&mut self) -> Option<Datagram> {
        let after = self.queues.range((Bound::Excluded(self.last), Bound::Unbounded)).next();
        let user = *after.or_else(|| self.queues.first_key_value())?.0;
        self.last = user;
        let queue = self.queues.get_mut(&user)?;
        let datagram = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&user);
        }
        datagram
    }

    /// Whether no datagram is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// How many of a user are on their way.
    #[cfg(test)]
    pub(super) fn waiting(&self, user: u32) -> usize {
        self.queues.get(&user).map_or(0, VecDeque::len)
    }

    /// Whether a user has too many.
    pub(super) fn is_crowded(&self, user: u32) -> bool {
        self.queues.get(&user).is_some_and(|queue| queue.len() >= CROWD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mads::way::{PortId, Way};

    fn of(owner: u32, qpn: u32) -> Datagram {
        Datagram { at: PortId { device: 0, port: 1 }, qpn, to: Way::default(), mad: [0; 256], owner }
    }

    #[test]
    fn users_take_turns_and_each_users_datagrams_keep_their_order() {
        let mut travelling = Travelling::default();
        for number in 0..CROWD as u32 {
            assert!(!travelling.is_crowded(7));
            travelling.push(of(7, number));
        }
        for (owner, number) in [(u32::MAX, 1), (u32::MAX, 2), (0, 3)] {
            travelling.push(of(owner, number));
        }
        assert!(travelling.is_crowded(7) && !travelling.is_crowded(0));
        let mut next = || travelling.pop().map(|datagram| (datagram.owner, datagram.qpn));
        let first: Vec<_> = (0..6).filter_map(|_| next()).collect();
        assert_eq!(first, [(7, 0), (u32::MAX, 1), (0, 3), (7, 1), (u32::MAX, 2), (7, 2)]);
        assert_eq!(std::iter::from_fn(next).count(), CROWD - 3);
        assert!(travelling.is_empty());
    }
}
