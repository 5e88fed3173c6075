//! The nodes of management datagrams, `/dev/infiniband/umadN` and `issmN`: opening them, and which
//! descriptors are open files. [`abi::umad`] is the contract with the agent, and
//! [`crate::mad_file`] makes the calls.
//!
//! An open file is a connection to the agent's node. Datagrams for the program arrive there, so
//! that `poll` and its relatives need no replacement. `ioctl` and `write` make another connection
//! for each call. They name the file by its key, which this library keeps for each descriptor
//! ([`File`]). [`Marks`] remembers which descriptors are files. The key is also in the socket's
//! filter. So this library finds the files that a program has when it starts (after `exec`), and
//! those of `libibumad`.
//!
//! Errnos and lengths are those of Linux's `user_mad.c`. If the agent ends, calls fail with EIO, as
//! they do in a kernel after the device was removed.

use std::ffi::{c_int, c_ulong, c_void};

use abi::Record;
use abi::umad::client::{Key, label, labelled};
use abi::umad::{FileReply, FileRequest, NODE, kind};
use interpose::intercept;

use crate::connection::Connection;
use crate::counters;
use crate::entry::{Pieces, Refusal, refused};
use crate::mad_file::{File, GONE, answered};
use crate::marks::{DESCRIPTORS, Marks};
use crate::next::Function;
use crate::packet::{self, Memory};
use crate::socket;

/// The type of the ioctl requests, `IB_IOCTL_MAGIC`.
const REQUEST_TYPE: u32 = 0x1b;
/// A program that starts may have files with descriptors below this number.
const INHERITED: usize = 256;

intercept! {
    /// `ioctl`. The argument is always passed on, even if the program gave none: it is in a
    /// register.
    fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int as next => {
        let is_ours = request as u32 >> 8 & 0xff == REQUEST_TYPE;
        match if is_ours { file(fd).or_else(|| adopted(fd)) } else { None } {
            Some(file) => file.control(request as u32, argument).unwrap_or_else(refused),
            None => next(fd, request, argument),
        }
    };
    /// `write`.
    fn write(fd: c_int, buffer: *mut c_void, size: usize) -> isize as next => match file(fd) {
        Some(file) => file.write(Memory::new(buffer, size)).unwrap_or_else(refused),
        None => next(fd, buffer, size),
    };
    /// `writev`.
    fn writev(fd: c_int, pieces: Pieces, count: c_int) -> isize as next => match file(fd) {
        Some(file) => each(pieces, count, |piece| file.write(piece)).unwrap_or_else(refused),
        None => next(fd, pieces, count),
    };
    /// `read`.
    fn read(fd: c_int, buffer: *mut c_void, size: usize) -> isize as next => match file(fd) {
        Some(file) => file.read(fd, Memory::new(buffer, size)).unwrap_or_else(refused),
        None => {
            counters::before_read(fd);
            next(fd, buffer, size)
        }
    };
    /// `readv`.
    fn readv(fd: c_int, pieces: Pieces, count: c_int) -> isize as next => match file(fd) {
        Some(file) => each(pieces, count, |piece| file.read(fd, piece)).unwrap_or_else(refused),
        None => {
            counters::before_read(fd);
            next(fd, pieces, count)
        }
    };
    /// `read` of programs that were built with fortification. If the buffer is too small, the next
    /// function ends the program.
    fn __read_chk(fd: c_int, buffer: *mut c_void, size: usize, room: usize) -> isize as next => match file(fd) {
        Some(file) if size <= room => file.read(fd, Memory::new(buffer, size)).unwrap_or_else(refused),
        _ => {
            counters::before_read(fd);
            next(fd, buffer, size, room)
        }
    };
}

/// Reads or writes each piece by itself, as the kernel does for files like these. The first piece
/// that is not used up ends it.
fn each(
    pieces: Pieces,
    count: c_int,
    mut call: impl FnMut(Memory) -> Result<isize, Refusal>,
) -> Result<isize, Refusal> {
    let mut total = 0_isize;
    for piece in pieces.memory(count)?.filter(|piece| piece.length() > 0) {
        match call(piece) {
            Err(refusal) if total == 0 => return Err(refusal),
            Err(_) => break,
            Ok(done) => {
                total = total.wrapping_add(done);
                if done.cast_unsigned() != piece.length() {
                    break;
                }
            }
        }
    }
    Ok(total)
}

/// Opens `umadN` with the flags of `open`.
pub(crate) fn open_mads(number: u32, flags: c_int) -> Result<c_int, Refusal> {
    opened(kind::OPEN_MADS, number, flags)
}

/// Opens `issmN` with the flags of `open`. Waits until no other file of this node is open.
pub(crate) fn open_subnet_manager(number: u32, flags: c_int) -> Result<c_int, Refusal> {
    opened(kind::OPEN_MANAGER, number, flags)
}

fn opened(kind: u32, number: u32, flags: c_int) -> Result<c_int, Refusal> {
    let connection = Connection::to(NODE, Refusal(libc::ENXIO))?;
    let request = FileRequest::open(kind, number, flags & libc::O_NONBLOCK != 0);
    packet::send(connection.fd(), request.bytes(), Memory::NOTHING).map_err(|_| Refusal(libc::ENXIO))?;
    let mut answer = [0; size_of::<FileReply>() + size_of::<Key>()];
    // Another subnet manager may keep the port for long. A signal ends the wait, as in a kernel.
    let interruptible = kind == kind::OPEN_MANAGER;
    let (_, length) = answered(connection.fd(), &mut answer, Memory::NOTHING, interruptible)?;
    // These flags of `open` have the numbers of the socket's options.
    connection.settle(flags & (libc::O_CLOEXEC | libc::O_NONBLOCK))?;
    // A mark may be left from a closed file that had this descriptor.
    FILES.set(connection.fd(), false);
    if kind == kind::OPEN_MADS {
        let key = answer.last_chunk::<16>().filter(|key| key.len() == length).ok_or(GONE)?;
        place(connection.fd()).ok_or(Refusal(libc::EMFILE))?.begin(*key);
        socket::set_filter(connection.fd(), label(*key));
        FILES.set(connection.fd(), true);
    }
    Ok(connection.keep())
}

/// A descriptor of the program has a duplicate.
#[inline]
pub(crate) fn duplicated(fd: c_int, duplicate: c_int) {
    if FILES.has(fd)
        && let (Some(from), Some(to)) = (place(fd), place(duplicate))
    {
        to.copy(from);
    }
    FILES.copy(fd, duplicate);
}

/// Finds the files that the program had before `exec`.
#[cfg(not(test))]
pub(crate) fn adopt_inherited() {
    for fd in socket::open_descriptors::<INHERITED>() {
        let _ = adopted(fd);
    }
}

/// The file of a descriptor without a mark, if it is one: of a program before `exec`, or of
/// `libibumad`.
#[cold]
fn adopted(fd: c_int) -> Option<&'static File> {
    if !socket::peer_is(fd, NODE) {
        return None;
    }
    let key = socket::filter(fd).and_then(|filter| labelled(&filter))?;
    let file = place(fd)?;
    file.adopt(key).ok()?;
    FILES.set(fd, true);
    Some(file)
}

/// The file of a descriptor that is one.
#[inline]
fn file(fd: c_int) -> Option<&'static File> {
    if FILES.is_ours(fd) { place(fd) } else { None }
}

fn place(fd: c_int) -> Option<&'static File> {
    TABLE.get(usize::try_from(fd).ok()?)
}

/// The descriptors of open files.
static FILES: Marks = Marks::of(NODE);
/// The file of each of them. Pages that were never used have no memory.
static TABLE: [File; DESCRIPTORS] = [const { File::new() }; _];
