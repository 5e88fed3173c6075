//! CRC32C, the CRC of iWARP (RFC 5044, section 4.4). Long runs of bytes are folded as for the ICRC
//! ([`crate::icrc`]), which takes half the time of the instruction for CRC32C. Principal function:
//! [`append`].

use crate::icrc::fold::castagnoli;

/// From this length on, folding is faster.
const LONG: usize = 1024;

/// The CRC of bytes.
#[inline]
#[must_use]
pub fn of(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// The CRC of bytes behind other bytes with the CRC `before`. The CRC of no bytes is 0.
#[inline]
#[must_use]
pub fn append(before: u32, bytes: &[u8]) -> u32 {
    if bytes.len() >= LONG
        && let Some((folded, rest)) = castagnoli::fold(!before, bytes)
    {
        return crc32c::crc32c_append(crc32c::crc32c_append(!0, &folded), rest);
    }
    crc32c::crc32c_append(before, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folded_bytes_have_the_crc_of_the_instruction() {
        let bytes: Vec<u8> = (0..4500_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        for (index, len) in (LONG - 2..LONG + 260).chain([2048, 4095, 4096, 4400]).enumerate() {
            let bytes = &bytes[index % 70..][..len];
            for before in [0, 1, u32::MAX, 0xe306_9283] {
                assert_eq!(append(before, bytes), crc32c::crc32c_append(before, bytes), "{len} bytes");
            }
        }
    }

    /// The CRC bit by bit, by its definition.
    fn by_definition(before: u32, bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!before, |register, byte| {
            (0..8).fold(register ^ u32::from(*byte), |register, _| {
                register >> 1 ^ 0x82f6_3b78 & (register & 1).wrapping_neg()
            })
        })
    }

    #[test]
    fn every_length_around_a_stride_from_every_alignment() {
        assert_eq!(by_definition(0, b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..2048_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for at in 0..64 {
            let mut expected = by_definition(at as u32, &bytes[at..at + LONG - 1]);
            for len in LONG - 1..LONG + 300 {
                assert_eq!(append(at as u32, &bytes[at..at + len]), expected, "{len} bytes from {at}");
                expected = by_definition(expected, &bytes[at + len..=at + len]);
            }
        }
    }

    #[test]
    fn bytes_are_folded_if_the_processor_can() {
        let can = crate::icrc::Width::all().next().is_some();
        assert_eq!(castagnoli::fold(0, &[7; LONG]).is_some(), can);
        assert_eq!(castagnoli::fold(0, &[7; 255]), None);
    }
}
