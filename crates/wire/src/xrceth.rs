//! The XRC extended transport header: the shared receive queue of an XRC request. Not its lookup.
//! IBA annex A14. Principal type: [`Header`].

use crate::number::{be24, put24};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 4;

/// The number of an XRC shared receive queue, 24 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header(pub u32);

impl Header {
    /// Parses the header; the reserved first byte is ignored.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header(be24(bytes, 1))
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[0] = 0;
        put24(bytes, 1, self.0);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for SRQ {:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        assert_eq!(Header::parse(&[0xff, 0x12, 0x34, 0x56]), Header(0x12_3456));
        let mut out = [0xaa; LEN];
        Header(0x12_3456).emit(&mut out);
        assert_eq!(out, [0, 0x12, 0x34, 0x56]);
    }
}
