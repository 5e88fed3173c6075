//! The header of RMPP, the reliable multi-packet transaction protocol: it carries messages that are
//! longer than one datagram, in segments. Not the protocol. IBA 13.6. Principal type: [`Header`].
//!
//! The header is in all datagrams of subnet administration, of device management, and of vendor
//! classes with an OUI, behind the common header.

use crate::layout::layout;
use std::fmt;

/// Where the header begins in a datagram.
pub const OFFSET: usize = 24;
/// The first byte behind this header: in a segment, the first byte of what it carries.
pub const END: usize = OFFSET + Header::LEN;
/// The version of RMPP; 0 says that the datagram does not use it.
pub const VERSION: u8 = 1;

/// The segment carries data.
pub const TYPE_DATA: u8 = 1;
/// Acknowledges segments, and opens the window.
pub const TYPE_ACK: u8 = 2;
/// The receiver ends the transaction for lack of resources.
pub const TYPE_STOP: u8 = 3;
/// Either side ends the transaction after an error.
pub const TYPE_ABORT: u8 = 4;

/// The flag of a datagram that uses RMPP.
pub const FLAG_ACTIVE: u8 = 1;
/// The flag of the first segment.
pub const FLAG_FIRST: u8 = 2;
/// The flag of the last segment.
pub const FLAG_LAST: u8 = 4;

/// The value of `response_time` without a statement.
pub const NO_RESPONSE_TIME: u8 = 31;

layout! {
    /// The header.
    pub struct Header[12] {
        /// [`VERSION`], or 0.
        0, 8 => version: u8;
        /// Data, ACK, STOP or ABORT.
        8, 8 => kind: u8;
        /// How long the sender takes to process a segment: 4.096 µs × 2^n.
        16, 5 => response_time: u8;
        /// [`FLAG_ACTIVE`] and the others.
        21, 3 => flags: u8;
        /// Why a transaction ends: [`Status`].
        24, 8 => status: u8;
        /// The number of a segment, from 1. In an ACK: the last segment that arrived in order.
        32, 32 => segment: u32;
        /// In the first segment, the bytes of the message, and in the last one, those of the
        /// segment. In an ACK: the last segment that may be sent.
        64, 32 => length: u32;
    }
}

/// Why a transaction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Status {
    /// It has not ended.
    Normal = 0,
    /// The receiver lacks resources. The only status of a STOP.
    ResourcesExhausted = 1,
    /// The transaction took longer than its time.
    TimeTooLong = 118,
    /// The last segment has a length that does not agree with the first one.
    InconsistentLast = 119,
    /// The first segment has a length that does not agree with the number of segments.
    InconsistentFirst = 120,
    /// The type of a segment is unknown.
    BadType = 121,
    /// An ACK has a window that ends before its segment.
    NewWindowTooSmall = 122,
    /// An ACK is for a segment that was not sent.
    SegmentTooBig = 123,
    /// The status of a segment is not valid.
    IllegalStatus = 124,
    /// The version is unknown.
    UnsupportedVersion = 125,
    /// A segment was sent too often.
    TooManyRetries = 126,
    /// No reason is given.
    Unspecified = 127,
}

impl Header {
    /// Whether the datagram with this header is part of an RMPP transaction.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.flags & FLAG_ACTIVE != 0 && self.version != 0
    }

    /// Whether the flags contain all of these.
    #[must_use]
    pub const fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            _ if !self.is_active() => return f.write_str("no RMPP"),
            TYPE_DATA => write!(f, "RMPP data segment {}", self.segment)?,
            TYPE_ACK => write!(f, "RMPP ACK of segment {}, window to {}", self.segment, self.length)?,
            TYPE_STOP => write!(f, "RMPP STOP status {}", self.status)?,
            TYPE_ABORT => write!(f, "RMPP ABORT status {}", self.status)?,
            kind => write!(f, "RMPP type {kind}")?,
        }
        for (flag, name) in [(FLAG_FIRST, " first"), (FLAG_LAST, " last")] {
            if self.kind == TYPE_DATA && self.has(flag) {
                f.write_str(name)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};

    #[test]
    fn literal_bytes_both_ways() {
        let bytes = [1, 1, 0xfb, 0, 0, 0, 0, 1, 0, 0, 1, 0xcc];
        let header = Header {
            version: VERSION,
            kind: TYPE_DATA,
            response_time: NO_RESPONSE_TIME,
            flags: FLAG_ACTIVE | FLAG_FIRST,
            segment: 1,
            length: 460,
            ..Header::default()
        };
        assert_eq!(Header::parse(&bytes), header);
        let mut emitted = [0xff; Header::LEN];
        header.emit(&mut emitted);
        assert_eq!(emitted, bytes);
        assert_eq!(header.to_string(), "RMPP data segment 1 first");
        let ack = Header { kind: TYPE_ACK, length: 65, ..header };
        assert_eq!(ack.to_string(), "RMPP ACK of segment 1, window to 65");
        assert_eq!(Header::default().to_string(), "no RMPP");
        round_trip::<Header>();
    }

    /// libibmad counts from the front of the datagram.
    #[test]
    fn positions_are_those_of_libibmad() {
        agrees::<Header>(&[
            ("RmppVers", 0, 8),
            ("RmppType", 8, 8),
            ("RmppResp", 16, 5),
            ("RmppFlags", 21, 3),
            ("RmppStatus", 24, 8),
            ("RmppSegNum", 32, 32),
            ("RmppPayload", 64, 32),
        ]);
    }

    #[test]
    fn a_transaction_needs_the_flag_and_a_version() {
        for (version, flags, is_active) in
            [(VERSION, FLAG_ACTIVE, true), (0, FLAG_ACTIVE, false), (VERSION, FLAG_FIRST, false)]
        {
            assert_eq!(Header { version, flags, ..Header::default() }.is_active(), is_active);
        }
    }
}
