//! One connection to a device's node or to the connection manager's node: the opening message, then
//! one command after the other.
//!
//! The agent's thread receives messages without descriptors. The thread of the client's user
//! receives messages with descriptors ([`crate::closer`]). Nothing here waits for a client. If the
//! socket has no room for a reply, the reply is kept, and no further command is read until it is
//! sent. So a client that stops reading costs one reply of memory. The principal type is
//! [`Client`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::envelope::{REQUEST_MAX, ReplyEnvelope, RequestEnvelope, request as envelope_flag};
use abi::layout::Record;
use abi::open::{MAGIC, Open, OpenAnswer, VERSION, flag, profile};
use abi::{Errno, Refusal};
use rustix::event::epoll::EventFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use shm::socket::Socket;

use crate::closer::{Closer, Closers};
use crate::cm::{ChannelId, Manager};
use crate::dispatch::Reply;
use crate::engine_link::is_short_of_room;
use crate::foreign::{Foreign, PassedFd};
use crate::ids::{ContextId, Peer};
use crate::world::World;

/// A connection and its state.
pub(crate) struct Client {
    /// Its unread messages may contain any descriptor. The thread of its user borrows the socket to
    /// receive them.
    socket: Arc<Foreign<Socket>>,
    node: Node,
    peer: Peer,
    /// The pidfd, from the first message on. It is readable when the process has ended, even if a
    /// child still holds the socket.
    death: Option<OwnedFd>,
    /// The pidfd is not watched yet.
    death_is_new: bool,
    /// From the opening message on.
    session: Option<Session>,
    /// A reply for which the socket had no room.
    unsent: Option<(Vec<u8>, Vec<OwnedFd>)>,
    /// The kernel accepts no descriptors for the unsent reply, and no event reports when it accepts
    /// them again.
    must_retry: bool,
    busy: bool,
    /// The command that another thread carries out has no reply.
    quiet: bool,
    /// The agent reads nothing from it while too many descriptors of its user wait to be closed.
    held_up: bool,
    /// The events for which its socket is watched, if it is watched.
    pub(crate) interest: Option<EventFlags>,
}

/// What a connection leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Node {
    /// A device, by index.
    Device(usize),
    /// The connection manager; for programs on this node of a topology only, by the index of its
    /// device.
    Manager(Option<usize>),
}

impl Node {
    /// The flags with which it may be opened.
    fn flags(self) -> u32 {
        match self {
            Self::Device(_) => 0,
            Self::Manager(_) => flag::TOLD,
        }
    }
}

/// What a connection has opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Session {
    /// A device.
    Context(ContextId),
    /// An event channel.
    Channel(ChannelId),
}

/// Whether a connection continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It continues.
    Continues,
    /// It has ended, or must.
    Ends,
}

/// The result of reading a client.
pub(crate) enum ReadOutcome<'b> {
    /// No message, or one that needs nothing more.
    Over(Fate),
    /// A command.
    Command {
        /// The session that sent it.
        session: Session,
        /// The sequence number, which returns with the reply.
        sequence: u32,
        /// The command has no reply.
        quiet: bool,
        /// Its header and body.
        request: &'b [u8],
        /// The descriptors that came with it.
        fds: Vec<PassedFd>,
    },
    /// A message with descriptors, which the socket still holds.
    Passing,
}

/// A message of a client.
pub(crate) struct Said<'b> {
    /// The bytes; empty if the connection has ended.
    pub(crate) bytes: &'b [u8],
    /// The message was longer than a message may be.
    pub(crate) truncated: bool,
    /// The descriptors that came with it.
    pub(crate) fds: Vec<PassedFd>,
}

impl Client {
    /// A connection that a node has just accepted.
    pub(crate) fn new(socket: Socket, node: Node, closers: &mut Closers) -> io::Result<Self> {
        let credentials = socket.peer_credentials()?;
        let socket = Arc::new(Foreign::new(socket, closers.of(credentials.uid)));
        socket.set_nonblocking(true)?;
        let peer = Peer { pid: credentials.pid, uid: credentials.uid, comm: String::new() };
        Ok(Self {
            socket,
            node,
            peer,
            death: None,
            death_is_new: false,
            session: None,
            unsent: None,
            must_retry: false,
            busy: false,
            quiet: false,
            held_up: false,
            interest: Some(EventFlags::IN),
        })
    }

    /// The same client, as if its process were another user's.
    #[cfg(test)]
    pub(crate) fn of_user(mut self, uid: u32) -> Self {
        self.peer.uid = uid;
        self
    }

    /// The socket, to watch it.
    pub(crate) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Its user.
    pub(crate) fn uid(&self) -> u32 {
        self.peer.uid
    }

    /// The socket, and what it is watched for.
    pub(crate) fn watched(&mut self) -> (BorrowedFd<'_>, &mut Option<EventFlags>) {
        (self.socket.as_fd(), &mut self.interest)
    }

    /// The pidfd to watch. It is returned only once.
    pub(crate) fn new_death(&mut self) -> Option<BorrowedFd<'_>> {
        if std::mem::take(&mut self.death_is_new) { self.death() } else { None }
    }

    /// The pidfd, which becomes readable when the process ends.
    pub(crate) fn death(&self) -> Option<BorrowedFd<'_>> {
        self.death.as_ref().map(AsFd::as_fd)
    }

    /// Its session, once it has opened one.
    pub(crate) fn session(&self) -> Option<Session> {
        self.session
    }

    /// Its context, if its session is one.
    pub(crate) fn context(&self) -> Option<ContextId> {
        match self.session {
            Some(Session::Context(context)) => Some(context),
            _ => None,
        }
    }

    /// Whether a reply waits until the socket has room.
    pub(crate) fn is_stuck(&self) -> bool {
        self.unsent.is_some()
    }

    /// Whether its reply must be offered again, because no event tells when there is room.
    pub(crate) fn must_retry(&self) -> bool {
        self.must_retry
    }

    /// Whether another thread carries out one of its commands.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Whether the agent reads nothing from it because too many descriptors of its user wait to be
    /// closed.
    pub(crate) fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Fewer descriptors of its user wait, so the agent may read again.
    pub(crate) fn go_on(&mut self) {
        self.held_up = false;
    }

    /// The closer for the descriptors of its user.
    pub(crate) fn closer(&self) -> &Closer {
        self.socket.closer()
    }

    /// Another thread carries out its command, so nothing is read before the reply.
    pub(crate) fn wait(&mut self, quiet: bool) -> Fate {
        (self.busy, self.quiet) = (true, quiet);
        Fate::Continues
    }

    /// The socket, for the thread of its user.
    pub(crate) fn lent(&self) -> &Arc<Foreign<Socket>> {
        &self.socket
    }

    /// Another thread has received the expected message.
    pub(crate) fn wait_no_more(&mut self) {
        self.busy = false;
    }

    /// Takes the next message, if there is one and if the client is not busy.
    pub(crate) fn next<'b>(
        &mut self,
        world: &mut World,
        manager: &mut Manager,
        buffer: &'b mut [u8],
    ) -> ReadOutcome<'b> {
        assert!(buffer.len() > REQUEST_MAX, "one byte more shows what is too long");
        // A busy or held-up socket is not watched for messages, so this event is the end of the
        // stream.
        if self.busy || self.held_up || self.flush() == Fate::Ends {
            return ReadOutcome::Over(Fate::Ends);
        }
        self.held_up = self.closer().is_full();
        if self.held_up || self.is_stuck() {
            return ReadOutcome::Over(Fate::Continues);
        }
        let peeked = match self.socket.peek(buffer) {
            Ok(peeked) => peeked,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadOutcome::Over(Fate::Continues),
            Err(_) => return ReadOutcome::Over(Fate::Ends),
        };
        if peeked.has_fds {
            return ReadOutcome::Passing;
        }
        if self.socket.discard().is_err() {
            return ReadOutcome::Over(Fate::Ends);
        }
        let said = Said { bytes: &buffer[..peeked.len], truncated: peeked.truncated, fds: Vec::new() };
        self.hear(world, manager, said)
    }

    /// Handles a message.
    pub(crate) fn hear<'b>(&mut self, world: &mut World, manager: &mut Manager, said: Said<'b>) -> ReadOutcome<'b> {
        let Said { bytes, truncated, fds } = said;
        if bytes.is_empty() {
            return ReadOutcome::Over(Fate::Ends);
        }
        let Some(session) = self.session else {
            return ReadOutcome::Over(self.open(world, manager, bytes));
        };
        let Some(RequestEnvelope { sequence, flags }) = RequestEnvelope::read(bytes) else {
            return ReadOutcome::Over(Fate::Ends);
        };
        let complaint = if truncated || bytes.len() > REQUEST_MAX {
            "a request is longer than 64 KiB, or has more than 8 descriptors"
        } else if flags & !envelope_flag::QUIET != 0 {
            "the envelope has a flag that is not known"
        } else {
            let request = &bytes[size_of::<RequestEnvelope>()..];
            return ReadOutcome::Command { session, sequence, quiet: flags & envelope_flag::QUIET != 0, request, fds };
        };
        ReadOutcome::Over(self.reply(sequence, Refusal::new(Errno::EINVAL, complaint).into()))
    }

    /// Handles the first message, which names the profile of the ABI and what to open.
    fn open(&mut self, world: &mut World, manager: &mut Manager, message: &[u8]) -> Fate {
        self.identify();
        let mut fds = Vec::new();
        let open = Open::read(message).filter(|open| message.len() == size_of::<Open>() && open.magic == MAGIC);
        let outcome = match open {
            None => Err(Errno::EINVAL),
            Some(open) if open.version != VERSION => Err(Errno::EPROTONOSUPPORT),
            Some(open) if open.profile > profile::OFED || open.reserved != 0 => Err(Errno::EINVAL),
            Some(open) if open.flags & !self.node.flags() != 0 => Err(Errno::EINVAL),
            Some(open) => match self.node {
                Node::Device(device) => world.open(device, open.profile, self.peer.clone()).map(Session::Context),
                Node::Manager(node) => {
                    manager.open(self.peer.clone(), open.flags & flag::TOLD != 0).map(|(channel, event_socket)| {
                        if let Some(node) = node {
                            manager.place_on_node(channel, node);
                        }
                        fds.push(event_socket);
                        Session::Channel(channel)
                    })
                }
            }
            .map_err(|refusal| refusal.errno),
        };
        let answer = OpenAnswer {
            magic: MAGIC,
            version: VERSION,
            profile: open.map_or(0, |open| open.profile),
            status: abi::errno::status(&outcome),
            pid: std::process::id(),
        };
        self.session = outcome.ok();
        let sent = self.send(answer.bytes().to_vec(), fds);
        if self.session.is_some() { sent } else { Fate::Ends }
    }

    /// Finds the name of the program, and opens its pidfd.
    fn identify(&mut self) {
        self.peer.comm = program_name(self.peer.pid);
        let pid = i32::try_from(self.peer.pid).ok().and_then(Pid::from_raw);
        // Without a pidfd (the process is in another PID namespace), only the end of the stream
        // shows that the process has ended.
        self.death = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        self.death_is_new = self.death.is_some();
    }

    /// Sends a reply in its envelope.
    pub(crate) fn reply(&mut self, sequence: u32, reply: Reply) -> Fate {
        self.busy = false;
        if std::mem::take(&mut self.quiet) {
            return Fate::Continues;
        }
        let envelope = ReplyEnvelope { sequence, status: reply.status, fds: reply.fds.len() as u32, reserved: 0 };
        self.send([envelope.bytes(), &reply.bytes].concat(), reply.fds)
    }

    /// Sends the kept reply, if there is room now.
    pub(crate) fn flush(&mut self) -> Fate {
        match self.unsent.take() {
            Some((bytes, fds)) => self.send(bytes, fds),
            None => Fate::Continues,
        }
    }

    fn send(&mut self, bytes: Vec<u8>, fds: Vec<OwnedFd>) -> Fate {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = self.socket.try_send(&bytes, &borrowed);
        self.must_retry = sent.as_ref().is_err_and(is_short_of_room);
        match sent {
            Ok(()) => Fate::Continues,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock || self.must_retry => {
                self.unsent = Some((bytes, fds));
                Fate::Continues
            }
            Err(_) => Fate::Ends,
        }
    }
}

/// The program's short name, to show to users.
fn program_name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).map(|text| text.trim_end().to_owned()).unwrap_or_default()
}
