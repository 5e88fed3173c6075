//! A packet on its way through the fabric. Each hop changes a few fields of its LRH and the VCRC;
//! the bytes behind the LRH are shared by all copies of a multicast packet. The fabric does not
//! compute the VCRC of packets that nothing has damaged. Principal type: [`Frame`].

use std::sync::Arc;
use wire::{Error, bth, grh, lrh, vcrc};

/// The unit of credits, in bytes.
pub const BLOCK: usize = 64;
/// Bytes on the wire besides those from the LRH to the ICRC: the VCRC and the two delimiters.
pub const OVERHEAD: usize = vcrc::LEN + 2;

/// A packet from its LRH to its ICRC.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The LRH of the current hop.
    pub lrh: lrh::Header,
    /// Everything behind the LRH, with the ICRC and without the VCRC.
    body: Arc<[u8]>,
    /// Links that it has crossed. No header has this number: a switch uses it to find loops.
    pub(crate) hops: u8,
}

impl PartialEq for Frame {
    fn eq(&self, other: &Frame) -> bool {
        (self.lrh, &self.body) == (other.lrh, &other.body)
    }
}

impl Eq for Frame {}

/// Why bytes are not a packet of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes are too few for an LRH, a BTH and their CRCs, or the LRH has another length.
    #[error("the LRH does not have the length of the packet, or the packet ends inside a header")]
    Length,
    /// The VCRC is wrong.
    #[error("the VCRC is wrong")]
    Vcrc,
    /// A header cannot be parsed.
    #[error(transparent)]
    Header(#[from] Error),
}

impl Frame {
    /// A packet with this LRH and these bytes behind it, up to the ICRC. The length in the LRH is
    /// set.
    ///
    /// # Errors
    /// The bytes do not have whole words, end inside a header, or are more than the length field of
    /// the LRH can say.
    pub fn new(lrh: lrh::Header, body: impl Into<Arc<[u8]>>) -> Result<Frame, Malformed> {
        let body = body.into();
        let words = (lrh::LEN + body.len()) / 4;
        let least = match lrh.next {
            lrh::Next::Grh => grh::LEN + bth::LEN + 4,
            lrh::Next::Bth => bth::LEN + 4,
            lrh::Next::Raw | lrh::Next::RawIpv6 => 4,
        };
        if !body.len().is_multiple_of(4) || body.len() < least || words > 0x7ff {
            return Err(Malformed::Length);
        }
        Ok(Frame { lrh: lrh::Header { packet_len: words as u16, ..lrh }, body, hops: 0 })
    }

    /// Parses a packet from its LRH to its VCRC, and checks both.
    ///
    /// # Errors
    /// The packet is damaged.
    pub fn parse(bytes: &[u8]) -> Result<Frame, Malformed> {
        let covered = vcrc::check(bytes).ok_or(Malformed::Vcrc)?;
        let (head, body) = covered.split_first_chunk::<{ lrh::LEN }>().ok_or(Malformed::Length)?;
        let lrh = lrh::Header::parse(head)?;
        let frame = Frame::new(lrh, body)?;
        if frame.lrh == lrh { Ok(frame) } else { Err(Malformed::Length) }
    }

    /// The packet as on the wire, with its VCRC.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut head = [0; lrh::LEN];
        self.lrh.emit(&mut head);
        let mut bytes = [&head[..], &self.body].concat();
        bytes.extend(vcrc::vcrc(&bytes));
        bytes
    }

    /// Everything behind the LRH, with the ICRC.
    #[must_use]
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Whether the packet is one of subnet management.
    #[must_use]
    pub const fn is_management(&self) -> bool {
        self.lrh.vl == lrh::VL_MANAGEMENT
    }

    /// Blocks of credit that the packet needs: its bytes from the LRH to the ICRC, in whole blocks.
    #[must_use]
    pub const fn blocks(&self) -> u16 {
        self.lrh.byte_len().div_ceil(BLOCK) as u16
    }

    /// Bytes that the packet takes on the wire.
    #[must_use]
    pub const fn wire_len(&self) -> usize {
        self.lrh.byte_len() + OVERHEAD
    }

    /// The GRH, if the packet has one.
    #[must_use]
    pub fn grh(&self) -> Option<grh::Grh> {
        (self.lrh.next == lrh::Next::Grh).then_some(())?;
        grh::Grh::parse(self.body.first_chunk()?).ok()
    }

    /// The same packet with another LRH and GRH: what a router sends. The ICRC of a packet with a
    /// GRH covers neither the LRH nor the hop limit, so it stays.
    #[must_use]
    pub fn with_grh(&self, lrh: lrh::Header, header: &grh::Grh) -> Frame {
        let mut body = self.body.to_vec();
        if let Some(bytes) = body.first_chunk_mut::<{ grh::LEN }>() {
            header.emit(bytes);
        }
        Frame { lrh: lrh::Header { packet_len: self.lrh.packet_len, ..lrh }, body: body.into(), hops: self.hops }
    }

    /// The partition key, or `None` for a raw packet.
    #[must_use]
    pub fn pkey(&self) -> Option<u16> {
        let at = match self.lrh.next {
            lrh::Next::Grh => grh::LEN,
            lrh::Next::Bth => 0,
            lrh::Next::Raw | lrh::Next::RawIpv6 => return None,
        };
        let bytes = self.body.get(at + 2..at + 4)?;
        Some(u16::from_be_bytes([bytes[0], bytes[1]]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame() -> Frame {
        let lrh = lrh::Header { sl: 3, vl: 1, dlid: 2, slid: 1, ..lrh::Header::default() };
        Frame::new(lrh, vec![4, 0, 0x80, 1, 0, 0, 0, 9, 0, 0, 0, 0, 1, 2, 3, 4]).unwrap()
    }

    #[test]
    fn l21_a_packet_is_parsed_as_it_was_built() {
        let bytes = frame().to_bytes();
        assert_eq!(bytes.len(), 8 + 16 + 2);
        assert_eq!(Frame::parse(&bytes), Ok(frame()));
        assert_eq!((frame().pkey(), frame().blocks(), frame().wire_len()), (Some(0x8001), 1, 28));
    }

    #[test]
    fn l22_a_hop_that_changes_the_vl_changes_the_vcrc() {
        let mut hop = frame();
        hop.lrh.vl = 2;
        let (before, after) = (frame().to_bytes(), hop.to_bytes());
        assert_ne!(before[24..], after[24..]);
        assert_eq!(before[1..24], after[1..24]);
        assert_eq!(wire::icrc::link::icrc(&before[..20]), wire::icrc::link::icrc(&after[..20]));
    }

    #[test]
    fn l34_damage_is_found() {
        let bytes = frame().to_bytes();
        assert_eq!(Frame::parse(&bytes[..20]), Err(Malformed::Vcrc));
        let with_vcrc = |bytes: &[u8]| [bytes, &vcrc::vcrc(bytes)].concat();
        assert_eq!(Frame::parse(&with_vcrc(&bytes[..20])), Err(Malformed::Length), "another length than in the LRH");
        let mut other = bytes[..24].to_vec();
        other[0] |= 1;
        assert_eq!(Frame::parse(&with_vcrc(&other)), Err(Malformed::Header(Error::LinkVersion(1))));
        let lrh = lrh::Header { next: lrh::Next::Grh, ..lrh::Header::default() };
        assert_eq!(Frame::new(lrh, vec![0; 52]), Err(Malformed::Length), "ends inside the BTH");
        assert_eq!(Frame::new(lrh, vec![0; 8 * 1024]), Err(Malformed::Length));
    }

    proptest! {
        /// Any bytes behind a right VCRC: parsed or refused, and what is parsed is encoded alike,
        /// but for reserved bits.
        #[test]
        fn l34_any_bytes_are_parsed_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..80), fits: bool) {
            if fits && bytes.len() >= 8 {
                bytes.truncate(bytes.len() / 4 * 4);
                bytes[0] &= 0xf0;
                (bytes[4], bytes[5]) = (0, bytes.len() as u8 / 4);
            }
            prop_assert!(Frame::parse(&bytes).is_err() || vcrc::check(&bytes).is_some());
            let whole = [&bytes[..], &vcrc::vcrc(&bytes)].concat();
            if let Ok(frame) = Frame::parse(&whole) {
                let again = frame.to_bytes();
                prop_assert_eq!(Frame::parse(&again), Ok(frame));
                prop_assert_eq!(&again[6..bytes.len()], &bytes[6..]);
            }
        }
    }
}
