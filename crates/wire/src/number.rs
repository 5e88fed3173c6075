//! The numbers in headers. The transport has two numbers of 24 bits: packet sequence numbers, which
//! wrap, and queue pair numbers, which do not. IBA 9.7.1 (PSN arithmetic), 3.5.3 (QP numbers).
//! Principal types: [`Psn`], [`Qpn`].
//!
//! The functions read and write a big-endian number at a byte offset. They are not for lengths that
//! come from a peer: every caller has an array of the header's exact length and constant offsets,
//! so the compiler removes the bounds checks.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

const MASK: u32 = 0x00ff_ffff;

/// A packet sequence number. It wraps at 2^24, so it has no order: use the signed distance of
/// [`Psn::since`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Psn(u32);

impl Psn {
    /// Half of the number space. No more packets may wait for an answer, because old and new
    /// numbers would be ambiguous.
    pub const WINDOW: u32 = 1 << 23;

    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Psn {
        Psn(value & MASK)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }

    /// How far this number is ahead of `other`, from -2^23 to 2^23 - 1; negative if it is behind.
    #[must_use]
    pub const fn since(self, other: Psn) -> i32 {
        // The difference is shifted to the top of the word, so that the arithmetic shift extends
        // its sign.
        ((self.0.wrapping_sub(other.0) << 8).cast_signed()) >> 8
    }

    /// Whether this number is behind `other`.
    #[must_use]
    #[inline(always)]
    pub const fn is_before(self, other: Psn) -> bool {
        self.since(other) < 0
    }
}

impl Add<u32> for Psn {
    type Output = Psn;
    #[inline(always)]
    fn add(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_add(packets))
    }
}

impl AddAssign<u32> for Psn {
    fn add_assign(&mut self, packets: u32) {
        *self = *self + packets;
    }
}

/// Subtracts, modulo 2^24.
impl Sub<u32> for Psn {
    type Output = Psn;
    #[inline(always)]
    fn sub(self, packets: u32) -> Psn {
        Psn::new(self.0.wrapping_sub(packets))
    }
}

/// Packets from `other` up to this number, from 0 to 2^24 - 1. The caller knows that this number is
/// not behind `other`.
impl Sub<Psn> for Psn {
    type Output = u32;
    #[inline(always)]
    fn sub(self, other: Psn) -> u32 {
        Psn::new(self.0.wrapping_sub(other.0)).0
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A queue pair number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Qpn(u32);

impl Qpn {
    /// The subnet management interface, one per port.
    pub const SMI: Qpn = Qpn(0);
    /// The general services interface, one per port: the CM's and the SA's packets.
    pub const GSI: Qpn = Qpn(1);
    /// The destination of every multicast packet.
    pub const MULTICAST: Qpn = Qpn(MASK);

    /// The low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Qpn {
        Qpn(value & MASK)
    }

    /// The number, below 2^24.
    #[must_use]
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

#[inline(always)]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

#[inline(always)]
pub(crate) fn be24(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, bytes[at], bytes[at + 1], bytes[at + 2]])
}

#[inline(always)]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline(always)]
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    (u64::from(be32(bytes, at)) << 32) | u64::from(be32(bytes, at + 4))
}

#[inline(always)]
pub(crate) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// Writes the low 24 bits of `value`.
#[inline(always)]
pub(crate) fn put24(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 3].copy_from_slice(&value.to_be_bytes()[1..]);
}

#[inline(always)]
pub(crate) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
}

#[inline(always)]
pub(crate) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_is_signed_and_wraps() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last + 1, Psn::new(0));
        assert_eq!(Psn::new(0) - 1, last);
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), -3);
        assert_eq!(Psn::new(2) - last, 3);
        assert!(last.is_before(Psn::new(0)));
        let mut next = last;
        next += 3;
        assert_eq!(next, Psn::new(2));
        assert!(!Psn::new(0).is_before(Psn::new(0)));
    }

    #[test]
    fn half_of_the_space_lies_ahead_and_half_behind() {
        let here = Psn::new(0x12_3456);
        assert_eq!((here + (Psn::WINDOW - 1)).since(here), (1 << 23) - 1);
        assert_eq!((here + Psn::WINDOW).since(here), -(1 << 23));
    }

    #[test]
    fn only_24_bits_are_kept() {
        assert_eq!(Psn::new(0xab00_0001).value(), 1);
        assert_eq!(Qpn::new(0xffff_ffff), Qpn::MULTICAST);
        assert_eq!(Qpn::new(0x45).to_string(), "0x45");
        assert_eq!(Psn::new(0x200).to_string(), "512");
    }
}
