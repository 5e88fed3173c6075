//! The encapsulation header: 4 bytes before each packet, with the packet's EtherType. RFC 4391 6.
//! Principal type: [`EtherType`].

/// The bytes of the header.
pub const LEN: usize = 4;

/// What a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EtherType {
    /// IPv4.
    Ipv4,
    /// ARP.
    Arp,
    /// Reverse ARP, which nobody answers here.
    Rarp,
    /// IPv6.
    Ipv6,
}

impl EtherType {
    /// The number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Ipv4 => 0x0800,
            Self::Arp => 0x0806,
            Self::Rarp => 0x8035,
            Self::Ipv6 => 0x86dd,
        }
    }

    /// The type of an IP packet, by its version.
    #[must_use]
    pub fn of_ip(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Some(Self::Ipv4),
            6 => Some(Self::Ipv6),
            _ => None,
        }
    }

    /// The header of a packet of this type.
    #[must_use]
    pub fn header(self) -> [u8; LEN] {
        let [a, b] = self.number().to_be_bytes();
        [a, b, 0, 0]
    }
}

/// Splits a payload into its type and its packet. `None` for an unknown type. The reserved bytes
/// are ignored.
#[must_use]
pub fn parse(payload: &[u8]) -> Option<(EtherType, &[u8])> {
    let (header, packet) = payload.split_first_chunk::<LEN>()?;
    let number = u16::from_be_bytes([header[0], header[1]]);
    let all = [EtherType::Ipv4, EtherType::Arp, EtherType::Rarp, EtherType::Ipv6];
    Some((all.into_iter().find(|known| known.number() == number)?, packet))
}

#[cfg(test)]
mod tests {
    use super::{EtherType, parse};

    #[test]
    fn a_packet_follows_its_ether_type_and_two_reserved_bytes() {
        assert_eq!(EtherType::Ipv6.header(), [0x86, 0xdd, 0, 0]);
        assert_eq!(parse(&[0x08, 0x06, 1, 2, 3]), Some((EtherType::Arp, &[3][..])));
        assert_eq!((parse(&[0x88, 0xcc, 0, 0]), parse(&[8, 0, 0])), (None, None));
        assert_eq!(EtherType::of_ip(&[0x45]), Some(EtherType::Ipv4));
    }
}
