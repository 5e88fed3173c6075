//! The error of a refused call: the errno that the manual pages name, and a sentence with the
//! reason. This file says how an engine makes one. Principal type: [`Error`].

use std::borrow::Cow;
use std::io;

use abi::errno::Errno;

use crate::reason::{Note, ReasonKind, note};

/// A refused call.
pub type Error = abi::Refusal;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Makes the error and notes its reason. Call this once, where the refusal is decided.
pub fn refusal(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Error {
    let reason = reason.into();
    note(Note::new(ReasonKind::Refused), format_args!("{reason}"));
    Error { errno, reason }
}

/// The error of a call that the system refused to the program: the system's errno.
pub fn by_system(error: impl Into<io::Error>) -> Error {
    let error = error.into();
    Error::new(Errno(shm::denied::errno(&error).unwrap_or(libc::EIO)), shm::denied::told(&error))
}
