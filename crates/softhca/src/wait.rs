//! Waiting for a descriptor. Principal function: [`readable`].

use std::os::fd::BorrowedFd;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Result;

/// Waits until a descriptor is readable, at most until `end`. Returns whether it is readable.
pub(crate) fn readable(fd: BorrowedFd<'_>, end: Option<Instant>) -> Result<bool> {
    let limit = end.map(|end| end.saturating_duration_since(Instant::now()));
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    match poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        // After an interruption the caller checks again.
        Err(rustix::io::Errno::INTR) => Ok(end.is_none_or(|end| end > Instant::now())),
        Err(error) => Err(error.into()),
    }
}
