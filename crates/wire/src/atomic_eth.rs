//! The atomic extended transport header: compare-and-swap and fetch-and-add. Not how they are
//! executed. IBA 9.3.5. Principal type: [`Header`].

use crate::number::{be32, be64, put32, put64};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 28;

/// What an atomic operation does, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Address of the 64-bit word at the responder.
    pub va: u64,
    /// The rkey.
    pub rkey: u32,
    /// The new value, or the value to add.
    pub swap_add: u64,
    /// The expected value; fetch-and-add ignores it.
    pub compare: u64,
}

impl Header {
    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header { va: be64(bytes, 0), rkey: be32(bytes, 8), swap_add: be64(bytes, 12), compare: be64(bytes, 20) }
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        put64(bytes, 0, self.va);
        put32(bytes, 8, self.rkey);
        put64(bytes, 12, self.swap_add);
        put64(bytes, 20, self.compare);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:#x} rkey {:#x} swap/add {:#x} compare {:#x}", self.va, self.rkey, self.swap_add, self.compare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        let bytes =
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28u8];
        let header = Header {
            va: 0x0102_0304_0506_0708,
            rkey: 0x090a_0b0c,
            swap_add: 0x0d0e_0f10_1112_1314,
            compare: 0x1516_1718_191a_1b1c,
        };
        assert_eq!(Header::parse(&bytes), header);
        let mut out = [0xaa; LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
    }
}
