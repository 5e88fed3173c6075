//! The C parts of [`crate::netlink`] and [`crate::connection`]: the system calls on their sockets,
//! and the program's addresses, each with its own type. The principal type is [`Address`].

use std::ffi::{CStr, c_int, c_void};
use std::mem::{offset_of, zeroed};

use crate::entry::{Out, Refusal, last_refusal};

/// An address of a netlink socket: `struct sockaddr_nl`.
pub(crate) struct Netlink(libc::sockaddr_nl);

impl Netlink {
    /// The address that the program sees for its own socket.
    pub(crate) fn of_this_process() -> Self {
        let mut address = Self::of_the_kernel();
        // SAFETY: takes nothing and cannot fail.
        address.0.nl_pid = unsafe { libc::getpid() }.cast_unsigned();
        address
    }

    /// The address that the program sees as the sender of answers.
    pub(crate) fn of_the_kernel() -> Self {
        // SAFETY: a struct of numbers, which may all be zero.
        let mut address: libc::sockaddr_nl = unsafe { zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        Self(address)
    }
}

/// A place for an address in the program's memory, or NULL.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Address(*mut c_void);

impl Address {
    /// Writes an address into the program's room, and stores its whole length.
    pub(crate) fn fill(self, length: Out<u32>, address: &Netlink) {
        length.change(|length| *length = self.write(*length, address));
    }

    /// Writes an address into `room` bytes, and returns its whole length.
    pub(crate) fn write(self, room: u32, address: &Netlink) -> u32 {
        let len = size_of::<libc::sockaddr_nl>();
        if !self.0.is_null() {
            let fits = len.min(room as usize);
            // SAFETY: the program promises that there is this much room, and the room is not this
            // library's memory.
            unsafe { std::ptr::copy_nonoverlapping((&raw const address.0).cast::<u8>(), self.0.cast(), fits) };
        }
        len as u32
    }
}

/// A program's `struct msghdr`, or NULL.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Message(*mut libc::msghdr);

impl Message {
    /// Stores the sender of a message. `room` is the program's room for it before the message was
    /// received.
    pub(crate) fn fill_name(self, room: u32, address: &Netlink) {
        // SAFETY: the C library has just received into it, so it is NULL or valid.
        let Some(message) = (unsafe { self.0.as_mut() }) else { return };
        if !message.msg_name.is_null() {
            message.msg_namelen = Address(message.msg_name).write(room, address);
        }
    }

    /// The program's room for an address, before the message is received.
    pub(crate) fn name_room(self) -> u32 {
        // SAFETY: a caller of `recvmsg` passes a valid message; the C library would read it now.
        unsafe { self.0.as_ref() }.map_or(0, |message| message.msg_namelen)
    }
}

/// Makes a unix socket of type SOCK_SEQPACKET with SOCK_CLOEXEC. Uses the system call, because this
/// library replaces `socket`.
pub(crate) fn open() -> Result<c_int, Refusal> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: numbers only.
    let fd = unsafe { libc::syscall(libc::SYS_socket, libc::AF_UNIX, kind, 0) };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(last_refusal)
}

/// Connects to the node with this path. Uses the system call, because this library replaces
/// `connect`.
pub(crate) fn connect_to(fd: c_int, path: &CStr) -> Result<(), Refusal> {
    let bytes = path.to_bytes();
    // SAFETY: a struct of numbers, which may all be zero.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    // The last byte stays zero.
    if bytes.len() >= address.sun_path.len() {
        return Err(Refusal(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    loop {
        // SAFETY: a local address and its length.
        if unsafe { libc::syscall(libc::SYS_connect, fd, &raw const address, len) } == 0 {
            return Ok(());
        }
        match last_refusal() {
            Refusal(libc::EINTR) => {}
            refusal => return Err(refusal),
        }
    }
}

/// Opens a folder as a path reference (O_PATH). Uses the system call, because this library replaces
/// `open`.
pub(crate) fn open_folder(path: &CStr) -> Result<c_int, Refusal> {
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC;
    // SAFETY: a C string.
    let fd = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
    c_int::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(last_refusal)
}

/// The number of 64-bit instructions of a socket filter that [`set_filter`] takes.
const FILTER: usize = abi::umad::client::LABEL;

/// Attaches a filter to a socket. It stays there when the descriptor is duplicated, and after
/// `exec`.
pub(crate) fn set_filter(fd: c_int, mut filter: [u64; FILTER]) {
    let program = libc::sock_fprog { len: FILTER as u16, filter: filter.as_mut_ptr().cast() };
    let (level, name, len) = (libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, size_of::<libc::sock_fprog>());
    // SAFETY: the program is local, and its instructions have 8 bytes each.
    unsafe { libc::syscall(libc::SYS_setsockopt, fd, level, name, &raw const program, len) };
}

/// The filter of a socket, if it has one of this length.
pub(crate) fn filter(fd: c_int) -> Option<[u64; FILTER]> {
    /// `SO_GET_FILTER`.
    const GET: c_int = libc::SO_ATTACH_FILTER;
    let (mut filter, mut count) = ([0_u64; FILTER], FILTER as u32);
    // SAFETY: room for `count` instructions of 8 bytes, which is the unit of this option.
    let got =
        unsafe { libc::syscall(libc::SYS_getsockopt, fd, libc::SOL_SOCKET, GET, filter.as_mut_ptr(), &raw mut count) };
    (got == 0 && count as usize == FILTER).then_some(filter)
}

/// The descriptors below `MOST` that are open.
pub(crate) fn open_descriptors<const MOST: usize>() -> impl Iterator<Item = c_int> {
    let mut files = [libc::pollfd { fd: 0, events: 0, revents: 0 }; MOST];
    for (fd, file) in (0..).zip(&mut files) {
        file.fd = fd;
    }
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let signals = std::ptr::null::<c_void>();
    // SAFETY: local structs.
    let polled = unsafe { libc::syscall(libc::SYS_ppoll, files.as_mut_ptr(), MOST, &raw const at_once, signals, 0) };
    let is_open = move |file: &libc::pollfd| polled >= 0 && file.revents & libc::POLLNVAL == 0;
    files.into_iter().filter(is_open).map(|file| file.fd)
}

/// Sets SOCK_CLOEXEC and SOCK_NONBLOCK as in `options` on a socket that has SOCK_CLOEXEC.
pub(crate) fn settle(fd: c_int, options: c_int) -> Result<(), Refusal> {
    // SAFETY: numbers only.
    let set = |command: c_int, flags: c_int| unsafe { libc::syscall(libc::SYS_fcntl, fd, command, flags) } == 0;
    let inheritance = options & libc::SOCK_CLOEXEC != 0 || set(libc::F_SETFD, 0);
    if inheritance && (options & libc::SOCK_NONBLOCK == 0 || set(libc::F_SETFL, libc::O_NONBLOCK)) {
        return Ok(());
    }
    Err(last_refusal())
}

/// Closes a descriptor of this library. Uses the system call, because a thread may be cancelled in
/// the C library's function.
pub(crate) fn close(fd: c_int) {
    // SAFETY: nothing else uses the descriptor.
    unsafe { libc::syscall(libc::SYS_close, fd) };
}

/// Whether the peer of a socket is a unix socket whose file is called `name`. `errno` does not
/// change.
pub(crate) fn peer_is(fd: c_int, name: &str) -> bool {
    let before = interpose::errno();
    // SAFETY: a struct of numbers, which may all be zero.
    let mut address: libc::sockaddr_un = unsafe { zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as u32;
    // SAFETY: a local address with its length.
    let found = unsafe { libc::syscall(libc::SYS_getpeername, fd, &raw mut address, &raw mut len) } == 0;
    interpose::set_errno(before);
    let len = (len as usize).saturating_sub(offset_of!(libc::sockaddr_un, sun_path)).min(address.sun_path.len());
    let path = address.sun_path.map(i8::cast_unsigned);
    let path = path[..len].split(|byte| *byte == 0).next().unwrap_or_default();
    found
        && address.sun_family == libc::AF_UNIX as u16
        && path.strip_suffix(name.as_bytes()).is_some_and(|folder| folder.ends_with(b"/"))
}
