//! System calls that rustix does not have, behind safe functions. How they are used is up to
//! [`crate::Socket`].
//!
//! Sends and receives call the kernel directly. The C library's functions are cancellation points,
//! and each of them takes two locked instructions for that. These calls never wait, so they need no
//! cancellation.

use crate::address::Name;
use crate::control::Control;
use std::io;
use std::mem::size_of_val;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A value that `setsockopt` reads as bytes.
///
/// # Safety
/// Every byte of the type is initialised: it has no padding.
pub(crate) unsafe trait OptionValue {}

// SAFETY: an integer has no padding.
unsafe impl OptionValue for i32 {}
// SAFETY: two addresses and an integer of four bytes each.
unsafe impl OptionValue for libc::ip_mreqn {}
// SAFETY: an address of sixteen bytes and an integer of four, which is aligned behind it.
unsafe impl OptionValue for libc::ipv6_mreq {}

/// Sets a socket option.
pub(crate) fn set<T: OptionValue>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> io::Result<()> {
    let len = size_of_val(value) as libc::socklen_t;
    // SAFETY: the kernel reads `len` initialised bytes at `value`, and nothing after the call.
    let done = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, std::ptr::from_ref(value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of memory that the socket's unread datagrams take, and the limit.
pub(crate) fn fill(fd: BorrowedFd<'_>) -> io::Result<(u32, u32)> {
    // The kernel has more numbers, and writes as many as the caller asks for.
    let mut numbers = [0_u32; 2];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of `numbers` and the length, which both outlive
    // the call.
    let done = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, numbers.as_mut_ptr().cast(), &raw mut len)
    };
    if done == 0 { Ok((numbers[0], numbers[1])) } else { Err(io::Error::last_os_error()) }
}

/// Connects the socket to an address, or disconnects it.
pub(crate) fn connect(fd: BorrowedFd<'_>, to: Option<&(Name, u32)>) -> io::Result<()> {
    let nowhere = (Name::room(), size_of::<libc::sockaddr_in>() as u32); // AF_UNSPEC is 0
    let (name, len) = to.unwrap_or(&nowhere);
    // SAFETY: the kernel reads `len` bytes of the name, which outlives the call and is at least as
    // long.
    let done = unsafe { libc::connect(fd.as_raw_fd(), name.as_ptr().cast(), *len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Sends `bytes` to an address, or to the connected peer, without waiting. UDP sends the whole
/// datagram or nothing.
pub(crate) fn send(fd: BorrowedFd<'_>, to: Option<&SocketAddr>, control: &Control, bytes: &[u8]) -> io::Result<()> {
    let name = to.map(Name::of);
    let (name, name_len) = name.as_ref().map_or((std::ptr::null(), 0), |(name, len)| (name.as_ptr(), *len));
    if control.len() == 0 {
        // `sendto` gives the kernel less to read and to check.
        // SAFETY: the kernel reads the bytes and the name, which both outlive the call, within the
        // lengths passed with them.
        let sent = unsafe {
            libc::syscall(
                libc::SYS_sendto,
                fd.as_raw_fd(),
                bytes.as_ptr(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                name,
                name_len,
            )
        };
        return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    }
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let message = libc::msghdr {
        msg_name: name.cast_mut().cast(),
        msg_namelen: name_len,
        msg_iov: &raw mut piece,
        msg_iovlen: 1,
        msg_control: control.as_ptr().cast_mut().cast(),
        msg_controllen: control.len(),
        msg_flags: 0,
    };
    // SAFETY: the kernel reads the name, the piece and the control messages, which all outlive the
    // call, within the lengths passed with them. It writes nothing, so the casts to mutable
    // pointers are harmless.
    let sent = unsafe {
        libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Receives a datagram without waiting, or as `flags` says. Returns its length in `buffer`, the
/// length of the control messages, and the sender.
pub(crate) fn receive(
    fd: BorrowedFd<'_>,
    buffer: &mut [u8],
    control: &mut Control,
    flags: i32,
) -> io::Result<(usize, usize, Option<SocketAddr>)> {
    let mut name = Name::room();
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = libc::msghdr {
        msg_name: name.as_mut_ptr().cast(),
        msg_namelen: name.capacity(),
        msg_iov: &raw mut piece,
        msg_iovlen: 1,
        msg_control: control.as_mut_ptr().cast(),
        msg_controllen: control.capacity(),
        msg_flags: 0,
    };
    // SAFETY: the kernel writes into the name, the buffer and the control messages, which are
    // borrowed mutably until the call returns, and within the lengths passed with them.
    let received =
        unsafe { libc::syscall(libc::SYS_recvmsg, fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | flags) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((received.cast_unsigned() as usize, message.msg_controllen, name.read(message.msg_namelen as usize)))
}

/// Receives a datagram without waiting. Returns only its length in `buffer`.
pub(crate) fn receive_bytes(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    let nobody = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: the kernel writes into the buffer, which is borrowed mutably until the call returns,
    // and within its length.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
            libc::MSG_DONTWAIT,
            nobody,
            nobody,
        )
    };
    if received < 0 { Err(io::Error::last_os_error()) } else { Ok(received.cast_unsigned() as usize) }
}
