//! The counters of ports in sysfs. Before a program opens one, this library asks the agent to bring
//! them up to date in the mirror.
//!
//! Some programs open a counter once, and read it again from its beginning: as in the kernel, the
//! value is that of the time of the call. The agent replaces the files, so the descriptor is then
//! set to the new file.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use libc::{AT_FDCWD, off_t};
use rustix::fs::{CWD, Mode, OFlags, SeekFrom, openat, readlinkat_raw, seek, tell};
use rustix::io::{DupFlags, FdFlags, dup3, fcntl_getfd};
use rustix::path::DecInt;

use interpose::intercept;

use crate::connection::Connection;
use crate::entry::{Place, Refusal, Room, Text};
use crate::marks::Bits;
use crate::next::Function;
use crate::packet::{self, Memory};
use crate::paths::{Counter, Official, before_official};

/// The agent's node for such requests.
const NODE: &str = "admin";

/// The descriptors that were counters when the program opened them.
static OPENED: Bits = Bits::new();

intercept! {
    /// `pread`.
    fn pread(fd: c_int, buffer: *mut c_void, size: usize, offset: off_t) -> isize as next => {
        renew_at(fd, offset);
        next(fd, buffer, size, offset)
    };
    /// `pread64`.
    fn pread64(fd: c_int, buffer: *mut c_void, size: usize, offset: off_t) -> isize as next => {
        renew_at(fd, offset);
        next(fd, buffer, size, offset)
    };
    /// `pread` of programs that were built with fortification.
    fn __pread_chk(fd: c_int, buffer: *mut c_void, size: usize, offset: off_t, room: usize) -> isize as next => {
        renew_at(fd, offset);
        next(fd, buffer, size, offset, room)
    };
    /// `pread64` of programs that were built with fortification.
    fn __pread64_chk(fd: c_int, buffer: *mut c_void, size: usize, offset: off_t, room: usize) -> isize as next => {
        renew_at(fd, offset);
        next(fd, buffer, size, offset, room)
    };
}

/// Asks for the counters of the port, if the path is one of them. Returns whether it is. Without
/// an answer, the program reads older ones.
pub(crate) fn refresh(place: &Place<'_>) -> bool {
    place.official.counter().as_ref().map(ask).is_some()
}

/// The same for a path that is relative to `from`: a program may have changed into the mirror, or
/// have a folder of it open.
#[inline]
pub(crate) fn refresh_within(from: c_int, path: Text) -> bool {
    BEGINNINGS.iter().any(|beginning| last_name(&path).starts_with(beginning)) && find(from, path.bytes())
}

/// A program has opened a file; `is_counter` is the answer of [`refresh`]. Returns the descriptor.
#[inline]
pub(crate) fn opened(is_counter: bool, fd: c_int) -> c_int {
    if is_counter {
        OPENED.set(fd, true);
    }
    fd
}

/// A program is about to read from where it is in the file.
#[inline]
pub(crate) fn before_read(fd: c_int) {
    if OPENED.has(fd) {
        // SAFETY: the program has this descriptor open for the time of its call.
        let at = tell(unsafe { BorrowedFd::borrow_raw(fd) });
        renew_at(fd, at.map_or(1, u64::cast_signed));
    }
}

/// A program is about to read from `offset`.
#[inline]
fn renew_at(fd: c_int, offset: off_t) {
    if offset == 0 && OPENED.has(fd) {
        renew(fd);
    }
}

/// Makes a descriptor that may be a counter one of the file with the present value.
#[cold]
#[inline(never)]
fn renew(fd: c_int) {
    let mut path = Room::new();
    let Some(whole) = path_of(fd, b"", &mut path) else { return };
    // The file was replaced.
    let whole = whole.strip_suffix(b" (deleted)").unwrap_or(whole);
    let Some(counter) = counter_at(whole) else { return OPENED.set(fd, false) };
    let _ = ask(&counter);
    let mut name = Room::new();
    let Ok(name) = name.hold(whole.iter().copied()) else { return };
    // SAFETY: the program has this descriptor open for the time of its call, and it is not closed
    // here.
    let mut old = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    let Ok(flags) = fcntl_getfd(&*old) else { return };
    let Ok(new) = openat(CWD, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return };
    // `pread` does not move.
    let _ = tell(&*old).and_then(|at| seek(&new, SeekFrom::Start(at)));
    let kept = if flags.contains(FdFlags::CLOEXEC) { DupFlags::CLOEXEC } else { DupFlags::empty() };
    let _ = dup3(&new, &mut old, kept);
}

/// How the names of counters begin. Other names are not looked at more closely.
const BEGINNINGS: [&[u8]; 15] = [
    b"VL15_",
    b"duplicate_",
    b"excessive_",
    b"implied_",
    b"link_",
    b"local_",
    b"multicast_",
    b"np_",
    b"out_of_",
    b"packet_",
    b"port_",
    b"rnr_",
    b"rp_",
    b"symbol_",
    b"unicast_",
];

/// The last name of a relative path; nothing for an absolute one.
#[inline]
fn last_name(path: &Text) -> &[u8] {
    if path.begins(b"/") {
        return &[];
    }
    path.bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
}

/// Asks for the counters, if the path is one of them. Returns whether it is. Not inlined, so that
/// only such names use the stack for the paths.
#[cold]
#[inline(never)]
fn find(from: c_int, path: &[u8]) -> bool {
    let mut whole = Room::new();
    let counter = path_of(from, path, &mut whole).and_then(counter_at);
    counter.as_ref().map(ask).is_some()
}

/// The counter with this path in the mirror.
fn counter_at(whole: &[u8]) -> Option<Counter<'_>> {
    let official = before_official(whole).and_then(|(_, start)| whole.get(start..))?;
    Official::read(official)?.counter()
}

/// The path of a descriptor, or of the working folder, followed by `more`.
fn path_of<'a>(from: c_int, more: &[u8], whole: &'a mut Room) -> Option<&'a [u8]> {
    let (mut link, mut folder) = (Room::new(), [0; libc::PATH_MAX as usize]);
    let number = DecInt::new(from);
    let name = if from == AT_FDCWD { &b"cwd"[..] } else { number.as_bytes() };
    let parent = if from == AT_FDCWD { &b"/proc/self/"[..] } else { b"/proc/self/fd/" };
    let link = link.hold(parent.iter().chain(name).copied()).ok()?;
    let length = readlinkat_raw(CWD, link, &mut folder[..]).ok()?;
    let slash: &[u8] = if more.is_empty() { b"" } else { b"/" };
    let path = folder.get(..length)?.iter().chain(slash).chain(more);
    whole.hold(path.copied()).ok().map(|whole| whole.to_bytes())
}

fn ask(Counter { device, port }: &Counter<'_>) -> Result<(), Refusal> {
    let connection = Connection::to(NODE, Refusal(libc::ENXIO))?;
    let parts = [br#"{"request":"counters","device":""#, *device, br#"","port":"#, *port, b"}"];
    let mut room = Room::new();
    let question = room.hold(parts.into_iter().flatten().copied())?;
    packet::send(connection.fd(), question.to_bytes(), Memory::NOTHING)?;
    packet::receive(connection.fd(), &mut [0; 64], Memory::NOTHING).map(drop)
}
