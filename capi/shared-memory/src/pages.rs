//! Pages of memory: making them shared, giving them back, copying them. Talks to the kernel only,
//! never to the C library, and leaves `errno` alone. The principal function is [`share`].
//!
//! All addresses here are of whole pages that this library or the program has mapped for data.
//! They are numbers: nothing here makes references to the program's memory.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::choice::Descriptors;
use crate::table::{File, Piece, Span};

/// The protection of data.
pub(crate) const DATA: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// Advice that makes each access a fault (Linux 6.13).
pub(crate) const GUARD_INSTALL: c_int = 102;

fn pointer(address: usize) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address)
}

/// New private memory, at an address of the kernel's choice.
pub(crate) fn map(length: usize) -> Result<usize, Errno> {
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let address = unsafe { rustix::mm::mmap_anonymous(pointer(0), length, DATA, MapFlags::PRIVATE) }?;
    Ok(address.expose_provenance())
}

/// New private memory that the kernel does not promise to have.
pub(crate) fn map_unreserved(length: usize) -> Result<usize, Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
    let address = unsafe { rustix::mm::mmap_anonymous(pointer(0), length, DATA, flags) }?;
    Ok(address.expose_provenance())
}

/// A new private page that is zeros in each forked child.
pub(crate) fn map_wiped() -> Result<usize, Errno> {
    let page = map(crate::choice::PAGE)?;
    // SAFETY: the advice changes only what a forked child gets.
    let advised = unsafe { rustix::mm::madvise(pointer(page), crate::choice::PAGE, Advice::LinuxWipeOnFork) };
    if advised.is_err() {
        unmap(&(page..page + crate::choice::PAGE));
    }
    advised.map(|()| page)
}

/// New private memory at an address where no memory is.
pub(crate) fn map_at(span: &Span) -> Result<(), Errno> {
    let flags = MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE;
    // SAFETY: the flag makes the call fail rather than replace memory.
    let address = unsafe { rustix::mm::mmap_anonymous(pointer(span.start), span.len(), DATA, flags) }?;
    debug_assert_eq!(address.addr(), span.start);
    Ok(())
}

/// Unmaps memory of this library.
pub(crate) fn unmap(span: &Span) {
    if !span.is_empty() {
        // SAFETY: the memory belongs to the caller, who is done with it.
        let _ = unsafe { rustix::mm::munmap(pointer(span.start), span.len()) };
    }
}

/// Puts shared memory in the place of new private memory, which nobody has used. If that fails, the
/// private memory stays.
///
/// The private memory comes first because the kernel then checks what it would check without this
/// library: limits on the address space, and overcommit.
pub(crate) fn share(span: &Span, file_length: usize, block: usize, descriptors: &Descriptors) -> Option<Piece> {
    let file = make_file(file_length.max(span.len()), descriptors.from)?;
    // SAFETY: the descriptor is open.
    let fd = unsafe { BorrowedFd::borrow_raw(file.fd) };
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the pages that are replaced are new, and nobody uses them yet.
    if unsafe { rustix::mm::mmap(pointer(span.start), span.len(), DATA, flags, fd, 0) }.is_err() {
        // The kernel may have removed the private memory already.
        let _ = map_at(span);
        close(&file);
        return None;
    }
    // A child of the system call clone(2), for which this library makes no copies, gets nothing.
    // SAFETY: the advice changes only what a forked child gets.
    let _ = unsafe { rustix::mm::madvise(pointer(span.start), span.len(), Advice::LinuxDontFork) };
    Some(Piece {
        start: span.start,
        end: span.end,
        file: Some(file),
        offset: 0,
        block,
        protection: DATA.bits(),
        advice: crate::table::Advice::NONE,
        is_unusual: false,
        copy: 0,
    })
}

/// A memfd whose length is sealed, with a descriptor from a number on.
fn make_file(length: usize, from: i32) -> Option<File> {
    // Beyond this limit, the kernel would send a signal.
    getrlimit(Resource::Fsize).current.is_none_or(|limit| length as u64 <= limit).then_some(())?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let made = rustix::fs::memfd_create(c"softhca-memory", flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(c"softhca-memory", flags))
        .ok()?;
    let sealed = seal(&made, length).ok();
    let high = sealed.and_then(|stat| Some((stat, rustix::io::fcntl_dupfd_cloexec(&made, from).ok()?)));
    discard(made);
    let (stat, fd) = high?;
    Some(File { fd: fd.into_raw_fd(), device: stat.st_dev, inode: stat.st_ino, length })
}

fn seal(file: &OwnedFd, length: usize) -> Result<rustix::fs::Stat, Errno> {
    rustix::fs::ftruncate(file, length as u64)?;
    // The engine adds `SEAL` when it grants the file to a peer.
    rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW)?;
    rustix::fs::fstat(file)
}

/// Closes a descriptor without the C library.
fn discard(file: OwnedFd) {
    // SAFETY: the descriptor was this function's own.
    unsafe { rustix::io::close(file.into_raw_fd()) };
}

/// The descriptor of a file, if the program has not closed it.
fn descriptor(file: &File) -> Option<BorrowedFd<'_>> {
    // SAFETY: the program may close any descriptor at any time. Then the calls with this one fail,
    // or act on another file; they only read, and the next line makes that unlikely.
    let fd = unsafe { BorrowedFd::borrow_raw(file.fd) };
    let stat = rustix::fs::fstat(fd).ok()?;
    ((stat.st_dev, stat.st_ino) == (file.device, file.inode)).then_some(fd)
}

/// Closes the descriptor of a file.
pub(crate) fn close(file: &File) {
    if let Some(fd) = descriptor(file) {
        // SAFETY: the descriptor is the one that this library has opened.
        unsafe { rustix::io::close(fd.as_raw_fd()) };
    }
}

/// Gives the memory of a piece back to the machine. The pages stay mapped, and are zeros from now
/// on.
pub(crate) fn punch(piece: &Piece) -> Result<(), Errno> {
    // SAFETY: the pages are those of a piece, and the program has said that it does not need the
    // data.
    let done = unsafe { rustix::mm::madvise(pointer(piece.start), piece.len(), Advice::LinuxRemove) };
    // Before Linux 6.7, the kernel refuses this for pages that may not be written.
    if done != Err(Errno::ACCESS) || piece.protection & DATA.bits() == DATA.bits() {
        return done;
    }
    protect(piece.start, piece.len(), DATA.bits());
    // SAFETY: as above.
    let done = unsafe { rustix::mm::madvise(pointer(piece.start), piece.len(), Advice::LinuxRemove) };
    protect(piece.start, piece.len(), piece.protection);
    done
}

/// Gives the memory of a piece back before it is unmapped. A peer that has the file mapped could
/// keep the memory otherwise. Returns whether the pages are now zeros, and not locked.
pub(crate) fn punch_for_good(piece: &Piece) -> bool {
    let done = if piece.file.is_some() { punch(piece) } else { Ok(()) };
    if done == Err(Errno::INVAL) {
        // The pages are locked into memory.
        // SAFETY: the pages are about to be unmapped, which unlocks them anyway.
        let _ = unsafe { rustix::mm::munlock(pointer(piece.start), piece.len()) };
        let _ = punch(piece);
    }
    done.is_ok()
}

/// Gives the memory of a piece back to the machine, even if the pages are locked.
pub(crate) fn punch_file(piece: &Piece) -> Result<(), Errno> {
    let fd = piece.file.as_ref().and_then(descriptor).ok_or(Errno::INVAL)?;
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd, how, piece.offset as u64, piece.len() as u64)
}

/// Writes zeros where the file has data. That is much faster than new pages.
pub(crate) fn clear(piece: &Piece) {
    let fd = piece.file.as_ref().and_then(descriptor);
    let end = piece.offset + piece.len();
    let mut at = piece.offset;
    while at < end {
        let data = match fd.map(|fd| rustix::fs::seek(fd, SeekFrom::Data(at as u64))) {
            Some(Ok(data)) => end.min(data as usize),
            // The rest is a hole.
            Some(Err(Errno::NXIO)) => return,
            _ => at,
        };
        let hole = fd.and_then(|fd| rustix::fs::seek(fd, SeekFrom::Hole(data as u64)).ok());
        let stop = hole.map_or(end, |hole| end.min(hole as usize)).max(data);
        let place = pointer(piece.start + (data - piece.offset)).cast::<u8>();
        // SAFETY: inside the piece, which belongs to the caller and may be written.
        unsafe { std::ptr::write_bytes(place, 0, stop - data) };
        at = stop.max(data + 1);
    }
}

/// Whether the descriptor of a piece is still the file's, and no peer was ever given the file. A
/// peer may keep it, and must not see what the program does with other memory.
pub(crate) fn is_reusable(piece: &Piece) -> bool {
    let seals = piece.file.as_ref().and_then(descriptor).and_then(|fd| rustix::fs::fcntl_get_seals(fd).ok());
    seals.is_some_and(|seals| !seals.contains(SealFlags::SEAL))
}

/// The time in milliseconds.
pub(crate) fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    time.tv_sec.cast_unsigned() * 1000 + time.tv_nsec.cast_unsigned() / 1_000_000
}

/// Sets the protection of pages.
pub(crate) fn protect(start: usize, length: usize, protection: u32) {
    // SAFETY: the pages belong to the caller.
    let _ = unsafe { rustix::mm::mprotect(pointer(start), length, MprotectFlags::from_bits_retain(protection)) };
}

/// Gives pages the properties that advice has given others.
pub(crate) fn advise(span: &Span, advice: crate::table::Advice) {
    let all = [
        (advice.is_absent, libc::MADV_DONTFORK),
        (advice.is_wiped, libc::MADV_WIPEONFORK),
        (advice.is_undumped, libc::MADV_DONTDUMP),
        (advice.is_guarded, GUARD_INSTALL),
    ];
    let errno = interpose::errno();
    for (_, advice) in all.iter().filter(|(is_given, _)| *is_given) {
        // SAFETY: the pages belong to the caller, and guarded pages have no data.
        let _ = unsafe { libc::syscall(libc::SYS_madvise, span.start, span.len(), *advice) };
    }
    interpose::set_errno(errno);
}

/// Whether a page of a piece is locked into memory.
pub(crate) fn is_locked(piece: &Piece) -> bool {
    // SAFETY: the file keeps the data. The kernel refuses this advice for locked pages.
    let advised = || unsafe { rustix::mm::madvise(pointer(piece.start), piece.len(), Advice::LinuxDontNeed) };
    piece.file.is_some() && advised() == Err(Errno::INVAL)
}

/// Locks pages into memory.
pub(crate) fn lock(span: &Span) -> Result<(), Errno> {
    // SAFETY: changes no data.
    unsafe { rustix::mm::mlock(pointer(span.start), span.len()) }
}

/// Whether the process may lock so much memory. The error is that of mmap(2) with `MAP_LOCKED`.
pub(crate) fn may_lock(span: &Span) -> Result<(), Errno> {
    // SAFETY: changes no data.
    let locked = unsafe { rustix::mm::mlock_with(pointer(span.start), span.len(), MlockFlags::ONFAULT) };
    locked.map_err(|error| if error == Errno::NOMEM { Errno::AGAIN } else { error })
}

/// Makes pages present, as `MAP_POPULATE` does, and locks them, as `MAP_LOCKED` does. Both flags
/// promise no more than a try.
pub(crate) fn populate(span: &Span, locked: bool) {
    if locked {
        let _ = lock(span);
    } else {
        // SAFETY: changes no data.
        let _ = unsafe { rustix::mm::madvise(pointer(span.start), span.len(), Advice::LinuxPopulateWrite) };
    }
}

/// Moves or grows the mapping of memory that belongs to the caller.
pub(crate) fn remap(span: &Span, length: usize) -> Result<usize, Errno> {
    // SAFETY: the memory belongs to the caller, who no longer uses the old address.
    let address = unsafe { rustix::mm::mremap(pointer(span.start), span.len(), length, MremapFlags::MAYMOVE) }?;
    Ok(address.expose_provenance())
}

/// Moves the mapping of the caller's memory to another of the caller's addresses.
pub(crate) fn move_to(span: &Span, address: usize) -> Result<(), Errno> {
    let (from, to) = (pointer(span.start), pointer(address));
    // SAFETY: the memory at both addresses belongs to the caller.
    unsafe { rustix::mm::mremap_fixed(from, span.len(), span.len(), MremapFlags::MAYMOVE, to) }?;
    Ok(())
}

/// Copies the data of a piece to new memory of at least its size, which is all zeros. Where the
/// file has holes, neither is touched. On an error, the new memory has a part of the data.
pub(crate) fn copy(piece: &Piece, to: usize) -> Result<(), Errno> {
    let Some(fd) = piece.file.as_ref().and_then(descriptor) else {
        let is_readable = piece.protection & ProtFlags::READ.bits() != 0;
        if !is_readable {
            protect(piece.start, piece.len(), piece.protection | ProtFlags::READ.bits());
        }
        // SAFETY: the piece is readable, and the new memory is the caller's; they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(pointer(piece.start).cast::<u8>(), pointer(to).cast(), piece.len()) };
        if !is_readable {
            protect(piece.start, piece.len(), piece.protection);
        }
        return Ok(());
    };
    copy_data(fd, piece, to)
}

fn copy_data(fd: BorrowedFd<'_>, piece: &Piece, to: usize) -> Result<(), Errno> {
    let end = piece.offset + piece.len();
    let mut at = piece.offset;
    while at < end {
        let data = match rustix::fs::seek(fd, SeekFrom::Data(at as u64)) {
            Ok(data) => data as usize,
            // The rest is a hole.
            Err(Errno::NXIO) => return Ok(()),
            Err(error) => return Err(error),
        };
        let stop = end.min(rustix::fs::seek(fd, SeekFrom::Hole(data as u64))? as usize);
        at = data;
        while at < stop {
            let target = pointer(to + (at - piece.offset)).cast::<u8>();
            // SAFETY: inside the caller's new memory, which nothing else uses.
            let room = unsafe { std::slice::from_raw_parts_mut(target, stop - at) };
            match rustix::io::pread(fd, room, at as u64) {
                Ok(0) => return Err(Errno::IO),
                Ok(count) => at += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
