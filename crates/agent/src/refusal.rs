//! Why a command was refused: an error number for the program and a sentence for the person.
//!
//! The kernel ABI has room for the number only; the sentence follows it in the reply (see [`crate::dispatch`]). A sentence
//! names the objects it is about. The principal type is [`Refusal`].

use std::fmt;
use std::io;

use abi::Errno;

/// A refused command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What the program gets.
    pub errno: Errno,
    /// What its user may read.
    pub reason: String,
    /// Answer bytes that come in spite of the refusal: only POST_* has them.
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
    /// What the system refuses to the agent is lack of memory to the client.
    fn from(error: io::Error) -> Self {
        let why = shm::denied::told(&error);
        Self::new(Errno::ENOMEM, format!("the agent could not get memory or a descriptor for this: {why}"))
    }
}
