//! The flow-control packet of an InfiniBand link: one port tells its neighbour how much it may send
//! on one virtual lane. It never leaves its link. The arithmetic of credits belongs to the link's
//! model. IBA 7.9.4. Principal type: [`Header`].
//!
//! ```text
//!      0                   1                   2                   3
//!      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   0 |  op   |         FCTBS         |  VL   |         FCCL          |
//!   4 |             LPCRC             |
//! ```
//! FCTBS counts the blocks of 64 bytes that the sender of this packet has sent since the link came
//! up. FCCL is the count up to which its neighbour may send. Both are modulo 4096. The LPCRC is the
//! CRC of [`crate::vcrc`] over the four bytes before it.

use crate::error::Error;
use crate::number::{be16, put16};
use crate::vcrc::vcrc;
use std::fmt;

/// Bytes of this packet, with its CRC.
pub const LEN: usize = 6;

const COVERED: usize = 4;
const COUNT: u16 = 0x0fff;

/// A flow-control packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The link is being initialised: operation 1, in place of 0.
    pub initial: bool,
    /// FCTBS: blocks that the sender of this packet has sent, 12 bits.
    pub sent: u16,
    /// The virtual lane, 0 to 14.
    pub vl: u8,
    /// FCCL: the credit limit, 12 bits.
    pub limit: u16,
}

impl Header {
    /// Parses the packet and checks its CRC.
    ///
    /// # Errors
    /// The CRC is wrong, or the operation is neither 0 nor 1.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Header, Error> {
        if vcrc(&bytes[..COVERED]) != bytes[COVERED..] {
            return Err(Error::LinkCrc);
        }
        let initial = match bytes[0] >> 4 {
            0 => false,
            1 => true,
            operation => return Err(Error::LinkOperation(operation)),
        };
        Ok(Header { initial, sent: be16(bytes, 0) & COUNT, vl: bytes[2] >> 4, limit: be16(bytes, 2) & COUNT })
    }

    /// Encodes the packet, with its CRC.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        put16(bytes, 0, u16::from(self.initial) << 12 | self.sent & COUNT);
        put16(bytes, 2, u16::from(self.vl) << 12 | self.limit & COUNT);
        let crc = vcrc(&bytes[..COVERED]);
        bytes[COVERED..].copy_from_slice(&crc);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.initial { "initial flow control" } else { "flow control" };
        write!(f, "{kind} VL {} sent {} limit {}", self.vl, self.sent, self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: [u8; LEN] = [0x1a, 0xbc, 0x5f, 0xfe, 0xec, 0x11];

    fn header() -> Header {
        Header { initial: true, sent: 0xabc, vl: 5, limit: 0xffe }
    }

    /// The CRC of four bytes by another way: shifting one bit at a time through a register, highest
    /// power first.
    fn bit_by_bit(bytes: &[u8]) -> [u8; 2] {
        let mut register = 0xffff_u16;
        for bit in bytes.iter().flat_map(|byte| (0..8).map(move |bit| u16::from(byte >> bit & 1))) {
            let out = register >> 15 ^ bit;
            register = register << 1 ^ if out == 1 { 0x100b } else { 0 };
        }
        (!register).reverse_bits().to_le_bytes()
    }

    #[test]
    fn l30_literal_bytes_both_ways() {
        assert_eq!(Header::parse(&BYTES), Ok(header()));
        let mut bytes = [0xaa; LEN];
        header().emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    proptest! {
        #[test]
        fn l30_lpcrc_of_two_computations_is_equal(bytes in any::<[u8; 4]>()) {
            prop_assert_eq!(vcrc(&bytes), bit_by_bit(&bytes));
        }
    }

    #[test]
    fn l30_every_damaged_bit_is_found() {
        for bit in 0..8 * LEN {
            let mut damaged = BYTES;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::parse(&damaged), Err(Error::LinkCrc), "bit {bit}");
        }
    }

    #[test]
    fn another_operation_is_refused() {
        let mut bytes = BYTES;
        bytes[0] = 0x2a;
        let crc = vcrc(&bytes[..COVERED]);
        bytes[COVERED..].copy_from_slice(&crc);
        assert_eq!(Header::parse(&bytes), Err(Error::LinkOperation(2)));
    }

    #[test]
    fn reads_as_a_line() {
        assert_eq!(header().to_string(), "initial flow control VL 5 sent 2748 limit 4094");
    }
}
