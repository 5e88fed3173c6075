//! Descriptors as files: flags, copies, and the type of file.

use crate::next::Function;
use crate::rdma::call;
use crate::table::{self, Kind};
use crate::{epoll, fork};
use interpose::{intercept, refused};
use libc::{c_int, c_long, c_ulong, stat};

/// The C library's `fcntl`.
///
/// # Safety
/// As for `fcntl(2)`.
pub(crate) unsafe fn real_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    type Next = unsafe extern "C" fn(c_int, c_int, c_long) -> c_int;
    // SAFETY: the function is variadic, and its only optional argument is passed like the third
    // argument of any function.
    let next = unsafe { Function::fcntl.next::<Next>() };
    // SAFETY: the caller's promise.
    next.map_or(-1, |next| unsafe { next(fd, command, argument) })
}

/// Replaces `fd` by a copy of `other`, and closes `other`. The table no longer has `fd`, or soon
/// will not.
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

/// Notes that the C library has made `new` as a copy of `old`: it stands for the same object.
fn copied(old: c_int, new: c_int) -> c_int {
    if new >= 0 && new != old {
        match table::find(old) {
            // Copies of an epoll descriptor do not share its list.
            Kind::Plain | Kind::Epoll => {}
            kind => {
                table::set(new, kind);
            }
        }
    }
    new
}

/// Copies to a given descriptor, which is closed first if it is open.
fn copied_to(old: c_int, new: c_int, copy: impl FnOnce() -> c_int) -> c_int {
    // A copy of a connection that becomes an rsocket later would not become one with it.
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

/// `fcntl` on an rsocket.
fn control(fd: c_int, inner: c_int, command: c_int, argument: c_long, next: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_GETFL | libc::F_SETFL => call!(rfcntl(inner, command, argument)),
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, next()),
        // The descriptor is the program's own.
        _ => next(),
    }
}

intercept! {
    /// `fcntl`. (It is variadic in C; its only optional argument is passed like the third argument
    /// of any function.)
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

    /// `ioctl`: of the requests for sockets, only the nonblocking mode is handled.
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

/// Reports a descriptor that stands for an rsocket as a socket.
fn as_socket(fd: c_int, answer: *mut stat, code: c_int) -> c_int {
    if code == 0 && table::rsocket(fd).is_some() {
        // SAFETY: the program's struct, which was just filled.
        unsafe { (*answer).st_mode = (*answer).st_mode & !libc::S_IFMT | libc::S_IFSOCK };
    }
    code
}
