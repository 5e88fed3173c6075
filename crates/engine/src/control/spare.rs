//! Spare descriptors, which keep room in the process for the descriptors of the agent's answers.
//!
//! A process with as many open files as it may have loses the descriptors of a message that it
//! receives. By then the agent has executed the command. So a connection opens some descriptors
//! before it sends such a command, and closes them when the answer has arrived: the command fails
//! before the agent executes it, or the answer's descriptors have room. Between two commands there
//! are none, so the program can open as many files as it may. The principal type is [`Spare`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Spare descriptors, which end with the value.
pub(super) struct Spare(#[expect(dead_code, reason = "they are only held")] Vec<OwnedFd>);

impl Spare {
    /// Opens `count` of them, as duplicates of `any`.
    ///
    /// # Errors
    /// EMFILE when the process may not open so many.
    pub(super) fn open(any: impl AsFd, count: usize) -> io::Result<Self> {
        let open = |_| rustix::io::fcntl_dupfd_cloexec(&any, 0).map_err(io::Error::from);
        (0..count).map(open).collect::<io::Result<_>>().map(Self)
    }
}
