//! Why a command was refused: an error number for the program and a sentence for its user.
//!
//! The kernel ABI has room only for the number. The sentence follows it in the reply (see
//! [`crate::dispatch`]). A sentence names the objects that it is about. The principal type is
//! [`Refusal`].

use std::fmt;
use std::io;

use abi::Errno;

/// A refused command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The program's errno.
    pub errno: Errno,
    /// The sentence for its user.
    pub reason: String,
    /// Answer bytes in spite of the refusal; only POST_* has them.
    pub answer: Vec<u8>,
}

/// What a command handler returns.
pub type Outcome<T> = Result<T, Refusal>;

impl Refusal {
    /// A refusal with its sentence.
    pub fn new(errno: Errno, reason: impl Into<String>) -> Self {
        Self { errno, reason: reason.into(), answer: Vec::new() }
    }
}

/// Refuses with an error number and a sentence.
pub fn refuse<T>(errno: Errno, reason: impl Into<String>) -> Outcome<T> {
    Err(Refusal::new(errno, reason))
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.errno)
    }
}

impl From<io::Error> for Refusal {
    /// If the system refuses something to the agent, the client gets ENOMEM.
    fn from(error: io::Error) -> Self {
        let why = shm::denied::told(&error);
        Self::new(Errno::ENOMEM, format!("the agent could not get memory or a descriptor for this: {why}"))
    }
}
