//! The congestion notification packet: the receiver of a packet with a CE mark (ECN) sends it to
//! the queue pair that sent the packet. It is not part of a transport: it has no acknowledgement
//! and no sequence number. RoCEv2 annex A17.9.3. Principal type: [`Cnp`].
//!
//! ```text
//!   0 | BTH: opcode 0x81; P_Key; BECN; destination queue pair; PSN 0 |
//!  12 |                      reserved (128)                          |
//! ```

use crate::error::Error;
use crate::number::{Qpn, be16, be24, put16, put24};
use std::fmt;

/// Bytes of the packet from its BTH on; the ICRC follows.
pub const LEN: usize = 28;
/// The opcode of a CNP.
pub const OPCODE: u8 = 0x81;
/// The default DSCP of adapters for CNPs, at its position in the traffic class.
pub const TRAFFIC_CLASS: u8 = 48 << 2;

const VERSION: u8 = 0x0f;
const BECN: u8 = 0x40;

/// The congestion notification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cnp {
    /// The partition.
    pub pkey: u16,
    /// The queue pair whose packet had the CE mark.
    pub dest_qp: Qpn,
}

impl Cnp {
    /// Parses the packet. Reserved fields are ignored, and also BECN, which the opcode implies.
    ///
    /// # Errors
    /// The opcode is another one, or the transport version is not 0.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Cnp, Error> {
        if bytes[0] != OPCODE {
            return Err(Error::Opcode(bytes[0]));
        }
        if bytes[1] & VERSION != 0 {
            return Err(Error::Version(bytes[1] & VERSION));
        }
        Ok(Cnp { pkey: be16(bytes, 2), dest_qp: Qpn::new(be24(bytes, 5)) })
    }

    /// Encodes the packet.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = [0; LEN];
        bytes[0] = OPCODE;
        put16(bytes, 2, self.pkey);
        bytes[4] = BECN;
        put24(bytes, 5, self.dest_qp.value());
    }
}

impl fmt::Display for Cnp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "congestion notification for QP {}", self.dest_qp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; LEN] =
        [0x81, 0, 0xff, 0xff, 0x40, 0, 0x01, 0x45, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    #[test]
    fn literal_bytes_both_ways() {
        let cnp = Cnp { pkey: 0xffff, dest_qp: Qpn::new(0x145) };
        assert_eq!(Cnp::parse(&BYTES), Ok(cnp));
        let mut out = [0xaa; LEN];
        cnp.emit(&mut out);
        assert_eq!(out, BYTES);
        assert_eq!(cnp.to_string(), "congestion notification for QP 0x145");
    }

    #[test]
    fn reserved_bits_of_a_cnp_are_ignored() {
        let with = |at: usize, byte: u8| {
            let mut bytes = BYTES;
            bytes[at] = byte;
            Cnp::parse(&bytes)
        };
        for at in [1_usize, 4, 8, 9, 12, 27] {
            assert_eq!(with(at, 0x80), Cnp::parse(&BYTES), "byte {at}");
        }
        assert_eq!(with(0, 0x80), Err(Error::Opcode(0x80)));
        assert_eq!(with(1, 3), Err(Error::Version(3)));
    }
}
