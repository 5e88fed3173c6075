//! How the agent refuses a command: [`refuse`]. [`abi::Refusal`] is what it returns.

use std::borrow::Cow;
use std::io;

use abi::{Errno, Refusal};

/// What a command handler returns.
pub type Outcome<T> = Result<T, Refusal>;

/// Refuses with an error number and a sentence.
pub fn refuse<T>(errno: Errno, reason: impl Into<Cow<'static, str>>) -> Outcome<T> {
    Err(Refusal::new(errno, reason))
}

/// If the network refuses a connection, the client gets the error of the system call.
pub(crate) fn by_network(error: &io::Error, what: &str) -> Refusal {
    let errno = error.raw_os_error().map_or(Errno::EIO, Errno);
    Refusal::new(errno, format!("{what}: {}", shm::denied::told(error)))
}

/// If the system refuses something to the agent, the client gets ENOMEM.
pub(crate) fn by_system(error: io::Error) -> Refusal {
    let why = shm::denied::told(&error);
    Refusal::new(Errno::ENOMEM, format!("the agent could not get memory or a descriptor for this: {why}"))
}
