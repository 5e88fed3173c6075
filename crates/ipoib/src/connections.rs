//! Connected mode: for which neighbours there is a connection, and packets that wait for one. RFC
//! 4755. Not how a connection is made, and not those that peers have made: an interface sends on
//! the connections that it has made itself, and receives on the others. Principal type:
//! [`Connections`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::address::LinkAddress;
use crate::held::Held;
use crate::time::Time;

/// The most connections. To further neighbours the interface sends datagrams.
pub(crate) const MOST: usize = 256;
/// How long a connection is kept that is not used.
const UNUSED: Duration = Duration::from_secs(60);
/// How long a peer that refuses is not asked again.
const AGAIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Asked,
    Open { mtu: usize },
    Refused { again: Time },
}

#[derive(Debug)]
struct Connection {
    state: State,
    used: Time,
    held: VecDeque<Vec<u8>>,
}

/// How a packet goes to a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// On the connection, which takes packets of this length.
    Connection { mtu: usize },
    /// The connection is being made.
    Wait,
    /// As a datagram.
    Datagram,
}

/// What to do about a connection.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConnectionStep {
    Connect(LinkAddress),
    Disconnect(LinkAddress),
    /// This payload has waited. Find its way again.
    Retry(LinkAddress, Vec<u8>),
}

/// The table.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    table: BTreeMap<LinkAddress, Connection>,
    held: Held,
}

impl Connections {
    /// The way to a neighbour that takes connections. Begins to connect, if nobody has yet.
    pub(crate) fn way(&mut self, link: LinkAddress, now: Time, steps: &mut Vec<ConnectionStep>) -> Way {
        if !self.table.contains_key(&link) && self.table.len() >= MOST {
            return Way::Datagram;
        }
        let connection = self.table.entry(link).or_insert_with(|| {
            steps.push(ConnectionStep::Connect(link));
            Connection { state: State::Asked, used: now, held: VecDeque::new() }
        });
        connection.used = now;
        match connection.state {
            State::Asked => Way::Wait,
            State::Open { mtu } => Way::Connection { mtu },
            State::Refused { .. } => Way::Datagram,
        }
    }

    /// Keeps a payload until the connection is there, or is refused. Returns false if a payload is
    /// lost.
    pub(crate) fn hold(&mut self, link: &LinkAddress, payload: &[u8]) -> bool {
        self.table.get_mut(link).is_some_and(|connection| self.held.push(&mut connection.held, payload))
    }

    /// A connection was made, for packets of this length, or it was refused. Returns whether it is
    /// still wanted.
    pub(crate) fn set(
        &mut self,
        link: LinkAddress,
        mtu: Option<usize>,
        now: Time,
        steps: &mut Vec<ConnectionStep>,
    ) -> bool {
        let Some(connection) = self.table.get_mut(&link) else { return false };
        connection.state = mtu.map_or(State::Refused { again: now + AGAIN }, |mtu| State::Open { mtu });
        steps.extend(self.held.take(&mut connection.held).map(|payload| ConnectionStep::Retry(link, payload)));
        true
    }

    /// A connection has ended. The next packet connects again.
    pub(crate) fn end(&mut self, link: &LinkAddress) {
        if self.table.get(link).is_some_and(|connection| matches!(connection.state, State::Open { .. })) {
            self.table.remove(link);
        }
    }

    /// The neighbour has gone.
    pub(crate) fn forget(&mut self, link: LinkAddress, steps: &mut Vec<ConnectionStep>) {
        if let Some(mut connection) = self.table.remove(&link) {
            drop(self.held.take(&mut connection.held));
            steps.push(ConnectionStep::Disconnect(link));
        }
    }

    /// Ends connections that are not used, and lets peers that have refused be asked again.
    pub(crate) fn tick(&mut self, now: Time, steps: &mut Vec<ConnectionStep>) {
        let over = |connection: &Connection| match connection.state {
            State::Asked => false,
            State::Open { .. } => now.saturating_sub(connection.used) >= UNUSED,
            State::Refused { again } => again <= now,
        };
        let gone: Vec<LinkAddress> = self.table.iter().filter(|(_, one)| over(one)).map(|(link, _)| *link).collect();
        gone.into_iter().for_each(|link| self.forget(link, steps));
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }
}
