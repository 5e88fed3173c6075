//! Sockets of NETLINK_RDMA, with which `rdma` and other programs ask the kernel for its devices.
//! Here, the socket is a connection to the agent, which answers as a kernel does.
//!
//! It is a unix socket of type SOCK_SEQPACKET, which preserves message boundaries and ignores the
//! destination address of a message. So only addresses remain to be handled here: `bind`,
//! `getsockname` and the sender of a message. [`Marks`] remembers the descriptors of these sockets.

use std::ffi::{c_int, c_void};

use abi::netlink::NODE;
use interpose::intercept;

use crate::connection::Connection;
use crate::entry::{Out, Refusal, refused};
use crate::marks::Marks;
use crate::next::Function;
use crate::socket::{Address, Message, Netlink};

/// NETLINK_RDMA of linux/netlink.h.
const NETLINK_RDMA: c_int = 20;

intercept! {
    /// `socket`.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int as next => {
        if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
            connected(kind).unwrap_or_else(refused)
        } else {
            next(domain, kind, protocol)
        }
    };
    /// `bind`.
    fn bind(fd: c_int, address: *const c_void, length: u32) -> c_int as next =>
        if MARKED.is_ours(fd) { 0 } else { next(fd, address, length) };
    /// `connect`.
    fn connect(fd: c_int, address: *const c_void, length: u32) -> c_int as next =>
        if MARKED.is_ours(fd) { 0 } else { next(fd, address, length) };
    /// `getsockname`.
    fn getsockname(fd: c_int, address: Address, length: Out<u32>) -> c_int as next => {
        if MARKED.is_ours(fd) { address.fill(length, &Netlink::of_this_process()); 0 } else { next(fd, address, length) }
    };
    /// `setsockopt`.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int as next =>
        if level == libc::SOL_NETLINK && MARKED.is_ours(fd) { 0 } else { next(fd, level, name, value, length) };
    /// `recvmsg`.
    fn recvmsg(fd: c_int, message: Message, flags: c_int) -> isize as next => {
        let room = if MARKED.has(fd) { message.name_room() } else { 0 };
        let received = next(fd, message, flags);
        if received >= 0 && MARKED.is_ours(fd) {
            message.fill_name(room, &Netlink::of_the_kernel());
        }
        received
    };
    /// `recvfrom`.
    fn recvfrom(fd: c_int, buffer: *mut c_void, size: usize, flags: c_int, from: Address, length: Out<u32>) -> isize as next =>
        named(fd, from, length, || next(fd, buffer, size, flags, from, length));
    /// `recvfrom` of programs that were built with fortification.
    fn __recvfrom_chk(fd: c_int, buffer: *mut c_void, size: usize, room: usize, flags: c_int, from: Address, length: Out<u32>) -> isize as next =>
        named(fd, from, length, || next(fd, buffer, size, room, flags, from, length));
}

/// Receives a message and stores the kernel's netlink address as its sender.
fn named(fd: c_int, from: Address, length: Out<u32>, receive: impl FnOnce() -> isize) -> isize {
    // If the program gives no room for an address, it does not want one.
    let room = if MARKED.has(fd) { length.change(|length| *length) } else { None };
    let received = receive();
    if let Some(room) = room.filter(|_| received >= 0 && MARKED.is_ours(fd)) {
        length.change(|length| *length = from.write(room, &Netlink::of_the_kernel()));
    }
    received
}

/// Makes a connection to the agent. Without an agent, the result is that of a kernel without RDMA.
fn connected(kind: c_int) -> Result<c_int, Refusal> {
    let (options, kind) = (kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), kind & 0xf);
    if kind != libc::SOCK_RAW && kind != libc::SOCK_DGRAM {
        return Err(Refusal(libc::ESOCKTNOSUPPORT));
    }
    let connection = Connection::to(NODE, Refusal(libc::EPROTONOSUPPORT))?;
    connection.settle(options)?;
    let fd = connection.keep();
    MARKED.set(fd, true);
    Ok(fd)
}

/// A descriptor of the program has a duplicate.
pub(crate) fn duplicated(fd: c_int, duplicate: c_int) {
    MARKED.copy(fd, duplicate);
}

/// The descriptors of these sockets.
static MARKED: Marks = Marks::of(NODE);
