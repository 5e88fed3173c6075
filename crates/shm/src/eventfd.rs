//! The doorbell: an eventfd that wakes whoever polls it. It counts nothing that matters: rings merge. Principal type:
//! [`Doorbell`].
//!
//! O_NONBLOCK belongs to the eventfd, not to the descriptor: all who hold one share it, and whoever clears it and fills the
//! counter makes the next ring wait. Hand a doorbell only to processes that may hold up its ringers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::denied::denied;

/// An eventfd, readable while there are rings that nobody has drained. No operation blocks.
#[derive(Debug)]
pub struct Doorbell {
    fd: OwnedFd,
}

impl Doorbell {
    /// Makes a silent one.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: rustix::event::eventfd(0, flags).map_err(denied("eventfd2"))? })
    }

    /// Another descriptor of the same eventfd.
    pub fn try_clone(&self) -> io::Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(denied("fcntl (F_DUPFD_CLOEXEC)"))?;
        Ok(Self { fd })
    }

    /// Wakes the other side. A counter that is full wakes it as well, and a doorbell that cannot be rung any more has nobody
    /// to wake: there is nothing to report.
    pub fn ring(&self) {
        let one = 1_u64.to_ne_bytes();
        while rustix::io::write(&self.fd, &one) == Err(Errno::INTR) {}
    }

    /// Takes all rings; says whether there were any.
    pub fn drain(&self) -> bool {
        let mut count = [0; 8];
        loop {
            match rustix::io::read(&self.fd, &mut count) {
                Err(Errno::INTR) => {}
                taken => return taken.is_ok(),
            }
        }
    }
}

impl From<OwnedFd> for Doorbell {
    /// Takes over an eventfd, and makes it non-blocking if it is not yet.
    fn from(fd: OwnedFd) -> Self {
        if let Ok(flags) = rustix::fs::fcntl_getfl(&fd)
            && !flags.contains(OFlags::NONBLOCK)
        {
            // Fails for no descriptor that could be read: the flags were.
            rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).ok();
        }
        Self { fd }
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> Self {
        doorbell.fd
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
