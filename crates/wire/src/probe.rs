//! The probe: one softhca engine asks another whether everything sent before the probe has been
//! taken, and the other engine answers. Unreliable traffic has no acknowledgements, so its sender
//! learns this way that the receiver keeps up. The probe is not a packet of the IBA. Its opcodes
//! are in the manufacturers' range (IBA 9.2.1), and other adapters drop it. Principal type:
//! [`Probe`].
//!
//! ```text
//!   0 | BTH: opcode 0xd0 probe, 0xd1 answer; P_Key 0xffff; destination queue pair; PSN 0 |
//!  12 |   source queue pair (32)   |  reserved (32)  |
//!  20 |                    cookie (64)               |
//! ```

use crate::error::Error;
use crate::number::{Qpn, be24, be32, be64, put16, put24, put32, put64};
use std::fmt;

/// Bytes of a probe from its BTH on; the ICRC follows.
pub const LEN: usize = 28;
/// The opcode of the probe.
pub const PROBE: u8 = 0xd0;
/// The opcode of the answer.
pub const ANSWER: u8 = 0xd1;

const DEFAULT_PKEY: u16 = 0xffff;
const VERSION: u8 = 0x0f;

/// A probe, or the answer to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Whether it is the answer.
    pub answer: bool,
    /// The destination queue pair.
    pub dest_qp: Qpn,
    /// The source queue pair.
    pub source_qp: Qpn,
    /// The requester chooses it, and the answer repeats it.
    pub cookie: u64,
}

impl Probe {
    /// The answer to this probe.
    #[must_use]
    pub const fn answered(&self) -> Probe {
        Probe { answer: true, dest_qp: self.source_qp, source_qp: self.dest_qp, cookie: self.cookie }
    }

    /// Parses the packet. Reserved fields are ignored.
    ///
    /// # Errors
    /// The opcode is another one, or the transport version is not 0.
    pub fn parse(bytes: &[u8; LEN]) -> Result<Probe, Error> {
        let answer = match bytes[0] {
            PROBE => false,
            ANSWER => true,
            other => return Err(Error::Opcode(other)),
        };
        if bytes[1] & VERSION != 0 {
            return Err(Error::Version(bytes[1] & VERSION));
        }
        Ok(Probe {
            answer,
            dest_qp: Qpn::new(be24(bytes, 5)),
            source_qp: Qpn::new(be32(bytes, 12)),
            cookie: be64(bytes, 20),
        })
    }

    /// Encodes the packet.
    pub fn emit(&self, bytes: &mut [u8; LEN]) {
        *bytes = [0; LEN];
        bytes[0] = if self.answer { ANSWER } else { PROBE };
        put16(bytes, 2, DEFAULT_PKEY);
        put24(bytes, 5, self.dest_qp.value());
        put32(bytes, 12, self.source_qp.value());
        put64(bytes, 20, self.cookie);
    }
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.answer { "probe answer" } else { "probe" };
        write!(f, "{kind} from QP {} to QP {} cookie {}", self.source_qp, self.dest_qp, self.cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Opcode, bth};

    const BYTES: [u8; LEN] =
        [0xd0, 0, 0xff, 0xff, 0, 0, 0x01, 0x45, 0, 0, 0, 0, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

    fn probe() -> Probe {
        Probe { answer: false, dest_qp: Qpn::new(0x145), source_qp: Qpn::new(0xab_cdef), cookie: 0x0102_0304_0506_0708 }
    }

    #[test]
    fn literal_bytes_both_ways() {
        assert_eq!(Probe::parse(&BYTES), Ok(probe()));
        let mut out = [0xaa; LEN];
        probe().emit(&mut out);
        assert_eq!(out, BYTES);
    }

    #[test]
    fn the_answer_goes_the_other_way() {
        let mut out = [0xaa; LEN];
        probe().answered().emit(&mut out);
        assert_eq!(out[..12], [0xd1, 0, 0xff, 0xff, 0, 0xab, 0xcd, 0xef, 0, 0, 0, 0]);
        assert_eq!(Probe::parse(&out), Ok(probe().answered()));
        assert_eq!(
            probe().answered().to_string(),
            "probe answer from QP 0x145 to QP 0xabcdef cookie 72623859790382856"
        );
    }

    #[test]
    fn another_packet_is_refused() {
        let mut bytes = BYTES;
        bytes[0] = 0x64;
        assert_eq!(Probe::parse(&bytes), Err(Error::Opcode(0x64)));
        bytes[0] = 0xd1;
        bytes[1] = 1;
        assert_eq!(Probe::parse(&bytes), Err(Error::Version(1)));
    }

    /// Other adapters must not take the probe for one of their own packets.
    #[test]
    fn it_is_no_packet_of_the_transport() {
        for opcode in [PROBE, ANSWER] {
            assert_eq!(Opcode::from_u8(opcode), None);
        }
        let start: [u8; bth::LEN] = std::array::from_fn(|index| BYTES[index]);
        assert!(bth::Header::parse(&start).is_err());
    }
}
