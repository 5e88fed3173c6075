//! ARP as IPoIB has it: hardware type 32, with link-layer addresses of 20 bytes. RFC 4391 9.2.
//! Principal type: [`Arp`].

use std::net::Ipv4Addr;

use crate::address::LinkAddress;
use crate::header::EtherType;

/// The bytes of a packet.
pub const LEN: usize = 8 + 2 * (LinkAddress::LEN + 4);
/// The hardware type of InfiniBand.
const HARDWARE: u16 = 32;
const REQUEST: u16 = 1;
const REPLY: u16 = 2;

/// An ARP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// Whether it is a reply, not a request.
    pub reply: bool,
    /// The sender's interface.
    pub sender: LinkAddress,
    /// The sender.
    pub sender_ip: Ipv4Addr,
    /// The receiver's interface; zeros in a request.
    pub target: [u8; LinkAddress::LEN],
    /// The receiver, or who is asked for.
    pub target_ip: Ipv4Addr,
}

impl Arp {
    /// Parses a packet. `None` if it is cut, has other types, or is neither request nor reply.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let packet: &[u8; LEN] = packet.first_chunk()?;
        let word = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
        let operation = word(6);
        let known = word(0) == HARDWARE
            && word(2) == EtherType::Ipv4.number()
            && packet[4..6] == [LinkAddress::LEN as u8, 4]
            && matches!(operation, REQUEST | REPLY);
        let link = |at: usize| packet[at..].first_chunk::<{ LinkAddress::LEN }>().copied();
        let ip = |at: usize| packet[at..].first_chunk::<4>().copied().map(Ipv4Addr::from);
        known.then_some(Self {
            reply: operation == REPLY,
            sender: LinkAddress::parse(&link(8)?),
            sender_ip: ip(28)?,
            target: link(32)?,
            target_ip: ip(52)?,
        })
    }

    /// The bytes of the packet.
    #[must_use]
    pub fn bytes(&self) -> [u8; LEN] {
        let mut packet = [0; LEN];
        packet[..2].copy_from_slice(&HARDWARE.to_be_bytes());
        packet[2..4].copy_from_slice(&EtherType::Ipv4.number().to_be_bytes());
        packet[4..6].copy_from_slice(&[LinkAddress::LEN as u8, 4]);
        packet[7] = (if self.reply { REPLY } else { REQUEST }) as u8;
        packet[8..28].copy_from_slice(&self.sender.bytes());
        packet[28..32].copy_from_slice(&self.sender_ip.octets());
        packet[32..52].copy_from_slice(&self.target);
        packet[52..].copy_from_slice(&self.target_ip.octets());
        packet
    }
}

#[cfg(test)]
mod tests {
    use super::{Arp, LEN};
    use crate::address::LinkAddress;

    #[test]
    fn a_request_has_the_bytes_that_the_standard_shows() {
        let sender = LinkAddress { flags: 0x80, qpn: 0x48, gid: [0xfe; 16] };
        let (mine, yours) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        let request = Arp { reply: false, sender, sender_ip: mine, target: [0; 20], target_ip: yours };
        let mut expected = vec![0, 32, 8, 0, 20, 4, 0, 1, 0x80, 0, 0, 0x48];
        expected.extend([0xfe; 16]);
        expected.extend([10, 0, 0, 1]);
        expected.extend([0; 20]);
        expected.extend([10, 0, 0, 2]);
        assert_eq!((request.bytes().as_slice(), expected.len()), (expected.as_slice(), LEN));
        assert_eq!(Arp::parse(&expected), Some(request));
        // Longer packets are padded; shorter ones, and those of Ethernet, are no ARP of IPoIB.
        assert_eq!(Arp::parse(&[expected.as_slice(), &[0; 4]].concat()), Some(request));
        assert_eq!(Arp::parse(&expected[..LEN - 1]), None);
        expected[1] = 1;
        assert_eq!(Arp::parse(&expected), None);
    }
}
