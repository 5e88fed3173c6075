//! The control path: how an engine calls its agent. The bytes are the same as between a program and
//! the kernel on `/dev/infiniband/uverbsN`.
//!
//! [`Control`] is the whole interface between engine and agent. Processes use [`SocketControl`];
//! the agent's own engines use a channel inside the agent. The layouts of the commands are in the
//! `abi` crate.

mod spare;

use std::io::ErrorKind;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use abi::envelope::{ReplyEnvelope, RequestEnvelope, request as envelope_flag};
use abi::errno::Errno;
use abi::open::{MAGIC, Open, OpenAnswer, VERSION};
use bytemuck::Pod;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::io::retry_on_intr;
use shm::socket::Socket;

use self::spare::Spare;
use crate::error::{Error, Result, by_system, refusal};
use crate::network::Network;
use crate::request;
use crate::simulated::Simulated;

/// The agent's answer: the bytes that a kernel would copy to the program, and descriptors.
#[derive(Debug)]
pub struct Answer {
    /// The response.
    pub bytes: Vec<u8>,
    /// Descriptors, in the order that the command documents.
    pub fds: Vec<OwnedFd>,
}

impl Answer {
    /// The fixed part of the response at `offset`.
    ///
    /// # Errors
    /// EIO when the agent's answer is shorter.
    pub fn get<T: Pod>(&self, offset: usize) -> Result<T> {
        let bytes = self.bytes.get(offset..offset + size_of::<T>());
        bytes.map(bytemuck::pod_read_unaligned).ok_or_else(|| refusal(Errno::EIO, "the agent's answer is too short"))
    }
}

/// One connection to an agent.
pub trait Control: Send + Sync {
    /// Executes one command (header and body), and waits for its answer.
    ///
    /// # Errors
    /// The agent's refusal with its reason; EIO when the agent is gone.
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer>;

    /// Sends one command without waiting for its answer. The commands of one connection are
    /// executed in order.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    fn tell(&self, request: &[u8]) -> Result<()> {
        match self.call(request, &[]) {
            Err(error) if error.errno == Errno::EIO => Err(error),
            _ => Ok(()),
        }
    }

    /// The network for packets to other hosts; `None` for UDP.
    fn network(&self) -> Option<Arc<dyn Network>> {
        None
    }

    /// The simulated time and randomness, if the engine runs only by [`crate::Engine::step`];
    /// `None` for real ones.
    fn simulated(&self) -> Option<Arc<dyn Simulated>> {
        None
    }

    /// Called by each new thread of the engine, on this thread.
    fn enter(&self) {}

    /// Ends the connection. The agent sees the close, even if copies of the descriptor exist.
    fn close(&self);
}

/// Bytes of the largest answer: POLL_CQ with as many entries as fit in a message.
const ANSWER_MAX: usize = 64 * 1024;

/// A connection through one of the agent's sockets.
pub struct SocketControl {
    socket: Socket,
    /// One call at a time.
    stream: Mutex<Stream>,
    closed: AtomicBool,
    agent: u32,
}

struct Stream {
    sequence: u32,
    buffer: Box<[u8]>,
}

impl SocketControl {
    /// Opens the node at `path` with an ABI profile (0 mainline Linux, 1 OFED).
    ///
    /// # Errors
    /// No agent answers at `path`, or the agent has another ABI version.
    pub fn open(path: &Path, profile: u16) -> Result<Self> {
        Ok(Self::open_with_descriptors(path, profile, 0)?.0)
    }

    /// As [`SocketControl::open`], with flags (`abi::open::flag`). Also returns the descriptors of
    /// the answer.
    ///
    /// # Errors
    /// As for [`SocketControl::open`].
    pub fn open_with_descriptors(path: &Path, profile: u16, flags: u32) -> Result<(Self, Vec<OwnedFd>)> {
        let socket = Socket::connect(path).map_err(|error| match error.raw_os_error() {
            Some(errno) => Error::new(
                Errno(errno),
                format!(
                    "no softhca agent answers at {} ({error}): start one with `softhca agent`, or run the program with `softhca run -- PROGRAM`",
                    path.display()
                ),
            ),
            // There is no socket at the path.
            None => by_system(error),
        })?;
        let open = Open { magic: MAGIC, version: VERSION, profile, flags, reserved: 0 };
        let turned_away = || {
            let log = path.with_file_name("agent.log");
            let reason = format!(
                "the agent turned this program away at {}: {} says why; too many programs or open files are the usual reason",
                path.display(),
                log.display()
            );
            Error::new(Errno::ECONNREFUSED, reason)
        };
        let heard = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::BrokenPipe | std::io::ErrorKind::ConnectionReset => turned_away(),
            _ => by_system(error),
        };
        socket.send(bytemuck::bytes_of(&open), &[]).map_err(heard)?;
        let mut bytes = [0u8; size_of::<OpenAnswer>()];
        let received = socket.recv(&mut bytes).map_err(heard)?;
        if received.len == 0 {
            return Err(turned_away());
        }
        let answer: OpenAnswer = bytemuck::pod_read_unaligned(&bytes);
        check(path, &answer, received.len)?;
        let buffer = vec![0; ANSWER_MAX].into_boxed_slice();
        let control = Self {
            socket,
            stream: Mutex::new(Stream { sequence: 0, buffer }),
            closed: AtomicBool::new(false),
            agent: answer.pid,
        };
        Ok((control, received.fds))
    }
}

/// Checks the agent's answer of `len` bytes.
fn check(path: &Path, answer: &OpenAnswer, len: usize) -> Result<()> {
    if len != size_of::<OpenAnswer>() || answer.magic != MAGIC {
        return Err(refusal(Errno::EPROTO, format!("what answers at {} is not a softhca agent", path.display())));
    }
    if answer.version != VERSION {
        // Not noted as a reason: the caller that cannot open the device reports it.
        return Err(Error::new(
            Errno::EPROTONOSUPPORT,
            format!(
                "this library speaks agent ABI {VERSION}, the agent at {} (pid {}) speaks {}: stop it with `softhca agent --stop` and \
                 use a library and an agent of one release",
                path.display(),
                answer.pid,
                answer.version
            ),
        ));
    }
    if answer.status != 0 {
        return Err(refusal(Errno(-answer.status), format!("the agent refused to open {}", path.display())));
    }
    Ok(())
}

/// How long a call polls for its answer before it sleeps, which is enough for most commands.
const LINGER: Duration = Duration::from_micros(50);

impl SocketControl {
    /// The agent's process, as the agent reports it. Another agent process has other devices, even
    /// under the same names.
    #[must_use]
    pub fn agent(&self) -> u32 {
        self.agent
    }

    /// Receives the answer to the last command. Between two polls the agent gets the processor, if
    /// it waits for one.
    fn answer(&self, buffer: &mut [u8]) -> std::io::Result<shm::socket::Received> {
        let polled = poll(|| self.socket.try_recv(buffer));
        polled.unwrap_or_else(|| self.socket.recv(buffer))
    }

    /// As [`SocketControl::answer`]. `spare` gives its place to the descriptors of the answer.
    fn answer_with_descriptors(&self, buffer: &mut [u8], spare: Spare) -> std::io::Result<shm::socket::Received> {
        let mut peek = || self.socket.peek(&mut [0; 1]);
        let peeked = match poll(&mut peek) {
            Some(peeked) => peeked,
            None => {
                retry_on_intr(|| rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], None))?;
                peek()
            }
        };
        peeked?;
        drop(spare);
        self.socket.recv(buffer)
    }
}

/// Repeats an attempt to read for a while, as long as there is nothing to read.
fn poll<T>(mut attempt: impl FnMut() -> std::io::Result<T>) -> Option<std::io::Result<T>> {
    shm::spin::spin(LINGER, || match attempt() {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        done => Some(done),
    })
}

/// The error of every call after the agent has gone.
pub(crate) fn gone() -> Error {
    Error::new(Errno::EIO, "the softhca agent is gone, and with it the device")
}

/// Why a command did not reach the agent.
fn not_sent(error: &std::io::Error) -> Error {
    if error.raw_os_error() != Some(libc::ETOOMANYREFS) {
        return gone();
    }
    refusal(
        Errno::EMFILE,
        "more descriptors are on their way between this user's processes than one process may have open: let programs go on that are stopped, \
         or raise the limit (ulimit -n)",
    )
}

/// The process has no room for the descriptors of an answer.
pub(crate) fn too_many_open() -> Error {
    refusal(
        Errno::EMFILE,
        "the agent's descriptors do not fit: this process has too many open files; raise its limit (`ulimit -n`)",
    )
}

impl Control for SocketControl {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        let mut stream = self.stream.lock();
        if self.closed.load(Ordering::Relaxed) {
            return Err(gone());
        }
        let Stream { sequence, buffer } = &mut *stream;
        let spare = match request::descriptors(request) {
            0 => None,
            count => Some(Spare::open(&self.socket, count).map_err(|_| too_many_open())?),
        };
        *sequence = sequence.wrapping_add(1);
        let envelope = RequestEnvelope { sequence: *sequence, flags: 0 };
        let message = [bytemuck::bytes_of(&envelope), request].concat();
        self.socket.send(&message, fds).map_err(|error| not_sent(&error))?;
        let received = match spare {
            Some(spare) => self.answer_with_descriptors(buffer, spare),
            None => self.answer(buffer),
        };
        let received = received.map_err(|_| gone())?;
        const HEAD: usize = size_of::<ReplyEnvelope>();
        let message = buffer.get(..received.len).filter(|message| message.len() >= HEAD).ok_or_else(gone)?;
        let (head, bytes) = message.split_at(HEAD);
        let envelope: ReplyEnvelope = bytemuck::pod_read_unaligned(head);
        if envelope.sequence != *sequence {
            return Err(refusal(Errno::EIO, "the agent answered another command"));
        }
        if envelope.status < 0 {
            let (errno, reason) = (Errno(-envelope.status), String::from_utf8_lossy(bytes).into_owned());
            // Nothing has failed: programs read whole tables, so an empty entry is a normal answer,
            // and so is "not yet".
            let quiet = matches!(errno, Errno::ENODATA | Errno::EAGAIN);
            return Err(if quiet { Error::new(errno, reason) } else { refusal(errno, reason) });
        }
        if !received.truncated {
            return Ok(Answer { bytes: bytes.to_vec(), fds: received.fds });
        }
        // Another thread has opened files just now. Who made or changed an object undoes this, and
        // therefore gets the answer without the descriptors.
        if !request::is_undone(request) {
            return Err(too_many_open());
        }
        Ok(Answer { bytes: bytes.to_vec(), fds: Vec::new() })
    }

    fn tell(&self, request: &[u8]) -> Result<()> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(gone());
        }
        let envelope = RequestEnvelope { sequence: 0, flags: envelope_flag::QUIET };
        let message = [bytemuck::bytes_of(&envelope), request].concat();
        self.socket.send(&message, &[]).map_err(|_| gone())
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        // This also ends a call that waits for its answer.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd, AsRawFd};

    use abi::command::number as command;
    use abi::cq::CreateCq;

    use super::*;

    /// How many descriptors of this process are this socket.
    fn copies(socket: &Socket) -> usize {
        let name = |path: &Path| std::fs::read_link(path).ok();
        let own = name(Path::new(&format!("/proc/self/fd/{}", socket.as_fd().as_raw_fd())));
        let all = std::fs::read_dir("/proc/self/fd").expect("the descriptors");
        all.filter_map(|entry| name(&entry.ok()?.path())).filter(|name| Some(name) == own.as_ref()).count()
    }

    #[test]
    fn spare_descriptors_are_open_only_while_a_command_runs() {
        let (socket, agent) = Socket::pair().expect("a connection");
        let stream = Mutex::new(Stream { sequence: 0, buffer: vec![0; 4096].into_boxed_slice() });
        let control = SocketControl { socket, stream, closed: AtomicBool::new(false), agent: 0 };
        let body = CreateCq { response: 1, user_handle: 0, cqe: 1, comp_vector: 0, comp_channel: -1, reserved: 0 };
        let request = request::legacy(command::CREATE_CQ, &body, 64);
        for status in [0, Errno::ENOMEM.to_status()] {
            let answer = std::thread::scope(|scope| {
                let call = scope.spawn(|| control.call(&request, &[]));
                let arrived = agent.recv(&mut [0; 4096]).expect("a command");
                assert!(arrived.len > size_of::<RequestEnvelope>());
                assert_eq!(copies(&control.socket), 2, "room for the answer's descriptor");
                let sequence = if status == 0 { 1 } else { 2 };
                let head = ReplyEnvelope { sequence, status, fds: 0, reserved: 0 };
                agent.send(bytemuck::bytes_of(&head), &[]).expect("sent");
                call.join().expect("no panic")
            });
            assert_eq!(answer.is_ok(), status == 0);
            assert_eq!(copies(&control.socket), 1, "also after an answer without descriptors");
        }
    }
}
