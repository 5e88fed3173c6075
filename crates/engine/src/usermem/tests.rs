//! Tests of `usermem`, by file: copies and their faults, atomics, ICRC folding, guarded copies,
//! other signal handlers, and ranges. This file has what they share: memory with holes ([`Pages`]).

mod atomics;
mod copies;
mod folds;
mod guarded;
mod handlers;
mod ranges;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// The distance between two test mappings.
const SPACING: usize = 1 << 24;

/// Pages, some of them inaccessible; unmapped when dropped. They lie where the kernel maps nothing
/// by itself, so that a page that a test has unmapped stays unmapped while other tests run.
struct Pages {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address range; the tests themselves coordinate their writes.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Private zeroed memory.
    fn new(pages: usize) -> Pages {
        Pages::map(pages, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)
    }

    /// A shared mapping of a file that has the length of `backed` pages.
    fn of_file(pages: usize, backed: usize) -> (Pages, OwnedFd) {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"usermem-test".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: a new descriptor that nobody else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        truncate(&fd, backed);
        (Pages::map(pages, libc::MAP_SHARED, fd.as_raw_fd()), fd)
    }

    fn map(pages: usize, kind: i32, fd: i32) -> Pages {
        static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);
        let len = pages * PAGE;
        let place = NEXT.fetch_add(SPACING, Ordering::Relaxed) as *mut libc::c_void;
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_FIXED_NOREPLACE);
        // SAFETY: a new mapping, and an error if anything is there.
        let start = unsafe { libc::mmap(place, len, rights, kind, fd, 0) };
        assert_eq!(start, place);
        Pages { start: start.cast(), len }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        self.start.wrapping_add(offset)
    }

    fn address(&self, offset: usize) -> u64 {
        self.at(offset) as u64
    }

    fn protect(&self, page: usize, rights: i32) {
        assert!((page + 1) * PAGE <= self.len);
        // SAFETY: within this mapping, which only this test uses.
        assert_eq!(unsafe { libc::mprotect(self.at(page * PAGE).cast(), PAGE, rights) }, 0);
    }

    fn unmap(&self, page: usize) {
        assert!((page + 1) * PAGE <= self.len);
        // SAFETY: within this mapping, which only this test uses.
        assert_eq!(unsafe { libc::munmap(self.at(page * PAGE).cast(), PAGE) }, 0);
    }

    fn fill(&self, offset: usize, len: usize, byte: impl Fn(usize) -> u8) {
        for at in offset..offset + len {
            // SAFETY: the tests fill only mapped, writable memory.
            unsafe { self.at(at).write_volatile(byte(at)) };
        }
    }

    fn holds(&self, offset: usize, len: usize, byte: impl Fn(usize) -> u8) -> bool {
        // SAFETY: the tests read only mapped, readable memory.
        (offset..offset + len).all(|at| unsafe { self.at(at).read_volatile() } == byte(at))
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; pages that a test has unmapped since are not an error.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

fn truncate(fd: &OwnedFd, pages: usize) {
    // SAFETY: the descriptor is open.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), (pages * PAGE) as i64) }, 0);
}
