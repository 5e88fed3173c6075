//! Which descriptors are connections to a node of the agent that this library made for the program.
//!
//! A mark counts only if the socket's peer is that node, because the descriptor may have been
//! closed and reused. [`crate::duplicates`] marks duplicates of a descriptor. A forked child has
//! the marks of its parent; after `exec` there are no marks. The principal type is [`Marks`].

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::socket;

/// The number of descriptors that can have a mark.
pub(crate) const DESCRIPTORS: usize = 65_536;

/// A bit for each descriptor. Nothing else is published with it.
#[derive(Debug)]
pub(crate) struct Bits([AtomicU64; DESCRIPTORS / 64]);

impl Bits {
    /// No bit is set.
    pub(crate) const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; _])
    }

    /// Whether the bit of a descriptor is set.
    #[inline]
    pub(crate) fn has(&self, fd: c_int) -> bool {
        self.bit(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Sets or removes the bit of a descriptor.
    pub(crate) fn set(&self, fd: c_int, is: bool) {
        match self.bit(fd) {
            Some((word, bit)) if is => drop(word.fetch_or(bit, Ordering::Relaxed)),
            Some((word, bit)) => drop(word.fetch_and(!bit, Ordering::Relaxed)),
            None => {}
        }
    }

    #[inline]
    fn bit(&self, fd: c_int) -> Option<(&AtomicU64, u64)> {
        let fd = usize::try_from(fd).ok()?;
        Some((self.0.get(fd / 64)?, 1 << (fd % 64)))
    }
}

/// The descriptors that are connections to one node.
#[derive(Debug)]
pub(crate) struct Marks {
    node: &'static str,
    bits: Bits,
}

impl Marks {
    /// No marks yet, for connections to this node.
    pub(crate) const fn of(node: &'static str) -> Self {
        Self { node, bits: Bits::new() }
    }

    /// Whether a descriptor has a mark.
    #[inline]
    pub(crate) fn has(&self, fd: c_int) -> bool {
        self.bits.has(fd)
    }

    /// Whether a descriptor has a mark and is still a connection to the node.
    #[inline]
    pub(crate) fn is_ours(&self, fd: c_int) -> bool {
        self.has(fd) && self.is_ours_still(fd)
    }

    /// Gives a duplicate of a descriptor the mark that the descriptor has.
    pub(crate) fn copy(&self, fd: c_int, duplicate: c_int) {
        let is = self.has(fd);
        if is || self.has(duplicate) {
            self.set(duplicate, is);
        }
    }

    /// Sets or removes a mark.
    pub(crate) fn set(&self, fd: c_int, is: bool) {
        self.bits.set(fd, is);
    }

    /// Not inlined, because it is rarely called.
    #[cold]
    fn is_ours_still(&self, fd: c_int) -> bool {
        let ours = socket::peer_is(fd, self.node);
        if !ours {
            self.set(fd, false);
        }
        ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_for_descriptors_only() {
        let marks = Marks::of("node");
        for fd in [0, 63, 64, 65_535] {
            assert!(!marks.has(fd));
            marks.set(fd, true);
            assert!(marks.has(fd));
            marks.set(fd, false);
            assert!(!marks.has(fd));
        }
        for fd in [-1, 65_536, c_int::MIN, c_int::MAX] {
            marks.set(fd, true);
            assert!(!marks.has(fd));
        }
    }

    #[test]
    fn a_mark_of_a_descriptor_without_the_node_does_not_count() {
        let marks = Marks::of("node");
        marks.set(0, true);
        assert!(!marks.is_ours(0) && !marks.has(0));
    }
}
