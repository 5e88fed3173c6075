//! Duplicates of descriptors: `dup` and its relatives. A duplicate of a descriptor of the agent is
//! one as well. (After `exec`, [`crate::mads`] looks for such descriptors.)

use std::ffi::{c_int, c_void};

use interpose::intercept;

use crate::next::Function;
use crate::{mads, netlink};

intercept! {
    /// `dup`.
    fn dup(fd: c_int) -> c_int as next => noted(fd, next(fd));
    /// `dup2`.
    fn dup2(fd: c_int, to: c_int) -> c_int as next => noted(fd, next(fd, to));
    /// `dup3`.
    fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int as next => noted(fd, next(fd, to, flags));
    /// `fcntl`. The argument is always passed on, even if the program gave none: it is in a
    /// register.
    fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int as next =>
        commanded(fd, command, next(fd, command, argument));
    /// `fcntl` of programs that were built for long files.
    fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int as next =>
        commanded(fd, command, next(fd, command, argument));
}

#[inline]
fn commanded(fd: c_int, command: c_int, result: c_int) -> c_int {
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { noted(fd, result) } else { result }
}

#[inline]
fn noted(fd: c_int, duplicate: c_int) -> c_int {
    if duplicate >= 0 && duplicate != fd {
        mads::duplicated(fd, duplicate);
        netlink::duplicated(fd, duplicate);
    }
    duplicate
}
