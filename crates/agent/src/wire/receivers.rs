//! The receiving sockets that should exist, and those that do.
//!
//! If port 4791 of an address belongs to another program, the agent tries again: first soon, and
//! then less and less often. While no socket is missing, the clock is not read. [`super::intake`]
//! has the sockets. The principal type is [`Receivers`].

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::intake::Intake;

/// The first and the longest time between two tries.
const FIRST: Duration = Duration::from_millis(200);
const LAST: Duration = Duration::from_secs(5);

/// Where datagrams may be received.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ReceiveAddress {
    /// An address of the host; `scope` is its interface if it is link-local, else 0.
    Address { ip: IpAddr, scope: u32 },
    /// A multicast group, as one interface receives it.
    Group { ip: IpAddr, ifindex: u32 },
}

/// The state of each place.
#[derive(Debug, Default)]
pub(crate) struct Receivers {
    table: BTreeMap<ReceiveAddress, ReceiverState>,
    last_token: u64,
}

#[derive(Debug)]
enum ReceiverState {
    /// The intake has the socket, with this token.
    Open {
        token: u64,
    },
    Closed {
        why: String,
        wait: Duration,
        again: Instant,
    },
}

impl Receivers {
    /// Opens the missing sockets of `wanted` and closes the sockets that are not wanted. `wanted`
    /// maps each place to its interface. Returns true if a socket was opened or closed.
    pub(crate) fn follow(&mut self, wanted: &BTreeMap<ReceiveAddress, u32>, now: Instant, intake: &Intake) -> bool {
        let mut changed = false;
        self.table.retain(|place, state| {
            let stays = wanted.contains_key(place);
            if let (false, ReceiverState::Open { token }) = (stays, state) {
                intake.close(*token);
                changed = true;
            }
            stays
        });
        for (place, ifindex) in wanted {
            let wait = match self.table.get(place) {
                Some(ReceiverState::Open { .. }) => continue,
                Some(ReceiverState::Closed { again, .. }) if *again > now => continue,
                Some(ReceiverState::Closed { wait, .. }) => Some(*wait),
                None => None,
            };
            self.last_token += 1;
            let token = self.last_token;
            let state = match intake.open(token, place, *ifindex) {
                Ok(()) => {
                    changed = true;
                    if wait.is_some() {
                        tracing::info!(place = %place.name(), "receives from other hosts now");
                    }
                    ReceiverState::Open { token }
                }
                Err(error) => {
                    let why = place.why_not(&error);
                    if wait.is_none() {
                        tracing::warn!("no wire: {why}");
                    }
                    let wait = wait.map_or(FIRST, |wait| (wait * 2).min(LAST));
                    ReceiverState::Closed { why, wait, again: now + wait }
                }
            };
            self.table.insert(*place, state);
        }
        changed
    }

    /// When to try again, if a socket is missing.
    pub(crate) fn next_try(&self) -> Option<Instant> {
        let closed = self.table.values().filter_map(|state| match state {
            ReceiverState::Open { .. } => None,
            ReceiverState::Closed { again, .. } => Some(*again),
        });
        closed.min()
    }

    /// Whether a place has its socket. The error is the reason, if it is known.
    pub(crate) fn find(&self, place: ReceiveAddress) -> Result<(), Option<&str>> {
        match self.table.get(&place) {
            Some(ReceiverState::Open { .. }) => Ok(()),
            Some(ReceiverState::Closed { why, .. }) => Err(Some(why)),
            None => Err(None),
        }
    }
}

impl ReceiveAddress {
    /// The address or the group.
    pub(crate) fn ip(&self) -> IpAddr {
        match *self {
            Self::Address { ip, .. } | Self::Group { ip, .. } => ip,
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Address { ip, scope: 0 } => ip.to_string(),
            Self::Address { ip, scope } => format!("{ip}%{scope}"),
            Self::Group { ip, ifindex } => format!("group {ip} on interface {ifindex}"),
        }
    }

    fn why_not(&self, error: &io::Error) -> String {
        let (name, port) = (self.name(), udp::PORT);
        match error.kind() {
            io::ErrorKind::AddrInUse => format!("UDP port {port} on {name} belongs to another program"),
            io::ErrorKind::AddrNotAvailable => format!("{name} is not an address of this host now"),
            _ => format!("UDP port {port} on {name} cannot be opened: {error}"),
        }
    }
}
