//! The management datagram: 256 bytes in one UD packet to QP 1 (or 0), of which the first 24 bytes
//! are a common header. IBA 13.4.2.
//!
//! ```text
//!      0                   1                   2                   3
//!      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   0 | base version  |  mgmt. class  | class version |R|   method    |
//!   4 |            status             |        class specific         |
//!   8 |                        transaction id                         |
//!  12 |                                                               |
//!  16 |         attribute id          |           reserved            |
//!  20 |                      attribute modifier                       |
//! ```
//! The rest depends on the class: [`crate::smp`], [`crate::sa`], [`crate::perf`],
//! [`crate::vendor`], and the communication manager's messages in [`crate::cm`]. Longer messages
//! are segmented ([`crate::rmpp`]). [`crate::notice`] and [`crate::class_port_info`] are in all
//! classes. Principal type: [`Header`].

use crate::number::{be16, be32, be64, put16, put32, put64};
use std::fmt;

/// Bytes of a management datagram; all of them are always sent.
pub const MAD_LEN: usize = 256;
/// Bytes of this header.
pub const LEN: usize = 24;
/// The only base version.
pub const BASE_VERSION: u8 = 1;
/// The class of subnet management, for datagrams that switches forward by LID.
pub const CLASS_SUBN_LID: u8 = 0x01;
/// The class of subnet management, for datagrams that carry their route.
pub const CLASS_SUBN_DIRECTED: u8 = 0x81;
/// The class of subnet administration.
pub const CLASS_SA: u8 = 0x03;
/// The class of performance management.
pub const CLASS_PM: u8 = 0x04;
/// The class of baseboard management.
pub const CLASS_BM: u8 = 0x05;
/// The class of device management.
pub const CLASS_DEVICE: u8 = 0x06;
/// The class of the communication manager.
pub const CLASS_CM: u8 = 0x07;
/// The class of congestion control.
pub const CLASS_CC: u8 = 0x21;
/// The classes of vendors, without RMPP.
pub const CLASSES_VENDOR: std::ops::RangeInclusive<u8> = 0x09..=0x0f;
/// The classes of vendors that carry an OUI, with RMPP.
pub const CLASSES_VENDOR_OUI: std::ops::RangeInclusive<u8> = 0x30..=0x4f;
/// The method that requests an attribute.
pub const METHOD_GET: u8 = 0x01;
/// The method that changes an attribute. The answer is a Get response.
pub const METHOD_SET: u8 = 0x02;
/// The method that sends, without an answer at this level. The communication manager uses only this
/// one.
pub const METHOD_SEND: u8 = 0x03;
/// The method that tells the subnet manager of an event.
pub const METHOD_TRAP: u8 = 0x05;
/// The method that tells a subscriber of an event.
pub const METHOD_REPORT: u8 = 0x06;
/// The method that ends the repetition of a trap.
pub const METHOD_TRAP_REPRESS: u8 = 0x07;
/// The method that requests a table of records.
pub const METHOD_GET_TABLE: u8 = 0x12;
/// The method that requests the records of a path.
pub const METHOD_GET_TRACE_TABLE: u8 = 0x13;
/// The method that requests paths between several ports.
pub const METHOD_GET_MULTI: u8 = 0x14;
/// The method that deletes a record.
pub const METHOD_DELETE: u8 = 0x15;
/// The bit of a method that marks a response.
pub const RESPONSE: u8 = 0x80;
/// The status of a receiver that cannot answer now.
pub const STATUS_BUSY: u16 = 0x0001;
/// The status of a base or class version that the receiver does not know.
pub const STATUS_VERSION: u16 = 0x0004;
/// The status of a method that the class does not have.
pub const STATUS_METHOD: u16 = 0x0008;
/// The status of a method that the attribute does not have, or of an unknown attribute.
pub const STATUS_METHOD_ATTRIBUTE: u16 = 0x000c;
/// The status of a wrong value in the attribute or its modifier.
pub const STATUS_INVALID: u16 = 0x001c;
/// The queue key of QP 1, the general services interface.
pub const GSI_QKEY: u32 = 0x8001_0000;

/// A management datagram on the wire.
pub type Mad = [u8; MAD_LEN];

/// The header of every management datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The version of this header: [`BASE_VERSION`].
    pub base_version: u8,
    /// The management class.
    pub class: u8,
    /// The version of the class's format.
    pub class_version: u8,
    /// The method, and the bit [`RESPONSE`].
    pub method: u8,
    /// The status of a response.
    pub status: u16,
    /// Class-specific.
    pub class_specific: u16,
    /// The transaction, which relates a response to its request.
    pub transaction: u64,
    /// The attribute id.
    pub attribute: u16,
    /// The attribute modifier.
    pub modifier: u32,
}

impl Header {
    /// Parses the header. Reserved bits are ignored.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header {
            base_version: bytes[0],
            class: bytes[1],
            class_version: bytes[2],
            method: bytes[3],
            status: be16(bytes, 4),
            class_specific: be16(bytes, 6),
            transaction: be64(bytes, 8),
            attribute: be16(bytes, 16),
            modifier: be32(bytes, 20),
        }
    }

    /// Parses the header of a whole datagram.
    #[must_use]
    pub fn of(mad: &Mad) -> Header {
        let mut bytes = [0; LEN];
        bytes.copy_from_slice(&mad[..LEN]);
        Header::parse(&bytes)
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[0] = self.base_version;
        bytes[1] = self.class;
        bytes[2] = self.class_version;
        bytes[3] = self.method;
        put16(bytes, 4, self.status);
        put16(bytes, 6, self.class_specific);
        put64(bytes, 8, self.transaction);
        put16(bytes, 16, self.attribute);
        put16(bytes, 18, 0);
        put32(bytes, 20, self.modifier);
    }

    /// Encodes the header at the front of a whole datagram.
    pub fn emit_to(&self, mad: &mut Mad) {
        let mut bytes = [0; LEN];
        self.emit(&mut bytes);
        mad[..LEN].copy_from_slice(&bytes);
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MAD class {:#04x}.{} method {:#04x} attribute {:#06x} transaction {:#x}",
            self.class, self.class_version, self.method, self.attribute, self.transaction
        )?;
        if self.status != 0 {
            write!(f, " status {:#06x}", self.status)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The header of a REQ of the Linux driver.
    const BYTES: [u8; LEN] = [1, 7, 2, 3, 0, 0, 0, 0, 0, 0, 0, 2, 2, 0x40, 0x16, 9, 0, 0x10, 0, 0, 0, 0, 0, 0];

    fn header() -> Header {
        Header {
            base_version: BASE_VERSION,
            class: CLASS_CM,
            class_version: 2,
            method: METHOD_SEND,
            transaction: 0x2_0240_1609,
            attribute: 0x10,
            ..Header::default()
        }
    }

    #[test]
    fn literal_bytes_both_ways() {
        assert_eq!(Header::parse(&BYTES), header());
        let mut bytes = [0xaa; LEN];
        header().emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn all_fields_at_their_places() {
        let header = Header {
            base_version: 1,
            class: CLASS_SA,
            class_version: 2,
            method: METHOD_GET | RESPONSE,
            status: 0x1c,
            class_specific: 0x0203,
            transaction: 0x0102_0304_0506_0708,
            attribute: 0x35,
            modifier: 0xffff_fff0,
        };
        let bytes = [1, 3, 2, 0x81, 0, 0x1c, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x35, 0, 0, 0xff, 0xff, 0xff, 0xf0];
        let mut mad = [0xaa; MAD_LEN];
        header.emit_to(&mut mad);
        assert_eq!(mad[..LEN], bytes);
        assert_eq!(mad[LEN], 0xaa);
        assert_eq!(Header::of(&mad), header);
    }

    #[test]
    fn reads_as_a_line() {
        assert_eq!(header().to_string(), "MAD class 0x07.2 method 0x03 attribute 0x0010 transaction 0x202401609");
        let refused = Header { status: 4, ..header() };
        assert!(refused.to_string().ends_with(" status 0x0004"));
    }
}
