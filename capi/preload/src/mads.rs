//! The nodes of management datagrams, `/dev/infiniband/umadN` and `issmN`: opening them, and
//! `ioctl`, `read` and `write` on `umadN`. [`abi::umad`] is the contract with the agent.
//!
//! An open file is a connection to the agent's node. Datagrams for the program arrive there, so
//! that `poll` and its relatives need no replacement. `ioctl` and `write` make another connection
//! for each call. They name the file by its key, which this library keeps for each descriptor
//! ([`File`]). [`Marks`] remembers which descriptors are files. So the functions here do not know a
//! duplicate of a descriptor, nor a descriptor after `exec`: `ioctl` fails there with ENOTTY. A
//! forked child can use the files of its parent.
//!
//! Errnos and lengths are those of Linux's `user_mad.c`. If the agent ends, calls fail with EIO, as
//! they do in a kernel after the device was removed.

use std::ffi::{c_int, c_ulong, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi::Record;
use abi::umad::{self, DATAGRAM, FileReply, FileRequest, MESSAGE_MAX, NODE, SHORT_HEADER, UserMad, ioctl, kind};
use interpose::intercept;

use crate::connection::Connection;
use crate::entry::{Refusal, refused};
use crate::marks::{DESCRIPTORS, Marks};
use crate::next::Function;
use crate::packet::{self, Memory};

/// The header of messages after ENABLE_PKEY.
const LONG_HEADER: usize = size_of::<UserMad>();
/// The smallest datagram that `write` accepts: `IB_MGMT_RMPP_HDR`.
const SMALLEST: usize = 36;
/// The type of the ioctl requests, `IB_IOCTL_MAGIC`.
const REQUEST_TYPE: u32 = 0x1b;
/// The bit of a request whose argument the kernel changes, `_IOC_READ`.
const CHANGES: u32 = 1 << 31;
/// How often a reader gives way to another reader of the file.
const TRIES: usize = 10_000;

intercept! {
    /// `ioctl`. The argument is always passed on, even if the program gave none: it is in a
    /// register.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int as next => match file(fd) {
        Some(file) if request as u32 >> 8 & 0xff == REQUEST_TYPE =>
            file.control(request as u32, argument).unwrap_or_else(refused),
        _ => next(fd, request, argument),
    };
    /// `write`.
    fn write(fd: c_int, buffer: *mut c_void, size: usize) -> isize as next => match file(fd) {
        Some(file) => file.write(Memory::new(buffer, size)).unwrap_or_else(refused),
        None => next(fd, buffer, size),
    };
    /// `read`.
    fn read(fd: c_int, buffer: *mut c_void, size: usize) -> isize as next => match file(fd) {
        Some(file) => file.read(fd, Memory::new(buffer, size)).unwrap_or_else(refused),
        None => next(fd, buffer, size),
    };
    /// `read` of programs that were built with fortification. If the buffer is too small, the next
    /// function ends the program.
    fn __read_chk(fd: c_int, buffer: *mut c_void, size: usize, room: usize) -> isize as next => match file(fd) {
        Some(file) if size <= room => file.read(fd, Memory::new(buffer, size)).unwrap_or_else(refused),
        _ => next(fd, buffer, size, room),
    };
}

/// Opens `umadN` with the flags of `open`.
pub(crate) fn open_mads(number: u32, flags: c_int) -> Result<c_int, Refusal> {
    opened(kind::OPEN_MADS, number, flags)
}

/// Opens `issmN` with the flags of `open`. Waits until no other file of this node is open.
pub(crate) fn open_subnet_manager(number: u32, flags: c_int) -> Result<c_int, Refusal> {
    opened(kind::OPEN_MANAGER, number, flags)
}

fn opened(kind: u32, number: u32, flags: c_int) -> Result<c_int, Refusal> {
    let connection = Connection::to(NODE, Refusal(libc::ENXIO))?;
    let nonblocking = (flags & libc::O_NONBLOCK != 0).into();
    let request = FileRequest { kind, number, nonblocking, ..FileRequest::default() };
    packet::send(connection.fd(), request.bytes(), Memory::NOTHING).map_err(|_| Refusal(libc::ENXIO))?;
    let mut answer = [0; size_of::<FileReply>() + size_of::<Key>()];
    // Another subnet manager may keep the port for long. A signal ends the wait, as in a kernel.
    let length = match kind {
        kind::OPEN_MANAGER => packet::receive(connection.fd(), &mut answer, Memory::NOTHING)?,
        _ => replied(connection.fd(), &mut answer, Memory::NOTHING)?,
    };
    outcome(answer.get(..length).unwrap_or_default())?;
    // These flags of `open` have the numbers of the socket's options.
    connection.settle(flags & (libc::O_CLOEXEC | libc::O_NONBLOCK))?;
    // A mark may be left from a closed file that had this descriptor.
    FILES.set(connection.fd(), false);
    if kind == kind::OPEN_MADS {
        let key = answer.get(size_of::<FileReply>()..length).and_then(|key| Key::try_from(key).ok());
        let file = usize::try_from(connection.fd()).ok().and_then(|fd| TABLE.get(fd)).ok_or(Refusal(libc::EMFILE))?;
        file.begin(key.ok_or(Refusal(libc::EIO))?);
        FILES.set(connection.fd(), true);
    }
    Ok(connection.keep())
}

/// The status of a reply, and what the call returns.
fn outcome(answer: &[u8]) -> Result<u32, Refusal> {
    match FileReply::read(answer) {
        Some(FileReply { status: 0, value }) => Ok(value),
        Some(FileReply { status, .. }) => Err(Refusal(status.wrapping_neg())),
        None => Err(Refusal(libc::EIO)),
    }
}

/// Waits for the reply, also when signals arrive. Without a reply, its length is 0.
fn replied(fd: c_int, beginning: &mut [u8], rest: Memory) -> Result<usize, Refusal> {
    loop {
        match packet::receive(fd, beginning, rest) {
            Err(Refusal(libc::EINTR)) => {}
            received => return received,
        }
    }
}

/// The file of a descriptor that is one.
#[inline]
fn file(fd: c_int) -> Option<&'static File> {
    if FILES.is_ours(fd) { TABLE.get(usize::try_from(fd).ok()?) } else { None }
}

/// The descriptors of open files.
static FILES: Marks = Marks::of(NODE);
/// The file of each of them. Pages that were never used have no memory.
static TABLE: [File; DESCRIPTORS] = [const { File::new() }; _];

type Key = [u8; 16];

/// What this library knows of an open file. It is complete before the program gets the descriptor.
struct File {
    key: [AtomicU64; 2],
    /// The length of the header, or 0 until the first registration decides about it.
    header: AtomicUsize,
    /// Whether a reader is between its look at the next message and receiving it.
    is_taken: AtomicBool,
}

impl File {
    const fn new() -> Self {
        Self { key: [const { AtomicU64::new(0) }; 2], header: AtomicUsize::new(0), is_taken: AtomicBool::new(false) }
    }

    /// Makes it a new file with this key.
    fn begin(&self, key: Key) {
        let (halves, _) = key.as_chunks::<8>();
        for (word, half) in self.key.iter().zip(halves) {
            word.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
        }
        self.header.store(0, Ordering::Relaxed);
        self.is_taken.store(false, Ordering::Relaxed);
    }

    fn key(&self) -> Key {
        let mut key = Key::default();
        let (halves, _) = key.as_chunks_mut::<8>();
        for (half, word) in halves.iter_mut().zip(&self.key) {
            *half = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        key
    }

    fn header(&self) -> usize {
        match self.header.load(Ordering::Relaxed) {
            0 => SHORT_HEADER,
            header => header,
        }
    }

    /// Remembers the header that the messages have after a request.
    fn note(&self, request: u32) {
        let header = match request {
            ioctl::REGISTER_AGENT => SHORT_HEADER,
            ioctl::REGISTER_AGENT2 | ioctl::ENABLE_PKEY => LONG_HEADER,
            _ => return,
        };
        // The first one decides. Later ones change nothing.
        let _ = self.header.compare_exchange(0, header, Ordering::Relaxed, Ordering::Relaxed);
    }

    fn control(&self, request: u32, argument: *mut c_void) -> Result<c_int, Refusal> {
        let length = umad::argument(request).ok_or(Refusal(libc::ENOTTY))?;
        let argument = Memory::new(argument, length);
        let result = if request & CHANGES != 0 { argument } else { Memory::NOTHING };
        let value = self.call(kind::IOCTL, request, argument, result)?;
        self.note(request);
        Ok(value.cast_signed())
    }

    fn write(&self, message: Memory) -> Result<isize, Refusal> {
        let (length, header) = (message.length(), self.header());
        if length < header.wrapping_add(SMALLEST) || length > header.wrapping_add(MESSAGE_MAX) {
            return Err(Refusal(libc::EINVAL));
        }
        self.call(kind::WRITE, 0, message, Memory::NOTHING)?;
        Ok(length.cast_signed())
    }

    /// Calls the agent, and writes the changed argument to `result`, also when the call fails.
    fn call(&self, kind: u32, number: u32, argument: Memory, result: Memory) -> Result<u32, Refusal> {
        const GONE: Refusal = Refusal(libc::EIO);
        let connection = Connection::to(NODE, GONE)?;
        let request = FileRequest { kind, number, key: self.key(), ..FileRequest::default() };
        packet::send(connection.fd(), request.bytes(), argument).map_err(|refusal| match refusal {
            Refusal(libc::EPIPE | libc::ECONNRESET) => GONE,
            other => other,
        })?;
        let mut answer = [0; size_of::<FileReply>()];
        let length = replied(connection.fd(), &mut answer, result)?;
        outcome(answer.get(..length.min(answer.len())).unwrap_or_default())
    }

    fn read(&self, fd: c_int, room: Memory) -> Result<isize, Refusal> {
        let header = self.header();
        if room.length() < header {
            return Err(Refusal(libc::EINVAL));
        }
        loop {
            match packet::wait(fd) {
                Ok(0) => return Err(Refusal(libc::EIO)),
                Ok(_) => {}
                Err(refusal) => return Err(refusal),
            }
            match self.alone(|| take_next(fd, header, room)) {
                // Another thread has received it.
                Err(Refusal(libc::EAGAIN)) => {}
                taken => return taken.map(usize::cast_signed),
            }
        }
    }

    /// Calls `take` while no other reader of this process calls it, because a message that is
    /// longer than a reader's room must not be received. A reader that was interrupted does not
    /// stop the others for long. So this is no lock.
    fn alone<R>(&self, take: impl FnOnce() -> R) -> R {
        for _ in 0..TRIES {
            if !self.is_taken.swap(true, Ordering::Acquire) {
                break;
            }
            std::thread::yield_now();
        }
        let taken = take();
        self.is_taken.store(false, Ordering::Release);
        taken
    }
}

/// Receives the next message, if there is one and `room` is large enough.
fn take_next(fd: c_int, header: usize, room: Memory) -> Result<usize, Refusal> {
    match copied(packet::peek(fd, Memory::NOTHING)?, room.length(), header) {
        Ok(()) => packet::take(fd, room),
        Err((length, refusal)) => {
            packet::peek(fd, room.first(length))?;
            Err(refusal)
        }
    }
}

/// Whether a message fits. Otherwise how much of it the program gets, and with which errno.
fn copied(message: usize, room: usize, header: usize) -> Result<(), (usize, Refusal)> {
    let first = header.wrapping_add(DATAGRAM);
    if message <= room {
        Ok(())
    } else if message <= first || room < first {
        Err((0, Refusal(libc::EINVAL)))
    } else {
        // The first segment has the length of the whole message.
        Err((first, Refusal(libc::ENOSPC)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_does_not_fit_stays() {
        for header in [SHORT_HEADER, LONG_HEADER] {
            let first = header + DATAGRAM;
            for (message, room, expected) in [
                (first, first, Ok(())),
                (header + 24, first, Ok(())),
                (header + 24, header + 23, Err((0, Refusal(libc::EINVAL)))),
                (first, first - 1, Err((0, Refusal(libc::EINVAL)))),
                (first + 1, first - 1, Err((0, Refusal(libc::EINVAL)))),
                (first + 1, first, Err((first, Refusal(libc::ENOSPC)))),
                (5000, 4999, Err((first, Refusal(libc::ENOSPC)))),
                (5000, 5000, Ok(())),
            ] {
                assert_eq!(copied(message, room, header), expected, "{message} in {room}");
            }
        }
    }

    #[test]
    fn the_first_registration_decides_about_the_header() {
        let file = File::new();
        file.begin(*b"0123456789abcdef");
        assert_eq!((file.key(), file.header()), (*b"0123456789abcdef", SHORT_HEADER));
        file.note(ioctl::UNREGISTER_AGENT);
        file.note(ioctl::REGISTER_AGENT2);
        assert_eq!(file.header(), LONG_HEADER);
        file.note(ioctl::REGISTER_AGENT);
        assert_eq!(file.header(), LONG_HEADER);
        file.begin(Key::default());
        file.note(ioctl::REGISTER_AGENT);
        file.note(ioctl::REGISTER_AGENT2);
        assert_eq!(file.header(), SHORT_HEADER);
    }

    #[test]
    fn replies_become_results() {
        let reply = |status, value| FileReply { status, value };
        assert_eq!(outcome(reply(0, 3).bytes()), Ok(3));
        assert_eq!(outcome(reply(-libc::EINVAL, 3).bytes()), Err(Refusal(libc::EINVAL)));
        assert_eq!(outcome(&[0; 7]), Err(Refusal(libc::EIO)));
    }

    #[test]
    fn unknown_requests_are_refused_without_the_agent() {
        let unknown = File::new().control(0x1b09, std::ptr::null_mut());
        assert_eq!(unknown, Err(Refusal(libc::ENOTTY)));
        let short = Memory::new(std::ptr::null_mut(), SHORT_HEADER + SMALLEST - 1);
        assert_eq!(File::new().write(short), Err(Refusal(libc::EINVAL)));
        let long = Memory::new(std::ptr::null_mut(), SHORT_HEADER + MESSAGE_MAX + 1);
        assert_eq!(File::new().write(long), Err(Refusal(libc::EINVAL)));
    }
}
