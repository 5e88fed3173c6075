//! Sending and receiving data on sockets. Making and closing sockets is in `sockets`.

use crate::next::Function;
use crate::rdma::call;
use crate::{epoll, fork};
use interpose::{intercept, refused, set_errno};
use libc::{c_int, c_void, iovec, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t};

/// The rsocket of a descriptor. A connection that becomes an rsocket later becomes one now.
fn inner(fd: c_int) -> Option<c_int> {
    fork::rsocket(fd)
}

/// Tells `epoll` that the program has received.
fn received(fd: c_int, answer: ssize_t) -> ssize_t {
    epoll::received(fd);
    answer
}

/// Tells `epoll` if not all of `wanted` bytes were sent.
fn sent(fd: c_int, answer: ssize_t, wanted: usize) -> ssize_t {
    if usize::try_from(answer).is_ok_and(|count| count < wanted) || answer < 0 {
        epoll::is_full(fd);
    }
    answer
}

/// The total number of bytes in a list of buffers.
///
/// # Safety
/// `list` has `count` entries.
unsafe fn length(list: *const iovec, count: usize) -> usize {
    // SAFETY: the caller's promise.
    (0..count).fold(0, |sum, index| sum.saturating_add(unsafe { (*list.wrapping_add(index)).iov_len }))
}

intercept! {
    /// `read`.
    fn read(fd: c_int, buffer: *mut c_void, size: size_t) -> ssize_t as next => match inner(fd) {
        Some(inner) => received(fd, call!(rrecv(inner, buffer, size, 0))),
        None => next(fd, buffer, size),
    };

    /// `read`, in programs that were compiled with checks.
    fn __read_chk(fd: c_int, buffer: *mut c_void, size: size_t, room: size_t) -> ssize_t as next => match inner(fd) {
        Some(inner) if size <= room => received(fd, call!(rrecv(inner, buffer, size, 0))),
        _ => next(fd, buffer, size, room),
    };

    /// `readv`.
    fn readv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t as next => match inner(fd) {
        Some(inner) => received(fd, call!(rreadv(inner, list, count))),
        None => next(fd, list, count),
    };

    /// `recv`.
    fn recv(fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int) -> ssize_t as next => match inner(fd) {
        Some(inner) => received(fd, call!(rrecv(inner, buffer, size, flags))),
        None => next(fd, buffer, size, flags),
    };

    /// `recv`, in programs that were compiled with checks.
    fn __recv_chk(fd: c_int, buffer: *mut c_void, size: size_t, room: size_t, flags: c_int) -> ssize_t as next => match inner(fd) {
        Some(inner) if size <= room => received(fd, call!(rrecv(inner, buffer, size, flags))),
        _ => next(fd, buffer, size, room, flags),
    };

    /// `recvfrom`.
    fn recvfrom(
        fd: c_int, buffer: *mut c_void, size: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t,
    ) -> ssize_t as next => match inner(fd) {
        Some(inner) => received(fd, call!(rrecvfrom(inner, buffer, size, flags, address, length))),
        None => next(fd, buffer, size, flags, address, length),
    };

    /// `recvfrom`, in programs that were compiled with checks.
    fn __recvfrom_chk(
        fd: c_int, buffer: *mut c_void, size: size_t, room: size_t, flags: c_int, address: *mut sockaddr, length: *mut socklen_t,
    ) -> ssize_t as next => match inner(fd) {
        Some(inner) if size <= room => received(fd, call!(rrecvfrom(inner, buffer, size, flags, address, length))),
        _ => next(fd, buffer, size, room, flags, address, length),
    };

    /// `recvmsg`.
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t as next => match inner(fd) {
        Some(inner) => received(fd, call!(rrecvmsg(inner, message, flags))),
        None => next(fd, message, flags),
    };

    /// `write`.
    fn write(fd: c_int, buffer: *const c_void, size: size_t) -> ssize_t as next => match inner(fd) {
        Some(inner) => sent(fd, call!(rsend(inner, buffer, size, 0)), size),
        None => next(fd, buffer, size),
    };

    /// `writev`.
    fn writev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t as next => match inner(fd) {
        // SAFETY: the program's list.
        Some(inner) => sent(fd, call!(rwritev(inner, list, count)), unsafe { length(list, usize::try_from(count).unwrap_or(0)) }),
        None => next(fd, list, count),
    };

    /// `send`.
    fn send(fd: c_int, buffer: *const c_void, size: size_t, flags: c_int) -> ssize_t as next => match inner(fd) {
        Some(inner) => sent(fd, call!(rsend(inner, buffer, size, flags)), size),
        None => next(fd, buffer, size, flags),
    };

    /// `sendto`.
    fn sendto(
        fd: c_int, buffer: *const c_void, size: size_t, flags: c_int, address: *const sockaddr, length: socklen_t,
    ) -> ssize_t as next => match inner(fd) {
        Some(inner) => sent(fd, call!(rsendto(inner, buffer, size, flags, address, length)), size),
        None => next(fd, buffer, size, flags, address, length),
    };

    /// `sendmsg`.
    fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t as next => match inner(fd) {
        Some(inner) => {
            // SAFETY: the program's message.
            let wanted = unsafe { length((*message).msg_iov, (*message).msg_iovlen) };
            sent(fd, call!(rsendmsg(inner, message, flags)), wanted)
        }
        None => next(fd, message, flags),
    };

    /// `sendfile`.
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t as next => match inner(out) {
        // SAFETY: the program's arguments.
        Some(inner) => sent(out, unsafe { send_file(inner, input, offset, count) }, count),
        None => next(out, input, offset, count),
    };

    /// `sendfile64`.
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t as next => match inner(out) {
        // SAFETY: the program's arguments.
        Some(inner) => sent(out, unsafe { send_file(inner, input, offset, count) }, count),
        None => next(out, input, offset, count),
    };
}

/// Sends part of a file, from `offset` or from the file's current position.
///
/// # Safety
/// `offset` is NULL or valid.
unsafe fn send_file(inner: c_int, input: c_int, offset: *mut off_t, count: usize) -> ssize_t {
    const PART: usize = 1 << 16;
    let mut room = vec![0_u8; PART.min(count.max(1))];
    // SAFETY: takes numbers; the offset is the caller's.
    let start = unsafe { if offset.is_null() { libc::lseek(input, 0, libc::SEEK_CUR) } else { offset.read() } };
    if start < 0 {
        return refused(libc::ESPIPE);
    }
    let mut at = start;
    let mut answer: ssize_t = 0;
    while let left @ 1.. = count.saturating_sub(usize::try_from(at - start).unwrap_or(count)) {
        // SAFETY: `room` has at least this many bytes.
        let got = unsafe { libc::pread(input, room.as_mut_ptr().cast(), left.min(room.len()), at) };
        let Ok(part @ 1..) = usize::try_from(got) else {
            answer = got;
            break;
        };
        answer = call!(rsend(inner, room.as_ptr().cast(), part, 0));
        if answer <= 0 {
            break;
        }
        at += i64::try_from(answer).unwrap_or(0);
        if usize::try_from(answer).unwrap_or(0) < part {
            break;
        }
    }
    let failed = interpose::errno();
    // SAFETY: takes numbers; the offset is the caller's.
    unsafe {
        if offset.is_null() {
            libc::lseek(input, at, libc::SEEK_SET);
        } else {
            offset.write(at);
        }
    }
    set_errno(failed);
    if at > start { isize::try_from(at - start).unwrap_or(isize::MAX) } else { answer }
}
