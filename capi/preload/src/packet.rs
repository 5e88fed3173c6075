//! Packets on a connection to the agent, in two pieces: one of this library, and one of the
//! program. The kernel alone reads and writes the program's memory here. It checks the address, and
//! the result for a bad one is EFAULT, as in a system call. The principal type is [`Memory`].

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, MSG_PEEK, MSG_TRUNC, iovec, msghdr};

use crate::entry::{Refusal, last_refusal};
use crate::next::Function;

/// Memory of the program. It may be an address that does not exist.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    at: *mut c_void,
    length: usize,
}

impl Memory {
    /// No bytes.
    pub(crate) const NOTHING: Self = Self { at: null_mut(), length: 0 };

    /// This many bytes at an address of the program.
    pub(crate) fn new(at: *mut c_void, length: usize) -> Self {
        Self { at, length }
    }

    /// How many bytes it has.
    pub(crate) fn length(self) -> usize {
        self.length
    }

    /// The first bytes of it.
    pub(crate) fn first(self, length: usize) -> Self {
        Self { at: self.at, length: self.length.min(length) }
    }

    /// What follows the first bytes of it.
    pub(crate) fn after(self, first: usize) -> Self {
        let first = self.length.min(first);
        Self { at: self.at.wrapping_byte_add(first), length: self.length.wrapping_sub(first) }
    }
}

/// Sends one packet.
pub(crate) fn send(fd: c_int, beginning: &[u8], rest: Memory) -> Result<(), Refusal> {
    let beginning = Memory { at: beginning.as_ptr().cast_mut().cast(), length: beginning.len() };
    loop {
        match with_message(beginning, rest, |message| {
            // SAFETY: a message of this function. The kernel reads the pieces, and checks that the
            // program's is readable.
            unsafe { libc::syscall(libc::SYS_sendmsg, fd, message, MSG_NOSIGNAL) }
        }) {
            Err(Refusal(libc::EINTR)) => {}
            sent => return sent.map(drop),
        }
    }
}

/// Waits for a packet, and receives it. Returns its length, at most that of the two pieces. The end
/// of the connection has length 0.
pub(crate) fn receive(fd: c_int, beginning: &mut [u8], rest: Memory) -> Result<usize, Refusal> {
    let beginning = Memory { at: beginning.as_mut_ptr().cast(), length: beginning.len() };
    ended(with_message(beginning, rest, |message| {
        // SAFETY: a message of this function. The kernel writes to the pieces, and checks that the
        // program's is writable.
        unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, 0) }
    }))
}

/// Receives the next packet if there is one. Returns its length, at most that of `room`.
pub(crate) fn take(fd: c_int, room: Memory) -> Result<usize, Refusal> {
    at_once(fd, room, 0)
}

/// Waits for a packet, whatever the descriptor's O_NONBLOCK says.
pub(crate) fn wait_always(fd: c_int) {
    let mut file = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let forever = null_mut::<libc::timespec>();
    // SAFETY: one local struct. A signal ends the wait, and then the caller looks again.
    unsafe { libc::syscall(libc::SYS_ppoll, &raw mut file, 1, forever, null_mut::<c_void>(), 0) };
}

/// Copies the beginning of the next packet, which remains the next one. Returns its whole length.
pub(crate) fn peek(fd: c_int, room: Memory) -> Result<usize, Refusal> {
    at_once(fd, room, MSG_PEEK | MSG_TRUNC)
}

/// Waits for a packet as long as the descriptor's O_NONBLOCK says. Returns the length of the
/// packet, which remains the next one, or 0 at the end of the connection. Calls the C library, in
/// which a waiting thread can be cancelled.
#[inline]
pub(crate) fn wait(fd: c_int) -> Result<usize, Refusal> {
    type Next = unsafe extern "C" fn(c_int, *mut msghdr, c_int) -> isize;
    // SAFETY: the type is the one that the C library's manual gives.
    let next = unsafe { Function::recvmsg.next::<Next>() }.ok_or(Refusal(libc::ENOSYS))?;
    ended(with_message(Memory::NOTHING, Memory::NOTHING, |message| {
        // SAFETY: a message of this function, without memory to write to.
        unsafe { next(fd, message, MSG_PEEK | MSG_TRUNC) as i64 }
    }))
}

/// The end of a connection. The kernel has another result if the agent did not receive everything.
fn ended(received: Result<usize, Refusal>) -> Result<usize, Refusal> {
    if received == Err(Refusal(libc::ECONNRESET)) { Ok(0) } else { received }
}

fn at_once(fd: c_int, room: Memory, flags: c_int) -> Result<usize, Refusal> {
    with_message(room, Memory::NOTHING, |message| {
        // SAFETY: a message of this function. The kernel writes to the program's memory, and checks
        // that it is writable.
        unsafe { libc::syscall(libc::SYS_recvmsg, fd, message, flags | MSG_DONTWAIT) }
    })
}

#[inline]
fn with_message(beginning: Memory, rest: Memory, call: impl FnOnce(*mut msghdr) -> i64) -> Result<usize, Refusal> {
    let mut pieces = [beginning, rest].map(|piece| iovec { iov_base: piece.at, iov_len: piece.length });
    // SAFETY: a struct of numbers and pointers, which may all be zero.
    let mut message: msghdr = unsafe { zeroed() };
    message.msg_iov = pieces.as_mut_ptr();
    message.msg_iovlen = pieces.len();
    usize::try_from(call(&raw mut message)).map_err(|_| last_refusal())
}
