//! A mapping of a part of another owner's file, which may be truncated at any time. It gives the
//! bytes no meaning and never touches them. Principal type: [`Share`].
//!
//! Unlike with a [`crate::Region`], an access may end in SIGBUS, so the code that accesses the
//! bytes must survive it.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::{Pid, getpid};

use crate::region::Sink;

/// A shared mapping; unmapped when dropped, and not inherited over a fork.
#[derive(Debug)]
pub struct Share {
    base: NonNull<u8>,
    len: usize,
    /// The process that mapped it: a forked child has the value but not the mapping.
    owner: Pid,
}

// SAFETY: the mapping belongs to the process, not to a thread, and nothing here touches its bytes.
unsafe impl Send for Share {}
// SAFETY: as above.
unsafe impl Sync for Share {}

impl Share {
    /// Maps `len` bytes of a file from `offset` on, in whole pages, for reading or also for
    /// writing.
    ///
    /// # Errors
    /// The errors of mmap(2); the file is shorter.
    pub fn map(file: BorrowedFd<'_>, offset: u64, len: usize, writable: bool) -> io::Result<Self> {
        let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the file is shorter than what is to be mapped"));
        }
        let access = if writable { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, offset) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        let share = Self { base, len, owner: getpid() };
        // SAFETY: the range is the mapping just made; the advice changes only what a forked child
        // gets.
        unsafe { rustix::mm::madvise(base.as_ptr().cast(), len, Advice::LinuxDontFork) }?;
        Ok(share)
    }

    /// `len` bytes at `offset`, or `None` when they are not all inside. An access may fault.
    #[inline]
    pub fn sink(&self, offset: u64, len: u64) -> Option<Sink<'_>> {
        let end = offset.checked_add(len)?;
        let start = (end <= self.len as u64).then(|| self.base.as_ptr().wrapping_add(offset as usize))?;
        // SAFETY: the bytes are inside the mapping, which lives as long as self, and nobody has
        // Rust references to them.
        Some(unsafe { Sink::new(start, len as usize) })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        // A forked child inherited the value but, by MADV_DONTFORK, not the mapping: other memory
        // may be at these addresses in the child.
        if getpid() != self.owner {
            return;
        }
        // SAFETY: the range is the mapping made in `map`; code that has its bytes borrows the
        // value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert!(unmapped.is_ok(), "munmap of a mapping of ours: {unmapped:?}");
    }
}
