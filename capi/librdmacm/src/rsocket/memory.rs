//! Registered memory of a socket: whole pages, so that they contain no other data of the program.
//! The engine and the peer may write to it at any time. So it is only copied to and from, and no
//! reference to it exists. The principal type is [`Region`].

use super::verbs::{self, Access};
use crate::entry::{Outcome, Refusal};
use crate::layout::{Mr, Pd};
use rustix::mm::{MapFlags, ProtFlags};

/// Pages and their registration.
#[derive(Debug)]
pub(crate) struct Region {
    start: *mut u8,
    length: usize,
    mr: *mut Mr,
    lkey: u32,
    rkey: u32,
}

// SAFETY: the memory is only copied to and from through raw pointers, by the thread that owns the
// part in question (see the rings); any thread may end a registration.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps and registers `length` bytes of zeros.
    pub(crate) fn new(pd: *mut Pd, length: usize, access: Access) -> Outcome<Self> {
        let length = length.max(1);
        // SAFETY: a new mapping changes no existing memory.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                length,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let start = mapped.map_err(|errno| Refusal(errno.raw_os_error()))?.cast::<u8>();
        let mut region = Self { start, length, mr: std::ptr::null_mut(), lkey: 0, rkey: 0 };
        let registered = verbs::register(pd, start, length, access)?;
        (region.mr, region.lkey, region.rkey) = (registered.mr, registered.lkey, registered.rkey);
        Ok(region)
    }

    /// The address of its first byte, as used by peers and work requests.
    pub(crate) fn address(&self) -> u64 {
        self.start.expose_provenance() as u64
    }

    /// The key for work requests.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// The length in bytes.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The address of `length` bytes at `offset`, or NULL if they are not all inside.
    pub(crate) fn at(&self, offset: usize, length: usize) -> *mut u8 {
        let inside = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if inside { self.start.wrapping_add(offset) } else { std::ptr::null_mut() }
    }

    /// A copy of the bytes at `offset`.
    pub(crate) fn read<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let from = self.at(offset, N);
        if !from.is_null() {
            // SAFETY: inside the mapping; the bytes are a claim in any case, so a concurrent write
            // does no harm.
            unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), N) };
        }
        bytes
    }

    /// Writes bytes to `offset`.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        if !to.is_null() {
            // SAFETY: inside the mapping.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.mr.is_null() {
            verbs::deregister(self.mr);
        }
        // SAFETY: mapped in `new`, and nothing copies any more.
        let _ = unsafe { rustix::mm::munmap(self.start.cast(), self.length) };
    }
}
