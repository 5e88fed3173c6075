//! The C functions of rsockets that move data (`rsocket(7)`). Making and closing sockets is in
//! `api`.

use super::address::Name;
use super::bytes;
use super::table::{self, Socket, socket};
use super::vectors::Buffers;
use crate::entry::{self, Outcome, Refusal};
use libc::{c_int, c_void, iovec, msghdr, off_t, ssize_t};

/// Receives into buffers. Returns the number of bytes copied and the number that arrived. Stores
/// the sender if the program asks for it.
///
/// # Safety
/// The buffers can be written; `address` and `length` are as for `recvfrom(2)`.
unsafe fn receive(
    fd: c_int,
    buffers: Buffers<'_>,
    flags: c_int,
    address: *mut c_void,
    length: *mut u32,
) -> Outcome<(usize, usize)> {
    match socket(fd)? {
        Socket::Stream(stream) => {
            // SAFETY: the caller's promise.
            let count = unsafe { stream.receive(buffers, flags) }?;
            if !address.is_null()
                && let Ok(peer) = stream.endpoint().peer()
            {
                // SAFETY: the caller's promise.
                unsafe { peer.write(address, length) };
            }
            Ok((count, count))
        }
        Socket::Datagram(datagram) => {
            // SAFETY: the caller's promise.
            let (count, whole, source) = unsafe { datagram.receive(buffers, flags) }?;
            // SAFETY: the caller's promise.
            unsafe { Name::from(source).write(address, length) };
            Ok((count, whole))
        }
        Socket::Epoll(_) => Err(Refusal(libc::EBADF)),
    }
}

/// Sends from buffers.
///
/// # Safety
/// The buffers can be read; `address` has `length` bytes or is NULL.
unsafe fn send(fd: c_int, buffers: Buffers<'_>, flags: c_int, address: *const c_void, length: u32) -> Outcome<usize> {
    match socket(fd)? {
        Socket::Stream(stream) => {
            if length > 0 && !address.is_null() {
                return Err(Refusal(libc::EISCONN));
            }
            // SAFETY: the caller's promise.
            unsafe { stream.send(buffers, flags) }
        }
        Socket::Datagram(datagram) => {
            // SAFETY: the caller's promise.
            let to = (!address.is_null()).then(|| unsafe { Name::read(address, length) }).transpose()?;
            // SAFETY: the caller's promise.
            unsafe { datagram.send(buffers, flags, to.as_ref()) }
        }
        Socket::Epoll(_) => Err(Refusal(libc::EBADF)),
    }
}

/// The result of a receiving call: with `MSG_TRUNC`, the whole length of the datagram.
fn told((count, whole): (usize, usize), flags: c_int) -> usize {
    if flags & libc::MSG_TRUNC != 0 { whole } else { count }
}

/// `rrecv`.
///
/// # Safety
/// `buffer` has room for `length` bytes.
pub(crate) unsafe extern "C" fn rrecv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> ssize_t {
    let (no, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's promise.
    bytes("rrecv", || unsafe { receive(fd, Buffers::one(buffer, length), flags, no, none) }.map(|got| told(got, flags)))
}

/// `rrecvfrom`.
///
/// # Safety
/// As for `recvfrom(2)`.
pub(crate) unsafe extern "C" fn rrecvfrom(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    flags: c_int,
    address: *mut c_void,
    address_length: *mut u32,
) -> ssize_t {
    bytes("rrecvfrom", || {
        // SAFETY: the caller's promise.
        unsafe { receive(fd, Buffers::one(buffer, length), flags, address, address_length) }.map(|got| told(got, flags))
    })
}

/// `rrecvmsg`. There is never ancillary data.
///
/// # Safety
/// As for `recvmsg(2)`.
pub(crate) unsafe extern "C" fn rrecvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    bytes("rrecvmsg", || {
        entry::not_null(message)?;
        // SAFETY: the caller's promise.
        let head = unsafe { &mut *message };
        // SAFETY: the caller's promise.
        let buffers = unsafe { Buffers::list(head.msg_iov, head.msg_iovlen) }?;
        // SAFETY: the caller's promise.
        let got = unsafe { receive(fd, buffers, flags, head.msg_name, &raw mut head.msg_namelen) }?;
        head.msg_controllen = 0;
        head.msg_flags = if got.1 > got.0 { libc::MSG_TRUNC } else { 0 };
        Ok(told(got, flags))
    })
}

/// `rread`.
///
/// # Safety
/// `buffer` has room for `length` bytes.
pub(crate) unsafe extern "C" fn rread(fd: c_int, buffer: *mut c_void, length: usize) -> ssize_t {
    let (no, none) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the caller's promise.
    bytes("rread", || unsafe { receive(fd, Buffers::one(buffer, length), 0, no, none) }.map(|got| got.0))
}

/// `rreadv`.
///
/// # Safety
/// As for `readv(2)`.
pub(crate) unsafe extern "C" fn rreadv(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    bytes("rreadv", || {
        // SAFETY: the caller's promise.
        let buffers = unsafe { Buffers::list(list, length(count)?) }?;
        // SAFETY: the caller's promise.
        unsafe { receive(fd, buffers, 0, std::ptr::null_mut(), std::ptr::null_mut()) }.map(|got| got.0)
    })
}

fn length(count: c_int) -> Outcome<usize> {
    usize::try_from(count).map_err(|_| Refusal(libc::EINVAL))
}

/// `rsend`.
///
/// # Safety
/// `buffer` has `length` bytes.
pub(crate) unsafe extern "C" fn rsend(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    bytes("rsend", || unsafe { send(fd, Buffers::one(buffer, length), flags, std::ptr::null(), 0) })
}

/// `rsendto`.
///
/// # Safety
/// As for `sendto(2)`.
pub(crate) unsafe extern "C" fn rsendto(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    flags: c_int,
    address: *const c_void,
    address_length: u32,
) -> ssize_t {
    // SAFETY: the caller's promise.
    bytes("rsendto", || unsafe { send(fd, Buffers::one(buffer, length), flags, address, address_length) })
}

/// `rsendmsg`. Ancillary data cannot be sent.
///
/// # Safety
/// As for `sendmsg(2)`.
pub(crate) unsafe extern "C" fn rsendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    bytes("rsendmsg", || {
        entry::not_null(message)?;
        // SAFETY: the caller's promise.
        let head = unsafe { &*message };
        if !head.msg_control.is_null() && head.msg_controllen > 0 {
            return Err(Refusal(libc::ENOTSUP));
        }
        // SAFETY: the caller's promise.
        let buffers = unsafe { Buffers::list(head.msg_iov, head.msg_iovlen) }?;
        // SAFETY: the caller's promise.
        unsafe { send(fd, buffers, flags, head.msg_name, head.msg_namelen) }
    })
}

/// `rwrite`.
///
/// # Safety
/// `buffer` has `length` bytes.
pub(crate) unsafe extern "C" fn rwrite(fd: c_int, buffer: *const c_void, length: usize) -> ssize_t {
    // SAFETY: the caller's promise.
    bytes("rwrite", || unsafe { send(fd, Buffers::one(buffer, length), 0, std::ptr::null(), 0) })
}

/// `rwritev`.
///
/// # Safety
/// As for `writev(2)`.
pub(crate) unsafe extern "C" fn rwritev(fd: c_int, list: *const iovec, count: c_int) -> ssize_t {
    bytes("rwritev", || {
        // SAFETY: the caller's promise.
        let buffers = unsafe { Buffers::list(list, length(count)?) }?;
        // SAFETY: the caller's promise.
        unsafe { send(fd, buffers, 0, std::ptr::null(), 0) }
    })
}

/// `riomap`.
pub(crate) extern "C" fn riomap(
    fd: c_int,
    buffer: *mut c_void,
    length: usize,
    protection: c_int,
    _flags: c_int,
    offset: off_t,
) -> off_t {
    let answer = bytes("riomap", || {
        if protection & !(libc::PROT_WRITE | libc::PROT_NONE) != 0 {
            return Err(Refusal(libc::EINVAL));
        }
        let stream = table::stream(fd, libc::EOPNOTSUPP)?;
        let remote = protection & libc::PROT_WRITE != 0;
        let wanted = u64::try_from(offset).ok();
        let offset = stream.map(buffer.cast(), length, remote, wanted)?;
        usize::try_from(offset).map_err(|_| Refusal(libc::EOVERFLOW))
    });
    off_t::try_from(answer).unwrap_or(-1)
}

/// `riounmap`.
pub(crate) extern "C" fn riounmap(fd: c_int, buffer: *mut c_void, length: usize) -> c_int {
    entry::or_minus_one("riounmap", || table::stream(fd, libc::EOPNOTSUPP)?.unmap(buffer.cast(), length).map(|()| 0))
}

/// `riowrite`.
///
/// # Safety
/// `buffer` has `length` bytes.
pub(crate) unsafe extern "C" fn riowrite(
    fd: c_int,
    buffer: *const c_void,
    length: usize,
    offset: off_t,
    flags: c_int,
) -> usize {
    let answer = bytes("riowrite", || {
        let stream = table::stream(fd, libc::EOPNOTSUPP)?;
        let offset = u64::try_from(offset).map_err(|_| Refusal(libc::EINVAL))?;
        // SAFETY: the caller's promise.
        unsafe { stream.send_direct(Buffers::one(buffer, length), offset, flags) }
    });
    answer.cast_unsigned()
}
