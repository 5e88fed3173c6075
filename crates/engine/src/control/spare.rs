//! Spare descriptors, which keep room in the process for the descriptors of the agent's answers.
//!
//! A process with as many open files as it may have loses the descriptors of a message that it
//! receives. By then the agent has executed the command. So a connection opens some descriptors
//! before it sends such a command, and closes them when the answer has arrived: the command fails
//! before the agent executes it, or the answer's descriptors have room. The principal type is
//! [`Spare`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The most descriptors of one answer that belong to an object: a lane has four.
const COUNT: usize = 4;

/// The spare descriptors of one connection.
#[derive(Default)]
pub(super) struct Spare {
    held: Vec<OwnedFd>,
}

impl Spare {
    /// Opens the descriptors that are missing, as duplicates of `any`.
    ///
    /// # Errors
    /// EMFILE when the process may not open so many.
    pub(super) fn open(&mut self, any: impl AsFd) -> io::Result<()> {
        while self.held.len() < COUNT {
            self.held.push(rustix::io::fcntl_dupfd_cloexec(&any, 0)?);
        }
        Ok(())
    }

    /// Closes them all.
    pub(super) fn close(&mut self) {
        self.held.clear();
    }
}
