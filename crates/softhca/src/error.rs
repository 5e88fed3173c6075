//! Errors, each with the errno that a C program would see and the sentence that says why. Principal
//! type: [`Error`].
//!
//! The sentences are the engine's own. The engine makes them where it decides a failure; this crate
//! finds them by the request's name.

use std::borrow::Cow;
use std::fmt;
use std::io;

use abi::errno::Errno;
use engine::PostError;
use protocol::Status;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call or a request failed.
///
/// `Debug` writes the same sentence as `Display`, so that a `main` that returns an error prints a
/// readable message.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A call was refused, and had no effect.
    #[error("{reason} ({})", Errno(*errno))]
    Refused {
        /// The errno that the manual pages name.
        errno: i32,
        /// Which objects, and why.
        reason: String,
    },
    /// A request was not posted, because of its queue. The completion queue has no room, for
    /// example, or the list of parts is too long. The call had no effect.
    #[error("{error} ({errno})", error = .0, errno = .0.errno())]
    NotPosted(PostError),
    /// A request was executed, or tried, and ended with an error.
    #[error("request {id} (wr_id {id:#x}) on QP {qp:#x} failed: {reason}")]
    Failed {
        /// The status of the completion.
        status: Status,
        /// The id that the request was posted with.
        id: u64,
        /// The QPN.
        qp: u32,
        /// Why the request failed.
        reason: String,
    },
    /// The peer refuses a connection, or nobody listens at its address.
    #[error("{reason}")]
    Declined {
        /// The reason of the IBA (volume 1, 12.6.7.2): 8 when nobody listens, 28 when the peer's
        /// program has rejected the connection. For a datagram queue pair the status of the answer
        /// (12.11.2.2): 1 when nobody listens, 2 when the peer's program has declined.
        code: u16,
        /// The private data of the peer's program. Zeros follow it, up to the size of the message's
        /// field.
        private_data: Vec<u8>,
        /// Which connection, and why.
        reason: String,
    },
    /// Bytes or text from outside are malformed.
    #[error("{reason}")]
    Malformed {
        /// What was expected, and where the input is wrong.
        reason: String,
    },
}

impl Error {
    pub(crate) fn refused(errno: Errno, reason: impl Into<String>) -> Self {
        Self::Refused { errno: errno.0, reason: reason.into() }
    }

    pub(crate) fn malformed(reason: impl Into<String>) -> Self {
        Self::Malformed { reason: reason.into() }
    }

    /// The errno: for a refused call the one that the manual pages name, EIO for a request that
    /// failed, ECONNREFUSED for a peer that declined, EINVAL for malformed input.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::Refused { errno, .. } => *errno,
            Self::NotPosted(error) => error.errno().0,
            Self::Failed { .. } => Errno::EIO.0,
            Self::Declined { .. } => Errno::ECONNREFUSED.0,
            Self::Malformed { .. } => Errno::EINVAL.0,
        }
    }

    /// The sentence that says which objects, and why.
    #[must_use]
    pub fn reason(&self) -> Cow<'_, str> {
        match self {
            Self::NotPosted(error) => error.to_string().into(),
            Self::Refused { reason, .. }
            | Self::Failed { reason, .. }
            | Self::Declined { reason, .. }
            | Self::Malformed { reason } => reason.into(),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The last `n` sentences of this process about failures, oldest first. They are about refusals of
/// its engines and failed requests, including failures that only a peer was told about.
#[must_use]
pub fn reasons(n: usize) -> Vec<String> {
    engine::reason::last(n)
}

impl From<engine::Error> for Error {
    fn from(error: engine::Error) -> Self {
        Self::refused(error.errno, error.reason)
    }
}

impl From<PostError> for Error {
    fn from(error: PostError) -> Self {
        Self::NotPosted(error)
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Self::refused(errno, errno.meaning())
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(error: rustix::io::Errno) -> Self {
        Self::refused(Errno(error.raw_os_error()), error.to_string())
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match error.errno() {
            0 => io::ErrorKind::Other,
            errno => io::Error::from_raw_os_error(errno).kind(),
        };
        io::Error::new(kind, error)
    }
}
