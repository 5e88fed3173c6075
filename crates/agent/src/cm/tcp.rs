//! Connections of iWARP: ids whose device carries RDMA over TCP. [`super::connecting`] and
//! [`super::incoming`] do the same for InfiniBand's messages.
//!
//! ```text
//! CONNECT ── TCP connect ── MPA request ── reply ──▶ offer to the engine ── CONNECT_RESPONSE
//! LISTEN ─── TCP accept ─── MPA request ── CONNECT_REQUEST ── ACCEPT ── reply ──▶ offer
//! ```
//!
//! The agent owns a socket until the engine takes it ([`crate::streams`]). No call waits. What
//! peers can make the agent hold is bounded: some connections without an id ([`Halves`]), each with
//! one start-up frame, until a deadline. The principal type is [`Tcp`].

mod answering;
mod arriving;
mod asking;
mod calls;
mod closings;
mod deadlines;
mod halves;
mod pending;
mod shown;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use iwarp::{Agreement, Initiator, Responder, Role, Rtr};
use protocol::Time;
use protocol::cm::Connection;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use wire::Qpn;

use abi::stream::{StreamOut, stream_flags};

use super::Manager;
use super::id::Id;
use crate::listening::Spare;
use crate::poller::new_epoll;
use crate::streams::Streams;
use crate::world::World;
use closings::Closings;
use deadlines::Deadlines;
use halves::{Half, Halves};
use pending::{PendingConnection, PendingConnections};

/// Maximum number of sockets that are served in one piece of work.
const BATCH: usize = 64;
/// How long a peer may take to send its request, and to answer one, as in siw.
const REQUEST_TIME: u64 = 5_000_000_000;
const REPLY_TIME: u64 = 10_000_000_000;
/// How long a rejected peer may take to read why.
const LINGER: u64 = 1_000_000_000;

/// What a socket belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// An id.
    Id(u32),
    /// A connection without an id.
    Half(u32),
    /// A connection that its queue pair has left.
    Closing(u32),
}

impl Key {
    fn data(self) -> EventData {
        let (kind, number) = match self {
            Self::Id(name) => (0, name),
            Self::Half(number) => (1, number),
            Self::Closing(number) => (2, number),
        };
        EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn of(data: EventData) -> Self {
        let number = data.u64() as u32;
        match data.u64() >> 32 {
            0 => Self::Id(number),
            1 => Self::Half(number),
            _ => Self::Closing(number),
        }
    }
}

/// What the agent holds for an id.
#[derive(Debug)]
enum End {
    /// The id has a port that the agent chose, and may listen.
    Bound(#[expect(dead_code, reason = "open sockets hold the port")] Vec<OwnedFd>),
    Listening(Vec<TcpListener>),
    /// The request is sent as soon as TCP is connected.
    Asking {
        socket: TcpStream,
        initiator: Box<Initiator>,
        sent: bool,
        /// It is the second try, in revision 1 of MPA.
        again: bool,
        /// It counts for its user.
        asker: PendingConnection,
    },
    /// The program decides.
    Asked {
        socket: TcpStream,
        responder: Box<Responder>,
    },
    /// The engine has the socket, or may take it.
    Agreed {
        qpn: u32,
        passive: bool,
    },
}

/// The state of all connections of iWARP.
#[derive(Debug)]
pub(crate) struct Tcp {
    epoll: Arc<OwnedFd>,
    streams: Arc<Streams>,
    /// By id.
    ends: BTreeMap<u32, End>,
    halves: Halves,
    closings: Closings,
    askers: PendingConnections,
    /// For the case that no descriptor is left.
    spare: Spare,
    /// The id of each QP.
    by_qpn: BTreeMap<u32, u32>,
    deadlines: Deadlines,
}

impl Tcp {
    pub(super) fn new(streams: &Arc<Streams>) -> io::Result<Self> {
        Ok(Self {
            epoll: Arc::new(new_epoll()?),
            streams: Arc::clone(streams),
            ends: BTreeMap::new(),
            halves: Halves::default(),
            closings: Closings::default(),
            askers: PendingConnections::default(),
            spare: Spare::default(),
            by_qpn: BTreeMap::new(),
            deadlines: Deadlines::default(),
        })
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.deadlines.next()
    }

    fn watch(&self, socket: impl AsFd, key: Key, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, key.data(), interest)?)
    }

    fn unwatch(&self, socket: impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    /// Takes a connection without an id. Without room, it is closed.
    fn add_half(&mut self, half: Half, deadline: Time) {
        let Some((number, half)) = self.halves.add(half) else { return };
        let (key, interest) = (Key::Half(number), EventFlags::IN | EventFlags::RDHUP);
        if epoll::add(&self.epoll, half.socket(), key.data(), interest).is_ok() {
            self.deadlines.set(key, deadline);
        } else {
            self.halves.remove(number);
        }
    }

    fn remove_half(&mut self, number: u32) -> Option<Half> {
        let half = self.halves.remove(number)?;
        self.unwatch(half.socket());
        self.deadlines.forget(Key::Half(number));
        Some(half)
    }
}

impl Manager {
    /// The sockets of iWARP, to watch for events.
    pub(crate) fn sockets(&self) -> BorrowedFd<'_> {
        self.mail.tcp.epoll.as_fd()
    }

    /// Serves sockets that are ready.
    pub(crate) fn on_sockets(&mut self, world: &World) {
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; BATCH];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.mail.tcp.epoll, &mut events, Some(&now)).unwrap_or(0);
        for event in &events[..count] {
            match Key::of(event.data) {
                Key::Id(name) => self.on_id_socket(name),
                Key::Half(number) => self.on_half_socket(number),
                Key::Closing(number) => self.mail.tcp.on_closing_socket(number),
            }
        }
        self.settle(world);
    }

    /// Ends connections whose time has expired.
    pub(super) fn expire_sockets(&mut self, now: Time) {
        while let Some(key) = self.mail.tcp.deadlines.take_due(now) {
            match key {
                Key::Id(name) => self.no_reply(name),
                Key::Half(number) => drop(self.mail.tcp.remove_half(number)),
                Key::Closing(number) => self.mail.tcp.close_now(number),
            }
        }
    }

    fn on_id_socket(&mut self, name: u32) {
        match self.mail.tcp.ends.get(&name) {
            Some(End::Listening(_)) => self.take_connections(name),
            Some(End::Asking { .. }) => self.on_reply_bytes(name),
            Some(End::Asked { .. }) => self.asker_left(name),
            Some(End::Bound(_) | End::Agreed { .. }) | None => {}
        }
    }

    /// What the protocol knows of an id's connection. iWARP has no messages with QP numbers and
    /// PSNs, so attributes for modify_qp have values without a meaning.
    pub(super) fn connection_of(&self, id: &Id) -> Option<Connection> {
        if id.start_up().is_some() {
            return Some(Connection {
                path: id.path?,
                remote_qpn: Qpn::new(1),
                responder_resources: 1,
                initiator_depth: 1,
                ..Connection::default()
            });
        }
        id.connection.and_then(|connection| self.core.connection(connection).ok())
    }

    /// A connection is agreed on: the engine that has the QP may take it.
    fn offer(&mut self, name: u32, qpn: u32, socket: TcpStream, agreement: &Agreement) {
        let passive = agreement.role == Role::Responder;
        let quirks = self.ids.get(name).and_then(Id::start_up).map_or(0, |start_up| start_up.siw.0);
        let agreed = record(agreement, quirks);
        let tcp = &mut self.mail.tcp;
        tcp.unwatch(&socket);
        tcp.deadlines.forget(Key::Id(name));
        tcp.streams.offer(qpn, crate::streams::Offer { socket: socket.into(), agreed });
        tcp.by_qpn.insert(qpn, name);
        tcp.ends.insert(name, End::Agreed { qpn, passive });
    }
}

fn record(agreement: &Agreement, quirks: u8) -> StreamOut {
    let flags = [
        (agreement.role == Role::Initiator, stream_flags::INITIATOR),
        (agreement.crc, stream_flags::CRC),
        (agreement.sends_markers, stream_flags::SENDS_MARKERS),
        (agreement.receives_markers, stream_flags::RECEIVES_MARKERS),
    ];
    StreamOut {
        flags: flags.iter().filter(|(is_set, _)| *is_set).fold(0, |flags, (_, flag)| flags | flag),
        ird: agreement.ird,
        ord: agreement.ord,
        rtr: agreement.rtr.map_or(0, |rtr| match rtr {
            Rtr::Send => 1,
            Rtr::Write => 2,
            Rtr::Read => 3,
        }),
        revision: agreement.revision,
        quirks,
        reserved: [0; 5],
    }
}

fn as_duration(time: Time) -> Duration {
    Duration::from_nanos(time.0)
}
