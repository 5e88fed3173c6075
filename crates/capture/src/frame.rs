//! Builds an Ethernet frame around a packet. Packets of InfiniBand links have other headers
//! ([`crate::link`]), and bytes of iWARP get TCP's ([`crate::segment`]). The principal function is
//! [`frame()`].
//!
//! A packet from a socket or a lane has no Ethernet header. Its MAC addresses here are made from
//! its IP addresses, and are marked as locally administered. The IP and UDP headers are as they
//! were on the wire, or as they would have been: the checksums and the ICRC are correct.

use std::net::IpAddr;

use wire::grh::{LEN as NETWORK, Network};

use crate::packet::Packet;

/// UDP port of RoCE version 2.
const PORT: u16 = 4791;
/// Bytes of an Ethernet and of a UDP header.
const ETHERNET: usize = 14;
const UDP_LEN: usize = 8;
/// The hop limit if no program has set one.
const HOPS: u8 = 64;

/// A transport protocol: its number, and where its header has the checksum.
pub(crate) type Transport = (u8, usize);
const UDP: Transport = (17, 6);
/// The transport of iWARP.
pub(crate) const TCP: Transport = (6, 16);

/// The frame around a packet of RoCEv2, as far as the packet was kept, and the length of the whole
/// frame.
#[must_use]
pub fn frame(packet: &Packet) -> (Vec<u8>, usize) {
    let len = UDP_LEN + packet.len;
    let mut datagram = Vec::with_capacity(UDP_LEN + packet.bytes.len());
    for word in [packet.from_port, PORT, len as u16, 0] {
        datagram.extend(word.to_be_bytes());
    }
    datagram.extend_from_slice(&packet.bytes);
    around(packet, (packet.from, packet.to), UDP, datagram, len)
}

/// The frame around a datagram or segment between two addresses of a packet. `len` is the length of
/// the whole datagram or segment.
pub(crate) fn around(
    packet: &Packet,
    (from, to): (IpAddr, IpAddr),
    transport: Transport,
    mut inner: Vec<u8>,
    len: usize,
) -> (Vec<u8>, usize) {
    let hops = if packet.hop_limit == 0 { HOPS } else { packet.hop_limit };
    let mut network = Network::between(gid(from), gid(to), packet.traffic_class, 0, hops, len as u16);
    match &mut network {
        Network::V4(ip) => (ip.id, ip.protocol) = (packet.id, transport.0),
        Network::V6(ip) => ip.next_header = transport.0,
    }
    let mut header = [0; NETWORK];
    network.emit(&mut header);
    let (kind, ip): (u16, &[u8]) = match network {
        Network::V4(_) => (0x0800, &header[20..]),
        Network::V6(_) => (0x86dd, &header),
    };
    let sum = checksum((from, to), transport, &inner, len);
    inner[transport.1..transport.1 + 2].copy_from_slice(&sum.to_be_bytes());
    let mut bytes = Vec::with_capacity(ETHERNET + NETWORK + inner.len());
    bytes.extend(mac(to));
    bytes.extend(mac(from));
    bytes.extend(kind.to_be_bytes());
    bytes.extend(ip);
    let headers = bytes.len();
    bytes.extend(inner);
    (bytes, headers + len)
}

/// An address as a GID.
pub(crate) fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A MAC address for an IP address: that of its multicast group, or a made one.
fn mac(ip: IpAddr) -> [u8; 6] {
    match ip {
        IpAddr::V4(ip) if ip.is_multicast() => {
            let [_, b, c, d] = ip.octets();
            [0x01, 0x00, 0x5e, b & 0x7f, c, d]
        }
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [0x02, 0x00, a, b, c, d]
        }
        IpAddr::V6(ip) => {
            let octets = ip.octets();
            let first = if ip.is_multicast() { [0x33, 0x33] } else { [0x02, 0x00] };
            [first[0], first[1], octets[12], octets[13], octets[14], octets[15]]
        }
    }
}

/// The checksum of a datagram or segment, whose field for it is 0. If not all bytes were kept, the
/// checksum is unknown. UDP over IPv6 must not have 0.
fn checksum((from, to): (IpAddr, IpAddr), transport: Transport, inner: &[u8], len: usize) -> u16 {
    let is_v4 = from.is_ipv4() && to.is_ipv4();
    if inner.len() != len {
        return if is_v4 { 0 } else { 0xffff };
    }
    // The prefix of mapped IPv4 addresses adds the same to the sums of both addresses, so the sum
    // covers only the addresses themselves.
    let skipped = if is_v4 { 12 } else { 0 };
    let words = u64::from(transport.0) + u64::from(len as u16);
    let mut folded = words + sum(&gid(from)[skipped..]) + sum(&gid(to)[skipped..]) + sum(inner);
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    match !(folded as u16) {
        0 if transport == UDP => 0xffff,
        checksum => checksum,
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>() + last
}
