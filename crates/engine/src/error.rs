//! The error of a refused call: the errno that the manual pages name, and a sentence with the
//! reason. Principal type: [`Error`].

use std::fmt;

use abi::errno::Errno;

use crate::reason::{Kind, Note, note};

/// A refused call.
#[derive(Clone, Debug)]
pub struct Error {
    /// What a C caller sees.
    pub errno: Errno,
    /// Which objects, and why.
    pub reason: String,
}

impl Error {
    /// Makes the error and notes its reason. Call this once, where the refusal is decided.
    pub fn refuse(errno: Errno, reason: impl Into<String>) -> Self {
        let reason = reason.into();
        note(Note::new(Kind::Refused), format_args!("{reason}"));
        Self { errno, reason }
    }

    /// For a refusal whose reason is clear from the errno, or has already been noted.
    #[must_use]
    pub fn plain(errno: Errno) -> Self {
        Self { errno, reason: errno.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.errno)
    }
}

impl std::error::Error for Error {}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::plain(errno)
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self { errno: Errno(shm::denied::errno(&error).unwrap_or(libc::EIO)), reason: shm::denied::told(&error) }
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Self {
        std::io::Error::from(error).into()
    }
}

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;
