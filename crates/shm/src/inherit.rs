//! The standard descriptors: a program that this process starts inherits only these, and a new
//! standard error.
//!
//! An agent in the background must not hold a pipe, a socket or a terminal of the process that
//! happened to start it. All descriptors that this project opens are close-on-exec already; the
//! descriptors that are marked here came from outside. This module closes nothing in this process.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The first descriptor that is not standard input, output or error.
const FIRST: libc::c_uint = 3;

/// Marks every descriptor of this process except the standard ones close-on-exec.
///
/// # Errors
/// The errors of close_range(2); `CLOSE_RANGE_CLOEXEC` exists since Linux 5.11.
pub fn nothing_but_standard_descriptors() -> io::Result<()> {
    // SAFETY: close_range with CLOSE_RANGE_CLOEXEC takes three integers, touches no memory of ours
    // and closes nothing now. Code that wants to pass a descriptor on clears the mark after this
    // call.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes `file` standard error: later output of this process to standard error goes to the file.
///
/// # Errors
/// The errors of dup2(2).
pub fn become_standard_error(file: &File) -> io::Result<()> {
    // SAFETY: dup2 takes two descriptors and touches no memory of ours. Nobody owns descriptor 2:
    // code that writes to standard error means whatever it is at that time.
    let result = unsafe { libc::dup2(file.as_raw_fd(), libc::STDERR_FILENO) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
