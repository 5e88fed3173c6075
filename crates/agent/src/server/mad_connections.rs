//! Connections to the node of user MADs: open files, and single calls (`abi::umad`). Adds to
//! [`Server`].

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use abi::umad::client::Key;
use abi::umad::{self, FileReply, MESSAGE_MAX, PIECE, SHORT_HEADER, UserMad, kind};
use abi::{Errno, Record};
use rustix::event::epoll::EventFlags;
use shm::socket::Socket;

use super::mad_node::{ConnectionState, MadConnection, MadNode, PartialMessage};
use super::{ACCEPTED, Server};
use crate::admin;
use crate::foreign::Foreign;
use crate::headroom;
use crate::listening::accepted;
use crate::mads::{IssmOpen, PortId};
use crate::poller::{Token, watch_for};

/// More than the longest packet. A packet that fills it is too long.
const LONGEST: usize = 2 * PIECE;

impl Server {
    /// Takes the datagrams of tunnels that have arrived, and those of programs that leave by them.
    pub(super) fn take_tunnelled(&mut self) {
        let Some(socket) = &mut self.mads.tunnels else { return };
        let arrived = socket.receive();
        self.mads.mads.take_tunnelled(&mut self.world, &arrived);
        self.send_to_groups();
        self.follow_mads();
    }

    /// Tells the agents at the other ends of links that this one ends.
    pub(super) fn close_tunnels(&mut self) {
        let Some(socket) = &self.mads.tunnels else { return };
        for (peer, bytes) in self.mads.mads.close_tunnels() {
            socket.send(peer, &bytes);
        }
    }

    pub(super) fn accept_mads(&mut self) {
        for _ in 0..ACCEPTED {
            let listener = self.listeners.mads.as_ref();
            let closers = &mut self.world.closers;
            let Some(socket) = listener.and_then(|listener| accepted(listener, &mut self.listeners.spare, closers))
            else {
                return;
            };
            let (pid, uid) = socket.peer_credentials().map_or((0, u32::MAX), |peer| (peer.pid, peer.uid));
            let socket = Foreign::new(socket, self.world.closers.of(uid));
            if self.is_one_too_many(uid) {
                tracing::debug!(uid, "a user with too many connections is turned away");
                continue;
            }
            self.take_mads((pid, uid), socket);
        }
    }

    pub(super) fn take_mads(&mut self, (pid, uid): (u32, u32), socket: Foreign<Socket>) {
        let id = self.next_connection();
        if socket.set_nonblocking(true).is_ok()
            && self.poller.watch(socket.as_fd(), Token::Mads(id), EventFlags::IN).is_ok()
        {
            self.registry.users.entry(uid).or_default().admins += 1;
            let interest = Some(EventFlags::IN);
            let connection = MadConnection {
                uid,
                pid,
                socket,
                interest,
                state: ConnectionState::New,
                incoming: None,
                held_up: false,
            };
            self.mads.connections.insert(id, connection);
        }
    }

    /// Takes a message of a connection, or sends what waits for its program.
    pub(super) fn serve_mads(&mut self, id: u32) {
        let Some(connection) = self.mads.connections.get_mut(&id) else { return };
        // A held-up connection is not watched for messages, so this event is its end.
        if connection.held_up {
            return self.end_mads(id);
        }
        if connection.state == ConnectionState::New && connection.socket.closer().is_full() {
            connection.held_up = true;
            return self.watch_mads(id, EventFlags::empty());
        }
        let mut buffer = std::mem::take(&mut self.mads.buffer);
        buffer.resize(LONGEST, 0);
        let taken = admin::take(&connection.socket, &mut buffer);
        match (taken, connection.state) {
            (Ok(LONGEST..), _) => self.end_mads(id),
            (Ok(len), ConnectionState::New) => self.take_packet(id, &buffer[..len]),
            (Ok(len), ConnectionState::File) => self.mads.mads.take_written(&mut self.world, id, &buffer[..len]),
            // There is room for messages to the program.
            (Err(admin::Verdict::Continues), _) => self.send_messages(id),
            _ => self.end_mads(id),
        }
        self.mads.buffer = buffer;
        self.follow_mads();
    }

    /// Takes a call, or a further packet of one.
    fn take_packet(&mut self, id: u32, packet: &[u8]) {
        let Some(connection) = self.mads.connections.get_mut(&id) else { return };
        let Some(incoming) = &mut connection.incoming else { return self.take_call(id, packet) };
        incoming.bytes.extend_from_slice(packet);
        if incoming.bytes.len() < incoming.length {
            return;
        }
        let uid = connection.uid;
        if let Some(PartialMessage { key, length, bytes }) = connection.incoming.take() {
            self.mads.mads.has_written(uid, length);
            self.write_mads(id, &key, &bytes);
        }
    }

    /// A call writes a message of `length` bytes, which begins with `bytes`.
    fn begin_to_write(&mut self, id: u32, key: Key, length: usize, bytes: &[u8]) {
        let Some(connection) = self.mads.connections.get_mut(&id) else { return };
        if length <= bytes.len() {
            return self.write_mads(id, &key, bytes);
        }
        if length > size_of::<UserMad>() + MESSAGE_MAX {
            return self.refuse_mads(id, Errno::EINVAL);
        }
        if !self.mads.mads.begins_to_write(connection.uid, length) {
            return self.refuse_mads(id, Errno::ENOMEM);
        }
        connection.incoming = Some(PartialMessage { key, length, bytes: bytes.to_vec() });
    }

    fn write_mads(&mut self, id: u32, key: &Key, record: &[u8]) {
        let done = self.mads.mads.write(&mut self.world, key, record);
        self.reply(id, done, self.mads.mads.header_len(key), &[]);
        self.end_mads(id);
    }

    fn refuse_mads(&mut self, id: u32, errno: Errno) {
        self.reply(id, Err(errno), 0, &[]);
    }

    fn take_call(&mut self, id: u32, message: &[u8]) {
        let Some(connection) = self.mads.connections.get_mut(&id) else { return };
        let (pid, uid) = (connection.pid, connection.uid);
        let Some((request, rest)) = umad::parse(message).filter(|_| headroom::is_there()) else {
            return self.end_mads(id);
        };
        match request.kind {
            kind::OPEN_MADS => {
                let opened = self.port_to_open(uid, request.number);
                let opened = opened.and_then(|at| self.mads.mads.open(&self.world, id, (pid, uid), at));
                self.set_state(id, ConnectionState::File);
                let (status, key) = opened.map_or_else(|errno| (Err(errno), [0; 16]), |key| (Ok(()), key));
                self.reply(id, status, SHORT_HEADER, &key);
            }
            kind::OPEN_MANAGER => {
                let opened = self
                    .port_to_open(uid, request.number)
                    .and_then(|at| self.mads.mads.open_manager(&mut self.world, id, at, request.nonblocking != 0));
                self.set_state(id, ConnectionState::Manager);
                match opened {
                    Ok(IssmOpen::Later) => self.watch_mads(id, EventFlags::IN),
                    Ok(IssmOpen::Now) => self.reply(id, Ok(()), 0, &[]),
                    Err(errno) => self.refuse_mads(id, errno),
                }
            }
            kind::IOCTL => {
                let mut argument = rest.to_vec();
                let done = match umad::argument(request.number) {
                    Some(length) if length == argument.len() => {
                        self.mads.mads.ioctl(&self.world, &request.key, request.number, &mut argument)
                    }
                    Some(_) => Err(Errno::EFAULT),
                    None => Err(Errno::ENOTTY),
                };
                if done == Err(Errno::EINVAL)
                    && let Some(holder) = self.mads.mads.holder(&request.key, request.number, &argument)
                {
                    argument.extend_from_slice(holder.bytes());
                }
                self.reply(id, done, self.mads.mads.header_len(&request.key), &argument);
                self.end_mads(id);
            }
            kind::HEADER => {
                let header = self.mads.mads.header_len(&request.key);
                self.reply(id, if header == 0 { Err(Errno::EIO) } else { Ok(()) }, header, &[]);
                self.end_mads(id);
            }
            kind::WRITE => self.begin_to_write(id, request.key, request.number as usize, rest),
            _ => self.end_mads(id),
        }
    }

    /// The port of a file, if the user may open it.
    fn port_to_open(&self, uid: u32, number: u32) -> Result<PortId, Errno> {
        let is_owner = uid == 0 || uid == rustix::process::geteuid().as_raw();
        if !is_owner && !self.world.users.mads.contains(&uid) {
            return Err(Errno::EACCES);
        }
        let (device, port) = self.world.devices.port_of_mad(number).ok_or(Errno::ENXIO)?;
        Ok(PortId { device, port: u8::try_from(port).map_err(|_| Errno::ENXIO)? })
    }

    fn set_state(&mut self, id: u32, state: ConnectionState) {
        if let Some(connection) = self.mads.connections.get_mut(&id) {
            connection.state = state;
        }
    }

    /// Sends a reply. A file that could not be opened ends.
    fn reply(&mut self, id: u32, done: Result<(), Errno>, header: usize, data: &[u8]) {
        let Some(connection) = self.mads.connections.get(&id) else { return };
        let status = done.map_or_else(Errno::to_status, |()| 0);
        let reply = FileReply { status, value: header as u32 };
        let sent = connection.socket.try_send(&[reply.bytes(), data].concat(), &[]);
        if sent.is_err() || done.is_err() {
            self.end_mads(id);
        } else {
            self.watch_mads(id, EventFlags::IN);
        }
    }

    /// Takes over the fault rules about links, if they have changed.
    pub(super) fn follow_faults(&mut self) {
        if self.mads.mads.follow_faults(&mut self.world) {
            self.follow_mads();
        }
    }

    /// Does what calls and datagrams have led to, and what that leads to: when a connection ends,
    /// the next one gets its `issmN`.
    pub(super) fn follow_mads(&mut self) {
        let mut ports_changed = false;
        loop {
            self.mads.mads.send_for_manager(&mut self.world, self.manager.take_outward());
            let results = self.mads.mads.take_results();
            if results.is_empty() {
                break;
            }
            ports_changed |= results.ports_changed;
            for outgoing in results.outgoing {
                self.manager.send_for_others(&outgoing.addressing, &outgoing.mad, outgoing.owner);
            }
            if let Some(socket) = &self.mads.tunnels {
                results.tunnelled.iter().for_each(|(peer, bytes)| socket.send(*peer, bytes));
            }
            if !results.for_manager.is_empty() {
                self.manager.on_datagrams(&self.world, results.for_manager);
            }
            if !results.answers.is_empty() {
                self.manager.on_answers(&self.world, results.answers);
            }
            for id in results.granted {
                self.reply(id, Ok(()), 0, &[]);
            }
            for id in results.readable {
                self.send_messages(id);
            }
            for id in results.gone {
                self.end_mads(id);
            }
        }
        if ports_changed {
            self.show_changes(true);
        }
    }

    /// Lets ports tell their subnet managers what engines have told.
    pub(super) fn take_violations(&mut self) {
        if self.mads.mads.take_violations(&mut self.world) {
            self.follow_mads();
        }
    }

    /// Takes the management datagrams that have arrived from other hosts.
    pub(super) fn take_datagrams(&mut self) {
        let arrivals = self.manager.take_arrivals();
        let world = &mut self.world;
        let for_manager = arrivals.into_iter().filter_map(|arrived| self.mads.mads.on_arrival(world, arrived));
        let for_manager = for_manager.collect();
        self.manager.on_datagrams(&self.world, for_manager);
        self.follow_mads();
    }

    /// Sends a program what waits for it.
    fn send_messages(&mut self, id: u32) {
        let MadNode { mads, connections, .. } = &mut self.mads;
        let Some(connection) = connections.get(&id) else { return };
        let interest = loop {
            let Some(piece) = mads.first_piece(id) else { break EventFlags::IN };
            match connection.socket.try_send(piece, &[]) {
                Ok(()) => mads.pop_piece(id),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break EventFlags::IN | EventFlags::OUT,
                Err(_) => return self.end_mads(id),
            }
        };
        self.watch_mads(id, interest);
    }

    fn watch_mads(&mut self, id: u32, interest: EventFlags) {
        if let Some((socket, now)) = self.mads.watched(id) {
            watch_for(&self.poller, socket, Token::Mads(id), now, interest);
        }
    }

    fn end_mads(&mut self, id: u32) {
        let Some(connection) = self.mads.connections.remove(&id) else { return };
        let _ = self.poller.unwatch(connection.socket.as_fd());
        if let Some(incoming) = connection.incoming {
            self.mads.mads.has_written(connection.uid, incoming.length);
        }
        if connection.state != ConnectionState::New {
            self.mads.mads.close(&mut self.world, id);
        }
        self.count_out(connection.uid, |has| &mut has.admins);
        self.idle.since = Instant::now();
    }
}
