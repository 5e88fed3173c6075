//! What an interface must know of an IP packet: its addresses, and whether an error may answer it.
//! Not what is in it. Principal type: [`Packet`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::checksum::ICMPV6;

/// The number of ICMP.
const ICMP: u8 = 1;
/// The number of IGMP.
const IGMP: u8 = 2;
/// The options of IPv6 for every router on the path.
const HOP_BY_HOP: u8 = 0;

/// The addresses of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
}

impl Packet {
    /// Reads the addresses. `None` if the header is cut or has an unknown version.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => {
                let ip = |at: usize| packet.get(at..)?.first_chunk::<4>().copied().map(Ipv4Addr::from);
                Some(Self { source: ip(12)?.into(), destination: ip(16)?.into() })
            }
            6 => {
                let ip = |at: usize| packet.get(at..)?.first_chunk::<16>().copied().map(Ipv6Addr::from);
                Some(Self { source: ip(8)?.into(), destination: ip(24)?.into() })
            }
            _ => None,
        }
    }
}

/// Whether an error message may answer a packet: neither an error nor a later fragment. RFC 1122
/// 3.2.2, RFC 4443 2.4.
pub(crate) fn may_be_answered(packet: &[u8]) -> bool {
    let byte = |at: usize| packet.get(at).copied().unwrap_or(0);
    match byte(0) >> 4 {
        4 => {
            let later = u16::from_be_bytes([byte(6), byte(7)]) & 0x1fff != 0;
            let query = matches!(byte(4 * usize::from(byte(0) & 0x0f)), 0 | 8 | 13..=18);
            !later && (byte(9) != ICMP || query)
        }
        _ => byte(6) != ICMPV6 || byte(40) >= 128,
    }
}

/// Whether the host tells routers about its groups: IGMP, or MLD, whose messages begin with an
/// option for routers.
pub(crate) fn is_membership(packet: &[u8]) -> bool {
    let byte = |at: usize| packet.get(at).copied().unwrap_or(0);
    match byte(0) >> 4 {
        4 => byte(9) == IGMP,
        _ => byte(6) == HOP_BY_HOP && byte(40) == ICMPV6 && matches!(byte(48), 131 | 132 | 143),
    }
}
