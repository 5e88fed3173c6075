//! REP: the passive side agrees. Not the negotiation. IBA 12.6.8. Principal type: [`Rep`].

use super::data::Data;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{Psn, Qpn, be24, be32, be64, put24, put32, put64};
use std::fmt;

/// The answer that agrees to a REQ. *Local* is its sender, the passive side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rep {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The receiver's number for this connection, from the REQ.
    pub remote_comm_id: u32,
    /// The sender's queue key, for reliable datagrams.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// The vendor whose options are in the attribute modifier; 24 bits.
    pub vendor_id: u32,
    /// The sender's end-to-end context; for XRC, the sender's target queue pair.
    pub local_eecn: u32,
    /// The first PSN that the receiver of this message sends, as the sender expects it. IBA
    /// 12.7.31.
    pub starting_psn: Psn,
    /// READs and atomics that the sender can answer at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The time in which the sender's adapter acknowledges: a code of 5 bits.
    pub target_ack_delay: u8,
    /// The decision on the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// The sender's queue pair uses end-to-end credits.
    pub flow_control: bool,
    /// The RNR retry count of the receiver's queue pair; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The sender's adapter.
    pub local_ca_guid: u64,
    /// The user's private data.
    pub private_data: Data<196>,
}

impl Rep {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Rep {
        Rep {
            local_comm_id: be32(mad, DATA),
            remote_comm_id: be32(mad, DATA + 4),
            local_qkey: be32(mad, DATA + 8),
            local_qpn: Qpn::new(be24(mad, DATA + 12)),
            vendor_id: u32::from_be_bytes([0, mad[DATA + 15], mad[DATA + 19], mad[DATA + 23]]),
            local_eecn: be24(mad, DATA + 16),
            starting_psn: Psn::new(be24(mad, DATA + 20)),
            responder_resources: mad[DATA + 24],
            initiator_depth: mad[DATA + 25],
            target_ack_delay: mad[DATA + 26] >> 3,
            failover_accepted: mad[DATA + 26] >> 1 & 3,
            flow_control: mad[DATA + 26] & 1 != 0,
            rnr_retry_count: mad[DATA + 27] >> 5,
            srq: mad[DATA + 27] & 0x10 != 0,
            local_ca_guid: be64(mad, DATA + 28),
            private_data: Data::parse(mad, DATA + 36),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        let [_, high, middle, low] = self.vendor_id.to_be_bytes();
        put32(mad, DATA, self.local_comm_id);
        put32(mad, DATA + 4, self.remote_comm_id);
        put32(mad, DATA + 8, self.local_qkey);
        put24(mad, DATA + 12, self.local_qpn.value());
        mad[DATA + 15] = high;
        put24(mad, DATA + 16, self.local_eecn);
        mad[DATA + 19] = middle;
        put24(mad, DATA + 20, self.starting_psn.value());
        mad[DATA + 23] = low;
        mad[DATA + 24] = self.responder_resources;
        mad[DATA + 25] = self.initiator_depth;
        mad[DATA + 26] = self.target_ack_delay << 3 | (self.failover_accepted & 3) << 1 | u8::from(self.flow_control);
        mad[DATA + 27] = self.rnr_retry_count << 5 | u8::from(self.srq) << 4;
        put64(mad, DATA + 28, self.local_ca_guid);
        self.private_data.emit(mad, DATA + 36);
    }
}

impl fmt::Display for Rep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REP {:#010x} to {:#010x} from QP {} psn {}",
            self.local_comm_id, self.remote_comm_id, self.local_qpn, self.starting_psn
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mad::MAD_LEN;

    /// The Linux driver's answer to rping, with every field filled that was zero there.
    #[test]
    fn literal_bytes_both_ways() {
        let mut mad = [0; MAD_LEN];
        mad[DATA..DATA + 37].copy_from_slice(&[
            0xf5, 0x28, 0x3d, 0xb4, 0x09, 0x16, 0x40, 0x02, 0, 0, 0, 3, 0, 0, 0x4b, 0x11, 0, 0, 4, 0x22, 0x36, 0x3c,
            0x89, 0x33, 1, 2, 0x7d, 0xf0, 0x50, 0x54, 0, 0xff, 0xfe, 0x77, 0, 1, 0xab,
        ]);
        let rep = Rep {
            local_comm_id: 0xf528_3db4,
            remote_comm_id: 0x0916_4002,
            local_qkey: 3,
            local_qpn: Qpn::new(0x4b),
            vendor_id: 0x11_2233,
            local_eecn: 4,
            starting_psn: Psn::new(0x36_3c89),
            responder_resources: 1,
            initiator_depth: 2,
            target_ack_delay: 15,
            failover_accepted: 2,
            flow_control: true,
            rnr_retry_count: 7,
            srq: true,
            local_ca_guid: 0x5054_00ff_fe77_0001,
            private_data: Data::new(&[0xab]).unwrap(),
        };
        assert_eq!(Rep::parse(&mad), rep);
        let mut out = [0; MAD_LEN];
        rep.emit(&mut out);
        assert_eq!(out, mad);
        for (failover_accepted, byte) in [(0, 0x79), (1, 0x7b), (3, 0x7f)] {
            let rep = Rep { failover_accepted, ..rep };
            rep.emit(&mut out);
            assert_eq!((out[DATA + 26], Rep::parse(&out)), (byte, rep));
        }
        assert_eq!(rep.to_string(), "REP 0xf5283db4 to 0x09164002 from QP 0x4b psn 3554441");
    }
}
