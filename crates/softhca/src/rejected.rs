//! A request that was refused or failed, with its buffers. The principal type is [`Rejected`].

use std::{fmt, io};

use crate::error::Error;
use crate::memory::Buffer;

/// A request that was not posted, or that a task awaited and that failed, with its buffers.
///
/// `?` turns it into an [`Error`] and drops the buffers. `Debug` and `Display` write the sentence
/// of the error.
pub struct Rejected {
    /// Why the request was not posted, or failed.
    pub error: Error,
    /// The buffers of the request, in their order.
    pub buffers: Vec<Buffer>,
}

impl fmt::Debug for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// No source: the sentence of `Rejected` is the sentence of the error, which would be printed twice.
impl std::error::Error for Rejected {}

/// Without buffers: the call took none, or they stay with the queue.
impl From<Error> for Rejected {
    fn from(error: Error) -> Self {
        Self { error, buffers: Vec::new() }
    }
}

impl From<Rejected> for Error {
    fn from(rejected: Rejected) -> Self {
        rejected.error
    }
}

impl From<Rejected> for io::Error {
    fn from(rejected: Rejected) -> Self {
        rejected.error.into()
    }
}
