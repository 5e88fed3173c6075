//! The global routing header, and the network header that stands before a datagram's payload in a
//! receive buffer. IBA 8.3, A17.4.5.
//!
//! A UD receive buffer begins with 40 bytes that show where the datagram came from. They hold a GRH
//! if it came over IPv6 (or InfiniBand), or 20 unused bytes and the IPv4 header. [`Network`] is
//! either of the two. This is not an IP stack: options and fragments do not occur. Principal types:
//! [`Grh`], [`Ipv4`], [`Network`].

use crate::error::Error;
use crate::number::{be16, be32, put16, put32};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Bytes of this header, and of the space before every UD payload.
pub const LEN: usize = 40;
/// The next header value of the IBA transport.
pub const NEXT_HEADER_IBA: u8 = 0x1b;
/// The next header, or protocol, value of UDP: RoCEv2.
pub const NEXT_HEADER_UDP: u8 = 17;

/// The scope of multicast GIDs that are valid in their subnet only. IBA 4.1.1.
pub const LINK_LOCAL_SCOPE: u8 = 2;

const IPV4_AT: usize = 20;

/// The scope of a multicast GID; `None` for a GID of a port.
#[must_use]
pub const fn multicast_scope(gid: &[u8; 16]) -> Option<u8> {
    if gid[0] == 0xff { Some(gid[1] & 0xf) } else { None }
}

/// Whether routers may forward packets to multicast GIDs of a scope: it is larger than the subnet.
/// IBA 4.1.1.
#[must_use]
pub const fn is_beyond_subnet(scope: u8) -> bool {
    scope > LINK_LOCAL_SCOPE
}

/// The global routing header, which has the layout of an IPv6 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grh {
    /// Traffic class.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes behind this header, including the ICRC.
    pub payload_len: u16,
    /// What follows: [`NEXT_HEADER_IBA`] or [`NEXT_HEADER_UDP`].
    pub next_header: u8,
    /// The number of routers that the packet may still pass.
    pub hop_limit: u8,
    /// Source GID.
    pub sgid: [u8; 16],
    /// Destination GID.
    pub dgid: [u8; 16],
}

/// The IPv4 header of a packet, without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4 {
    /// DSCP and ECN.
    pub tos: u8,
    /// Bytes from this header on, including the ICRC.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Time to live.
    pub ttl: u8,
    /// What follows: [`NEXT_HEADER_UDP`], or 6 for TCP.
    pub protocol: u8,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
}

/// The 40 bytes before a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// A GRH.
    V6(Grh),
    /// An IPv4 header in the last 20 bytes.
    V4(Ipv4),
}

impl Grh {
    /// Parses the header.
    ///
    /// # Errors
    /// The version is not 6.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Grh, Error> {
        let word = be32(bytes, 0);
        if word >> 28 != 6 {
            return Err(Error::Network);
        }
        Ok(Grh {
            traffic_class: (word >> 20 & 0xff) as u8,
            flow_label: word & 0xf_ffff,
            payload_len: be16(bytes, 4),
            next_header: bytes[6],
            hop_limit: bytes[7],
            sgid: array(bytes, 8),
            dgid: array(bytes, 24),
        })
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        put32(bytes, 0, 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff);
        put16(bytes, 4, self.payload_len);
        bytes[6] = self.next_header;
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.sgid);
        bytes[24..40].copy_from_slice(&self.dgid);
    }
}

impl Ipv4 {
    fn parse(bytes: &[u8; LEN]) -> Result<Ipv4, Error> {
        if bytes[IPV4_AT] != 0x45 {
            return Err(Error::Network);
        }
        Ok(Ipv4 {
            tos: bytes[IPV4_AT + 1],
            total_len: be16(bytes, IPV4_AT + 2),
            id: be16(bytes, IPV4_AT + 4),
            ttl: bytes[IPV4_AT + 8],
            protocol: bytes[IPV4_AT + 9],
            source: Ipv4Addr::from(be32(bytes, IPV4_AT + 12)),
            destination: Ipv4Addr::from(be32(bytes, IPV4_AT + 16)),
        })
    }

    fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = [0; LEN];
        let header = &mut bytes[IPV4_AT..];
        header[0] = 0x45;
        header[1] = self.tos;
        put16(header, 2, self.total_len);
        put16(header, 4, self.id);
        put16(header, 6, 0x4000); // do not fragment
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        let sum: u32 = (0..10).map(|word| u32::from(be16(header, 2 * word))).sum();
        let folded = (sum & 0xffff) + (sum >> 16);
        put16(header, 10, !((folded & 0xffff) as u16 + (folded >> 16) as u16));
    }
}

impl Network {
    /// The network header of a packet between two GIDs. `payload_len` counts the bytes behind the
    /// network header: from the BTH to the ICRC inclusive, and with RoCEv2 also the UDP header.
    /// GIDs that are IPv4 addresses (`::ffff:a.b.c.d`) give an IPv4 header.
    #[must_use]
    pub fn between(
        sgid: [u8; 16],
        dgid: [u8; 16],
        traffic_class: u8,
        flow_label: u32,
        hop_limit: u8,
        payload_len: u16,
    ) -> Network {
        match (Ipv6Addr::from(sgid).to_ipv4_mapped(), Ipv6Addr::from(dgid).to_ipv4_mapped()) {
            (Some(source), Some(destination)) => Network::V4(Ipv4 {
                tos: traffic_class,
                total_len: payload_len.saturating_add(20),
                id: 0,
                ttl: hop_limit,
                protocol: NEXT_HEADER_UDP,
                source,
                destination,
            }),
            _ => Network::V6(Grh {
                traffic_class,
                flow_label,
                payload_len,
                next_header: NEXT_HEADER_UDP,
                hop_limit,
                sgid,
                dgid,
            }),
        }
    }

    /// The network header before a datagram. On InfiniBand it is the packet's GRH, whatever the GIDs
    /// are; on Ethernet, the IP header around its UDP datagram. `grh` is as it is on InfiniBand.
    #[must_use]
    pub fn before_datagram(grh: Grh, is_infiniband: bool) -> Network {
        const UDP: u16 = 8;
        if is_infiniband {
            return Network::V6(Grh { next_header: NEXT_HEADER_IBA, ..grh });
        }
        let Grh { traffic_class, flow_label, payload_len, hop_limit, sgid, dgid, .. } = grh;
        Network::between(sgid, dgid, traffic_class, flow_label, hop_limit, payload_len.saturating_add(UDP))
    }

    /// Parses the 40 bytes.
    ///
    /// # Errors
    /// The bytes contain neither of the two headers.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Network, Error> {
        Grh::parse(bytes).map(Network::V6).or_else(|_| Ipv4::parse(bytes).map(Network::V4))
    }

    /// Encodes the 40 bytes.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        match self {
            Network::V6(grh) => grh.emit(bytes),
            Network::V4(ipv4) => ipv4.emit(bytes),
        }
    }

    /// Source and destination as GIDs.
    #[must_use]
    pub fn gids(&self) -> ([u8; 16], [u8; 16]) {
        match self {
            Network::V6(grh) => (grh.sgid, grh.dgid),
            Network::V4(ip) => (ip.source.to_ipv6_mapped().octets(), ip.destination.to_ipv6_mapped().octets()),
        }
    }
}

fn array(bytes: &[u8; LEN], at: usize) -> [u8; 16] {
    std::array::from_fn(|index| bytes[at + index])
}

impl fmt::Display for Grh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", Ipv6Addr::from(self.sgid), Ipv6Addr::from(self.dgid))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::V6(grh) => grh.fmt(f),
            Network::V4(ip) => write!(f, "{} -> {}", ip.source, ip.destination),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        text.parse::<Ipv6Addr>().expect("an address").octets()
    }

    #[test]
    fn grh_literal_bytes_both_ways() {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&[0x60, 0x21, 0x23, 0x45, 0x01, 0x18, 0x1b, 0x40]);
        bytes[8..24].copy_from_slice(&gid("fe80::11"));
        bytes[24..].copy_from_slice(&gid("fe80::12"));
        let grh = Grh {
            traffic_class: 2,
            flow_label: 0x1_2345,
            payload_len: 280,
            next_header: NEXT_HEADER_IBA,
            hop_limit: 64,
            sgid: gid("fe80::11"),
            dgid: gid("fe80::12"),
        };
        assert_eq!(Network::parse(&bytes), Ok(Network::V6(grh)));
        let mut out = [0xaa; LEN];
        grh.emit(&mut out);
        assert_eq!(out, bytes);
        assert_eq!(grh.to_string(), "fe80::11 -> fe80::12");
    }

    #[test]
    fn only_groups_of_a_larger_scope_leave_the_subnet() {
        for (text, leaves) in [("ff11::1", false), ("ff12::1", false), ("ff15::1", true), ("ff1e::1", true)] {
            assert_eq!(multicast_scope(&gid(text)).map(is_beyond_subnet), Some(leaves), "{text}");
        }
        assert_eq!(multicast_scope(&gid("fec0:0:0:1::f")), None, "no group");
    }

    /// The IPv4 header of a datagram between 10.77.0.12 and 10.77.0.11.
    #[test]
    fn ipv4_stands_in_the_lower_half() {
        let network = Network::between(gid("::ffff:10.77.0.12"), gid("::ffff:10.77.0.11"), 0, 7, 64, 96);
        let mut out = [0xaa; LEN];
        network.emit(&mut out);
        assert_eq!(out[..20], [0; 20]);
        assert_eq!(
            out[20..],
            [0x45, 0, 0, 116, 0, 0, 0x40, 0, 64, 17, 0x25, 0xc9, 10, 77, 0, 12, 10, 77, 0, 11],
            "{out:02x?}"
        );
        let sum: u32 = out[20..].chunks(2).map(|pair| u32::from(be16(pair, 0))).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum completes the sum");
        assert_eq!(Network::parse(&out), Ok(network));
        assert_eq!(network.gids(), (gid("::ffff:10.77.0.12"), gid("::ffff:10.77.0.11")));
        assert_eq!(network.to_string(), "10.77.0.12 -> 10.77.0.11");
    }

    #[test]
    fn infiniband_has_a_grh_between_ipv4_addresses_too() {
        let (sgid, dgid) = (gid("::ffff:10.77.0.12"), gid("::ffff:10.77.0.11"));
        let grh = Grh { payload_len: 88, hop_limit: 64, sgid, dgid, ..Grh::default() };
        let of_link = Network::before_datagram(grh, true);
        assert_eq!(of_link, Network::V6(Grh { next_header: NEXT_HEADER_IBA, ..grh }));
        assert_eq!(Network::before_datagram(grh, false), Network::between(sgid, dgid, 0, 0, 64, 96));
    }

    #[test]
    fn anything_else_is_refused() {
        assert_eq!(Network::parse(&[0; LEN]), Err(Error::Network));
    }

    /// Over all identifications, the sum has every carry that it can have.
    #[test]
    fn ipv4_fields_and_checksum_are_right_for_every_identification() {
        let (source, destination) = (Ipv4Addr::new(255, 250, 240, 12), Ipv4Addr::new(255, 251, 241, 11));
        for id in 0..=u16::MAX {
            let (ttl, protocol) = (63, NEXT_HEADER_UDP);
            let network = Network::V4(Ipv4 { tos: 0xb9, total_len: 0x1234, id, ttl, protocol, source, destination });
            let mut out = [0xaa; LEN];
            network.emit(&mut out);
            assert_eq!((out[21], be16(&out, 22), be16(&out, 24), out[28]), (0xb9, 0x1234, id, 63));
            let sum: u32 = out[20..].chunks(2).map(|pair| u32::from(be16(pair, 0))).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "{id}");
            assert_eq!(Network::parse(&out), Ok(network));
        }
    }
}
