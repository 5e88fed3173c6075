//! The node of user MADs: its connections, and what is open there. The principal type is
//! [`MadNode`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use abi::umad::client::Key;
use rustix::event::epoll::EventFlags;
use shm::socket::Socket;

use super::tunnels::TunnelSocket;
use crate::config::Config;
use crate::foreign::Foreign;
use crate::mads::Mads;
use crate::poller::{Poller, Token, watch_for};
use crate::wire::thread::BUFFER;
use crate::world::World;

/// What a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionState {
    /// It has not said.
    New,
    /// An open `umadN`.
    File,
    /// An open `issmN`, or one that waits until it can be opened.
    Manager,
}

/// A message that a program writes in several packets.
pub(super) struct PartialMessage {
    pub(super) key: Key,
    /// Its length when it is whole.
    pub(super) length: usize,
    pub(super) bytes: Vec<u8>,
}

/// A connection.
pub(super) struct MadConnection {
    pub(super) uid: u32,
    pub(super) pid: u32,
    pub(super) socket: Foreign<Socket>,
    /// The events for which its socket is watched, if any.
    pub(super) interest: Option<EventFlags>,
    pub(super) state: ConnectionState,
    /// What it writes, if its state is new and the message is not whole.
    pub(super) incoming: Option<PartialMessage>,
    /// Too many descriptors of its user wait to be closed, so the server does not read it.
    pub(super) held_up: bool,
}

/// The node, and everything that is open there.
pub(super) struct MadNode {
    pub(super) mads: Mads,
    /// The socket of links to other agents, if the topology has some.
    pub(super) tunnels: Option<TunnelSocket>,
    /// The buffer for records of lanes, with such links.
    pub(super) lane_buffer: Option<Box<[u8]>>,
    pub(super) connections: BTreeMap<u32, MadConnection>,
    pub(super) buffer: Vec<u8>,
}

impl MadNode {
    /// A node without connections. Watches the socket of links to other agents.
    pub(super) fn new(world: &World, config: &Config, poller: &Poller) -> io::Result<Self> {
        let mut mads = Mads::new(world, config).map_err(io::Error::other)?;
        let tunnels = TunnelSocket::open(world, config, &mut mads)?;
        if let Some(tunnels) = &tunnels {
            poller.watch(tunnels.as_fd(), Token::Tunnels, EventFlags::IN)?;
            let to_groups = world.wire.forwarder().to_groups();
            poller.watch(to_groups.as_fd(), Token::Tunnels, EventFlags::IN)?;
            to_groups.open();
        }
        let lane_buffer = tunnels.as_ref().map(|_| vec![0; BUFFER].into());
        Ok(Self { mads, tunnels, lane_buffer, connections: BTreeMap::new(), buffer: Vec::new() })
    }

    /// Whether nobody is connected.
    pub(super) fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// The user of a connection.
    pub(super) fn user_of(&self, id: u32) -> Option<u32> {
        self.connections.get(&id).map(|connection| connection.uid)
    }

    /// A connection's socket, and what it is watched for.
    pub(super) fn watched(&mut self, id: u32) -> Option<(BorrowedFd<'_>, &mut Option<EventFlags>)> {
        let connection = self.connections.get_mut(&id)?;
        Some((connection.socket.as_fd(), &mut connection.interest))
    }

    /// Reads the calls of a user again, from at most `most` connections. Returns their number.
    pub(super) fn ask_again(&mut self, poller: &Poller, uid: u32, most: usize) -> usize {
        let held_up = self.connections.iter_mut().filter(|(_, it)| it.uid == uid && it.held_up);
        let mut count = 0;
        for (id, connection) in held_up.take(most) {
            count += 1;
            connection.held_up = false;
            let (socket, now) = (connection.socket.as_fd(), &mut connection.interest);
            watch_for(poller, socket, Token::Mads(*id), now, EventFlags::IN);
        }
        count
    }
}
