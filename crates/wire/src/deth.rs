//! The datagram extended transport header: the Q_Key for the receiver, and the sender. Not the
//! check of the key. IBA 9.3.2. Principal type: [`Header`].

use crate::number::{Qpn, be24, be32, put24, put32};
use std::fmt;

/// Bytes of this header.
pub const LEN: usize = 8;

/// The sender of a datagram and the Q_Key that it shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Must equal the receiver's Q_Key, or the datagram is dropped.
    pub qkey: u32,
    /// The queue pair that sent it.
    pub src_qp: Qpn,
}

impl Header {
    /// Parses the header; the reserved byte is ignored.
    #[must_use]
    pub fn parse(bytes: &[u8; LEN]) -> Header {
        Header { qkey: be32(bytes, 0), src_qp: Qpn::new(be24(bytes, 5)) }
    }

    /// Encodes the header.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        put32(bytes, 0, self.qkey);
        bytes[4] = 0;
        put24(bytes, 5, self.src_qp.value());
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from QP {} qkey {:#x}", self.src_qp, self.qkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literal_bytes_both_ways() {
        let header = Header { qkey: 0x8001_0000, src_qp: Qpn::GSI };
        assert_eq!(Header::parse(&[0x80, 0x01, 0, 0, 0xff, 0, 0, 1]), header);
        let mut out = [0xaa; LEN];
        header.emit(&mut out);
        assert_eq!(out, [0x80, 0x01, 0, 0, 0, 0, 0, 1]);
        assert_eq!(header.to_string(), "from QP 0x1 qkey 0x80010000");
    }
}
