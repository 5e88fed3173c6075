//! The standard descriptors: what a program that is started from here inherits, which is no other
//! one, and a new standard error.
//!
//! An agent in the background must not hold a pipe, a socket or a terminal of whoever happened to
//! start it. Everything that this project opens is close-on-exec already; what is marked here came
//! from outside. It closes nothing in this process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The first descriptor that is not standard input, output or error.
const FIRST: libc::c_uint = 3;

/// Marks every descriptor of this process but the standard ones close-on-exec.
///
/// # Errors
/// What close_range(2) says; with `CLOSE_RANGE_CLOEXEC` it exists since Linux 5.11.
pub fn nothing_but_standard_descriptors() -> io::Result<()> {
    // SAFETY: close_range with CLOSE_RANGE_CLOEXEC takes three integers, touches no memory of ours
    // and closes nothing now; a descriptor that somebody wants to hand on is marked by whoever
    // hands it on, after this call.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `file` standard error: what this process writes there from now on goes into it.
///
/// # Errors
/// What dup2(2) says.
pub fn become_standard_error(file: &File) -> io::Result<()> {
    // SAFETY: dup2 takes two descriptors and touches no memory of ours. Number 2 is nobody's
    // property: whoever writes to standard error means whatever it is at that time.
    let result = unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
