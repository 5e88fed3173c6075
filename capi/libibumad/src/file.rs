//! An open `umadN`: the connection to the agent, and calls for it. [`abi::umad`] is the contract.
//! The exported functions are in [`crate::port`] and [`crate::transfer`].
//!
//! The principal functions are [`open`] and [`call`].

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use abi::Record;
use abi::umad::{self, FileReply, FileRequest, NODE, ioctl, kind};
use engine::rundir;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::net::{
    self, AddressFamily, RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType,
};

use crate::entry::{Outcome, Refusal};

const GONE: Refusal = Refusal(libc::EIO);

type Key = [u8; 16];

/// The keys of this process's open files, by descriptor.
static KEYS: Mutex<BTreeMap<c_int, Key>> = Mutex::new(BTreeMap::new());

fn told(errno: rustix::io::Errno) -> Refusal {
    match errno {
        rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => GONE,
        other => Refusal(other.raw_os_error()),
    }
}

/// Connects to the agent's node. The path goes through the folder's descriptor, because a run
/// directory may have a longer name than a socket address can hold.
fn connect() -> Outcome<OwnedFd> {
    let open = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(rundir::default(), open, Mode::empty()).map_err(told)?;
    let path = format!("/proc/self/fd/{}/{NODE}", folder.as_raw_fd());
    let socket =
        net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).map_err(told)?;
    let address = SocketAddrUnix::new(path).map_err(told)?;
    rustix::io::retry_on_intr(|| net::connect(&socket, &address)).map_err(told)?;
    Ok(socket)
}

fn send(socket: &OwnedFd, pieces: &[&[u8]]) -> Outcome<()> {
    let pieces: Vec<IoSlice<'_>> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    let none = &mut SendAncillaryBuffer::default();
    rustix::io::retry_on_intr(|| net::sendmsg(socket, &pieces, none, SendFlags::NOSIGNAL)).map_err(told)?;
    Ok(())
}

/// Waits for the reply. Returns its value, and the length of what follows it in `rest`.
fn reply(socket: &OwnedFd, rest: &mut [u8]) -> Outcome<(u32, usize)> {
    let mut beginning = [0; size_of::<FileReply>()];
    let mut pieces = [IoSliceMut::new(&mut beginning), IoSliceMut::new(rest)];
    let none = &mut RecvAncillaryBuffer::default();
    let received = rustix::io::retry_on_intr(|| net::recvmsg(socket, &mut pieces, none, RecvFlags::empty()));
    let length = received.map_err(told)?.bytes;
    let reply = beginning.get(..length.min(beginning.len())).and_then(FileReply::read).ok_or(GONE)?;
    match reply.status {
        0 => Ok((reply.value, length.saturating_sub(beginning.len()))),
        status => Err(Refusal(status.wrapping_neg())),
    }
}

/// Opens `umadN`. Headers have a P_Key index. The descriptor does not wait, and is closed by
/// `exec`, because its key would be lost.
pub(crate) fn open(number: u32) -> Outcome<c_int> {
    let socket = connect()?;
    let request = FileRequest { kind: kind::OPEN_MADS, number, ..FileRequest::default() };
    send(&socket, &[request.bytes()])?;
    let mut key = Key::default();
    let (_, length) = reply(&socket, &mut key)?;
    if length != key.len() {
        return Err(GONE);
    }
    rustix::io::ioctl_fionbio(&socket, true).map_err(told)?;
    let fd = socket.into_raw_fd();
    KEYS.lock().insert(fd, key);
    control(fd, ioctl::ENABLE_PKEY, &mut []).inspect_err(|_| {
        let _ = close(fd);
    })?;
    Ok(fd)
}

/// Closes a file.
pub(crate) fn close(fd: c_int) -> Outcome<()> {
    KEYS.lock().remove(&fd).ok_or(Refusal(libc::EBADF))?;
    // SAFETY: it was in the table, so the descriptor is this library's, and it has left the table.
    drop(unsafe { OwnedFd::from_raw_fd(fd) });
    Ok(())
}

/// The descriptor of an open file.
pub(crate) fn descriptor(fd: c_int) -> Outcome<BorrowedFd<'static>> {
    if !KEYS.lock().contains_key(&fd) {
        return Err(Refusal(libc::EBADF));
    }
    // SAFETY: the program closes the file only when it no longer uses it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Calls `ioctl` on a file. The argument changes, also when the call fails.
pub(crate) fn control(fd: c_int, request: u32, argument: &mut [u8]) -> Outcome<()> {
    debug_assert_eq!(umad::argument(request), Some(argument.len()));
    let sent = argument.to_vec();
    call(fd, kind::IOCTL, request, &[&sent], argument)
}

/// Writes a message to a file.
pub(crate) fn write(fd: c_int, pieces: &[&[u8]]) -> Outcome<()> {
    call(fd, kind::WRITE, 0, pieces, &mut [])
}

fn call(fd: c_int, kind: u32, number: u32, pieces: &[&[u8]], result: &mut [u8]) -> Outcome<()> {
    let key = KEYS.lock().get(&fd).copied().ok_or(Refusal(libc::EBADF))?;
    let socket = connect().map_err(|_| GONE)?;
    let request = FileRequest { kind, number, key, ..FileRequest::default() };
    let pieces: Vec<&[u8]> = std::iter::once(request.bytes()).chain(pieces.iter().copied()).collect();
    send(&socket, &pieces)?;
    reply(&socket, result).map(drop)
}
