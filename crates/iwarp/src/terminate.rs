//! The Terminate message: why a stream ends, in the RFC's numbers and in words. RFC 5040, section
//! 4.8. Not what the stream does with it ([`crate::Stream`]). Principal types: [`Terminate`],
//! [`Reason`].
//!
//! ```text
//!      0 | layer | type  |     code      |M|D|R|     reserved      |
//!      4 | length of the segment  (M)    |
//!      6 | DDP header of the failed segment, 14 or 18 bytes  (D)
//!        | READ request of the failed segment, 28 bytes  (R)
//! ```
//! Linux's siw lays out its bit fields as a little-endian compiler does: layer and type are
//! exchanged, and M, D and R are the lowest bits of their byte. Its length counts the payload only.
//! [`Terminate::parse`] understands both layouts; [`Terminate::emit`] writes the RFC's.

use crate::bytes::{be16, bit, put16};
use crate::ddp::{self, Place};
use crate::rdmap::{Opcode, ReadRequest};
use std::fmt;

const HAS_LENGTH: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;
const SIW_FLAGS: u8 = 0x07;

macro_rules! reasons {
    ($($name:ident = $layer:literal, $kind:literal, $code:literal, $says:literal;)+) => {
        /// Why a stream is terminated: layer, type and code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Reason {
            $(#[doc = $says] $name,)+
            /// A combination that the RFCs do not define.
            Other {
                /// The layer, 4 bits.
                layer: u8,
                /// The type, 4 bits.
                kind: u8,
                /// The code.
                code: u8,
            },
        }

        impl Reason {
            /// All reasons that the RFCs define.
            pub const ALL: &[Reason] = &[$(Reason::$name),+];

            /// The reason with these numbers. RDMAP's catastrophic error has no codes, so any code is
            /// taken: siw sends 0xff.
            #[must_use]
            pub fn new(layer: u8, kind: u8, code: u8) -> Reason {
                match (layer, kind, code) {
                    $(($layer, $kind, $code) => Reason::$name,)+
                    (0, 0, _) => Reason::RdmapCatastrophic,
                    _ => Reason::Other { layer: layer & 0x0f, kind: kind & 0x0f, code },
                }
            }

            /// Layer, type and code.
            #[must_use]
            pub fn numbers(self) -> (u8, u8, u8) {
                match self {
                    $(Reason::$name => ($layer, $kind, $code),)+
                    Reason::Other { layer, kind, code } => (layer, kind, code),
                }
            }

            fn says(self) -> &'static str {
                match self {
                    $(Reason::$name => $says,)+
                    Reason::Other { .. } => "unknown error",
                }
            }
        }
    };
}

reasons! {
    RdmapCatastrophic = 0, 0, 0x00, "local catastrophic error";
    ProtectionStag = 0, 1, 0x00, "the STag is invalid";
    ProtectionBounds = 0, 1, 0x01, "the access is out of bounds";
    ProtectionAccess = 0, 1, 0x02, "the region does not allow the access";
    ProtectionStream = 0, 1, 0x03, "the STag is not associated with this stream";
    ProtectionWrap = 0, 1, 0x04, "the tagged offset wraps";
    ProtectionInvalidate = 0, 1, 0x09, "the STag cannot be invalidated";
    ProtectionUnspecified = 0, 1, 0xff, "unspecified protection error";
    RdmapVersion = 0, 2, 0x05, "the RDMAP version is not supported";
    RdmapOpcode = 0, 2, 0x06, "unexpected opcode";
    RdmapStream = 0, 2, 0x07, "catastrophic error of this stream";
    RdmapGlobal = 0, 2, 0x08, "catastrophic error of the device";
    RdmapInvalidate = 0, 2, 0x09, "the STag cannot be invalidated";
    RdmapUnspecified = 0, 2, 0xff, "unspecified operation error";
    DdpCatastrophic = 1, 0, 0x00, "local catastrophic error";
    TaggedStag = 1, 1, 0x00, "the STag is invalid";
    TaggedBounds = 1, 1, 0x01, "the access is out of bounds";
    TaggedStream = 1, 1, 0x02, "the STag is not associated with this stream";
    TaggedWrap = 1, 1, 0x03, "the tagged offset wraps";
    TaggedVersion = 1, 1, 0x04, "the DDP version is not supported";
    UntaggedQueue = 1, 2, 0x01, "invalid queue number";
    UntaggedNoBuffer = 1, 2, 0x02, "no receive is posted for the message";
    UntaggedMsn = 1, 2, 0x03, "the MSN is out of range";
    UntaggedOffset = 1, 2, 0x04, "the message offset is invalid";
    UntaggedTooLong = 1, 2, 0x05, "the message is too long for its buffer";
    UntaggedVersion = 1, 2, 0x06, "the DDP version is not supported";
    MpaLost = 2, 0, 0x01, "the TCP connection was lost";
    MpaCrc = 2, 0, 0x02, "the CRC is wrong";
    MpaMarker = 2, 0, 0x03, "marker and length disagree";
    MpaStartUp = 2, 0, 0x04, "invalid start-up frame";
    MpaCatastrophic = 2, 0, 0x05, "local catastrophic error";
    MpaIrd = 2, 0, 0x06, "the IRD is too small";
    MpaNoRtr = 2, 0, 0x07, "no common ready-to-receive message";
}

impl Reason {
    /// Whether the RFCs define this combination.
    #[must_use]
    pub const fn is_known(self) -> bool {
        !matches!(self, Reason::Other { .. })
    }

    /// Whether the peer refused an access to its memory.
    #[must_use]
    pub fn is_protection(self) -> bool {
        matches!(self.numbers(), (0, 1, _) | (1, 1, 0..=3))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (layer, kind, code) = self.numbers();
        let layers = ["RDMAP", "DDP", "MPA"];
        let kinds: &[&str] = match layer {
            0 => &["local", "remote protection", "remote operation"],
            1 => &["local", "tagged buffer", "untagged buffer"],
            2 => &["connection"],
            _ => &[],
        };
        let layer_name = layers.get(usize::from(layer)).unwrap_or(&"unknown layer");
        let kind_name = kinds.get(usize::from(kind)).unwrap_or(&"unknown type");
        write!(f, "{layer_name}, {kind_name}: {} ({layer}/{kind}/{code:#x})", self.says())
    }
}

/// Which layout a Terminate message has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// RFC 5040's.
    #[default]
    Rfc,
    /// That of Linux's siw.
    Siw,
}

/// What a Terminate message says of the segment that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failed {
    /// The bytes of its headers: 14 or 18 of DDP, and perhaps 28 of a READ request.
    headers: [u8; Failed::MOST],
    ddp_len: u8,
    has_request: bool,
    /// The length of the segment: header and payload.
    pub len: u16,
}

impl Failed {
    const MOST: usize = ddp::UNTAGGED_LEN + ReadRequest::LEN;

    /// What a Terminate message repeats of a segment that failed. `None` if the segment is shorter
    /// than its own header.
    #[must_use]
    pub fn new(segment: &[u8]) -> Option<Failed> {
        let tagged = segment.first()? & 0x80 != 0;
        let ddp_len = if tagged { ddp::TAGGED_LEN } else { ddp::UNTAGGED_LEN };
        let rdmap = *segment.get(1)?;
        let has_request = !tagged && rdmap & 0x0f == Opcode::ReadRequest as u8 && segment.len() >= Failed::MOST;
        let used = ddp_len + if has_request { ReadRequest::LEN } else { 0 };
        let mut headers = [0; Failed::MOST];
        headers[..used].copy_from_slice(segment.get(..used)?);
        let len = u16::try_from(segment.len()).ok()?;
        Some(Failed { headers, ddp_len: ddp_len as u8, has_request, len })
    }

    /// The DDP header, if it can be parsed.
    #[must_use]
    pub fn header(&self) -> Option<ddp::Header> {
        ddp::Header::parse(&self.headers[..usize::from(self.ddp_len)]).ok().map(|(header, _)| header)
    }

    /// The operation, if it can be parsed.
    #[must_use]
    pub fn opcode(&self) -> Option<Opcode> {
        Opcode::parse(self.headers[1]).ok()
    }

    /// The READ request, if the segment was one.
    #[must_use]
    pub fn read_request(&self) -> Option<ReadRequest> {
        let bytes = self.headers[ddp::UNTAGGED_LEN..].first_chunk()?;
        let is_read = self.has_request && self.opcode() == Some(Opcode::ReadRequest);
        is_read.then(|| ReadRequest::parse(bytes))
    }

    fn ddp(&self) -> &[u8] {
        &self.headers[..usize::from(self.ddp_len)]
    }
}

/// The payload of a Terminate message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// Why.
    pub reason: Reason,
    /// The segment that failed, if the sender says.
    pub failed: Option<Failed>,
}

impl Terminate {
    /// The longest payload of a Terminate message.
    pub const MOST: usize = 6 + Failed::MOST;

    /// Parses the payload, and says which layout it has. Some combinations without headers mean one
    /// thing in the RFC's layout and another in siw's; `doubtful` decides for them. Headers that
    /// are cut off are ignored, because a Terminate message ends the stream anyway.
    ///
    /// # Errors
    /// The payload is shorter than the control field.
    pub fn parse(payload: &[u8], doubtful: Layout) -> Result<(Terminate, Layout), Reason> {
        let (control, rest) = payload.split_at_checked(4).ok_or(Reason::RdmapCatastrophic)?;
        let (high, low) = (control[0] >> 4, control[0] & 0x0f);
        let (as_rfc, as_siw) = (Reason::new(high, low, control[1]), Reason::new(low, high, control[1]));
        let flags = control[2];
        let layout = if flags & (HAS_LENGTH | HAS_DDP | HAS_RDMAP) != 0 {
            Layout::Rfc
        } else if flags & SIW_FLAGS != 0 {
            Layout::Siw
        } else {
            match (as_rfc.is_known(), as_siw.is_known()) {
                (true, false) => Layout::Rfc,
                (false, true) => Layout::Siw,
                _ => doubtful,
            }
        };
        let (reason, flags) = match layout {
            Layout::Rfc => (as_rfc, flags),
            Layout::Siw => (as_siw, flags.reverse_bits()),
        };
        Ok((Terminate { reason, failed: Terminate::failed(rest, flags, layout) }, layout))
    }

    fn failed(rest: &[u8], flags: u8, layout: Layout) -> Option<Failed> {
        if flags & HAS_LENGTH == 0 || flags & HAS_DDP == 0 {
            return None;
        }
        let (length, rest) = rest.split_at_checked(2)?;
        let tagged = rest.first()? & 0x80 != 0;
        let ddp_len = if tagged { ddp::TAGGED_LEN } else { ddp::UNTAGGED_LEN };
        let has_request = flags & HAS_RDMAP != 0 && !tagged && rest.len() >= Failed::MOST;
        let used = ddp_len + if has_request { ReadRequest::LEN } else { 0 };
        let mut headers = [0; Failed::MOST];
        headers[..used].copy_from_slice(rest.get(..used)?);
        let counted = if layout == Layout::Siw { ddp_len as u16 } else { 0 };
        let len = be16(length, 0).saturating_add(counted);
        Some(Failed { headers, ddp_len: ddp_len as u8, has_request, len })
    }

    /// Encodes the payload at the beginning of `bytes` and returns its length.
    pub fn emit(&self, bytes: &mut [u8; Terminate::MOST]) -> usize {
        let (layer, kind, code) = self.reason.numbers();
        bytes[..4].copy_from_slice(&[layer << 4 | kind, code, 0, 0]);
        let Some(failed) = &self.failed else { return 4 };
        bytes[2] = HAS_LENGTH | HAS_DDP | bit(failed.has_request, HAS_RDMAP);
        put16(bytes, 4, failed.len);
        let used = failed.ddp().len() + if failed.has_request { ReadRequest::LEN } else { 0 };
        bytes[6..6 + used].copy_from_slice(&failed.headers[..used]);
        6 + used
    }
}

impl fmt::Display for Terminate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.reason)?;
        let Some(failed) = &self.failed else { return Ok(()) };
        if let Some(opcode) = failed.opcode() {
            write!(f, ", for a segment of {} bytes of a {opcode}", failed.len)?;
        }
        match failed.header().map(|header| header.place) {
            Some(Place::Tagged { stag, to }) => write!(f, " to STag {stag} at {to:#x}"),
            Some(Place::Untagged { msn, .. }) => write!(f, " with MSN {msn}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emitted(terminate: &Terminate) -> Vec<u8> {
        let mut bytes = [0xaa; Terminate::MOST];
        let len = terminate.emit(&mut bytes);
        bytes[..len].to_vec()
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn no_receive_is_12_02_c0_in_the_rfcs_order() {
        let segment = hex("414300000000000000000000000200000000deadbeef");
        let terminate = Terminate { reason: Reason::UntaggedNoBuffer, failed: Failed::new(&segment) };
        let bytes = emitted(&terminate);
        assert_eq!(bytes, hex("1202c0000016414300000000000000000000000200000000"));
        assert_eq!(Terminate::parse(&bytes, Layout::Siw), Ok((terminate, Layout::Rfc)));
    }

    #[test]
    fn siws_terminate_for_the_same_segment_means_the_same() {
        let bytes = hex("210203000004414300000000000000000000000200000000");
        let (terminate, layout) = Terminate::parse(&bytes, Layout::Rfc).unwrap();
        let segment = hex("414300000000000000000000000200000000deadbeef");
        let same = Terminate { reason: Reason::UntaggedNoBuffer, failed: Failed::new(&segment) };
        assert_eq!((terminate, layout), (same, Layout::Siw));
    }

    #[test]
    fn a_refused_read_repeats_its_request() {
        let request = hex("57f54d0000007f31b740c000000000080012340000007f392a0ea000");
        let segment = [hex("414100000000000000010000000100000000"), request].concat();
        let terminate = Terminate { reason: Reason::ProtectionStag, failed: Failed::new(&segment) };
        let bytes = emitted(&terminate);
        assert_eq!(bytes[..6], hex("0100e000002e"));
        assert_eq!(bytes[6..], segment);
        assert_eq!(Terminate::parse(&bytes, Layout::Rfc), Ok((terminate, Layout::Rfc)));
        assert_eq!(terminate.failed.unwrap().read_request().unwrap().size, 8);
    }

    #[test]
    fn without_headers_a_known_combination_decides_and_then_the_argument() {
        let parse = |bytes: &str, doubtful| {
            let (terminate, layout) = Terminate::parse(&hex(bytes), doubtful).unwrap();
            (terminate.reason, layout)
        };
        assert_eq!(parse("20020000", Layout::Siw), (Reason::MpaCrc, Layout::Rfc));
        assert_eq!(parse("02020000", Layout::Rfc), (Reason::MpaCrc, Layout::Siw));
        assert_eq!(parse("21060000", Layout::Rfc), (Reason::UntaggedVersion, Layout::Siw));
        assert_eq!(parse("02060000", Layout::Rfc), (Reason::RdmapOpcode, Layout::Rfc));
        assert_eq!(parse("02060000", Layout::Siw), (Reason::MpaIrd, Layout::Siw));
        assert_eq!(parse("77070000", Layout::Rfc).0, Reason::Other { layer: 7, kind: 7, code: 7 });
        assert_eq!(Terminate::parse(&[0x20, 2, 0], Layout::Rfc), Err(Reason::RdmapCatastrophic));
    }

    #[test]
    fn every_reason_has_its_own_numbers() {
        for (nth, &reason) in Reason::ALL.iter().enumerate() {
            let (layer, kind, code) = reason.numbers();
            assert_eq!(Reason::new(layer, kind, code), reason);
            assert!(Reason::ALL[..nth].iter().all(|other| other.numbers() != reason.numbers()), "{reason:?}");
        }
    }

    #[test]
    fn a_catastrophic_error_may_have_any_code() {
        // siw sends 0xff if the key of its own SEND is bad.
        for code in 0..=0xff {
            assert_eq!(Reason::new(0, 0, code), Reason::RdmapCatastrophic);
        }
        for doubtful in [Layout::Rfc, Layout::Siw] {
            let (terminate, _) = Terminate::parse(&hex("00ff0000"), doubtful).unwrap();
            assert_eq!(terminate.to_string(), "RDMAP, local: local catastrophic error (0/0/0x0)");
        }
        assert_eq!(Reason::new(1, 0, 0xff), Reason::Other { layer: 1, kind: 0, code: 0xff }, "DDP's has the code 0");
    }

    #[test]
    fn cut_headers_are_ignored() {
        let whole = hex("1202c0000016414300000000000000000000000200000000");
        for len in 4..whole.len() {
            let (terminate, _) = Terminate::parse(&whole[..len], Layout::Rfc).unwrap();
            assert_eq!((terminate.reason, terminate.failed), (Reason::UntaggedNoBuffer, None), "{len}");
        }
    }

    #[test]
    fn reads_as_a_sentence() {
        let segment = hex("c1400012340000007ff4dc15a00000");
        let terminate = Terminate { reason: Reason::TaggedStag, failed: Failed::new(&segment) };
        let says = "DDP, tagged buffer: the STag is invalid (1/1/0x0), for a segment of 15 bytes of a WRITE to STag \
                    0x123400 at 0x7ff4dc15a000";
        assert_eq!(terminate.to_string(), says);
        let other = Reason::Other { layer: 5, kind: 1, code: 2 };
        assert_eq!(other.to_string(), "unknown layer, unknown type: unknown error (5/1/0x2)");
    }
}
