//! The base transport header: the first 12 bytes of every transport packet. Not the headers behind
//! it. IBA 9.2. Principal type: [`Header`].
//!
//! ```text
//!      0                   1                   2                   3
//!      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   0 |    opcode     |S|M|Pad|  TVer |            P_Key              |
//!   4 |F|B| reserved  |           destination queue pair              |
//!   8 |A|  reserved   |            packet sequence number             |
//! ```
//! S solicited event, M migration request, Pad bytes of padding behind the payload, F FECN, B BECN,
//! A acknowledge request. The byte at 4 may change on the way and is not covered by the ICRC.
//!
//! [`Opcode`] says which headers follow. [`crate::Headers`] is the whole stack. Read this module
//! first: the other headers have the same shape.

use crate::bytes::{be16, be32, put32};
use crate::error::Error;
use crate::number::{Psn, Qpn};
use crate::opcode::Opcode;
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 12;

const SOLICITED: u8 = 0x80;
const MIGRATION: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const VERSION: u8 = 0x0f;
const FECN: u8 = 0x80;
const BECN: u8 = 0x40;
const ACK_REQ: u8 = 0x80;

/// The base transport header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The packet's type, which also says which headers follow.
    pub opcode: Opcode,
    /// The completion that this packet causes at the receiver is solicited.
    pub solicited: bool,
    /// Path migration: set in the migrated state.
    pub migrated: bool,
    /// Bytes of padding behind the payload, 0 to 3.
    pub pad: u8,
    /// The partition.
    pub pkey: u16,
    /// FECN: a switch on the path was congested.
    pub fecn: bool,
    /// BECN: the receiver of our packets saw congestion.
    pub becn: bool,
    /// The queue pair that the packet is for.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement of this packet.
    pub ack_req: bool,
    /// The packet sequence number.
    pub psn: Psn,
}

impl Header {
    /// Parses the header. Reserved bits are ignored, as the specification demands.
    ///
    /// # Errors
    /// The opcode is unknown to softhca, or the transport version is not 0.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Header, Error> {
        let view = View(bytes);
        let opcode = Opcode::from_u8(view.opcode()).ok_or(Error::Opcode(view.opcode()))?;
        if bytes[1] & VERSION != 0 {
            return Err(Error::Version(bytes[1] & VERSION));
        }
        Ok(Header {
            opcode,
            solicited: view.solicited(),
            migrated: view.migrated(),
            pad: bytes[1] >> PAD_SHIFT & 3,
            pkey: be16(bytes, 2),
            fecn: bytes[4] & FECN != 0,
            becn: bytes[4] & BECN != 0,
            dest_qp: view.dest_qp(),
            ack_req: view.ack_req(),
            psn: view.psn(),
        })
    }

    /// Encodes the header.
    #[inline]
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        let flags = bit(self.solicited, SOLICITED) | bit(self.migrated, MIGRATION) | (self.pad & 3) << PAD_SHIFT;
        let congestion = bit(self.fecn, FECN) | bit(self.becn, BECN);
        let upper = |byte: u8| u32::from(byte) << 24;
        put32(bytes, 0, upper(self.opcode.as_u8()) | u32::from(flags) << 16 | u32::from(self.pkey));
        put32(bytes, 4, upper(congestion) | self.dest_qp.value());
        put32(bytes, 8, upper(bit(self.ack_req, ACK_REQ)) | self.psn.value());
    }
}

/// The fields of a header, each read from the bytes when it is needed. Nothing is checked.
#[derive(Clone, Copy, Debug)]
pub struct View<'a>(pub &'a [u8; LEN]);

impl View<'_> {
    /// The opcode's byte.
    #[inline]
    #[must_use]
    pub const fn opcode(self) -> u8 {
        self.0[0]
    }

    /// [`Header::solicited`].
    #[inline]
    #[must_use]
    pub const fn solicited(self) -> bool {
        self.0[1] & SOLICITED != 0
    }

    /// [`Header::migrated`].
    #[inline]
    #[must_use]
    pub const fn migrated(self) -> bool {
        self.0[1] & MIGRATION != 0
    }

    /// The P_Key in the lower 16 bits, and above them the padding and the version. So this is the
    /// P_Key alone if the header has no padding and a version that [`Header::parse`] accepts.
    #[inline]
    #[must_use]
    pub fn pkey_pad_version(self) -> u32 {
        be32(self.0, 0) & (u32::from(3 << PAD_SHIFT | VERSION) << 16 | 0xffff)
    }

    /// [`Header::dest_qp`].
    #[inline]
    #[must_use]
    pub fn dest_qp(self) -> Qpn {
        Qpn::new(be32(self.0, 4))
    }

    /// [`Header::ack_req`].
    #[inline]
    #[must_use]
    pub const fn ack_req(self) -> bool {
        self.0[8] & ACK_REQ != 0
    }

    /// [`Header::psn`].
    #[inline]
    #[must_use]
    pub fn psn(self) -> Psn {
        Psn::new(be32(self.0, 8))
    }
}

/// The headers of packets that differ only in their numbers, like the middle packets of a long
/// message. Such headers are recognised without parsing each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentRunHeader {
    /// The opcode and the migration bit, at their positions in the first word.
    first: u32,
    dest_qp: u32,
}

impl SegmentRunHeader {
    /// The headers with this opcode, for this queue pair.
    #[must_use]
    pub fn new(opcode: Opcode, dest_qp: Qpn) -> SegmentRunHeader {
        SegmentRunHeader { first: u32::from(opcode.as_u8()) << 24, dest_qp: dest_qp.value() }
    }

    /// The same headers with this migration bit, for encoding.
    #[must_use]
    pub fn migrated(self, migrated: bool) -> SegmentRunHeader {
        SegmentRunHeader { first: self.first & 0xff00_0000 | u32::from(bit(migrated, MIGRATION)) << 16, ..self }
    }

    /// Encodes the header of packet `psn`.
    #[inline]
    pub fn emit(&self, pkey: u16, psn: Psn, ack_req: bool, bytes: &mut [u8; LEN]) {
        put32(bytes, 0, self.first | u32::from(pkey));
        put32(bytes, 4, self.dest_qp);
        put32(bytes, 8, u32::from(bit(ack_req, ACK_REQ)) << 24 | psn.value());
    }

    /// Whether this is the header of packet `psn`, in the default partition, without padding and
    /// not solicited. If so, returns whether it requests an acknowledgement. Other headers may be
    /// valid too.
    #[inline]
    #[must_use]
    pub fn ack_req(&self, bytes: &[u8; LEN], psn: Psn) -> Option<bool> {
        let [a, b, c] = [be32(bytes, 0), be32(bytes, 4), be32(bytes, 8)];
        // The upper bit of the P_Key says whether the member is a full member. The migration bit is
        // ignored here.
        let alike = a & !(u32::from(MIGRATION) << 16 | 0x8000) == self.first & 0xff00_0000 | 0x7fff;
        let fits = alike && b & 0xff_ffff == self.dest_qp && c & 0xff_ffff == psn.value();
        fits.then_some(bytes[8] & ACK_REQ != 0)
    }
}

fn bit(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to QP {} psn {}", self.opcode, self.dest_qp, self.psn)?;
        for (set, name) in [
            (self.ack_req, " ack-req"),
            (self.solicited, " solicited"),
            (self.migrated, " migrated"),
            (self.fecn, " fecn"),
            (self.becn, " becn"),
        ] {
            if set {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Operation, Transport};

    const BYTES: [u8; LEN] = [0x04, 0xb0, 0xff, 0xff, 0x80, 0x00, 0x01, 0x45, 0x80, 0xff, 0xff, 0xfe];

    fn header() -> Header {
        Header {
            opcode: Opcode::new(Transport::Rc, Operation::SendOnly),
            solicited: true,
            migrated: false,
            pad: 3,
            pkey: 0xffff,
            fecn: true,
            becn: false,
            dest_qp: Qpn::new(0x145),
            ack_req: true,
            psn: Psn::new(0xff_fffe),
        }
    }

    #[test]
    fn every_field_is_parsed() {
        assert_eq!(Header::parse(&BYTES), Ok(header()));
    }

    #[test]
    fn put_together() {
        let mut bytes = [0xaa; LEN];
        header().emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn a_view_shows_padding_and_version_beside_the_pkey() {
        assert_eq!(View(&BYTES).pkey_pad_version(), 0x30_ffff);
        let mut bytes = BYTES;
        bytes[1] = SOLICITED | MIGRATION;
        assert_eq!(View(&bytes).pkey_pad_version(), 0xffff);
        bytes[1] = 5;
        assert_eq!(View(&bytes).pkey_pad_version(), 0x05_ffff);
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = BYTES;
        bytes[4] |= 0x3f;
        bytes[8] |= 0x7f;
        assert_eq!(Header::parse(&bytes), Ok(header()));
    }

    #[test]
    fn a_segment_run_header_knows_its_own_and_nothing_that_differs_from_it() {
        let middle = Header {
            opcode: Opcode::new(Transport::Rc, Operation::WriteMiddle),
            dest_qp: Qpn::new(0x145),
            psn: Psn::new(0xff_ffff),
            pkey: 0xffff,
            ..Header::default()
        };
        let header = SegmentRunHeader::new(middle.opcode, middle.dest_qp);
        for ack_req in [false, true] {
            let mut bytes = [0; LEN];
            Header { ack_req, ..middle }.emit(&mut bytes);
            assert_eq!(header.ack_req(&bytes, middle.psn), Some(ack_req));
            let mut emitted = [0xaa; LEN];
            header.emit(0xffff, middle.psn, ack_req, &mut emitted);
            assert_eq!(emitted, bytes);
            assert_eq!(header.ack_req(&bytes, middle.psn + 1), None);
            for bit in 0..8 * LEN {
                let mut other = bytes;
                other[bit / 8] ^= 1 << (bit % 8);
                let found = header.ack_req(&other, middle.psn);
                // These fields may differ in an equivalent packet.
                let may_differ = |parsed: Header| Header {
                    migrated: false,
                    fecn: false,
                    becn: false,
                    pkey: parsed.pkey | 0x8000,
                    ack_req: false,
                    ..parsed
                };
                let same = Header::parse(&other).is_ok_and(|parsed| may_differ(parsed) == middle);
                assert_eq!(found.is_some(), same, "bit {bit}");
                assert_eq!(found.unwrap_or_default(), same && other[8] & ACK_REQ != 0, "bit {bit}");
            }
        }
    }

    #[test]
    fn another_version_or_opcode_is_refused() {
        let mut bytes = BYTES;
        bytes[1] |= 1;
        assert_eq!(Header::parse(&bytes), Err(Error::Version(1)));
        bytes = BYTES;
        bytes[0] = 0x40;
        assert_eq!(Header::parse(&bytes), Err(Error::Opcode(0x40)));
    }

    #[test]
    fn reads_as_a_line() {
        assert_eq!(header().to_string(), "RC SEND only to QP 0x145 psn 16777214 ack-req solicited fecn");
    }
}
