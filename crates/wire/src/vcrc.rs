//! The variant CRC: the last two bytes of every packet on an InfiniBand link, which cover all
//! other bytes. Each switch computes it anew. Not the ICRC, which does not change on the way. IBA
//! 7.8.2. Principal function: [`vcrc`].
//!
//! CRC-16 with the polynomial x^16 + x^12 + x^3 + x + 1, started with ones and complemented. The
//! lowest bit of each byte goes first, as in the ICRC, so the register is stored with its low byte
//! first. The link packet CRC of [`crate::flow_control`] is the same CRC over four bytes.

/// Bytes of the VCRC.
pub const LEN: usize = 2;

/// The polynomial 0x100b, lowest bit first.
const REFLECTED: u16 = 0xd008;

const TABLE: [u16; 256] = table();

/// The VCRC of a packet from the first byte of its LRH to the last byte of its ICRC, as on the
/// wire.
#[must_use]
pub fn vcrc(packet: &[u8]) -> [u8; LEN] {
    let step = |register: u16, byte: &u8| TABLE[usize::from(register as u8 ^ byte)] ^ register >> 8;
    (!packet.iter().fold(0xffff, step)).to_le_bytes()
}

/// The packet without its VCRC, if the VCRC is right.
#[must_use]
pub fn check(packet: &[u8]) -> Option<&[u8]> {
    let (covered, found) = packet.split_last_chunk::<LEN>()?;
    (vcrc(covered) == *found).then_some(covered)
}

const fn table() -> [u16; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut register = byte as u16;
        let mut bit = 0;
        while bit < 8 {
            register = if register & 1 == 0 { register >> 1 } else { register >> 1 ^ REFLECTED };
            bit += 1;
        }
        table[byte] = register;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same CRC by another way: long division of polynomials, without a table and without
    /// reflection. Adding ones to the first 16 bits is the start value.
    fn by_long_division(bytes: &[u8]) -> [u8; 2] {
        let mut bits: Vec<bool> = bytes.iter().flat_map(|byte| (0..8).map(move |bit| byte >> bit & 1 == 1)).collect();
        bits.extend([false; 16]);
        bits[..16].iter_mut().for_each(|bit| *bit = !*bit);
        for at in 0..bits.len() - 16 {
            if bits[at] {
                for power in [16, 12, 3, 1, 0] {
                    bits[at + 16 - power] ^= true;
                }
            }
        }
        let rest = &bits[bits.len() - 16..];
        let byte = |bits: &[bool]| bits.iter().rev().fold(0, |byte, bit| byte << 1 | u8::from(!bit));
        [byte(&rest[..8]), byte(&rest[8..])]
    }

    /// A local ACK: LRH, BTH, AETH, ICRC.
    const PACKET: [u8; 28] = [
        0x00, 0x02, 0x00, 0x02, 0x00, 0x07, 0x00, 0x01, 0x11, 0x00, 0xff, 0xff, 0x00, 0x00, 0x01, 0x45, 0x00, 0x00,
        0x00, 0x05, 0x1f, 0x00, 0x00, 0x06, 0x12, 0x34, 0x56, 0x78,
    ];

    proptest! {
        #[test]
        fn l22_vcrc_of_two_computations_is_equal(bytes in proptest::collection::vec(any::<u8>(), 2..300)) {
            prop_assert_eq!(vcrc(&bytes), by_long_division(&bytes));
        }
    }

    #[test]
    fn l22_vcrc_has_these_literal_bytes() {
        assert_eq!(vcrc(&PACKET), by_long_division(&PACKET));
        assert_eq!(vcrc(&PACKET), [0x68, 0xab]);
        // The check value of a CRC: that of the ASCII digits.
        assert_eq!(vcrc(b"123456789"), [0x3d, 0x0a]);
    }

    #[test]
    fn l22_vcrc_finds_every_single_damaged_bit() {
        let packet = [&PACKET[..], &vcrc(&PACKET)].concat();
        assert_eq!(check(&packet), Some(&PACKET[..]));
        for bit in 0..packet.len() * 8 {
            let mut damaged = packet.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(check(&damaged), None, "bit {bit}");
        }
        assert_eq!(check(&[0]), None);
    }
}
