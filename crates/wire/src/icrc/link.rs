//! The ICRC of a packet on an InfiniBand link. It covers the LRH, the GRH and the packet, without
//! the fields that change on the way: the VL, the GRH's traffic class, flow label and hop limit,
//! and the fifth byte of the BTH. Those count as ones. A router replaces the LRH, so the whole LRH
//! of a packet with a GRH counts as ones, as with RoCE ([`super::Envelope`]). IBA 7.8.1. Principal
//! function: [`icrc`].

use super::LEN;
use crate::lrh::{self, Next};
use crate::{bth, grh};

/// The ICRC of a packet from its LRH to its last pad byte, as on the wire. `None` if the packet has
/// no BTH: raw packets have no ICRC, and shorter packets are invalid.
#[must_use]
pub fn icrc(packet: &[u8]) -> Option<[u8; LEN]> {
    let (head, mut rest) = packet.split_first_chunk::<{ lrh::LEN }>()?;
    let next = lrh::Header::parse(head).ok()?.next;
    let mut hasher = crc32fast::Hasher::new();
    match next {
        Next::Raw | Next::RawIpv6 => return None,
        Next::Bth => {
            let mut masked = *head;
            masked[0] |= 0xf0;
            hasher.update(&masked);
        }
        Next::Grh => {
            hasher.update(&[0xff; lrh::LEN]);
            let (head, behind) = rest.split_first_chunk::<{ grh::LEN }>()?;
            let mut masked = *head;
            masked[0] |= 0x0f;
            masked[1..4].fill(0xff);
            masked[7] = 0xff;
            hasher.update(&masked);
            rest = behind;
        }
    }
    let (head, rest) = rest.split_first_chunk::<{ bth::LEN }>()?;
    let mut masked = *head;
    masked[4] = 0xff;
    hasher.update(&masked);
    hasher.update(rest);
    Some(hasher.finalize().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// LRH with a GRH behind it, GRH, BTH and four bytes.
    fn packet(grh: bool) -> Vec<u8> {
        let mut packet = vec![0x30, if grh { 0x13 } else { 0x12 }, 0, 2, 0, 17, 0, 1];
        if grh {
            packet.extend([0x61, 0x22, 0x33, 0x44, 0, 20, 0x1b, 64]);
            packet.extend(0..32);
        }
        packet.extend([0x04, 0x00, 0xff, 0xff, 0x80, 0, 0, 9, 0, 0, 0, 1, 0xde, 0xad, 0xbe, 0xef]);
        packet
    }

    /// The same by another way: CRC-32 bit by bit over the packet with masked bytes.
    fn bit_by_bit(packet: &[u8], masks: &[(usize, u8)]) -> [u8; LEN] {
        let mut packet = packet.to_vec();
        masks.iter().for_each(|(at, mask)| packet[*at] |= mask);
        let mut register = !0_u32;
        for byte in packet {
            register ^= u32::from(byte);
            for _ in 0..8 {
                register = if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 };
            }
        }
        (!register).to_le_bytes()
    }

    const LOCAL: &[(usize, u8)] = &[(0, 0xf0), (12, 0xff)];
    #[rustfmt::skip]
    const GLOBAL: &[(usize, u8)] = &[
        (0, 0xff), (1, 0xff), (2, 0xff), (3, 0xff), (4, 0xff), (5, 0xff), (6, 0xff), (7, 0xff),
        (8, 0x0f), (9, 0xff), (10, 0xff), (11, 0xff), (15, 0xff), (52, 0xff),
    ];

    #[test]
    fn l22_icrc_of_two_computations_is_equal() {
        for (grh, masks) in [(false, LOCAL), (true, GLOBAL)] {
            let packet = packet(grh);
            assert_eq!(icrc(&packet), Some(bit_by_bit(&packet, masks)));
        }
    }

    #[test]
    fn l22_icrc_covers_all_but_what_changes_on_the_way() {
        for (grh, masks) in [(false, LOCAL), (true, GLOBAL)] {
            let right = packet(grh);
            let covered = |at: usize, bit: u8| masks.iter().all(|(masked, mask)| *masked != at || mask & bit == 0);
            // The link version and the next header decide about the format itself.
            for at in 2 * 8..right.len() * 8 {
                let (at, bit) = (at / 8, 1 << (at % 8));
                let mut changed = right.clone();
                changed[at] ^= bit;
                assert_eq!(icrc(&changed) != icrc(&right), covered(at, bit), "byte {at} bit {bit:#x}");
            }
        }
    }

    #[test]
    fn a_packet_without_a_bth_has_no_icrc() {
        assert_eq!(icrc(&[]), None);
        assert_eq!(icrc(&packet(true)[..50]), None);
        let mut raw = packet(false);
        raw[1] = 0x10;
        assert_eq!(icrc(&raw), None);
    }
}
