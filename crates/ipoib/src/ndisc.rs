//! Neighbour discovery of IPv6 with the link-layer addresses of IPoIB: solicitations and
//! advertisements as whole packets. Not router discovery, which is the host's. RFC 4861 4.3 and
//! 4.4, RFC 4391 9.3. Principal type: [`Message`].

use std::net::Ipv6Addr;

use crate::address::LinkAddress;
use crate::checksum;

const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
const SOURCE: u8 = 1;
const TARGET: u8 = 2;
/// The header of IPv6, and that of a message with its target.
const IP: usize = 40;
const FIXED: usize = 24;
/// The option with a link-layer address: type, length in units of 8 bytes, 2 zeros, the address.
const OPTION: usize = 24;
/// The bits of the first byte after the checksum of an advertisement.
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// A solicitation or an advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Who sends it; unspecified for duplicate address detection.
    pub from: Ipv6Addr,
    /// Who gets it.
    pub to: Ipv6Addr,
    /// Who is asked for, or who advertises.
    pub target: Ipv6Addr,
    /// Whether it is an advertisement.
    pub advertisement: bool,
    /// Whether an advertisement answers a solicitation.
    pub solicited: bool,
    /// The link-layer address: the sender's of a solicitation, the target's of an advertisement.
    pub link: Option<LinkAddress>,
}

/// Whether a packet is neighbour discovery, valid or not.
#[must_use]
pub fn is_one(packet: &[u8]) -> bool {
    packet.len() > IP && packet[6] == checksum::ICMPV6 && matches!(packet[IP], SOLICITATION | ADVERTISEMENT)
}

/// The group in which the owner of an address listens for solicitations.
#[must_use]
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let [.., a, b, c] = address.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, a, b, c])
}

impl Message {
    /// Parses a packet. `None` if it is invalid: RFC 4861 7.1.
    #[must_use]
    pub fn parse(packet: &[u8]) -> Option<Self> {
        if !is_one(packet) {
            return None;
        }
        let length = usize::from(u16::from_be_bytes([packet[4], packet[5]]));
        let message = packet.get(IP..IP + length).filter(|message| message.len() >= FIXED)?;
        let address = |at: usize| packet[at..].first_chunk::<16>().copied().map(Ipv6Addr::from);
        let (from, to, target) = (address(8)?, address(24)?, address(IP + 8)?);
        // A hop limit of 255: no router has forwarded it.
        let valid = packet[7] == 255
            && message[1] == 0
            && !target.is_multicast()
            && checksum::of_icmpv6(from, to, message) == 0;
        let advertisement = message[0] == ADVERTISEMENT;
        let link = options(&message[FIXED..], if advertisement { TARGET } else { SOURCE })?;
        valid.then_some(Self {
            from,
            to,
            target,
            advertisement,
            solicited: advertisement && message[4] & SOLICITED != 0,
            link,
        })
    }

    /// The bytes of the packet.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let length = FIXED + if self.link.is_some() { OPTION } else { 0 };
        let mut packet = vec![0; IP + length];
        packet[0] = 0x60;
        packet[4..6].copy_from_slice(&(length as u16).to_be_bytes());
        (packet[6], packet[7]) = (checksum::ICMPV6, 255);
        packet[8..24].copy_from_slice(&self.from.octets());
        packet[24..40].copy_from_slice(&self.to.octets());
        let message = &mut packet[IP..];
        message[0] = if self.advertisement { ADVERTISEMENT } else { SOLICITATION };
        if self.advertisement {
            message[4] = OVERRIDE | if self.solicited { SOLICITED } else { 0 };
        }
        message[8..24].copy_from_slice(&self.target.octets());
        if let Some(link) = self.link {
            let kind = if self.advertisement { TARGET } else { SOURCE };
            message[FIXED..FIXED + 2].copy_from_slice(&[kind, (OPTION / 8) as u8]);
            message[FIXED + 4..].copy_from_slice(&link.bytes());
        }
        let sum = checksum::of_icmpv6(self.from, self.to, message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        packet
    }
}

/// The link-layer address among the options. The outer `None` is for malformed options.
fn options(mut rest: &[u8], wanted: u8) -> Option<Option<LinkAddress>> {
    let mut found = None;
    while !rest.is_empty() {
        let length = 8 * usize::from(*rest.get(1)?);
        let option = rest.get(..length).filter(|option| !option.is_empty())?;
        if option[0] == wanted && length == OPTION {
            found = option[4..].first_chunk().map(LinkAddress::parse);
        }
        rest = &rest[length..];
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::{Message, solicited_node};
    use crate::address::LinkAddress;
    use std::net::Ipv6Addr;

    #[test]
    fn a_solicitation_carries_the_address_after_two_zeros() {
        let (from, target): (Ipv6Addr, Ipv6Addr) = ("fe80::1".parse().expect("a"), "fe80::12:3456".parse().expect("b"));
        let to = solicited_node(target);
        assert_eq!(to.to_string(), "ff02::1:ff12:3456");
        let link = LinkAddress { flags: 0, qpn: 0x99, gid: [7; 16] };
        let message = Message { from, to, target, advertisement: false, solicited: false, link: Some(link) };
        let mut bytes = message.bytes();
        assert_eq!((bytes.len(), &bytes[64..72]), (88, &[1, 3, 0, 0, 0, 0, 0, 0x99][..]));
        assert_eq!(Message::parse(&bytes), Some(message));
        // Without the option, as for duplicate address detection.
        let plain = Message { link: None, from: Ipv6Addr::UNSPECIFIED, ..message };
        assert_eq!(Message::parse(&plain.bytes()), Some(plain));
        // A router has forwarded it; a wrong checksum; an option without a length.
        for (at, value) in [(7, 254), (50, 1), (65, 0)] {
            let kept = std::mem::replace(&mut bytes[at], value);
            assert_eq!(Message::parse(&bytes), None, "byte {at}");
            bytes[at] = kept;
        }
    }
}
