//! What a queue pair of iWARP keeps: its stream, the stream's socket, and the requests that the
//! stream has not completed. Principal type: [`StreamPart`]. `R` is a receive request.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use iwarp::Transmit;
use protocol::{Operation, SendOp, Status};
use rustix::event::epoll::EventFlags;
use rustix::net::{SocketAddrAny, getpeername, getsockname};

use super::gate::Gate;
use super::output::Output;
use crate::post_error::PostCause;

/// What a queue pair of iWARP keeps.
pub(crate) struct StreamPart<R> {
    /// Requests that the stream has not taken yet: those of the batch that is being posted.
    pub(super) posted: VecDeque<SendOp>,
    /// Binds and invalidations that the stream has not carried out.
    pub(super) locals: VecDeque<SendOp>,
    pub(super) live: Option<Box<Live<R>>>,
}

/// A stream and its socket.
pub(super) struct Live<R> {
    pub(super) stream: iwarp::Stream,
    pub(super) socket: OwnedFd,
    pub(super) addresses: Addresses,
    pub(super) output: Output,
    /// Requests that have ended, and whose bytes the socket may not have taken.
    pub(super) ended: VecDeque<EndedRequest>,
    /// How to end the sending direction behind the output.
    pub(super) end: Option<Transmit>,
    /// What the socket is watched for.
    pub(super) interest: EventFlags,
    /// The socket has no room: it is watched for room.
    pub(super) is_full: bool,
    /// The peer has closed its direction.
    pub(super) peer_ended: bool,
    /// The socket sends no more. What has arrived before is still read.
    pub(super) is_broken: bool,
    /// A fault rule holds the output back until this time.
    pub(super) stalls_until: Option<Duration>,
    pub(super) gate: Gate,
    /// Bytes that the socket has taken and given.
    pub(super) sent: u64,
    pub(super) received: u64,
    /// READs that may be outstanding.
    pub(super) ord: u16,
    pub(super) receives: Receives<R>,
}

/// A request that the stream has completed. Its completion waits until the socket has taken its
/// bytes, because the queue pair may end after it, and then what is in the output is lost.
pub(super) struct EndedRequest {
    pub(super) slot: u32,
    pub(super) status: Status,
    /// It waits until the socket has taken so many bytes.
    pub(super) sent: u64,
}

impl<R> StreamPart<R> {
    /// Whether requests go to the stream. Otherwise the requester flushes them.
    pub(crate) fn takes_requests(&self) -> bool {
        self.live.is_some()
    }

    /// Adds a request, which is sent at the end of the batch.
    pub(crate) fn post(&mut self, op: SendOp) {
        self.posted.push_back(op);
    }

    /// Takes back the last `count` requests of the batch.
    pub(crate) fn take_back(&mut self, count: u32) {
        self.posted.truncate(self.posted.len().saturating_sub(count as usize));
    }

    /// Checks what iWARP demands of a request besides the usual.
    pub(crate) fn check(&self, operation: Operation, sges: usize, opcode: u32) -> Result<(), PostCause> {
        match operation {
            Operation::Read if sges > 1 => Err(PostCause::TooManySges { given: sges, most: 1 }),
            Operation::Read | Operation::CmpSwap | Operation::FetchAdd
                if self.live.as_ref().is_some_and(|live| live.ord == 0) =>
            {
                Err(PostCause::NoReads)
            }
            Operation::SendImm | Operation::WriteImm | Operation::AtomicWrite | Operation::Flush => {
                Err(PostCause::NotOfIwarp { opcode })
            }
            _ => Ok(()),
        }
    }
}

impl<R> Default for StreamPart<R> {
    fn default() -> Self {
        Self { posted: VecDeque::new(), locals: VecDeque::new(), live: None }
    }
}

/// The addresses of a stream's connection. An IPv4 address is a mapped one.
#[derive(Clone, Copy)]
pub(super) struct Addresses {
    pub(super) local: ([u8; 16], u16),
    pub(super) remote: ([u8; 16], u16),
}

impl Addresses {
    /// The addresses of a socket. Zeros stand for those that are not known: the connection may be
    /// gone already.
    pub(super) fn of(socket: &OwnedFd) -> Self {
        let plain = |at: Option<SocketAddrAny>| {
            let at = at.and_then(|at| SocketAddr::try_from(at).ok());
            at.map_or(([0; 16], 0), |at| match at.ip() {
                IpAddr::V4(ip) => (ip.to_ipv6_mapped().octets(), at.port()),
                IpAddr::V6(ip) => (ip.octets(), at.port()),
            })
        };
        Self { local: plain(getsockname(socket).ok()), remote: plain(getpeername(socket).ok().flatten()) }
    }
}

/// The receive requests that the stream has taken and not completed, from the oldest on.
pub(super) struct Receives<R> {
    taken: VecDeque<R>,
    /// The number of the oldest.
    first: u64,
}

impl<R> Receives<R> {
    pub(super) fn add(&mut self, receive: R) -> u64 {
        self.taken.push_back(receive);
        self.first + self.taken.len() as u64 - 1
    }

    pub(super) fn get(&self, id: u64) -> Option<&R> {
        self.taken.get(usize::try_from(id.checked_sub(self.first)?).ok()?)
    }

    /// Takes a request that has ended. Requests end in their order.
    pub(super) fn remove(&mut self, id: u64) -> Option<R> {
        if id != self.first {
            return None;
        }
        self.first += 1;
        self.taken.pop_front()
    }

    /// Takes all.
    pub(super) fn drain(&mut self) -> VecDeque<R> {
        self.first += self.taken.len() as u64;
        std::mem::take(&mut self.taken)
    }
}

impl<R> Default for Receives<R> {
    fn default() -> Self {
        Self { taken: VecDeque::new(), first: 0 }
    }
}
