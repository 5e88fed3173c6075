//! The flush extended transport header: what a FLUSH waits for, and which memory it covers. Not the
//! flush itself. IBA annex A19. Principal type: [`Header`].
//!
//! ```text
//!  31            6 5         4 3             0
//!    reserved       selectivity  placement type
//! ```

use crate::number::{be32, put32};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 4;

/// What a FLUSH waits for, and which memory it covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The placement that the data must reach, as bits: see [`placement`]. Four bits.
    pub placement: u8,
    /// The memory that is covered: see [`selectivity`]. Two bits.
    pub selectivity: u8,
}

/// Bits of [`Header::placement`].
pub mod placement {
    /// Global visibility: the whole host of the responder sees the written data.
    pub const GLOBAL: u8 = 1;
    /// Persistence: the written data survives a loss of power.
    pub const PERSISTENT: u8 = 2;
}

/// Values of [`Header::selectivity`].
pub mod selectivity {
    /// The range in the RETH.
    pub const RANGE: u8 = 0;
    /// The whole region of the RETH's key.
    pub const REGION: u8 = 1;
}

impl Header {
    /// Parses the header.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        let word = be32(bytes, 0);
        Header { placement: (word & 0xf) as u8, selectivity: (word >> 4 & 3) as u8 }
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        put32(bytes, 0, u32::from(self.selectivity & 3) << 4 | u32::from(self.placement & 0xf));
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.selectivity == selectivity::REGION { "region" } else { "range" };
        write!(f, "placement {:#x} of the {what}", self.placement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        let bytes = [0, 0, 0, 0x13];
        let header = Header { placement: placement::GLOBAL | placement::PERSISTENT, selectivity: selectivity::REGION };
        assert_eq!(Header::parse(&bytes), header);
        let mut out = [0xaa; LEN];
        header.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(header.to_string(), "placement 0x3 of the region");
    }

    #[test]
    fn reserved_bits_are_not_looked_at() {
        assert_eq!(Header::parse(&[0xff, 0xff, 0xff, 0xc1]), Header { placement: 1, selectivity: 0 });
    }
}
