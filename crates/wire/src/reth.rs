//! The RDMA extended transport header: the memory of an RDMA WRITE or READ. Not the check of the
//! key. IBA 9.3.3. Principal type: [`Header`].

use crate::number::{be32, be64, put32, put64};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 16;

/// The memory of an RDMA WRITE or READ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Address at the responder.
    pub va: u64,
    /// The rkey.
    pub rkey: u32,
    /// Bytes of the whole message.
    pub len: u32,
}

impl Header {
    /// Parses the header.
    #[inline]
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header { va: be64(bytes, 0), rkey: be32(bytes, 8), len: be32(bytes, 12) }
    }

    /// Encodes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        put64(bytes, 0, self.va);
        put32(bytes, 8, self.rkey);
        put32(bytes, 12, self.len);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} rkey {:#x}", self.len, self.va, self.rkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        let bytes = [0, 0, 0x7f, 1, 2, 3, 4, 5, 0, 0, 0x1a, 7, 0, 0, 0x0b, 0xb8];
        let header = Header { va: 0x7f01_0203_0405, rkey: 0x1a07, len: 3000 };
        assert_eq!(Header::parse(&bytes), header);
        let mut out = [0xaa; LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(header.to_string(), "3000 bytes at 0x7f0102030405 rkey 0x1a07");
    }
}
