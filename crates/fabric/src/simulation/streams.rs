//! TCP connections between queue pairs of iWARP. Adds to [`Simulation`]. Not how programs agree on
//! a connection: the caller joins two queue pairs, as their connection managers would.
//!
//! Engines have real sockets: one end of a socket pair each. The simulation has the other ends. It
//! takes what an engine has written, and passes it on in its own time: in pieces of any length, with
//! one kind of harm ([`StreamHarm`]). A direction holds a bounded number of bytes. If it is full,
//! the engine's socket fills up, as with a peer that does not read. An engine cannot reset a socket
//! pair, so its reset reaches the other engine as an ordinary end. Principal type: [`StreamId`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use abi::stream::{StreamOut, stream_flags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown, socketpair,
};

use super::core::Event;
use super::trace::Seen;
use super::{HostId, Simulation};

/// Bytes of a direction that are under way. While there are as many, no more are taken.
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
    harm: StreamHarm,
    /// Bytes that the engine has written.
    sent: u64,
    /// Bytes that are under way: they have no event yet that has passed them on.
    under_way: usize,
    /// When the last byte arrives.
    last: u64,
    /// The engine has closed its direction.
    ended: bool,
    /// Bytes that have arrived here and that the engine's socket has not taken, and the peer's end.
    arrived: VecDeque<u8>,
    end_arrived: bool,
}

impl StreamSide {
    fn new(host: usize, socket: OwnedFd) -> Self {
        Self {
            host,
            socket: Some(socket),
            harm: StreamHarm::Nothing,
            sent: 0,
            under_way: 0,
            last: 0,
            ended: false,
            arrived: VecDeque::new(),
            end_arrived: false,
        }
    }

    /// Takes what the engine has written; no bytes are its end. `None`: there is nothing to take now.
    fn take(&mut self) -> Option<io::Result<Vec<u8>>> {
        let socket = self.socket.as_ref().filter(|_| !self.ended && self.under_way < WINDOW)?;
        let mut bytes = [0; PIECE];
        match recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Some(Ok(bytes[..len].to_vec())),
            Err(Errno::AGAIN) => None,
            Err(error) => Some(Err(error.into())),
        }
    }

    /// Gives the engine's socket what has arrived. Returns whether everything is done.
    fn give(&mut self) -> bool {
        let Some(socket) = &self.socket else { return true };
        while !self.arrived.is_empty() {
            match send(socket, self.arrived.as_slices().0, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(len) => drop(self.arrived.drain(..len)),
                Err(Errno::AGAIN) => return false,
                // The engine has closed its socket, and what arrives there is lost.
                Err(_) => self.arrived.clear(),
            }
        }
        if self.end_arrived {
            let _ = shutdown(socket, Shutdown::Write);
        }
        true
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
            self.hosts[host.0].agent.offer_stream(qpn, engines, agreed);
            Ok::<_, io::Error>(StreamSide::new(host.0, own))
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
        for number in 0..self.streams.len() {
            for from in 0..2 {
                let hosts = self.streams[number].sides.each_ref().map(|side| side.host);
                if hosts.iter().any(|host| self.core.state.lock().cut.contains(host)) {
                    continue;
                }
                match self.streams[number].sides[from].take() {
                    None => {}
                    Some(Ok(bytes)) => self.carry_bytes(number, from, bytes),
                    Some(Err(_)) => self.reset(number),
                }
            }
        }
    }

    fn carry_bytes(&mut self, number: usize, from: usize, mut bytes: Vec<u8>) {
        let side = &mut self.streams[number].sides[from];
        let begin = side.sent;
        side.sent += bytes.len() as u64;
        side.ended = bytes.is_empty();
        match side.harm {
            StreamHarm::Corrupt(at) if (begin..side.sent).contains(&at) => bytes[(at - begin) as usize] ^= 0xff,
            StreamHarm::Stall(at, time) if (begin..side.sent).contains(&at) => {
                side.last = side.last.max(self.core.now()) + u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
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
        let [sender, receiver] = {
            let [one, two] = &mut self.streams[number].sides;
            if from == 0 { [one, two] } else { [two, one] }
        };
        sender.under_way = sender.under_way.saturating_sub(bytes.len());
        receiver.arrived.extend(bytes);
        receiver.end_arrived |= sender.ended && sender.under_way == 0 && bytes.is_empty();
        let host = receiver.host;
        self.core.see(&Seen::Stream { stream: number, from, bytes });
        let receiver = &mut self.streams[number].sides[1 - from];
        if !receiver.give() {
            let at = self.core.now() + AGAIN;
            self.core.state.lock().push(at, Event::Bytes { stream: number, from, bytes: Vec::new() });
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
