//! Connections of iWARP: ids whose device carries RDMA over TCP. [`super::connecting`] and
//! [`super::incoming`] do the same for InfiniBand's messages.
//!
//! ```text
//! CONNECT ── TCP connect ── MPA request ── reply ──▶ offer to the engine ── CONNECT_RESPONSE
//! LISTEN ─── TCP accept ─── MPA request ── CONNECT_REQUEST ── ACCEPT ── reply ──▶ offer
//! ```
//!
//! The agent owns a socket until the engine takes it ([`crate::streams`]). No call waits. What
//! peers can make the agent hold is bounded: [`HALF_OPEN_MAX`] connections without an id, each with
//! one start-up frame, until a deadline. The principal type is [`Tcp`].

mod answering;
mod arriving;
mod asking;
mod calls;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use iwarp::{Agreement, Initiator, Responder, Role, Rtr, Terms};
use protocol::Time;
use protocol::cm::Connection;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use wire::Qpn;

use abi::stream::{StreamOut, stream_flags};

use super::Manager;
use super::id::Id;
use crate::poller::new_epoll;
use crate::streams::Streams;
use crate::world::World;

/// Maximum number of connections that have not asked for anything yet.
const HALF_OPEN_MAX: usize = 1024;
/// Maximum number of sockets that are served in one piece of work.
const TURN: usize = 64;
/// How long a peer may take to send its request, and to answer one, as in siw.
const REQUEST_TIME: u64 = 5_000_000_000;
const REPLY_TIME: u64 = 10_000_000_000;
/// How long a rejected peer may take to read why.
const LINGER: u64 = 1_000_000_000;
/// The most READs that a side serves at a time.
const MOST_DEPTH: u16 = 128;

/// What a socket belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    /// An id.
    Id(u32),
    /// A connection without an id.
    Half(u32),
}

impl Key {
    fn data(self) -> EventData {
        let (kind, number) = match self {
            Self::Id(name) => (0, name),
            Self::Half(number) => (1, number),
        };
        EventData::new_u64(kind << 32 | u64::from(number))
    }

    fn of(data: EventData) -> Self {
        let number = data.u64() as u32;
        if data.u64() >> 32 == 0 { Self::Id(number) } else { Self::Half(number) }
    }
}

/// What the agent holds for an id.
#[derive(Debug)]
enum End {
    Listening(Vec<TcpListener>),
    /// The request is sent as soon as TCP is connected.
    Asking {
        socket: TcpStream,
        initiator: Box<Initiator>,
        sent: bool,
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

/// A connection without an id.
#[derive(Debug)]
enum Half {
    /// The request has not arrived, or not all of it.
    Starting { socket: TcpStream, responder: Box<Responder>, listener: u32 },
    /// A rejected peer reads why.
    Leaving(TcpStream),
}

impl Half {
    fn socket(&self) -> &TcpStream {
        match self {
            Self::Starting { socket, .. } | Self::Leaving(socket) => socket,
        }
    }
}

/// The state of all connections of iWARP.
#[derive(Debug)]
pub(crate) struct Tcp {
    epoll: OwnedFd,
    streams: Arc<Streams>,
    /// By id.
    ends: BTreeMap<u32, End>,
    halves: BTreeMap<u32, Half>,
    last: u32,
    /// The id of each QP.
    by_qpn: BTreeMap<u32, u32>,
    deadlines: BTreeSet<(Time, Key)>,
}

impl Tcp {
    pub(super) fn new(streams: &Arc<Streams>) -> io::Result<Self> {
        Ok(Self {
            epoll: new_epoll()?,
            streams: Arc::clone(streams),
            ends: BTreeMap::new(),
            halves: BTreeMap::new(),
            last: 0,
            by_qpn: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        })
    }

    pub(super) fn next_time(&self) -> Option<Time> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    fn watch(&self, socket: impl AsFd, key: Key, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, key.data(), interest)?)
    }

    fn unwatch(&self, socket: impl AsFd) {
        let _ = epoll::delete(&self.epoll, socket);
    }

    fn forget_deadline(&mut self, key: Key) {
        self.deadlines.retain(|(_, of)| *of != key);
    }

    /// Takes a connection without an id. Without room, it is closed.
    fn add_half(&mut self, half: Half, deadline: Time) {
        if self.halves.len() >= HALF_OPEN_MAX {
            return;
        }
        self.last = self.last.wrapping_add(1);
        let key = Key::Half(self.last);
        if self.watch(half.socket(), key, EventFlags::IN | EventFlags::RDHUP).is_ok() {
            self.halves.insert(self.last, half);
            self.deadlines.insert((deadline, key));
        }
    }

    fn remove_half(&mut self, number: u32) -> Option<Half> {
        let half = self.halves.remove(&number)?;
        self.unwatch(half.socket());
        self.forget_deadline(Key::Half(number));
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
        let mut events = [epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; TURN];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.mail.tcp.epoll, &mut events, Some(&now)).unwrap_or(0);
        for event in &events[..count] {
            match Key::of(event.data) {
                Key::Id(name) => self.on_id_socket(name),
                Key::Half(number) => self.on_half_socket(number),
            }
        }
        self.settle(world);
    }

    /// Ends connections whose time has expired.
    pub(super) fn expire_sockets(&mut self, now: Time) {
        while let Some((at, key)) = self.mail.tcp.deadlines.first().copied()
            && at <= now
        {
            self.mail.tcp.deadlines.remove(&(at, key));
            match key {
                Key::Id(name) => self.no_reply(name),
                Key::Half(number) => drop(self.mail.tcp.remove_half(number)),
            }
        }
    }

    fn on_id_socket(&mut self, name: u32) {
        match self.mail.tcp.ends.get(&name) {
            Some(End::Listening(_)) => self.take_connections(name),
            Some(End::Asking { .. }) => self.on_reply_bytes(name),
            Some(End::Asked { .. }) => self.asker_left(name),
            Some(End::Agreed { .. }) | None => {}
        }
    }

    /// What the protocol knows of an id's connection. iWARP has no messages with QP numbers and
    /// PSNs, so attributes for modify_qp have values without a meaning.
    pub(super) fn connection_of(&self, id: &Id) -> Option<Connection> {
        if id.attachment.is_some_and(|at| at.is_iwarp) {
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
        let tcp = &mut self.mail.tcp;
        let passive = agreement.role == Role::Responder;
        let agreed = record(agreement);
        tcp.unwatch(&socket);
        tcp.forget_deadline(Key::Id(name));
        tcp.streams.offer(qpn, crate::streams::Offer { socket: socket.into(), agreed });
        tcp.by_qpn.insert(qpn, name);
        tcp.ends.insert(name, End::Agreed { qpn, passive });
    }
}

/// What a program's parameters mean as terms of start-up.
fn terms(responder_resources: u8, initiator_depth: u8) -> Terms {
    // The peer-to-peer model lets either side speak first, as programs on InfiniBand may.
    let rtr = iwarp::startup::RtrSet { send: false, write: true, read: true };
    Terms {
        ird: responder_resources.into(),
        most_ird: MOST_DEPTH,
        ord: initiator_depth.into(),
        peer_to_peer: Some(rtr),
        ..Terms::default()
    }
}

fn record(agreement: &Agreement) -> StreamOut {
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
        reserved: [0; 6],
    }
}

fn as_duration(time: Time) -> Duration {
    Duration::from_nanos(time.0)
}
