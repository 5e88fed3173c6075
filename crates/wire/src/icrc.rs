//! The invariant CRC of a RoCEv2 packet: four bytes behind its last pad byte that cover everything that no router changes.
//! Not the framing around it and not a socket. Principal type: [`Envelope`]. IBA 9.4.1, A17.3.3.
//!
//! It is Ethernet's CRC-32 over eight bytes of ones, the IP header, the UDP header and the packet from its BTH on, where ones
//! stand for what may change on the way: TOS, TTL and checksum (IPv6: traffic class, flow label and hop limit), the UDP
//! checksum, and the BTH's fifth byte, which carries the congestion marks.
//!
//! IPv4's identification is covered too, but a UDP socket does not show it. The CRC is linear in it, so that [`Envelope::check`]
//! computes which of the 65536 makes a packet whole; at most one does. What is left of the CRC are 16 bits: one of 65536 damaged
//! packets passes, after the UDP checksum and the link's CRC. With a right guess nothing needs to be computed. A packet in
//! fragments has no ICRC that would fit, for DF is covered as well.

mod field;
mod fold;

pub use fold::{Folding, Width};

use crate::bth;
use field::ONES;
use std::net::Ipv6Addr;

/// Bytes of the ICRC.
pub const LEN: usize = 4;

/// UDP's longest payload.
const LONGEST: usize = 65_507;
const PORT: u16 = 4791;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
const IPV6_LEN: usize = 40;

/// Bytes of the BTH that are taken through the tables: those around the one that may change.
const HEAD: usize = 8;
const MASKED: usize = 4;

/// What the ICRC covers outside of the packet: the IP and UDP headers of one direction of one flow, already taken through the CRC
/// as far as they do not depend on the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The CRC's register before the BTH, if all lengths and the identification were 0.
    register: u32,
    v4: bool,
}

impl Envelope {
    /// The envelope of packets from one GID to another. It is IPv4 when both are IPv4 addresses (`::ffff:a.b.c.d`).
    #[must_use]
    pub fn new(source: &[u8; 16], destination: &[u8; 16], source_port: u16) -> Envelope {
        let mut headers = [0; IPV6_LEN + UDP_LEN];
        let mapped = |gid: &[u8; 16]| Ipv6Addr::from(*gid).to_ipv4_mapped();
        let (v4, ip_len) = if let (Some(source), Some(destination)) = (mapped(source), mapped(destination)) {
            headers[..12].copy_from_slice(&[0x45, 0xff, 0, 0, 0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
            headers[12..16].copy_from_slice(&source.octets());
            headers[16..20].copy_from_slice(&destination.octets());
            (true, IPV4_LEN)
        } else {
            headers[..8].copy_from_slice(&[0x6f, 0xff, 0xff, 0xff, 0, 0, 17, 0xff]);
            headers[8..24].copy_from_slice(source);
            headers[24..40].copy_from_slice(destination);
            (false, IPV6_LEN)
        };
        headers[ip_len..ip_len + 2].copy_from_slice(&source_port.to_be_bytes());
        headers[ip_len + 2..ip_len + 4].copy_from_slice(&PORT.to_be_bytes());
        headers[ip_len + 6..ip_len + 8].copy_from_slice(&[0xff, 0xff]);
        Envelope { register: field::through(ONES, &headers[..ip_len + UDP_LEN]), v4 }
    }

    /// The ICRC of a packet from its BTH to its last pad byte, as it stands on the wire. `id` is the IPv4 identification; IPv6
    /// has none.
    #[must_use]
    pub fn icrc(&self, id: u16, packet: &[u8]) -> [u8; 4] {
        self.crc(id, packet).to_le_bytes()
    }

    /// Checks a packet that ends with its ICRC. The identification that it was sent with, or `None`: it is damaged. The guess is
    /// tried first and costs nothing when it is right. With IPv6 there is nothing to find, and what fits is the guess.
    #[must_use]
    pub fn check(&self, packet: &[u8], guess: u16) -> Option<u16> {
        let (covered, icrc) = packet.split_last_chunk::<LEN>()?;
        if covered.len() < bth::LEN || packet.len() > LONGEST {
            return None;
        }
        let difference = self.crc(guess, covered) ^ u32::from_le_bytes(*icrc);
        if difference == 0 {
            return Some(guess);
        }
        if !self.v4 {
            return None;
        }
        // Behind the identification: the rest of the IPv4 header, the UDP header, the packet.
        let behind = IPV4_LEN - 6 + UDP_LEN + covered.len();
        field::two_bytes_before(behind, difference).map(|id| guess ^ id)
    }

    /// What is the same for all packets of `len` bytes, from the BTH to the last pad byte.
    #[must_use]
    pub fn of_length(&self, len: usize) -> Measured {
        // A packet with its ICRC and the UDP header; more than 16 bits cannot be sent.
        let udp_len = (len + LEN + UDP_LEN) as u16;
        let lengths = if self.v4 {
            field::UDP_LENGTH.at(udp_len) ^ field::IPV4_LENGTH.at(udp_len.wrapping_add(IPV4_LEN as u16))
        } else {
            field::UDP_LENGTH.at(udp_len) ^ field::IPV6_LENGTH.at(udp_len)
        };
        Measured { register: self.register ^ lengths, v4: self.v4, len }
    }

    fn crc(&self, id: u16, packet: &[u8]) -> u32 {
        self.of_length(packet.len()).crc(id, packet)
    }
}

/// An [`Envelope`] of packets of one length: what many of them in a row need not compute each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The CRC's register before the BTH, if the identification were 0.
    register: u32,
    v4: bool,
    len: usize,
}

impl Measured {
    /// Bytes of the packets, without their ICRC.
    #[must_use]
    pub fn length(&self) -> usize {
        self.len
    }

    /// The ICRC of a packet of this length, as [`Envelope::icrc`] says it.
    #[inline]
    #[must_use]
    pub fn icrc(&self, id: u16, packet: &[u8]) -> [u8; 4] {
        debug_assert_eq!(packet.len(), self.len);
        self.crc(id, packet).to_le_bytes()
    }

    /// Whether the ICRC of a packet of this length can be computed while its payload is copied: the payload has whole strides.
    #[inline]
    #[must_use]
    pub fn is_foldable(&self) -> bool {
        debug_assert!(self.len <= LONGEST);
        self.len.checked_sub(bth::LEN).is_some_and(|len| len > 0 && len.is_multiple_of(Folding::STRIDE))
    }

    /// Begins to compute the ICRC of a packet of this length, which is foldable, while its payload, which lies behind `head`, is copied; whoever copies takes
    /// the bytes through ([`Folding`]).
    #[inline]
    pub fn begin(&self, folding: &mut Folding, id: u16, head: &[u8; bth::LEN]) {
        debug_assert!(self.is_foldable());
        folding.begin(self.register_of(id), head);
    }

    /// Whether a packet of this length, which ends with its ICRC, was sent with the identification `id` and is whole. Another identification
    /// is not looked for: that is [`Envelope::check`]'s.
    #[inline]
    #[must_use]
    pub fn fits(&self, packet: &[u8], id: u16) -> bool {
        packet.split_last_chunk::<LEN>().is_some_and(|(covered, icrc)| {
            covered.len() == self.len
                && (bth::LEN..=LONGEST - LEN).contains(&self.len)
                && self.crc(id, covered) == u32::from_le_bytes(*icrc)
        })
    }

    #[inline]
    fn register_of(&self, id: u16) -> u32 {
        if self.v4 { self.register ^ field::IPV4_ID.at(id) } else { self.register }
    }

    #[inline]
    fn crc(&self, id: u16, packet: &[u8]) -> u32 {
        let register = self.register_of(id);
        if let Some(register) = fold::packet_through(register, packet) {
            return !register;
        }
        let Some((head, rest)) = packet.split_first_chunk::<HEAD>() else {
            return !field::through(register, packet); // no packet, for it has no BTH
        };
        let mut head = *head;
        head[MASKED] = 0xff;
        let mut crc = crc32fast::Hasher::new_with_initial(!field::eight_through(register, head));
        crc.update(rest);
        crc.finalize()
    }
}
