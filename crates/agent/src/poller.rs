//! A thin layer over epoll. Each watched descriptor has a [`Token`] that says what it is.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use shm::denied::denied;

/// The subject of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Token {
    /// A thread of this process has sent a message.
    Wake,
    /// A connection arrives at a device's node.
    Node(u32),
    /// A connection arrives at the connection manager's node.
    ManagerNode,
    /// A connection arrives at the connection manager's node of a node of a topology.
    NodesManager(u32),
    /// A connection arrives at the admin node.
    AdminNode,
    /// A connection arrives at the node of NETLINK_RDMA.
    NetlinkNode,
    /// A connection arrives at the node of user MADs.
    MadNode,
    /// A connection to the node of user MADs.
    Mads(u32),
    /// A client's socket.
    Client(u32),
    /// A client's process has ended.
    Death(u32),
    /// An engine's push socket has room.
    Push(u32),
    /// A connection to the admin node or to that of NETLINK_RDMA.
    Admin(u32),
    /// The host's addresses have changed.
    Addresses,
    /// A program has notified the engine of another user.
    Relays,
    /// Management datagrams have arrived.
    Management,
    /// The run directory was removed or moved.
    RunDir,
    /// The event socket of an event channel has room.
    EventSocket(u32),
    /// Datagrams of links to other agents have arrived.
    Tunnels,
    /// A socket of a connection of iWARP is ready.
    Streams,
}

impl From<Token> for EventData {
    fn from(token: Token) -> Self {
        let (kind, id) = match token {
            Token::Wake => (0, 0),
            Token::Node(id) => (1, id),
            Token::AdminNode => (2, 0),
            Token::Client(id) => (3, id),
            Token::Death(id) => (4, id),
            Token::Push(id) => (5, id),
            Token::Admin(id) => (6, id),
            Token::Addresses => (7, 0),
            Token::Relays => (8, 0),
            Token::ManagerNode => (9, 0),
            Token::Management => (10, 0),
            Token::RunDir => (11, 0),
            Token::EventSocket(id) => (12, id),
            Token::NetlinkNode => (13, 0),
            Token::MadNode => (14, 0),
            Token::Mads(id) => (15, id),
            Token::NodesManager(id) => (16, id),
            Token::Tunnels => (17, 0),
            Token::Streams => (18, 0),
        };
        Self::new_u64(kind << 32 | u64::from(id))
    }
}

impl From<EventData> for Token {
    fn from(data: EventData) -> Self {
        let value = data.u64();
        let id = (value & 0xffff_ffff) as u32;
        match value >> 32 {
            1 => Self::Node(id),
            2 => Self::AdminNode,
            3 => Self::Client(id),
            4 => Self::Death(id),
            5 => Self::Push(id),
            6 => Self::Admin(id),
            7 => Self::Addresses,
            8 => Self::Relays,
            9 => Self::ManagerNode,
            10 => Self::Management,
            14 => Self::MadNode,
            15 => Self::Mads(id),
            17 => Self::Tunnels,
            18 => Self::Streams,
            11 => Self::RunDir,
            12 => Self::EventSocket(id),
            13 => Self::NetlinkNode,
            16 => Self::NodesManager(id),
            _ => Self::Wake,
        }
    }
}

/// What watches descriptors.
pub(crate) fn new_epoll() -> io::Result<OwnedFd> {
    epoll::create(CreateFlags::CLOEXEC).map_err(denied("epoll_create1"))
}

/// An epoll instance.
#[derive(Debug)]
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Creates a poller that watches nothing.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: new_epoll()? })
    }

    /// Starts to watch a descriptor.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, token: Token, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, token.into(), interest)?)
    }

    /// Changes the events for which a descriptor is watched.
    pub(crate) fn rewatch(&self, fd: BorrowedFd<'_>, token: Token, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, token.into(), interest)?)
    }

    /// Ends a watch. A descriptor that another thread closes would otherwise report events until
    /// then.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, fd)?)
    }

    /// Waits for events. An interrupted wait returns no events.
    pub(crate) fn wait(&self, events: &mut Vec<Event>, timeout: Option<Duration>) -> io::Result<()> {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// Watches a descriptor for `interest`, unless it is already watched for it. `now` is the interest
/// for which it is watched.
pub(crate) fn watch_for(
    poller: &Poller,
    fd: BorrowedFd<'_>,
    token: Token,
    now: &mut Option<EventFlags>,
    interest: EventFlags,
) {
    let watched = match now.replace(interest) {
        Some(before) if before == interest => return,
        Some(_) => poller.rewatch(fd, token, interest),
        None => poller.watch(fd, token, interest),
    };
    if let Err(error) = watched {
        tracing::warn!(%error, "a connection cannot be watched");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_survive_the_kernel() {
        for token in [
            Token::Wake,
            Token::Node(3),
            Token::AdminNode,
            Token::Client(u32::MAX),
            Token::Death(7),
            Token::Push(9),
            Token::Admin(1),
            Token::Addresses,
            Token::Relays,
            Token::ManagerNode,
            Token::Management,
            Token::EventSocket(5),
            Token::Tunnels,
            Token::Streams,
        ] {
            assert_eq!(Token::from(EventData::from(token)), token);
        }
    }
}
