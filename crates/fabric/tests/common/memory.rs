//! Memory to register: a mapping of a file, which can be unmapped, protected and truncated while it
//! is in use.

use std::ffi::c_void;
use std::os::fd::OwnedFd;

use engine::{Sink, Source};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};

/// A shared mapping of an unlinked private file. Engines write to it from their threads, so bytes
/// are only copied to and from it.
pub(crate) struct Memory {
    base: usize,
    len: usize,
    file: OwnedFd,
    mapped: bool,
}

impl Memory {
    pub(crate) fn new(len: usize) -> Self {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).expect("a memfd");
        ftruncate(&file, len as u64).expect("its length");
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap(std::ptr::null_mut(), len, rights, MapFlags::SHARED, &file, 0) }.expect("a mapping");
        Self { base: base.expose_provenance(), len, file, mapped: true }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn addr(&self, at: usize) -> u64 {
        (self.base + at) as u64
    }

    /// Bytes as a program hands them over to a call: they need not be mapped.
    pub(crate) fn source(&self, at: usize, len: usize) -> Source<'_> {
        // SAFETY: no reference to the bytes exists anywhere; a copy survives a fault.
        unsafe { Source::new(std::ptr::with_exposed_provenance(self.base + at), len) }
    }

    /// Like [`Memory::source`], for writing.
    pub(crate) fn sink(&self, at: usize, len: usize) -> Sink<'_> {
        // SAFETY: as above.
        unsafe { Sink::new(std::ptr::with_exposed_provenance_mut(self.base + at), len) }
    }

    fn pointer(&self, at: usize, len: usize) -> *mut u8 {
        assert!(self.mapped && at + len <= self.len, "{len} bytes at {at} of {}", self.len);
        std::ptr::with_exposed_provenance_mut(self.base + at)
    }

    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        // SAFETY: inside the mapping, checked just now; no reference to it exists anywhere.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(at, bytes.len()), bytes.len()) };
    }

    pub(crate) fn get(&self, at: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(at, len), bytes.as_mut_ptr(), len) };
        bytes
    }

    pub(crate) fn word(&self, at: usize) -> u64 {
        // SAFETY: as above; volatile, because a peer may be about to write it.
        unsafe { std::ptr::read_volatile(self.pointer(at, 8).cast::<u64>()) }
    }

    pub(crate) fn put_word(&self, at: usize, value: u64) {
        self.put(at, &value.to_ne_bytes());
    }

    /// Writes a pattern that differs for each position and seed.
    pub(crate) fn pattern(&self, at: usize, len: usize, seed: usize) {
        let bytes: Vec<u8> = (0..len).map(|index| (index.wrapping_mul(31) ^ (index >> 8) ^ seed) as u8).collect();
        self.put(at, &bytes);
    }

    /// From now on every access faults.
    pub(crate) fn unmap(&mut self) {
        if std::mem::take(&mut self.mapped) {
            // SAFETY: our own mapping, to which no reference exists.
            unsafe { munmap(std::ptr::with_exposed_provenance_mut::<c_void>(self.base), self.len) }.expect("unmapped");
        }
    }

    /// From now on the memory is read-only, or not readable either.
    pub(crate) fn protect(&self, readable: bool) {
        let rights = if readable { MprotectFlags::READ } else { MprotectFlags::empty() };
        // SAFETY: our own mapping, to which no reference exists.
        unsafe { mprotect(std::ptr::with_exposed_provenance_mut::<c_void>(self.base), self.len, rights) }
            .expect("protected");
    }

    /// Truncates the file, which takes the pages away from under the mapping.
    pub(crate) fn truncate(&self) {
        self.truncate_to(0);
    }

    /// Truncates the file to its first `len` bytes.
    pub(crate) fn truncate_to(&self, len: usize) {
        ftruncate(&self.file, len as u64).expect("truncated");
    }
}

impl Drop for Memory {
    /// Removes the bytes and keeps the addresses reserved. When a test drops its other objects, its
    /// QP is not destroyed, and the QP's engine may still write data that arrives later. Without
    /// the reservation it would write into memory that the kernel has mapped there since.
    fn drop(&mut self) {
        if self.mapped {
            let place = std::ptr::with_exposed_provenance_mut::<c_void>(self.base);
            let kind = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: it replaces our own mapping, to which no reference exists.
            unsafe { mmap_anonymous(place, self.len, ProtFlags::empty(), kind) }.expect("an empty mapping");
        }
    }
}
