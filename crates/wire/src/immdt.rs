//! ImmDt, immediate data: four bytes from the sender's program for the receiver's program. Not
//! payload. IBA 9.3.6. Principal type: [`Header`].

use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 4;

/// Immediate data, read as a big-endian number. Verbs programs keep it in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header(pub u32);

impl Header {
    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header(u32::from_be_bytes(*bytes))
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = self.0.to_be_bytes();
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "immediate {:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        let bytes = [0x12, 0x34, 0x56, 0x78];
        assert_eq!(Header::parse(&bytes), Header(0x1234_5678));
        let mut out = [0xaa; LEN];
        Header(0x1234_5678).emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(Header(0x10).to_string(), "immediate 0x10");
    }
}
