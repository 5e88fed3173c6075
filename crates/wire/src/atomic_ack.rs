//! The atomic acknowledge extended transport header: the word's old value. Not the operation. IBA
//! 9.5.3. Principal type: [`Header`].

use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 8;

/// The value of the word before the atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header(pub u64);

impl Header {
    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header(u64::from_be_bytes(*bytes))
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = self.0.to_be_bytes();
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "was {:#x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8];
        assert_eq!(Header::parse(&bytes), Header(0x0102_0304_0506_0708));
        let mut out = [0xaa; LEN];
        Header(0x0102_0304_0506_0708).emit(&mut out);
        assert_eq!(out, bytes);
    }
}
