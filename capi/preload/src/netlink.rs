//! Sockets of NETLINK_RDMA, with which `rdma` and other programs ask the kernel for its devices.
//! Here, the socket is a connection to the agent, which answers as a kernel does.
//!
//! It is a unix socket of type SOCK_SEQPACKET, which preserves message boundaries and ignores the
//! destination address of a message. So only addresses remain to be handled here: `bind`,
//! `getsockname` and the sender of a message. [`Marks`] remembers the descriptors of these sockets.
//! A mark counts only if the socket's peer is the agent's node, because the descriptor may have
//! been closed and reused.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use interpose::intercept;

use crate::entry::{Out, Refusal, Room, refused};
use crate::next::Function;
use crate::socket::{Address, Message, Netlink};
use crate::{root, socket};

/// NETLINK_RDMA of linux/netlink.h.
const NETLINK_RDMA: c_int = 20;
/// The node in the run directory.
const NODE: &[u8] = b"/rdma_netlink";
/// The number of descriptors that can have a mark.
const MARKS: usize = 65_536;

intercept! {
    /// `socket`.
    fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int as next => {
        if domain == libc::AF_NETLINK && protocol == NETLINK_RDMA {
            connected(|kind| next(libc::AF_UNIX, kind, 0), kind)
        } else {
            next(domain, kind, protocol)
        }
    };
    /// `bind`.
    fn bind(fd: c_int, address: *const c_void, length: u32) -> c_int as next =>
        if is_ours(fd) { 0 } else { next(fd, address, length) };
    /// `connect`.
    fn connect(fd: c_int, address: *const c_void, length: u32) -> c_int as next =>
        if is_ours(fd) { 0 } else { next(fd, address, length) };
    /// `getsockname`.
    fn getsockname(fd: c_int, address: Address, length: Out<u32>) -> c_int as next => {
        if is_ours(fd) { address.fill(length, &Netlink::of_this_process()); 0 } else { next(fd, address, length) }
    };
    /// `setsockopt`.
    fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: u32) -> c_int as next =>
        if level == libc::SOL_NETLINK && is_ours(fd) { 0 } else { next(fd, level, name, value, length) };
    /// `recvmsg`.
    fn recvmsg(fd: c_int, message: Message, flags: c_int) -> isize as next => {
        let room = if MARKED.has(fd) { message.name_room() } else { 0 };
        let received = next(fd, message, flags);
        if received >= 0 && is_ours(fd) {
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
    if let Some(room) = room.filter(|_| received >= 0 && is_ours(fd)) {
        length.change(|length| *length = from.write(room, &Netlink::of_the_kernel()));
    }
    received
}

/// Makes a connection to the agent. Without an agent, the result is that of a kernel without RDMA.
fn connected(open: impl Fn(c_int) -> c_int, kind: c_int) -> c_int {
    let (options, kind) = (kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK), kind & 0xf);
    if kind != libc::SOCK_RAW && kind != libc::SOCK_DGRAM {
        return refused(Refusal(libc::ESOCKTNOSUPPORT));
    }
    let fd = open(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    if fd < 0 {
        return fd;
    }
    if let Err(refusal) = connect_to_agent(fd).and_then(|()| socket::settle(fd, options)) {
        socket::close(fd);
        return refused(refusal);
    }
    MARKED.set(fd, true);
    fd
}

/// Connects to the agent of this process's run directory.
fn connect_to_agent(fd: c_int) -> Result<(), Refusal> {
    const NOBODY: Refusal = Refusal(libc::EPROTONOSUPPORT);
    let (mut room, mut short) = (Room::new(), Room::new());
    let path = room.hold(root::run_directory().ok_or(NOBODY)?.chain(NODE.iter().copied()))?;
    match socket::connect_to(fd, path) {
        // A path that is too long for a socket address is reached through its folder's descriptor.
        Err(Refusal(libc::ENAMETOOLONG)) => {
            let folder = room.hold(root::run_directory().ok_or(NOBODY)?).and_then(socket::open_folder)?;
            let number = decimal(folder.unsigned_abs());
            let path = b"/proc/self/fd/".iter().copied().chain(number).chain(NODE.iter().copied());
            let connected = short.hold(path).and_then(|path| socket::connect_to(fd, path));
            socket::close(folder);
            connected
        }
        connected => connected,
    }
    .map_err(|_| NOBODY)
}

/// The digits of a number.
fn decimal(number: u32) -> impl Iterator<Item = u8> {
    let places = (0..10).rev().map(|place| 10_u32.pow(place));
    let digits = places.filter(move |place| *place == 1 || number >= *place);
    digits.map(move |place| b'0' + (number / place % 10) as u8)
}

/// Whether a descriptor is a netlink socket made here.
#[inline]
fn is_ours(fd: c_int) -> bool {
    MARKED.has(fd) && is_ours_still(fd)
}

/// Not inlined, because it is rarely called.
#[cold]
fn is_ours_still(fd: c_int) -> bool {
    let ours = socket::peer_ends_with(fd, NODE);
    if !ours {
        MARKED.set(fd, false);
    }
    ours
}

/// The descriptors that were made here. Some may have been closed and reused.
static MARKED: Marks = Marks([const { AtomicU64::new(0) }; MARKS / 64]);

/// A bit for each descriptor. Nothing else is published with it.
struct Marks([AtomicU64; MARKS / 64]);

impl Marks {
    #[inline]
    fn has(&self, fd: c_int) -> bool {
        self.bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    fn set(&self, fd: c_int, is: bool) {
        match self.bit(fd) {
            Some((word, bit)) if is => drop(word.fetch_or(bit, Ordering::Relaxed)),
            Some((word, bit)) => drop(word.fetch_and(!bit, Ordering::Relaxed)),
            None => {}
        }
    }

    #[inline]
    fn bit(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_digits() {
        for number in [0, 7, 10, 909, 65_535, u32::MAX] {
            assert_eq!(decimal(number).collect::<Vec<_>>(), number.to_string().into_bytes());
        }
    }

    #[test]
    fn marks_are_for_descriptors_only() {
        let marks = Marks([const { AtomicU64::new(0) }; MARKS / 64]);
        for fd in [0, 63, 64, 65_535] {
            assert!(!marks.has(fd));
            marks.set(fd, true);
            assert!(marks.has(fd));
            marks.set(fd, false);
            assert!(!marks.has(fd));
        }
        for fd in [-1, 65_536, c_int::MIN, c_int::MAX] {
            marks.set(fd, true);
            assert!(!marks.has(fd));
        }
    }
}
