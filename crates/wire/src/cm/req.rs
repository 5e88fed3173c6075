//! REQ: the active side requests a connection. Not the negotiation. IBA 12.6.5. Principal type:
//! [`Req`].

use super::data::Data;
use super::path::PathInfo;
use crate::mad::{LEN as DATA, Mad};
use crate::number::{Psn, Qpn, be16, be24, be32, be64, put16, put24, put32, put64};
use std::fmt;

const PRIMARY: usize = DATA + 52;
const ALTERNATE: usize = PRIMARY + PathInfo::LEN;
const PRIVATE: usize = DATA + 140;

/// The requested type of connection: the two-bit type and, for type 3, the extended one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Reliable datagram.
    Rd,
    /// Extended reliable connection.
    Xrc,
    /// An unknown extended type.
    Unknown(u8),
}

impl TransportType {
    fn parse(kind: u8, extended: u8) -> TransportType {
        match (kind, extended) {
            (0, _) => TransportType::Rc,
            (1, _) => TransportType::Uc,
            (2, _) => TransportType::Rd,
            (_, 1) => TransportType::Xrc,
            (_, other) => TransportType::Unknown(other),
        }
    }

    fn codes(self) -> (u8, u8) {
        match self {
            TransportType::Rc => (0, 0),
            TransportType::Uc => (1, 0),
            TransportType::Rd => (2, 0),
            TransportType::Xrc => (3, 1),
            TransportType::Unknown(extended) => (3, extended & 7),
        }
    }
}

/// A request for a connection. *Local* is its sender, *remote* its receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Req {
    /// The sender's number for this connection.
    pub local_comm_id: u32,
    /// The vendor whose options are in the attribute modifier; 24 bits.
    pub vendor_id: u32,
    /// The service id.
    pub service_id: u64,
    /// The sender's adapter.
    pub local_ca_guid: u64,
    /// The sender's queue key, for reliable datagrams.
    pub local_qkey: u32,
    /// The sender's queue pair.
    pub local_qpn: Qpn,
    /// READs and atomics that the sender can answer at once.
    pub responder_resources: u8,
    /// The sender's end-to-end context, for reliable datagrams.
    pub local_eecn: u32,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// The receiver's end-to-end context, for reliable datagrams.
    pub remote_eecn: u32,
    /// How long the receiver may take to answer: a code of 5 bits.
    pub remote_response_timeout: u8,
    /// The type of connection.
    pub transport: TransportType,
    /// The sender's queue pair uses end-to-end credits.
    pub flow_control: bool,
    /// The first PSN that the receiver of this message sends, as the sender expects it. IBA
    /// 12.7.31.
    pub starting_psn: Psn,
    /// How long the sender may take to answer: a code of 5 bits.
    pub local_response_timeout: u8,
    /// The retry count of the receiver's queue pair; 3 bits.
    pub retry_count: u8,
    /// The partition.
    pub pkey: u16,
    /// The path MTU: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// A reliable datagram channel exists.
    pub rdc_exists: bool,
    /// The RNR retry count of the receiver's queue pair; 7 is unlimited.
    pub rnr_retry_count: u8,
    /// Repetitions of a message by either side; 4 bits.
    pub max_cm_retries: u8,
    /// The sender's queue pair has a shared receive queue.
    pub srq: bool,
    /// The primary path.
    pub primary: PathInfo,
    /// The alternate path.
    pub alternate: Option<PathInfo>,
    /// The sender accepts suggestions for other alternate paths (it supports the SAP message).
    pub sap_supported: bool,
    /// The user's private data.
    pub private_data: Data<92>,
}

impl Req {
    /// Parses the message.
    #[must_use]
    pub fn parse(mad: &Mad) -> Req {
        let alternate = PathInfo::parse(mad, ALTERNATE);
        Req {
            local_comm_id: be32(mad, DATA),
            vendor_id: be24(mad, DATA + 5),
            service_id: be64(mad, DATA + 8),
            local_ca_guid: be64(mad, DATA + 16),
            local_qkey: be32(mad, DATA + 28),
            local_qpn: Qpn::new(be24(mad, DATA + 32)),
            responder_resources: mad[DATA + 35],
            local_eecn: be24(mad, DATA + 36),
            initiator_depth: mad[DATA + 39],
            remote_eecn: be24(mad, DATA + 40),
            remote_response_timeout: mad[DATA + 43] >> 3,
            transport: TransportType::parse(mad[DATA + 43] >> 1 & 3, mad[DATA + 51] & 7),
            flow_control: mad[DATA + 43] & 1 != 0,
            starting_psn: Psn::new(be24(mad, DATA + 44)),
            local_response_timeout: mad[DATA + 47] >> 3,
            retry_count: mad[DATA + 47] & 7,
            pkey: be16(mad, DATA + 48),
            mtu: mad[DATA + 50] >> 4,
            rdc_exists: mad[DATA + 50] & 8 != 0,
            rnr_retry_count: mad[DATA + 50] & 7,
            max_cm_retries: mad[DATA + 51] >> 4,
            srq: mad[DATA + 51] & 8 != 0,
            primary: PathInfo::parse(mad, PRIMARY),
            alternate: (!alternate.is_absent()).then_some(alternate),
            sap_supported: mad[ALTERNATE + 43] & 4 != 0,
            private_data: Data::parse(mad, PRIVATE),
        }
    }

    /// Encodes the message behind the datagram's header.
    pub(super) fn emit(&self, mad: &mut Mad) {
        let (kind, extended) = self.transport.codes();
        put32(mad, DATA, self.local_comm_id);
        put24(mad, DATA + 5, self.vendor_id);
        put64(mad, DATA + 8, self.service_id);
        put64(mad, DATA + 16, self.local_ca_guid);
        put32(mad, DATA + 28, self.local_qkey);
        put24(mad, DATA + 32, self.local_qpn.value());
        mad[DATA + 35] = self.responder_resources;
        put24(mad, DATA + 36, self.local_eecn);
        mad[DATA + 39] = self.initiator_depth;
        put24(mad, DATA + 40, self.remote_eecn);
        mad[DATA + 43] = self.remote_response_timeout << 3 | kind << 1 | u8::from(self.flow_control);
        put24(mad, DATA + 44, self.starting_psn.value());
        mad[DATA + 47] = self.local_response_timeout << 3 | self.retry_count & 7;
        put16(mad, DATA + 48, self.pkey);
        mad[DATA + 50] = self.mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7;
        mad[DATA + 51] = self.max_cm_retries << 4 | u8::from(self.srq) << 3 | extended;
        self.primary.emit(mad, PRIMARY);
        self.alternate.unwrap_or_default().emit(mad, ALTERNATE);
        mad[ALTERNATE + 43] |= u8::from(self.sap_supported) << 2;
        self.private_data.emit(mad, PRIVATE);
    }
}

impl fmt::Display for Req {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "REQ {:#010x} service {:#018x} {:?} from QP {} psn {} mtu {}",
            self.local_comm_id,
            self.service_id,
            self.transport,
            self.local_qpn,
            self.starting_psn,
            128u32 << self.mtu
        )
    }
}

#[cfg(test)]
mod tests;
