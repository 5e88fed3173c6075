//! The bytes that a stream has written and its socket has not taken. Principal type: [`Output`].

use std::io;
use std::os::fd::OwnedFd;

use rustix::net::{SendFlags, send};

/// Bytes of the buffer: a few FPDUs, so that a system call carries many.
const LEN: usize = 256 * 1024;

/// A bounded buffer before a socket.
pub(super) struct Output {
    bytes: Box<[u8]>,
    begin: usize,
    end: usize,
}

/// What became of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Flushed {
    /// The socket has all of them.
    All,
    /// The socket takes no more now.
    Full,
}

impl Output {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; LEN].into_boxed_slice(), begin: 0, end: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.begin == self.end
    }

    pub(super) fn len(&self) -> usize {
        self.end - self.begin
    }

    pub(super) fn clear(&mut self) {
        (self.begin, self.end) = (0, 0);
    }

    /// The free bytes, if there are as many as `least`.
    pub(super) fn room(&mut self, least: usize) -> Option<&mut [u8]> {
        if self.bytes.len() - self.end < least && self.begin > 0 {
            self.bytes.copy_within(self.begin..self.end, 0);
            (self.begin, self.end) = (0, self.end - self.begin);
        }
        Some(&mut self.bytes[self.end..]).filter(|room| room.len() >= least)
    }

    /// Says that `len` bytes of the room are used.
    pub(super) fn add(&mut self, len: usize) {
        self.end += len;
    }

    /// Gives the socket as much as it takes, and counts it.
    pub(super) fn flush(&mut self, socket: &OwnedFd, count: &mut u64) -> io::Result<Flushed> {
        while !self.is_empty() {
            match send(socket, &self.bytes[self.begin..self.end], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.begin += sent;
                    *count += sent as u64;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(Flushed::Full),
                Err(error) => return Err(error.into()),
            }
        }
        self.clear();
        Ok(Flushed::All)
    }
}
