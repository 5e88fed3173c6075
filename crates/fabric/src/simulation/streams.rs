//! TCP connections between queue pairs of iWARP. Adds to [`Simulation`]. Not how programs agree on
//! a connection: the caller joins two queue pairs, as their connection managers would.
//!
//! Engines have real sockets: one end of a socket pair each. The simulation has the other ends. It
//! takes what an engine has written, and passes it on in its own time: in pieces of any length, with
//! one kind of harm ([`StreamHarm`]). A direction holds a bounded number of bytes. If it is full,
//! the engine's socket fills up.
//!
//! A socket pair cannot be reset, so an engine says so ([`engine::Network::reset`]). The other
//! engine sees ECONNRESET behind what has arrived: the kernel says this if the other end is closed
//! with a byte to read. So one byte that was taken stays in each socket. Principal type:
//! [`StreamId`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use abi::stream::{StreamOut, stream_flags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair, sockopt,
};

use super::core::Event;
use super::trace::Seen;
use super::{HostId, Simulation};

/// Bytes of a direction that are under way or not read. While there are as many, no more are taken.
const WINDOW: usize = 256 * 1024;
/// Bytes that are taken at once.
const PIECE: usize = 16 * 1024;
/// After this time in nanoseconds, bytes that a full socket has not taken are offered again.
const AGAIN: u64 = 20_000;
/// The ready-to-receive message of a connection: a WRITE.
const RTR_WRITE: u8 = 2;

/// A connection of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(usize);

/// What goes wrong in one direction of a connection, as soon as so many bytes have been sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamHarm {
    /// Nothing.
    #[default]
    Nothing,
    /// The bits of one byte change: it is replaced by its complement.
    Corrupt(u64),
    /// Nothing moves for a while, as after the loss of a segment.
    Stall(u64, Duration),
    /// The connection ends, and what is under way is lost.
    Reset(u64),
    /// The peer reads nothing for a while.
    Unread(u64, Duration),
}

/// How the peer has ended its direction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerEnd {
    /// Behind all its bytes.
    Finish,
    Reset,
}

/// A connection.
pub(super) struct JoinedStream {
    sides: [StreamSide; 2],
}

/// A queue pair's side of a connection, and the direction that begins there.
struct StreamSide {
    host: usize,
    /// `None` after a reset.
    socket: Option<OwnedFd>,
    /// The inode of the engine's socket.
    inode: u64,
    harm: StreamHarm,
    /// Bytes that the engine has written.
    sent: u64,
    /// Bytes that are under way: they have no event yet that has passed them on.
    under_way: usize,
    /// When the last byte arrives.
    last: u64,
    /// The engine has closed its direction, or reset the connection.
    ended: bool,
    /// Bytes that have arrived here and that the engine's socket has not taken, and the peer's end.
    arrived: VecDeque<u8>,
    peer_end: Option<PeerEnd>,
    /// Nothing is read here before this time.
    reads_at: u64,
}

impl JoinedStream {
    /// Takes what the engine at one end has written; no bytes are its end. `None`: there is nothing
    /// to take now. An error is a reset.
    fn take(&mut self, from: usize) -> Option<Result<Vec<u8>, Errno>> {
        let held = self.sides[from].under_way + self.sides[1 - from].arrived.len();
        let side = &self.sides[from];
        let is_open = !side.ended && side.peer_end != Some(PeerEnd::Reset) && held < WINDOW;
        let socket = side.socket.as_ref().filter(|_| is_open)?;
        // The first byte was taken before.
        let mut bytes = [0; 1 + PIECE];
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT | RecvFlags::PEEK) {
            Ok((1, _)) => end_of(socket).map(|end| end.map(|()| Vec::new())),
            Ok((len, _)) => {
                let taken = bytes[1..len].to_vec();
                Some(recv(socket, &mut bytes[1..len], RecvFlags::DONTWAIT).map(|_| taken))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

/// Whether the engine has closed its direction (`Ok`) or the socket.
fn end_of(socket: &OwnedFd) -> Option<Result<(), Errno>> {
    let mut polled = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let is_over = poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0);
    // The engine has closed its socket with bytes to read, which TCP answers with a reset.
    is_over.then(|| sockopt::socket_error(socket).and_then(|error| error))
}

impl StreamSide {
    fn new(host: usize, socket: OwnedFd, inode: u64) -> Self {
        Self {
            host,
            socket: Some(socket),
            inode,
            harm: StreamHarm::Nothing,
            sent: 0,
            under_way: 0,
            last: 0,
            ended: false,
            arrived: VecDeque::new(),
            peer_end: None,
            reads_at: 0,
        }
    }

    /// Gives the engine's socket what has arrived. Returns when to go on, if not everything is done.
    fn give(&mut self, now: u64) -> Option<u64> {
        let socket = self.socket.as_ref()?;
        if now < self.reads_at {
            return Some(self.reads_at);
        }
        while !self.arrived.is_empty() {
            match send(socket, self.arrived.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(len) => drop(self.arrived.drain(..len)),
                Err(Errno::AGAIN) => return Some(now + AGAIN),
                // The engine has closed its socket, and what arrives there is lost.
                Err(_) => self.arrived.clear(),
            }
        }
        match self.peer_end {
            None => {}
            Some(PeerEnd::Finish) => {
                let _ = shutdown(socket, Shutdown::Write);
            }
            Some(PeerEnd::Reset) => self.socket = None,
        }
        None
    }
}

impl Simulation {
    /// Joins two queue pairs of iWARP by a TCP connection, as their programs' connection managers
    /// do. The first one has opened it. The engines take the connection when the queue pairs go to
    /// RTS. Each side may have `reads` READs and atomics outstanding.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn join(&mut self, ends: [(HostId, u32); 2], reads: u16) -> io::Result<StreamId> {
        let sides = [(ends[0], stream_flags::INITIATOR), (ends[1], 0)].map(|((host, qpn), role)| {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let (own, engines) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let agreed = StreamOut {
                flags: role | stream_flags::CRC,
                ird: reads,
                ord: reads,
                rtr: RTR_WRITE,
                revision: 2,
                ..StreamOut::default()
            };
            send(&engines, &[0], SendFlags::empty())?;
            let inode = fstat(&engines)?.st_ino;
            self.hosts[host.0].agent.offer_stream(qpn, engines, agreed);
            Ok::<_, io::Error>(StreamSide::new(host.0, own, inode))
        });
        let [one, two] = sides;
        self.streams.push(JoinedStream { sides: [one?, two?] });
        Ok(StreamId(self.streams.len() - 1))
    }

    /// Sets what goes wrong in the direction from one of the two ends of a connection, 0 or 1.
    pub fn harm(&mut self, stream: StreamId, from: usize, harm: StreamHarm) {
        self.streams[stream.0].sides[from].harm = harm;
    }

    /// Takes what engines have written to their sockets. The cable of a host may be cut: then TCP
    /// waits.
    pub(super) fn carry_streams(&mut self) {
        let resets = std::mem::take(&mut self.core.state.lock().resets);
        for inode in resets {
            let is_it = |side: &StreamSide| side.inode == inode;
            let mut places = self.streams.iter().enumerate();
            let place = places.find_map(|(number, stream)| Some((number, stream.sides.iter().position(is_it)?)));
            let Some((number, from)) = place else { continue };
            let hosts = self.streams[number].sides.each_ref().map(|side| side.host);
            let mut state = self.core.state.lock();
            if hosts.iter().any(|host| state.cut.contains(host)) {
                state.resets.push(inode);
                continue;
            }
            drop(state);
            self.carry_reset(number, from);
        }
        for number in 0..self.streams.len() {
            for from in 0..2 {
                let hosts = self.streams[number].sides.each_ref().map(|side| side.host);
                if hosts.iter().any(|host| self.core.state.lock().cut.contains(host)) {
                    continue;
                }
                match self.streams[number].take(from) {
                    None => {}
                    Some(Ok(bytes)) => self.carry_bytes(number, from, bytes),
                    Some(Err(_)) => self.carry_reset(number, from),
                }
            }
        }
    }

    /// An engine has reset its connection: it sends and takes nothing more. What is under way to the
    /// other engine is lost if the reset arrives before it.
    fn carry_reset(&mut self, number: usize, from: usize) {
        let side = &mut self.streams[number].sides[from];
        (side.socket, side.ended) = (None, true);
        let mut state = self.core.state.lock();
        let at = self.core.now() + state.delay();
        state.push(at, Event::Reset { stream: number, from });
    }

    fn carry_bytes(&mut self, number: usize, from: usize, mut bytes: Vec<u8>) {
        let [sender, receiver] = self.streams[number].sides.each_mut();
        let (side, peer) = if from == 0 { (sender, receiver) } else { (receiver, sender) };
        let begin = side.sent;
        side.sent += bytes.len() as u64;
        side.ended = bytes.is_empty();
        match side.harm {
            StreamHarm::Corrupt(at) if (begin..side.sent).contains(&at) => bytes[(at - begin) as usize] ^= 0xff,
            StreamHarm::Stall(at, time) if (begin..side.sent).contains(&at) => {
                side.last = side.last.max(self.core.now()) + nanoseconds(time);
            }
            StreamHarm::Unread(at, time) if (begin..side.sent).contains(&at) => {
                peer.reads_at = self.core.now() + nanoseconds(time);
            }
            StreamHarm::Reset(at) if at < side.sent => return self.reset(number),
            _ => {}
        }
        side.under_way += bytes.len();
        let host = side.host;
        let mut state = self.core.state.lock();
        loop {
            // Most pieces are long, and some have a few bytes.
            let longest = if state.dice.below(4) == 0 { 16 } else { bytes.len() as u64 };
            let len = (1 + state.dice.below(longest) as usize).min(bytes.len());
            let rest = bytes.split_off(len);
            side.last = side.last.max(self.core.now() + state.delay());
            state.push(side.last, Event::Bytes { stream: number, from, bytes });
            bytes = rest;
            if bytes.is_empty() {
                break;
            }
        }
        drop(state);
        // There is room in the socket.
        self.wake_engines_of(host);
    }

    /// Passes on what has arrived; no bytes are the end. Returns the host where it has arrived.
    pub(super) fn arrive(&mut self, number: usize, from: usize, bytes: &[u8]) -> HostId {
        let [one, two] = self.streams[number].sides.each_mut();
        let (sender, receiver) = if from == 0 { (one, two) } else { (two, one) };
        sender.under_way = sender.under_way.saturating_sub(bytes.len());
        // After a reset, nothing counts.
        if receiver.peer_end != Some(PeerEnd::Reset) {
            receiver.arrived.extend(bytes);
            if sender.ended && sender.socket.is_some() && sender.under_way == 0 && bytes.is_empty() {
                receiver.peer_end = Some(PeerEnd::Finish);
            }
        }
        self.core.see(&Seen::Stream { stream: number, from, bytes });
        self.pass_on(number, 1 - from)
    }

    /// A reset arrives. Returns the host where it has arrived.
    pub(super) fn arrive_reset(&mut self, number: usize, from: usize) -> HostId {
        self.streams[number].sides[1 - from].peer_end = Some(PeerEnd::Reset);
        self.core.see(&Seen::StreamReset { stream: number, from });
        self.pass_on(number, 1 - from)
    }

    fn pass_on(&mut self, number: usize, to: usize) -> HostId {
        let receiver = &mut self.streams[number].sides[to];
        let host = receiver.host;
        if let Some(at) = receiver.give(self.core.now()) {
            self.core.state.lock().push(at, Event::Bytes { stream: number, from: 1 - to, bytes: Vec::new() });
        }
        self.wake_engines_of(host);
        HostId(host)
    }

    /// The connection is gone.
    fn reset(&mut self, number: usize) {
        for side in 0..2 {
            let side = &mut self.streams[number].sides[side];
            side.socket = None;
            let host = side.host;
            self.wake_engines_of(host);
        }
    }

    fn wake_engines_of(&mut self, host: usize) {
        for number in 0..self.programs.len() {
            if self.programs[number].host == host && !self.programs[number].turn.soon {
                self.turn_soon(number);
            }
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
