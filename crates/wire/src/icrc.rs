//! The invariant CRC of a RoCEv2 packet: four bytes behind its last pad byte, which cover
//! everything that routers do not change. Not the framing around it and not a socket. Principal
//! type: [`Envelope`]. [`link`] is the ICRC of a packet on an InfiniBand link. IBA 9.4.1, A17.3.3.
//!
//! The ICRC is Ethernet's CRC-32 over eight bytes of ones, the IP header, the UDP header and the
//! packet from its BTH on. Fields that may change on the way count as ones: TOS, TTL and checksum
//! (IPv6: traffic class, flow label and hop limit), the UDP checksum, and the BTH's fifth byte,
//! which holds FECN and BECN.
//!
//! IPv4's identification is covered too, but a UDP socket does not show it. The CRC is linear in
//! it, so [`Envelope::check`] computes which of the 65536 values makes the packet correct; at most
//! one does. This leaves 16 bits of the CRC: one of 65536 damaged packets passes, after the UDP
//! checksum and the link's CRC. With a right guess nothing needs to be computed. A fragmented
//! packet never has a correct ICRC, because DF is covered as well.

mod field;
pub(crate) mod fold;
pub mod link;

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

/// Bytes of the BTH that go through the tables: those around the byte that may change.
const HEAD: usize = 8;
const MASKED: usize = 4;

/// What the ICRC covers outside of the packet: the IP and UDP headers of one direction of one flow.
/// They are already in the CRC register, as far as they do not depend on the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The CRC register before the BTH, if all lengths and the identification were 0.
    register: u32,
    v4: bool,
}

impl Envelope {
    /// The envelope of packets from one GID to another. It is IPv4 if both are IPv4 addresses
    /// (`::ffff:a.b.c.d`).
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

    /// The ICRC of a packet from its BTH to its last pad byte, as on the wire. `id` is the IPv4
    /// identification; IPv6 has none.
    #[must_use]
    pub fn icrc(&self, id: u16, packet: &[u8]) -> [u8; 4] {
        self.crc(id, packet).to_le_bytes()
    }

    /// Checks a packet that ends with its ICRC. Returns the identification with which it was sent,
    /// or `None` if it is damaged. The guess is tried first; a right guess costs nothing extra.
    /// With IPv6 there is no identification, and a correct packet returns the guess.
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

    /// The state that all packets of `len` bytes share, from the BTH to the last pad byte.
    #[must_use]
    pub fn of_length(&self, len: usize) -> Measured {
        // The packet with its ICRC and the UDP header; more than 16 bits cannot be sent.
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

/// An [`Envelope`] for packets of one length: the part that need not be computed for each packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// The CRC register before the BTH, if the identification were 0.
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

    /// The ICRC of a packet of this length, as in [`Envelope::icrc`].
    #[inline]
    #[must_use]
    pub fn icrc(&self, id: u16, packet: &[u8]) -> [u8; 4] {
        debug_assert_eq!(packet.len(), self.len);
        self.crc(id, packet).to_le_bytes()
    }

    /// Whether the ICRC of a packet of this length can be computed while its payload is copied: the
    /// payload must consist of whole strides.
    #[inline]
    #[must_use]
    pub fn is_foldable(&self) -> bool {
        debug_assert!(self.len <= LONGEST);
        self.len.checked_sub(bth::LEN).is_some_and(|len| len > 0 && len.is_multiple_of(Folding::STRIDE))
    }

    /// Starts the ICRC of a foldable packet of this length, whose payload follows `head`. The
    /// caller then passes the payload through [`Folding`] while it copies the payload.
    #[inline]
    pub fn begin(&self, folding: &mut Folding, id: u16, head: &[u8; bth::LEN]) {
        debug_assert!(self.is_foldable());
        folding.begin(self.register_of(id), head);
    }

    /// Whether a packet of this length, which ends with its ICRC, is correct with the
    /// identification `id`. Only [`Envelope::check`] looks for another identification.
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
