//! The local routing header: the first 8 bytes of every packet on an InfiniBand link. Not the
//! headers behind it, and not the flow-control packets of a link ([`crate::flow_control`]). IBA
//! 7.7. Principal type: [`Header`].
//!
//! ```text
//!      0                   1                   2                   3
//!      0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!   0 |  VL   | LVer  |  SL   |rsv|LNH|       destination LID         |
//!   4 | reserved|    packet length    |          source LID           |
//! ```
//! LNH says which header follows ([`Next`]). The length counts words of 4 bytes from the first byte
//! of this header to the last byte of the ICRC. The VCRC behind it is not counted.

use crate::error::Error;
use crate::number::{be16, put16};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 8;
/// The virtual lane of subnet management packets.
pub const VL_MANAGEMENT: u8 = 15;
/// The LID that no port has: a packet with it goes where its directed route says.
pub const LID_PERMISSIVE: u16 = 0xffff;
/// The first multicast LID; [`LID_PERMISSIVE`] is the first LID behind the multicast LIDs.
pub const LID_MULTICAST: u16 = 0xc000;

const NIBBLE: u8 = 0x0f;
const LENGTH: u16 = 0x07ff;

/// The header behind this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Next {
    /// Raw packet with an Ethernet type.
    Raw = 0,
    /// Raw packet with an IPv6 header.
    RawIpv6 = 1,
    /// BTH: the packet stays in its subnet.
    #[default]
    Bth = 2,
    /// GRH, then BTH.
    Grh = 3,
}

/// The local routing header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The virtual lane, 0 to 15. Each switch may change it.
    pub vl: u8,
    /// The service level, 0 to 15.
    pub sl: u8,
    /// The header behind this one.
    pub next: Next,
    /// The destination LID.
    pub dlid: u16,
    /// Words of 4 bytes from the LRH to the ICRC, 11 bits.
    pub packet_len: u16,
    /// The source LID.
    pub slid: u16,
}

impl Header {
    /// Parses the header. Reserved bits are ignored.
    ///
    /// # Errors
    /// The link version is not 0.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Header, Error> {
        if bytes[0] & NIBBLE != 0 {
            return Err(Error::LinkVersion(bytes[0] & NIBBLE));
        }
        Ok(Header {
            vl: bytes[0] >> 4,
            sl: bytes[1] >> 4,
            next: [Next::Raw, Next::RawIpv6, Next::Bth, Next::Grh][usize::from(bytes[1] & 3)],
            dlid: be16(bytes, 2),
            packet_len: be16(bytes, 4) & LENGTH,
            slid: be16(bytes, 6),
        })
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        bytes[0] = self.vl << 4;
        bytes[1] = self.sl << 4 | self.next as u8;
        put16(bytes, 2, self.dlid);
        put16(bytes, 4, self.packet_len & LENGTH);
        put16(bytes, 6, self.slid);
    }

    /// Whether the destination is a multicast group.
    #[must_use]
    pub const fn is_multicast(&self) -> bool {
        self.dlid >= LID_MULTICAST && self.dlid != LID_PERMISSIVE
    }

    /// Bytes from this header to the end of the ICRC.
    #[must_use]
    pub const fn byte_len(&self) -> usize {
        self.packet_len as usize * 4
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LID {} to LID {} SL {} VL {}, {} bytes", self.slid, self.dlid, self.sl, self.vl, self.byte_len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; LEN] = [0x70, 0x93, 0xc0, 0x01, 0x04, 0x11, 0x00, 0x2a];

    fn header() -> Header {
        Header { vl: 7, sl: 9, next: Next::Grh, dlid: 0xc001, packet_len: 0x411, slid: 42 }
    }

    #[test]
    fn literal_bytes_both_ways() {
        assert_eq!(Header::parse(&BYTES), Ok(header()));
        let mut bytes = [0xaa; LEN];
        header().emit(&mut bytes);
        assert_eq!(bytes, BYTES);
    }

    #[test]
    fn l19_every_next_header_has_its_number() {
        for (number, next) in [(0, Next::Raw), (1, Next::RawIpv6), (2, Next::Bth), (3, Next::Grh)] {
            let mut bytes = BYTES;
            bytes[1] = 0x90 | number;
            assert_eq!(Header::parse(&bytes), Ok(Header { next, ..header() }));
            let mut emitted = [0; LEN];
            Header { next, ..header() }.emit(&mut emitted);
            assert_eq!(emitted, bytes);
        }
    }

    #[test]
    fn reserved_bits_are_ignored() {
        let mut bytes = BYTES;
        bytes[1] |= 0x0c;
        bytes[4] |= 0xf8;
        assert_eq!(Header::parse(&bytes), Ok(header()));
    }

    #[test]
    fn another_link_version_is_refused() {
        let mut bytes = BYTES;
        bytes[0] |= 3;
        assert_eq!(Header::parse(&bytes), Err(Error::LinkVersion(3)));
    }

    #[test]
    fn l09_multicast_lids_begin_at_c000_and_end_before_the_permissive_lid() {
        for (dlid, multicast) in [(1, false), (0xbfff, false), (0xc000, true), (0xfffe, true), (0xffff, false)] {
            assert_eq!(Header { dlid, ..header() }.is_multicast(), multicast, "{dlid:#x}");
        }
    }

    #[test]
    fn reads_as_a_line() {
        assert_eq!(header().to_string(), "LID 42 to LID 49153 SL 9 VL 7, 4164 bytes");
    }
}
