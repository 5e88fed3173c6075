//! Why a request was refused: an error number for the program and a sentence for its user.
//!
//! The kernel ABI has room only for the number. In softhca the sentence follows it in the reply
//! (docs/abi.md). A sentence names the objects that it is about. A refusal does not know who
//! decided it: the agent, the engine, or a system call. The principal type is [`Refusal`].

use std::borrow::Cow;
use std::fmt;

use crate::errno::Errno;

/// A refused request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The program's errno.
    pub errno: Errno,
    /// Which objects, and why.
    pub reason: Cow<'static, str>,
}

impl Refusal {
    /// A refusal with its sentence.
    pub fn new(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { errno, reason: reason.into() }
    }
}

impl From<Errno> for Refusal {
    /// For a refusal whose reason is clear from the errno, or has already been noted.
    fn from(errno: Errno) -> Self {
        Self::new(errno, errno.to_string())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.errno)
    }
}

impl std::error::Error for Refusal {}
