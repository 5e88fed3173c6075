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

use crate::error::Error;
use crate::number::{Psn, Qpn, be16, be32, put32, put64};
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
            pad: view.pad(),
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
        let first = upper(self.opcode.as_u8()) | u32::from(flags) << 16 | u32::from(self.pkey);
        put64(bytes, 0, u64::from(first) << 32 | u64::from(upper(congestion) | self.dest_qp.value()));
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

    /// [`Header::pad`].
    #[inline]
    #[must_use]
    pub const fn pad(self) -> u8 {
        self.0[1] >> PAD_SHIFT & 3
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

/// Sets the number of padding bytes of an encoded header.
#[inline]
pub const fn set_pad(bytes: &mut [u8; LEN], pad: u8) {
    bytes[1] = bytes[1] & !(3 << PAD_SHIFT) | (pad & 3) << PAD_SHIFT;
}

/// Changes the packet number and the request for an acknowledgement of an encoded header. The
/// packets of one run differ only in these.
#[inline]
pub fn renumber(bytes: &mut [u8; LEN], psn: Psn, ack_req: bool) {
    put32(bytes, 8, u32::from(bit(ack_req, ACK_REQ)) << 24 | psn.value());
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
    fn a_header_is_emitted_as_literal_bytes() {
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
    fn a_header_with_another_number_differs_in_nothing_else() {
        let mut bytes = [0; LEN];
        header().emit(&mut bytes);
        for ack_req in [false, true] {
            renumber(&mut bytes, Psn::new(0xab_cdef), ack_req);
            assert_eq!(Header::parse(&bytes), Ok(Header { psn: Psn::new(0xab_cdef), ack_req, ..header() }));
            set_pad(&mut bytes, 1);
            assert_eq!(Header::parse(&bytes), Ok(Header { psn: Psn::new(0xab_cdef), ack_req, pad: 1, ..header() }));
            set_pad(&mut bytes, 3);
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

    #[test]
    fn each_flag_is_its_own_bit() {
        let none = Header { solicited: false, pad: 0, fecn: false, ack_req: false, ..header() };
        let each = [
            none,
            Header { solicited: true, ..none },
            Header { migrated: true, ..none },
            Header { fecn: true, ..none },
            Header { becn: true, ..none },
            Header { ack_req: true, ..none },
        ];
        for (header, bits) in
            each.into_iter().zip([[0; 3], [0x80, 0, 0], [0x40, 0, 0], [0, 0x80, 0], [0, 0x40, 0], [0, 0, 0x80]])
        {
            let mut bytes = [0xaa; LEN];
            header.emit(&mut bytes);
            assert_eq!([bytes[1], bytes[4], bytes[8]], bits, "{header}");
            assert_eq!(Header::parse(&bytes), Ok(header));
            assert_eq!(View(&bytes).migrated(), header.migrated);
        }
    }
}
