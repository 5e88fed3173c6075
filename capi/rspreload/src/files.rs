//! Descriptors as files: flags, copies, and what kind of file they are.

use crate::next::Function;
use crate::rdma::call;
use crate::table::{self, Kind};
use crate::{epoll, fork};
use interpose::{intercept, refused};
use libc::{c_int, c_long, c_ulong, stat};

/// `fcntl` of the C library.
///
/// # Safety
/// As for `fcntl(2)`.
pub(crate) unsafe fn real_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    type Next = unsafe extern "C" fn(c_int, c_int, c_long) -> c_int;
    // SAFETY: variadic, and its one argument is where the third argument of any function is.
    let next = unsafe { Function::fcntl.next::<Next>() };
    // SAFETY: the caller's promise.
    next.map_or(-1, |next| unsafe { next(fd, command, argument) })
}

/// Puts what `other` is in the place of `fd`, which the table does not know any more or will soon not; `other` is closed.
pub(crate) fn replace(fd: c_int, other: c_int) {
    type Next = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    // SAFETY: takes numbers.
    let flags = unsafe { real_fcntl(fd, libc::F_GETFD, 0) };
    let close = if flags & libc::FD_CLOEXEC == 0 { 0 } else { libc::O_CLOEXEC };
    // SAFETY: takes numbers; the type is the one that the C library's manual gives.
    unsafe {
        if let Some(next) = Function::dup3.next::<Next>() {
            next(other, fd, close);
        }
        libc::close(other);
    }
}

/// The C library's function behind `copy` has made `new`, a copy of `old`: it stands for the same.
fn copied(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        match table::find(old) {
            // The list of an epoll descriptor is not shared with its copies.
            Kind::Plain | Kind::Epoll => {}
            kind => {
                table::set(new, kind);
            }
        }
    }
    new
}

/// Copies to a certain descriptor, which is closed if it is open.
fn copied_to(old: c_int, new: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    // A copy of a connection that is still to become an rsocket would part from it.
    let _ = fork::rsocket(old);
    if old != new {
        match table::take(new) {
            (Kind::Rsocket(inner), last) => {
                epoll::forget(new);
                if last {
                    let _: c_int = call!(rclose(inner));
                }
            }
            (Kind::Epoll, _) => epoll::end(new),
            _ => {}
        }
    }
    copied(old, copy())
}

/// What `fcntl` does with an rsocket.
fn control(fd: c_int, inner: c_int, command: c_int, argument: c_long, next: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_GETFL | libc::F_SETFL => call!(rfcntl(inner, command, argument)),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, next()),
        // The descriptor is the program's own.
        _ => next(),
    }
}

intercept! {
    /// `fcntl`. (It is variadic in C; the one argument that there may be is where the third argument of any function is.)
    fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int as next => match table::find(fd) {
        Kind::Rsocket(inner) => control(fd, inner, command, argument, || next(fd, command, argument)),
        Kind::Later(_) if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
            let _ = fork::rsocket(fd);
            copied(fd, next(fd, command, argument))
        }
        _ => next(fd, command, argument),
    };

    /// `fcntl64`.
    fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int as next => match table::find(fd) {
        Kind::Rsocket(inner) => control(fd, inner, command, argument, || next(fd, command, argument)),
        Kind::Later(_) if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
            let _ = fork::rsocket(fd);
            copied(fd, next(fd, command, argument))
        }
        _ => next(fd, command, argument),
    };

    /// `ioctl`: of those for sockets, whether it waits.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int as next => match table::rsocket(fd) {
        Some(inner) if request == libc::FIONBIO && !argument.is_null() => {
            let flags: c_int = call!(rfcntl(inner, libc::F_GETFL, 0));
            // SAFETY: the program's number.
            let on = unsafe { argument.read() } != 0;
            let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
            call!(rfcntl(inner, libc::F_SETFL, flags.into()))
        }
        _ => next(fd, request, argument),
    };

    /// `dup`.
    fn dup(fd: c_int) -> c_int as next => {
        let _ = fork::rsocket(fd);
        copied(fd, next(fd))
    };

    /// `dup2`.
    fn dup2(old: c_int, new: c_int) -> c_int as next => copied_to(old, new, || next(old, new));

    /// `dup3`.
    fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int as next => {
        if old == new { refused(libc::EINVAL) } else { copied_to(old, new, || next(old, new, flags)) }
    };

    /// `fstat`: an rsocket is a socket.
    fn fstat(fd: c_int, answer: *mut stat) -> c_int as next => as_socket(fd, answer, next(fd, answer));

    /// `fstat64`.
    fn fstat64(fd: c_int, answer: *mut stat) -> c_int as next => as_socket(fd, answer, next(fd, answer));

    /// `fstat`, in programs that were built with an older C library.
    fn __fxstat(version: c_int, fd: c_int, answer: *mut stat) -> c_int as next => as_socket(fd, answer, next(version, fd, answer));

    /// `fstat64`, in programs that were built with an older C library.
    fn __fxstat64(version: c_int, fd: c_int, answer: *mut stat) -> c_int as next => as_socket(fd, answer, next(version, fd, answer));
}

/// Says that a descriptor which stands for an rsocket is a socket.
fn as_socket(fd: c_int, answer: *mut stat, code: c_int) -> c_int {
    if code == 0 && table::rsocket(fd).is_some() {
        // SAFETY: the program's, and just filled.
        unsafe { (*answer).st_mode = (*answer).st_mode & !libc::S_IFMT | libc::S_IFSOCK };
    }
    code
}
