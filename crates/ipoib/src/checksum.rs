//! The checksum of the internet protocols. RFC 1071. Principal functions: [`of`], [`of_transport`].

use std::net::{IpAddr, Ipv6Addr};

/// The number of ICMPv6.
pub(crate) const ICMPV6: u8 = 58;

/// The sum of the words, in memory order: the order of the bytes in a word does not matter to it
/// (RFC 1071 2). Four bytes are added at once.
fn sum(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<4>();
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    let words = words.iter().map(|word| u64::from(u32::from_ne_bytes(*word))).sum::<u64>();
    words + u64::from(u32::from_ne_bytes(last))
}

/// A sum as 16 bits, in the order of the network.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::from_be_bytes((sum as u16).to_ne_bytes())
}

/// The checksum of `bytes`; 0 if they contain their own checksum and it is right.
pub(crate) fn of(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// As [`of`], for a message of a protocol between these addresses, which are of one family.
pub(crate) fn of_transport(from: IpAddr, to: IpAddr, protocol: u8, message: &[u8]) -> u16 {
    !fold(pseudo(from, to, protocol, message.len()) + sum(message))
}

/// As [`of_transport`], for a message of ICMPv6.
pub(crate) fn of_icmpv6(from: Ipv6Addr, to: Ipv6Addr, message: &[u8]) -> u16 {
    of_transport(from.into(), to.into(), ICMPV6, message)
}

/// The sum of the header that is only in the checksum. A message in which it is the checksum is
/// finished by [`of`] the message.
pub(crate) fn of_pseudo(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u16 {
    fold(pseudo(from, to, protocol, length))
}

fn pseudo(from: IpAddr, to: IpAddr, protocol: u8, length: usize) -> u64 {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    };
    address(from) + address(to) + sum(&(length as u32).to_be_bytes()) + sum(&[0, protocol])
}

#[cfg(test)]
mod tests {
    use super::{ICMPV6, of, of_pseudo, of_transport};
    use std::net::Ipv6Addr;

    #[test]
    fn a_message_with_its_checksum_has_the_checksum_0() {
        let mut header = [0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0, 0xc7];
        assert_eq!(of(&header), 0xb861);
        header[10..12].copy_from_slice(&0xb861_u16.to_be_bytes());
        assert_eq!(of(&header), 0);
        let (from, to) = (Ipv6Addr::LOCALHOST.into(), Ipv6Addr::UNSPECIFIED.into());
        let mut message = [128, 0, 0, 0, 1, 2, 3];
        let sum = of_transport(from, to, ICMPV6, &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(of_transport(from, to, ICMPV6, &message), 0);
        message[2..4].copy_from_slice(&of_pseudo(from, to, ICMPV6, 7).to_be_bytes());
        assert_eq!(of(&message), sum);
    }
}
