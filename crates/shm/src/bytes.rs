//! Bytes that others may read and write at any time, as a pointer with a length and a lifetime.
//!
//! Rust references to such bytes would be unsound, and a bare pointer has no bounds. A [`Source`]
//! is readable and a [`Sink`] is writable during its lifetime, so a copy needs no other proof.
//! Slices and the memory of this crate make them: regions, windows, bulk rings and shares. The
//! bytes of a [`crate::share::Share`] may vanish, so an access to them may fault. Nothing here
//! touches the bytes.

use std::marker::PhantomData;

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
        check(self.len, at, len);
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
        check(self.len, at, len);
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
fn check(all: usize, at: usize, len: usize) {
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
