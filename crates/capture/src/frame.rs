//! Builds an Ethernet frame around a packet. Packets of InfiniBand links have other headers
//! ([`crate::link`]). The principal function is [`frame()`].
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
const UDP: usize = 8;
/// The hop limit if no program has set one.
const HOPS: u8 = 64;

/// The frame around a packet, as far as the packet was kept, and the length of the whole frame.
#[must_use]
pub fn frame(packet: &Packet) -> (Vec<u8>, usize) {
    let (from, to) = (gid(packet.from), gid(packet.to));
    let hops = if packet.hop_limit == 0 { HOPS } else { packet.hop_limit };
    let udp_len = (UDP + packet.len) as u16;
    let mut network = Network::between(from, to, packet.traffic_class, 0, hops, udp_len);
    if let Network::V4(ip) = &mut network {
        ip.id = packet.id;
    }
    let mut header = [0; NETWORK];
    network.emit(&mut header);
    let (kind, ip): (u16, &[u8]) = match network {
        Network::V4(_) => (0x0800, &header[20..]),
        Network::V6(_) => (0x86dd, &header),
    };
    let mut bytes = Vec::with_capacity(ETHERNET + NETWORK + UDP + packet.bytes.len());
    bytes.extend(mac(packet.to));
    bytes.extend(mac(packet.from));
    bytes.extend(kind.to_be_bytes());
    bytes.extend(ip);
    for word in [packet.from_port, PORT, udp_len] {
        bytes.extend(word.to_be_bytes());
    }
    bytes.extend(checksum(packet, &from, &to, udp_len).to_be_bytes());
    let headers = bytes.len();
    bytes.extend_from_slice(&packet.bytes);
    (bytes, headers + packet.len)
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

/// The UDP checksum. If the packet was not kept as a whole, the checksum is unknown. Over IPv6 it
/// must not be 0.
fn checksum(packet: &Packet, from: &[u8; 16], to: &[u8; 16], udp_len: u16) -> u16 {
    if !packet.is_whole() {
        return if packet.from.is_ipv4() && packet.to.is_ipv4() { 0 } else { 0xffff };
    }
    // The prefix of mapped IPv4 addresses adds the same to the sums of both addresses, so the sum
    // covers only the addresses themselves.
    let skipped = if packet.from.is_ipv4() && packet.to.is_ipv4() { 12 } else { 0 };
    let words = [packet.from_port, PORT, udp_len, udp_len, 17].into_iter().map(u64::from).sum::<u64>();
    let sum = words + sum(&from[skipped..]) + sum(&to[skipped..]) + sum(&packet.bytes);
    let mut folded = sum;
    while folded > 0xffff {
        folded = (folded & 0xffff) + (folded >> 16);
    }
    match !(folded as u16) {
        0 => 0xffff,
        checksum => checksum,
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let last = rest.first().map_or(0, |byte| u64::from(*byte) << 8);
    pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum::<u64>() + last
}
