//! A mapping of a sealed memfd, or memory that a lender provides instead. It is not an allocator
//! and gives no meaning to the bytes. Principal type: [`Region`].
//!
//! The seals make a peer's region safe to access: without F_SEAL_SHRINK its owner could truncate
//! it, and the next access would be a SIGBUS. Mappings are not inherited over fork (MADV_DONTFORK).
//!
//! Others may read and write the bytes of a region at any time. Rust references to such bytes would
//! be unsound, and a bare pointer has no bounds. So they are a [`Source`], which is readable during
//! its lifetime, or a [`Sink`], which is writable: a copy needs no other proof. Slices and the
//! memory of this crate make them. The bytes of a [`crate::share::Share`] may vanish, so an access
//! to them may fault.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use bytemuck::Pod;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Pid, getpid};

use crate::denied::denied;
use crate::file_limit::without_signal;
use crate::memory::{load_bytes, store_bytes};

/// The type of the file system that ordinary memfds live in (statfs(2)).
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// Number of mapped regions. It is a property of the process, like its address space, hence a
/// static.
static MAPPED: AtomicUsize = AtomicUsize::new(0);

/// Number of regions that this process has mapped through this crate.
pub fn mapped_regions() -> usize {
    MAPPED.load(Ordering::Relaxed)
}

/// A shared mapping of the first `len` bytes of a memfd that cannot shrink; unmapped when dropped.
///
/// The bytes may change at any time. Offsets passed to methods are the caller's own: an offset out
/// of bounds is a programming error and panics. Offsets that a peer claimed go through
/// [`Region::pointer`] and [`Region::try_word`].
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// The process that mapped it: a forked child has the value but not the mapping.
    owner: Pid,
    /// The owner of lent memory.
    lender: Option<Box<dyn Lender>>,
}

/// An owner that lends memory of this process.
pub trait Lender: std::fmt::Debug + Send + Sync {
    /// Returns the memory to its owner: nothing touches it any more.
    fn take_back(&self, base: NonNull<u8>);
}

// SAFETY: the mapping belongs to the process, not to a thread, and all access is by atomics or raw
// copies.
unsafe impl Send for Region {}
// SAFETY: as above; no method gives out a plain reference to the bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Makes a memfd of `len` zero bytes, its size sealed, and maps it. `name` shows up in
    /// `/proc/<pid>/maps`.
    pub fn create(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd(name, len)?;
        seal(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let region = Self::map_with(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE)?;
        Ok((region, fd))
    }

    /// Like [`Region::create`], but this mapping stays the only writable one: other processes can
    /// map it only for reading.
    pub fn create_published(name: &str, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd(name, len)?;
        let region = Self::map_with(fd.as_fd(), 0, len, ProtFlags::READ | ProtFlags::WRITE)?;
        let seals = SealFlags::FUTURE_WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        seal(&fd, seals)?;
        Ok((region, fd))
    }

    /// Maps the first `len` bytes of a memfd; refuses a memfd that could shrink or is too short.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map_part(fd, 0, len)
    }

    /// Like [`Region::map`], but maps the `len` bytes from `offset` on, a multiple of the page
    /// size.
    pub fn map_part(fd: BorrowedFd<'_>, offset: u64, len: usize) -> io::Result<Self> {
        check(fd, offset.saturating_add(len as u64))?;
        Self::map_with(fd, offset, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Like [`Region::map`], for reading only: a store to one of its words faults.
    pub fn map_read_only(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        check(fd, len as u64)?;
        Self::map_with(fd, 0, len, ProtFlags::READ)
    }

    fn map_with(fd: BorrowedFd<'_>, offset: u64, len: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, offset) };
        let base = base.map_err(denied("mmap"))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        MAPPED.fetch_add(1, Ordering::Relaxed);
        let region = Self { base, len, owner: getpid(), lender: None };
        // SAFETY: the range is the mapping just made; the advice changes only what a forked child
        // gets.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(region)
    }

    /// Uses memory of this process instead of a mapping; the memory goes back when the region is
    /// dropped.
    ///
    /// # Safety
    /// `len` bytes from `base` on are readable and writable, aligned to 8, and nobody else uses
    /// them until the lender has them back.
    pub unsafe fn lent(base: NonNull<u8>, len: usize, lender: Box<dyn Lender>) -> Self {
        Self { base, len, owner: getpid(), lender: Some(lender) }
    }

    /// Length of the mapping in bytes.
    #[expect(clippy::len_without_is_empty, reason = "the kernel maps no empty region")]
    pub fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// A pointer to `len` bytes at `offset`, or None when they are not all inside the region.
    #[inline]
    pub fn pointer(&self, offset: usize, len: usize) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.len {
            return None;
        }
        // SAFETY: `offset` is at most `len`, so the result is in the mapping or one past its end.
        Some(unsafe { self.base.add(offset) })
    }

    /// `len` bytes at `offset`, for reading; None when they are not all inside the region.
    #[inline]
    pub fn source(&self, offset: usize, len: usize) -> Option<Source<'_>> {
        // SAFETY: the bytes are inside the mapping, which lives as long as self.
        self.pointer(offset, len).map(|start| unsafe { Source::new(start.as_ptr(), len) })
    }

    /// `len` bytes at `offset`, for writing; None when they are not all inside the region. On a
    /// read-only mapping a store faults.
    #[inline]
    pub fn sink(&self, offset: usize, len: usize) -> Option<Sink<'_>> {
        // SAFETY: the bytes are inside the mapping, which lives as long as self, and nobody has
        // Rust references to them.
        self.pointer(offset, len).map(|start| unsafe { Sink::new(start.as_ptr(), len) })
    }

    /// The word at `offset`. Panics when it is out of bounds or misaligned. On a read-only mapping
    /// only loads are allowed.
    #[inline]
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.try_word(offset).unwrap_or_else(|| self.misplaced("word", offset, 4))
    }

    /// The word at `offset`, if there is one: for offsets that are claims.
    #[inline]
    pub fn try_word(&self, offset: usize) -> Option<&AtomicU32> {
        let word = self.pointer(offset, 4).filter(|_| offset.is_multiple_of(4))?;
        // SAFETY: inside the mapping, which lives as long as self; aligned, as the base is; atomics
        // may race with any other access.
        Some(unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) })
    }

    /// The double word at `offset`; otherwise as [`Region::word`].
    #[inline]
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        self.try_word64(offset).unwrap_or_else(|| self.misplaced("word64", offset, 8))
    }

    /// The double word at `offset`, if there is one.
    #[inline]
    pub fn try_word64(&self, offset: usize) -> Option<&AtomicU64> {
        let word = self.pointer(offset, 8).filter(|_| offset.is_multiple_of(8))?;
        // SAFETY: inside the mapping, which lives as long as self; aligned, as the base is; atomics
        // may race with any other access.
        Some(unsafe { AtomicU64::from_ptr(word.as_ptr().cast()) })
    }

    /// Copies a value out; the value may be torn if another party writes it at the same time.
    #[inline]
    pub fn read<T: Pod>(&self, offset: usize) -> T {
        let mut value = T::zeroed();
        self.copy_out(offset, bytemuck::bytes_of_mut(&mut value));
        value
    }

    /// Copies a value in.
    #[inline]
    pub fn write<T: Pod>(&self, offset: usize, value: &T) {
        self.copy_in(offset, bytemuck::bytes_of(value));
    }

    /// Copies bytes out. Panics when they are not all inside the region.
    #[inline]
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.pointer(offset, into.len()).unwrap_or_else(|| self.misplaced("copy_out", offset, into.len()));
        // SAFETY: `pointer` checked that the bytes are inside the mapping.
        unsafe { load_bytes(from.as_ptr(), into) }
    }

    /// Copies bytes in. Panics when they do not all fit inside the region.
    #[inline]
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        let to = self.pointer(offset, from.len()).unwrap_or_else(|| self.misplaced("copy_in", offset, from.len()));
        // SAFETY: `pointer` checked that the bytes are inside the mapping.
        unsafe { store_bytes(to.as_ptr(), from) }
    }

    /// Gives the pages of a range back to the system; they read as zeros from then on. This needs
    /// no descriptor, so a region does not keep one open. It fails if the program has locked its
    /// memory, which then stays unchanged.
    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        let start = self.pointer(offset, len).unwrap_or_else(|| self.misplaced("punch", offset, len));
        // SAFETY: `pointer` checked that the range is inside the mapping; reading zeros there is no
        // worse than what a peer may write at any time.
        Ok(unsafe { rustix::mm::madvise(start.as_ptr().cast(), len, Advice::LinuxRemove) }?)
    }

    #[cold]
    fn misplaced(&self, what: &str, offset: usize, len: usize) -> ! {
        panic!("{what}: {len} bytes at offset {offset} of a region of {} bytes", self.len)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // A forked child inherited the value but, by MADV_DONTFORK, not the mapping: other memory
        // may be at these addresses in the child.
        if getpid() != self.owner {
            return;
        }
        if let Some(lender) = &self.lender {
            return lender.take_back(self.base);
        }
        MAPPED.fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the range is the mapping made in `map_with`, and nothing borrowed from self is
        // left.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
    }
}

/// Whether a descriptor is of a file on tmpfs, as ordinary memfds are: access to its memory waits
/// for no other process. The check itself may block while another user's file system does not
/// answer.
pub fn is_on_tmpfs(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|system| system.f_type == TMPFS_MAGIC)
}

/// A memfd of `len` zero bytes that can be sealed.
fn memfd(name: &str, len: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = rustix::fs::memfd_create(name, flags).map_err(denied("memfd_create"))?;
    without_signal(|| rustix::fs::ftruncate(&fd, len as u64)).map_err(denied("ftruncate"))?;
    Ok(fd)
}

fn seal(fd: &OwnedFd, seals: SealFlags) -> io::Result<()> {
    rustix::fs::fcntl_add_seals(fd, seals).map_err(denied("fcntl (F_ADD_SEALS)"))
}

/// Checks that the owner cannot truncate the file below `len`.
fn check(fd: BorrowedFd<'_>, len: u64) -> io::Result<()> {
    let refuse = |why: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    let Ok(seals) = rustix::fs::fcntl_get_seals(fd) else {
        return refuse("not a memfd: it has no seals");
    };
    if !seals.contains(SealFlags::SHRINK) {
        return refuse("the memfd is not sealed against shrinking");
    }
    // Huge pages can be sealed too, but the system may have none left at the first access, which is
    // a SIGBUS again.
    if !is_on_tmpfs(fd) {
        return refuse("not an ordinary memfd");
    }
    let size = rustix::fs::fstat(fd)?.st_size;
    if u64::try_from(size).unwrap_or(0) < len {
        return refuse("the memfd is shorter than announced");
    }
    Ok(())
}

/// Readable bytes.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    start: *const u8,
    len: usize,
    owner: PhantomData<&'a u8>,
}

/// Writable bytes.
#[derive(Debug)]
pub struct Sink<'a> {
    start: *mut u8,
    len: usize,
    owner: PhantomData<&'a mut u8>,
}

impl<'a> Source<'a> {
    /// # Safety
    /// During `'a`, `len` bytes from `start` on belong to memory that was handed over for reading.
    /// Others may write them meanwhile, but there is no Rust reference that forbids reading. If
    /// they may not be mapped, the code that reads them must tolerate a fault.
    #[inline]
    pub unsafe fn new(start: *const u8, len: usize) -> Self {
        Self { start, len, owner: PhantomData }
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    #[inline]
    pub fn start(&self) -> *const u8 {
        self.start
    }

    /// The `len` bytes from `at` on. Panics if they are not all in this range.
    #[inline]
    #[must_use]
    pub fn part(&self, at: usize, len: usize) -> Self {
        check_part(self.len, at, len);
        Self { start: self.start.wrapping_add(at), len, owner: PhantomData }
    }
}

impl<'a> From<&'a [u8]> for Source<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), owner: PhantomData }
    }
}

impl<'a> Sink<'a> {
    /// # Safety
    /// During `'a`, `len` bytes from `start` on belong to memory that was handed over for writing.
    /// Others may read and write them meanwhile, but there is no Rust reference to them. If they
    /// may not be mapped, the code that writes them must tolerate a fault.
    #[inline]
    pub unsafe fn new(start: *mut u8, len: usize) -> Self {
        Self { start, len, owner: PhantomData }
    }

    /// The number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first byte.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.start
    }

    /// The bytes for reading.
    #[inline]
    pub fn source(&self) -> Source<'_> {
        Source { start: self.start, len: self.len, owner: PhantomData }
    }

    /// The `len` bytes from `at` on. Panics if they are not all in this range.
    #[inline]
    #[must_use]
    pub fn part(&mut self, at: usize, len: usize) -> Sink<'_> {
        check_part(self.len, at, len);
        Sink { start: self.start.wrapping_add(at), len, owner: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for Sink<'a> {
    #[inline]
    fn from(bytes: &'a mut [u8]) -> Self {
        Self { start: bytes.as_mut_ptr(), len: bytes.len(), owner: PhantomData }
    }
}

#[inline]
fn check_part(all: usize, at: usize, len: usize) {
    if at > all || len > all - at {
        outside(all, at, len);
    }
}

#[cold]
fn outside(all: usize, at: usize, len: usize) -> ! {
    panic!("{len} bytes at offset {at} of {all} bytes")
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{Sink, Source};

    #[test]
    fn a_part_lies_inside() {
        let mut bytes = [0; 8];
        let start = bytes.as_ptr();
        let source = Source::from(&bytes[..]);
        assert_eq!((source.part(3, 5).start(), source.part(8, 0).len()), (start.wrapping_add(3), 0));
        assert!(Source::from(&[][..]).is_empty());
        let mut sink = Sink::from(&mut bytes[..]);
        assert_eq!((sink.part(3, 5).start().cast_const(), sink.part(0, 8).len()), (start.wrapping_add(3), 8));
    }

    #[test]
    fn a_part_that_leaves_the_bytes_panics() {
        for (at, len) in [(0, 9), (9, 0), (4, 5), (1, usize::MAX), (usize::MAX, 1)] {
            let source = || Source::from(&[0; 8][..]).part(at, len).len();
            assert!(std::panic::catch_unwind(source).is_err(), "{len} bytes at {at} of 8");
            let sink = || Sink::from(&mut [0; 8][..]).part(at, len).len();
            assert!(std::panic::catch_unwind(sink).is_err(), "{len} bytes at {at} of 8");
        }
    }
}
