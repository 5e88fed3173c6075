//! The checksum of the internet protocols. RFC 1071. Principal functions: [`of`], [`of_icmpv6`].

use std::net::Ipv6Addr;

/// The number of ICMPv6.
pub(crate) const ICMPV6: u8 = 58;

fn sum(bytes: &[u8]) -> u32 {
    let word = |pair: &[u8]| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    bytes.chunks(2).map(word).fold(0, |sum, word| fold(sum + word))
}

fn fold(sum: u32) -> u32 {
    (sum & 0xffff) + (sum >> 16)
}

/// The checksum of `bytes`; 0 if they contain their own checksum and it is right.
pub(crate) fn of(bytes: &[u8]) -> u16 {
    !(fold(sum(bytes)) as u16)
}

/// As [`of`], for a message of ICMPv6 between these addresses.
pub(crate) fn of_icmpv6(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    let pseudo = sum(&from.octets()) + sum(&to.octets()) + message.len() as u32 + u32::from(ICMPV6);
    !(fold(fold(pseudo + sum(message))) as u16)
}

#[cfg(test)]
mod tests {
    use super::{of, of_icmpv6};
    use std::net::Ipv6Addr;

    #[test]
    fn a_message_with_its_checksum_has_the_checksum_0() {
        let mut header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(of(&header), 0xb861);
        header[10..12].copy_from_slice(&0xb861_u16.to_be_bytes());
        assert_eq!(of(&header), 0);
        let (from, to) = (Ipv6Addr::LOCALHOST, Ipv6Addr::UNSPECIFIED);
        let mut message = [128, 0, 0, 0, 1, 2, 3];
        let sum = of_icmpv6(from, to, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(of_icmpv6(from, to, &message), 0);
    }
}
