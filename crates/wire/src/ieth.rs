//! The invalidate extended transport header: the R_Key that a SEND with invalidate invalidates at
//! the receiver. Not the invalidation. IBA 9.3.7. Principal type: [`Header`].

use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 4;

/// The R_Key to invalidate.
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
        write!(f, "invalidates rkey {:#x}", self.0)
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
        assert_eq!(Header(0x10).to_string(), "invalidates rkey 0x10");
    }
}
