//! An open `umadN`: `ioctl`, `read` and `write`. Which descriptors are such files is in
//! [`crate::mads`]. [`abi::umad::client`] has the rules that all clients share. The principal type
//! is [`File`].

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use abi::umad::client::{Key, answer, fit, whole};
use abi::umad::{self, FileReply, FileRequest, MESSAGE_MAX, NODE, PIECE, SHORT_HEADER, kind};
use abi::{Errno, Record};

use crate::connection::Connection;
use crate::entry::Refusal;
use crate::packet::{self, Memory};

/// The smallest datagram that `write` accepts: `IB_MGMT_RMPP_HDR`.
const SMALLEST: usize = 36;
/// The bit of a request whose argument the kernel changes, `_IOC_READ`.
const CHANGES: u32 = 1 << 31;
/// How often a reader gives way to another reader of the file.
const TRIES: usize = 10_000;

/// The agent has ended.
pub(crate) const GONE: Refusal = Refusal(libc::EIO);

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self(errno.0)
    }
}

/// Waits for an answer; also when signals arrive, unless the wait is `interruptible`. Returns its
/// value, and the length of what follows it in `beginning`.
pub(crate) fn answered(
    fd: c_int,
    beginning: &mut [u8],
    rest: Memory,
    interruptible: bool,
) -> Result<(u32, usize), Refusal> {
    let mut tries = 0;
    let length = loop {
        match packet::receive(fd, beginning, rest) {
            Err(Refusal(libc::EINTR)) if !interruptible => {}
            // If the agent did not read all of the request, its answer is behind this end.
            Ok(0) if tries == 0 => tries = 1,
            received => break received?,
        }
    };
    let (value, data) = answer(beginning.get(..length.min(beginning.len())).unwrap_or_default())?;
    Ok((value, data.len()))
}

/// What this library knows of an open file. It is complete before the program gets the descriptor.
pub(crate) struct File {
    key: [AtomicU64; 2],
    /// The length of the header of messages.
    header: AtomicUsize,
    /// Whether a reader is between its look at the next message and receiving it.
    is_taken: AtomicBool,
}

impl File {
    pub(crate) const fn new() -> Self {
        Self { key: [const { AtomicU64::new(0) }; 2], header: AtomicUsize::new(0), is_taken: AtomicBool::new(false) }
    }

    /// Makes it a new file with this key.
    pub(crate) fn begin(&self, key: Key) {
        let (halves, _) = key.as_chunks::<8>();
        for (word, half) in self.key.iter().zip(halves) {
            word.store(u64::from_ne_bytes(*half), Ordering::Relaxed);
        }
        self.header.store(SHORT_HEADER, Ordering::Relaxed);
        self.is_taken.store(false, Ordering::Relaxed);
    }

    /// Makes it a file that another process has opened.
    pub(crate) fn adopt(&self, key: Key) -> Result<(), Refusal> {
        self.begin(key);
        let header = self.call(kind::HEADER, 0, Memory::NOTHING, Memory::NOTHING)?;
        self.header.store(header as usize, Ordering::Relaxed);
        Ok(())
    }

    /// Makes it the same file as another one.
    pub(crate) fn copy(&self, from: &Self) {
        self.begin(from.key());
        self.header.store(from.header(), Ordering::Relaxed);
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
        self.header.load(Ordering::Relaxed)
    }

    pub(crate) fn control(&self, request: u32, argument: *mut c_void) -> Result<c_int, Refusal> {
        let length = umad::argument(request).ok_or(Refusal(libc::ENOTTY))?;
        let argument = Memory::new(argument, length);
        let result = if request & CHANGES != 0 { argument } else { Memory::NOTHING };
        let header = self.call(kind::IOCTL, request, argument, result)?;
        self.header.store(header as usize, Ordering::Relaxed);
        Ok(0)
    }

    pub(crate) fn write(&self, message: Memory) -> Result<isize, Refusal> {
        let (length, header) = (message.length(), self.header());
        if length < header.wrapping_add(SMALLEST) || length > header.wrapping_add(MESSAGE_MAX) {
            return Err(Refusal(libc::EINVAL));
        }
        self.call(kind::WRITE, length as u32, message, Memory::NOTHING)?;
        Ok(length.cast_signed())
    }

    /// Calls the agent, and writes the changed argument to `result`, also when the call fails.
    fn call(&self, kind: u32, number: u32, argument: Memory, result: Memory) -> Result<u32, Refusal> {
        let connection = Connection::to(NODE, GONE)?;
        let request = FileRequest::call(kind, number, self.key());
        let first = PIECE.wrapping_sub(size_of::<FileRequest>());
        send(&connection, request.bytes(), argument.first(first))?;
        let mut rest = argument.after(first);
        while rest.length() > 0 {
            match send(&connection, &[], rest.first(PIECE)) {
                // The agent may have refused the message before its end.
                Err(GONE) => break,
                sent => sent?,
            }
            rest = rest.after(PIECE);
        }
        let mut beginning = [0; size_of::<FileReply>()];
        Ok(answered(connection.fd(), &mut beginning, result, false)?.0)
    }

    pub(crate) fn read(&self, fd: c_int, room: Memory) -> Result<isize, Refusal> {
        let header = self.header();
        if room.length() < header {
            return Err(Refusal(libc::EINVAL));
        }
        loop {
            match packet::wait(fd) {
                Ok(0) => return Err(GONE),
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

/// Sends a packet of a call.
fn send(connection: &Connection, beginning: &[u8], rest: Memory) -> Result<(), Refusal> {
    packet::send(connection.fd(), beginning, rest).map_err(|refusal| match refusal {
        Refusal(libc::EPIPE | libc::ECONNRESET) => GONE,
        other => other,
    })
}

/// Receives the next message, if there is one and `room` is large enough.
fn take_next(fd: c_int, header: usize, room: Memory) -> Result<usize, Refusal> {
    let mut beginning = [0; SHORT_HEADER];
    packet::peek(fd, Memory::new(beginning.as_mut_ptr().cast(), SHORT_HEADER))?;
    let whole = whole(&beginning).ok_or(GONE)?;
    if let Err((copied, errno)) = fit(whole, room.length(), header) {
        packet::peek(fd, room.first(copied))?;
        return Err(errno.into());
    }
    let mut length = packet::take(fd, room.first(whole))?;
    while length < whole {
        match packet::take(fd, room.first(whole).after(length)) {
            Ok(0) => return Err(GONE),
            Ok(more) => length = length.wrapping_add(more),
            // The agent sends the rest of a message when there is space for it.
            Err(Refusal(libc::EAGAIN)) => packet::wait_always(fd),
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_requests_are_refused_without_the_agent() {
        let file = File::new();
        file.begin(*b"0123456789abcdef");
        assert_eq!((file.key(), file.header()), (*b"0123456789abcdef", SHORT_HEADER));
        assert_eq!(file.control(0x1b09, std::ptr::null_mut()), Err(Refusal(libc::ENOTTY)));
        let short = Memory::new(std::ptr::null_mut(), SHORT_HEADER + SMALLEST - 1);
        assert_eq!(file.write(short), Err(Refusal(libc::EINVAL)));
        let long = Memory::new(std::ptr::null_mut(), SHORT_HEADER + MESSAGE_MAX + 1);
        assert_eq!(file.write(long), Err(Refusal(libc::EINVAL)));
    }
}
