//! The header of a DDP segment, which says where the payload is placed. Not the operation that the
//! segment belongs to: that is RDMAP's byte, which DDP only carries. RFC 5041, section 4. Principal
//! type: [`Header`].
//!
//! ```text
//!        tagged: 14 bytes                     untagged: 18 bytes
//!      0 |T|L| reserved  |DV |                |T|L| reserved  |DV |
//!      1 | RDMAP's byte      |                | RDMAP's byte      |
//!      2 | STag              |                | STag to invalidate|
//!      6 | tagged offset     |                | queue number      |
//!     10 |      (8 bytes)    |                | MSN               |
//!     14                                      | message offset    |
//! ```
//! T tagged, L last segment of its message, DV the version, 1. Queue numbers: 0 SENDs, 1 requests,
//! 2 Terminate, 3 responses of atomics. The MSN counts the messages of a queue from 1.

use crate::bytes::{be32, be64, bit, put32, put64};
use crate::terminate::Reason;
use std::fmt;

/// Bytes of a tagged header.
pub const TAGGED_LEN: usize = 14;
/// Bytes of an untagged header, the longer one.
pub const UNTAGGED_LEN: usize = 18;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const VERSION: u8 = 0x03;
const VERSION_1: u8 = 1;

/// A steering tag, which names a memory region to the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

impl fmt::Display for Stag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The header of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The segment is the last one of its message.
    pub last: bool,
    /// The byte that DDP carries for RDMAP.
    pub rdmap: u8,
    /// Where the payload is placed.
    pub place: Place,
}

/// Where the payload of a segment is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In memory that the receiver has exposed.
    Tagged {
        /// The region.
        stag: Stag,
        /// The offset, which means an address with verbs.
        to: u64,
    },
    /// In the next buffer of a queue.
    Untagged {
        /// The STag that a SEND with Invalidate invalidates; otherwise 0.
        invalidate: Stag,
        /// The queue.
        queue: u32,
        /// The number of the message in its queue.
        msn: u32,
        /// The offset of the payload in its message.
        offset: u32,
    },
}

impl Header {
    /// Parses the header and returns it with the payload behind it. Reserved bits are ignored.
    ///
    /// # Errors
    /// The version is not 1, or the segment is shorter than its header.
    pub fn parse(segment: &[u8]) -> Result<(Header, &[u8]), Reason> {
        let (Some(&first), Some(&rdmap)) = (segment.first(), segment.get(1)) else {
            return Err(Reason::DdpCatastrophic);
        };
        let tagged = first & TAGGED != 0;
        if first & VERSION != VERSION_1 {
            return Err(if tagged { Reason::TaggedVersion } else { Reason::UntaggedVersion });
        }
        let len = if tagged { TAGGED_LEN } else { UNTAGGED_LEN };
        let (header, payload) = segment.split_at_checked(len).ok_or(Reason::DdpCatastrophic)?;
        let place = if tagged {
            Place::Tagged { stag: Stag(be32(header, 2)), to: be64(header, 6) }
        } else {
            Place::Untagged {
                invalidate: Stag(be32(header, 2)),
                queue: be32(header, 6),
                msn: be32(header, 10),
                offset: be32(header, 14),
            }
        };
        Ok((Header { last: first & LAST != 0, rdmap, place }, payload))
    }

    /// The number of bytes of this header.
    #[must_use]
    pub const fn size(&self) -> usize {
        match self.place {
            Place::Tagged { .. } => TAGGED_LEN,
            Place::Untagged { .. } => UNTAGGED_LEN,
        }
    }

    /// Encodes the header at the beginning of `bytes` and returns its length.
    pub fn emit(&self, bytes: &mut [u8; UNTAGGED_LEN]) -> usize {
        bytes[0] = bit(matches!(self.place, Place::Tagged { .. }), TAGGED) | bit(self.last, LAST) | VERSION_1;
        bytes[1] = self.rdmap;
        match self.place {
            Place::Tagged { stag, to } => {
                put32(bytes, 2, stag.0);
                put64(bytes, 6, to);
            }
            Place::Untagged { invalidate, queue, msn, offset } => {
                put32(bytes, 2, invalidate.0);
                put32(bytes, 6, queue);
                put32(bytes, 10, msn);
                put32(bytes, 14, offset);
            }
        }
        self.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: [u8; TAGGED_LEN] = [0xc1, 0x40, 0xbf, 0x21, 0xf1, 0x00, 0, 0, 0x7f, 0x07, 0x34, 0xa2, 0x90, 0x00];
    const SEND: [u8; UNTAGGED_LEN] = [0x01, 0x44, 0x98, 0xb9, 0xf8, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 5, 0x90];

    fn write() -> Header {
        Header { last: true, rdmap: 0x40, place: Place::Tagged { stag: Stag(0xbf21_f100), to: 0x7f07_34a2_9000 } }
    }

    fn send() -> Header {
        let place = Place::Untagged { invalidate: Stag(0x98b9_f800), queue: 0, msn: 2, offset: 1424 };
        Header { last: false, rdmap: 0x44, place }
    }

    #[test]
    fn every_field_is_parsed() {
        assert_eq!(Header::parse(&[&WRITE[..], b"abc"].concat()), Ok((write(), &b"abc"[..])));
        assert_eq!(Header::parse(&SEND), Ok((send(), &b""[..])));
    }

    #[test]
    fn put_together() {
        for (header, literal) in [(write(), &WRITE[..]), (send(), &SEND[..])] {
            let mut bytes = [0xaa; UNTAGGED_LEN];
            let len = header.emit(&mut bytes);
            assert_eq!(&bytes[..len], literal);
        }
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = WRITE;
        bytes[0] |= 0x3c;
        assert_eq!(Header::parse(&bytes), Ok((write(), &b""[..])));
    }

    #[test]
    fn another_version_is_refused_with_the_code_of_its_kind() {
        for version in [0, 2, 3] {
            assert_eq!(Header::parse(&[0xc0 | version, 0x40]), Err(Reason::TaggedVersion));
            assert_eq!(Header::parse(&[0x40 | version, 0x43]), Err(Reason::UntaggedVersion));
        }
    }

    #[test]
    fn a_segment_shorter_than_its_header_is_refused() {
        for len in 0..WRITE.len() {
            assert_eq!(Header::parse(&WRITE[..len]), Err(Reason::DdpCatastrophic), "{len}");
        }
        for len in 0..SEND.len() {
            assert_eq!(Header::parse(&SEND[..len]), Err(Reason::DdpCatastrophic), "{len}");
        }
    }
}
