//! The notifier: an eventfd that wakes a thread that polls it. Its counter has no meaning:
//! notifications merge. Principal type: [`Notifier`].
//!
//! O_NONBLOCK belongs to the eventfd, not to the descriptor: all holders share it. A holder that
//! clears it and fills the counter makes the next notification block. Give a notifier only to
//! processes that may block the notifying process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::EventfdFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::denied::denied;

/// An eventfd, readable while there are notifications that nobody has drained. No operation blocks.
#[derive(Debug)]
pub struct Notifier {
    fd: OwnedFd,
}

impl Notifier {
    /// Creates a notifier without a notification.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self { fd: rustix::event::eventfd(0, flags).map_err(denied("eventfd2"))? })
    }

    /// Another descriptor of the same eventfd.
    pub fn try_clone(&self) -> io::Result<Self> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0).map_err(denied("fcntl (F_DUPFD_CLOEXEC)"))?;
        Ok(Self { fd })
    }

    /// Wakes the other side. A full counter wakes the other side as well. If the notifier cannot be
    /// notified any more, there is nobody to wake. So there is no error to report.
    pub fn notify(&self) {
        let one = 1_u64.to_ne_bytes();
        while rustix::io::write(&self.fd, &one) == Err(Errno::INTR) {}
    }

    /// Takes all notifications; returns whether there were any.
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

impl From<OwnedFd> for Notifier {
    /// Wraps an eventfd, and makes it non-blocking if necessary.
    fn from(fd: OwnedFd) -> Self {
        if let Ok(flags) = rustix::fs::fcntl_getfl(&fd)
            && !flags.contains(OFlags::NONBLOCK)
        {
            // Cannot fail for a descriptor whose flags could be read.
            rustix::fs::fcntl_setfl(&fd, flags | OFlags::NONBLOCK).ok();
        }
        Self { fd }
    }
}

impl From<Notifier> for OwnedFd {
    fn from(notifier: Notifier) -> Self {
        notifier.fd
    }
}

impl AsFd for Notifier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
