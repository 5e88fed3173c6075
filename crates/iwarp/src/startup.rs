//! The start-up frames of MPA, which both sides exchange before the first FPDU. RFC 5044, section
//! 7.1, and RFC 6581 for revision 2. Not the rules of the exchange ([`crate::Initiator`],
//! [`crate::Responder`]). Principal type: [`Frame`].
//!
//! ```text
//!      0 | key: "MPA ID Req Frame" or "MPA ID Rep Frame"
//!     16 |M|C|R|S| reserved |   revision    |  private data length  |
//!     20 | private data, at most 512 bytes
//! ```
//! M the sender wants markers in what it receives, C CRC, R rejected, S enhanced. With S, the first
//! 4 bytes of the private data do not belong to the program:
//!
//! ```text
//!      0 |A|B|  IRD, 14 bits           |C|D|  ORD, 14 bits           |
//! ```
//! A peer-to-peer; B, C, D a SEND, WRITE or READ of no bytes as ready-to-receive message.

use crate::bytes::{be16, bit};
use crate::error::Error;

/// Bytes of a frame without private data.
pub const HEADER_LEN: usize = 20;
/// The longest private data, including the enhanced fields.
pub const MOST_PRIVATE: usize = 512;
/// IRD or ORD: not negotiated.
pub const UNKNOWN_DEPTH: u16 = 0x3fff;

const KEY_LEN: usize = 16;
const REQUEST: &[u8; KEY_LEN] = b"MPA ID Req Frame";
const REPLY: &[u8; KEY_LEN] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const ENHANCED_LEN: usize = 4;
const UPPER: u16 = 0x8000;
const LOWER: u16 = 0x4000;

/// Which of the two frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The initiator's.
    Request,
    /// The responder's.
    Reply,
}

/// A set of ready-to-receive messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RtrSet {
    /// A SEND of no bytes.
    pub send: bool,
    /// A WRITE of no bytes.
    pub write: bool,
    /// A READ of no bytes.
    pub read: bool,
}

/// The fields of enhanced mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enhanced {
    /// The peer-to-peer model: the initiator sends a ready-to-receive message.
    pub peer_to_peer: bool,
    /// The messages that the initiator can send, or the one that the responder wants.
    pub rtr: RtrSet,
    /// READs and atomics that the sender of the frame serves at a time.
    pub ird: u16,
    /// READs and atomics that the sender of the frame has outstanding at most.
    pub ord: u16,
}

impl Enhanced {
    fn parse(bytes: &[u8; ENHANCED_LEN]) -> Enhanced {
        let (first, second) = (be16(bytes, 0), be16(bytes, 2));
        Enhanced {
            peer_to_peer: first & UPPER != 0,
            rtr: RtrSet { send: first & LOWER != 0, write: second & UPPER != 0, read: second & LOWER != 0 },
            ird: first & UNKNOWN_DEPTH,
            ord: second & UNKNOWN_DEPTH,
        }
    }

    fn emit(&self) -> [u8; ENHANCED_LEN] {
        let flag = |set, mask| if set { mask } else { 0 };
        let first = flag(self.peer_to_peer, UPPER) | flag(self.rtr.send, LOWER) | self.ird.min(UNKNOWN_DEPTH);
        let second = flag(self.rtr.write, UPPER) | flag(self.rtr.read, LOWER) | self.ord.min(UNKNOWN_DEPTH);
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// A start-up frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Request or reply.
    pub kind: Kind,
    /// The sender of the frame wants markers in what it receives.
    pub markers: bool,
    /// The sender of the frame wants CRCs.
    pub crc: bool,
    /// The connection is rejected; only in a reply.
    pub reject: bool,
    /// The revision of MPA.
    pub revision: u8,
    /// The fields of enhanced mode; only in revision 2.
    pub enhanced: Option<Enhanced>,
    /// The program's private data.
    pub private: Vec<u8>,
}

impl Frame {
    /// Parses a frame of this kind, and returns it with its length. `None` if more bytes are
    /// needed. Reserved bits are ignored.
    ///
    /// # Errors
    /// The key is wrong, the revision is unknown, or the private data is too long, or too short for
    /// enhanced mode.
    pub fn parse(kind: Kind, bytes: &[u8]) -> Result<Option<(Frame, usize)>, Error> {
        let key = if kind == Kind::Request { REQUEST } else { REPLY };
        let begins = bytes.len().min(KEY_LEN);
        if bytes[..begins] != key[..begins] {
            return Err(Error::Key);
        }
        let Some((header, rest)) = bytes.split_at_checked(HEADER_LEN) else { return Ok(None) };
        let (flags, revision, len) = (header[16], header[17], usize::from(be16(header, 18)));
        if !matches!(revision, 1 | 2) {
            return Err(Error::Revision(revision));
        }
        if len > MOST_PRIVATE {
            return Err(Error::PrivateLength(len));
        }
        let Some(private) = rest.get(..len) else { return Ok(None) };
        let (enhanced, private) = if revision == 2 && flags & ENHANCED != 0 {
            let (fields, private) = private.split_first_chunk().ok_or(Error::EnhancedLength(len))?;
            (Some(Enhanced::parse(fields)), private)
        } else {
            (None, private)
        };
        let frame = Frame {
            kind,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject: flags & REJECT != 0 && kind == Kind::Reply,
            revision,
            enhanced,
            private: private.to_vec(),
        };
        Ok(Some((frame, HEADER_LEN + len)))
    }

    /// Encodes the frame.
    ///
    /// # Errors
    /// The private data is too long.
    pub fn emit(&self) -> Result<Vec<u8>, Error> {
        let enhanced = self.enhanced.map(|enhanced| enhanced.emit());
        let private = [enhanced.as_ref().map_or(&[][..], |fields| fields), &self.private].concat();
        if private.len() > MOST_PRIVATE {
            return Err(Error::PrivateLength(private.len()));
        }
        let flags = bit(self.markers, MARKERS)
            | bit(self.crc, CRC)
            | bit(self.reject, REJECT)
            | bit(self.enhanced.is_some(), ENHANCED);
        let key = if self.kind == Kind::Request { REQUEST } else { REPLY };
        Ok([&key[..], &[flags, self.revision], &(private.len() as u16).to_be_bytes(), &private].concat())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BYTES: &[u8; 26] = b"MPA ID Req Frame\x50\x02\x00\x06\x00\x04\x00\x04hi";

    fn frame() -> Frame {
        Frame {
            kind: Kind::Request,
            markers: false,
            crc: true,
            reject: false,
            revision: 2,
            enhanced: Some(Enhanced { ird: 4, ord: 4, ..Enhanced::default() }),
            private: b"hi".to_vec(),
        }
    }

    #[test]
    fn every_field_is_parsed() {
        assert_eq!(Frame::parse(Kind::Request, BYTES), Ok(Some((frame(), BYTES.len()))));
        let longer = [&BYTES[..], b"more"].concat();
        assert_eq!(Frame::parse(Kind::Request, &longer), Ok(Some((frame(), BYTES.len()))));
    }

    #[test]
    fn put_together() {
        assert_eq!(frame().emit().unwrap(), BYTES);
    }

    #[test]
    fn each_beginning_needs_more() {
        for len in 0..BYTES.len() {
            assert_eq!(Frame::parse(Kind::Request, &BYTES[..len]), Ok(None), "{len}");
        }
    }

    #[test]
    fn a_wrong_key_is_refused_at_its_first_wrong_byte() {
        assert_eq!(Frame::parse(Kind::Reply, &BYTES[..9]), Ok(None));
        assert_eq!(Frame::parse(Kind::Reply, &BYTES[..10]), Err(Error::Key));
        assert_eq!(Frame::parse(Kind::Request, b"GET / HTTP"), Err(Error::Key));
    }

    #[test]
    fn other_revisions_and_lengths_are_refused() {
        let changed = |at: usize, value: u8| {
            let mut bytes = *BYTES;
            bytes[at] = value;
            Frame::parse(Kind::Request, &bytes)
        };
        assert_eq!(changed(17, 0), Err(Error::Revision(0)));
        assert_eq!(changed(17, 3), Err(Error::Revision(3)));
        assert_eq!(changed(18, 3), Err(Error::PrivateLength(0x306)));
        assert_eq!(changed(19, 3), Err(Error::EnhancedLength(3)));
        let plain = changed(17, 1).unwrap().unwrap().0;
        assert_eq!((plain.enhanced, plain.private), (None, b"\0\x04\0\x04hi".to_vec()), "S is reserved in revision 1");
    }

    #[test]
    fn the_flags_of_enhanced_mode_are_at_their_places() {
        let both = Enhanced { ird: 1, ord: 2, ..Enhanced::default() };
        let rtr = |send, write, read| Enhanced { rtr: RtrSet { send, write, read }, ..both }.emit();
        assert_eq!(Enhanced { peer_to_peer: true, ..both }.emit(), [0x80, 1, 0, 2]);
        assert_eq!(rtr(true, false, false), [0x40, 1, 0, 2]);
        assert_eq!(rtr(false, true, false), [0, 1, 0x80, 2]);
        assert_eq!(rtr(false, false, true), [0, 1, 0x40, 2]);
    }

    proptest! {
        #[test]
        fn emitted_frames_are_parsed(
            reply: bool, markers: bool, crc: bool, rejects: bool, revision in 1_u8..=2,
            fields in prop::option::of(any::<[u8; 4]>()), private in prop::collection::vec(any::<u8>(), 0..=508),
        ) {
            let kind = if reply { Kind::Reply } else { Kind::Request };
            let enhanced = fields.filter(|_| revision == 2).map(|fields| Enhanced::parse(&fields));
            let frame = Frame { kind, markers, crc, reject: reply && rejects, revision, enhanced, private };
            let bytes = frame.emit().unwrap();
            prop_assert_eq!(Frame::parse(kind, &bytes), Ok(Some((frame, bytes.len()))));
        }
    }
}
