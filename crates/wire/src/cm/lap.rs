//! LAP: the active side suggests another alternate path. Not the choice of the path. IBA 12.8.1.
//! Principal type: [`Lap`].

use super::data::Data;
use super::path::{PathInfo, gid};
use crate::mad::{LEN as DATA, Mad};
use crate::number::{Qpn, be16, be24, be32, put16, put24, put32};
use std::fmt;

/// A suggestion for the alternate path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lap {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection.
    pub remote_comm_id: u32,
    /// The receiver's queue pair.
    pub remote_qpn: Qpn,
    /// How long the receiver may take to answer: a code of 5 bits.
    pub remote_response_timeout: u8,
    /// The path.
    pub alternate: PathInfo,
    /// The user's private data.
    pub private_data: Data<168>,
}

impl Lap {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Lap {
        Lap {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            remote_qpn: Qpn::new(be24(mad, DATA + 12)),
            remote_response_timeout: mad[DATA + 15] >> 3,
            alternate: PathInfo {
                local_lid: be16(mad, DATA + 20),
                remote_lid: be16(mad, DATA + 22),
                local_gid: gid(mad, DATA + 24),
                remote_gid: gid(mad, DATA + 40),
                flow_label: be32(mad, DATA + 56) >> 12,
                traffic_class: mad[DATA + 59],
                hop_limit: mad[DATA + 60],
                rate: mad[DATA + 61] & 0x3f,
                sl: mad[DATA + 62] >> 4,
                subnet_local: mad[DATA + 62] & 8 != 0,
                ack_timeout: mad[DATA + 63] >> 3,
            },
            private_data: Data::parse(mad, DATA + 64),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        let path = &self.alternate;
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        put24(mad, DATA + 12, self.remote_qpn.value());
        mad[DATA + 15] = self.remote_response_timeout << 3;
        put16(mad, DATA + 20, path.local_lid);
        put16(mad, DATA + 22, path.remote_lid);
        mad[DATA + 24..DATA + 40].copy_from_slice(&path.local_gid);
        mad[DATA + 40..DATA + 56].copy_from_slice(&path.remote_gid);
        put32(mad, DATA + 56, path.flow_label << 12 | u32::from(path.traffic_class));
        mad[DATA + 60] = path.hop_limit;
        mad[DATA + 61] = path.rate & 0x3f;
        mad[DATA + 62] = path.sl << 4 | u8::from(path.subnet_local) << 3;
        mad[DATA + 63] = path.ack_timeout << 3;
        self.private_data.emit(mad, DATA + 64);
    }
}

impl fmt::Display for Lap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LAP {:#010x} to {:#010x} QP {}", self.local_comm_id, self.remote_comm_id, self.remote_qpn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    #[test]
    fn literal_bytes_both_ways() {
        let lap = Lap {
            local_comm_id: 0x0102_0304,
            remote_comm_id: 0x0506_0708,
            remote_qpn: Qpn::new(0x4b),
            remote_response_timeout: 20,
            alternate: PathInfo {
                local_lid: 0x1112,
                remote_lid: 0x1314,
                local_gid: [0xa1; 16],
                remote_gid: [0xb2; 16],
                flow_label: 0xf_1234,
                rate: 0x2a,
                traffic_class: 0x55,
                hop_limit: 64,
                sl: 9,
                subnet_local: true,
                ack_timeout: 19,
            },
            private_data: Data::new(&[6]).unwrap(),
        };
        let mut mad = [0; MAD_LEN];
        lap.emit(&mut mad);
        let mut wanted = [0; 66];
        wanted[..16].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0x4b, 0xa0]);
        wanted[20..24].copy_from_slice(&[0x11, 0x12, 0x13, 0x14]);
        wanted[24..40].copy_from_slice(&[0xa1; 16]);
        wanted[40..56].copy_from_slice(&[0xb2; 16]);
        wanted[56..65].copy_from_slice(&[0xf1, 0x23, 0x40, 0x55, 64, 0x2a, 0x98, 0x98, 6]);
        assert_eq!(mad[DATA..DATA + 66], wanted);
        assert_eq!(Lap::parse(&mad), lap);
        let far = Lap { alternate: PathInfo { subnet_local: false, ..lap.alternate }, ..lap };
        far.emit(&mut mad);
        assert_eq!((mad[DATA + 62], Lap::parse(&mad)), (0x90, far));
        assert_eq!(lap.to_string(), "LAP 0x01020304 to 0x05060708 QP 0x4b");
    }
}
