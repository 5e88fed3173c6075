//! The parameters of users' requests and replies, and what both sides have agreed on. Only data, no
//! behaviour. Principal types: [`Request`], [`Reply`], [`Connection`].

use super::origin::Path;
use super::state::CmState;
use wire::cm::{Ece, SidrStatus, TransportType};
use wire::{Psn, Qpn};

/// The parameters of a connection request: the contents of a REQ. Timeouts are codes of 5 bits
/// ([`crate::timeout`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// The owner ([`super::Cm::set_owner`]).
    pub owner: u32,
    /// The path to the peer; its MTU is the connection's.
    pub path: Path,
    /// The alternate path.
    pub alternate: Option<Path>,
    /// The service id.
    pub service_id: u64,
    /// The transport type.
    pub transport: TransportType,
    /// Our adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN that we receive: each side chooses the PSN with which the other begins.
    pub psn: Psn,
    /// Our queue key, where the transport has one.
    pub qkey: u32,
    /// READs and atomics that we can answer at once.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// Our queue pair uses end-to-end credits.
    pub flow_control: bool,
    /// The retry count of the peer's queue pair, and of ours.
    pub retry_count: u8,
    /// The RNR retry count of the peer's queue pair.
    pub rnr_retry_count: u8,
    /// Our queue pair has a shared receive queue.
    pub srq: bool,
    /// How long a queue pair waits for an acknowledgement: twice the packet life time, plus the
    /// time to acknowledge.
    pub ack_timeout: u8,
    /// How long the peer may take to answer our messages.
    pub remote_response_timeout: u8,
    /// How long we may take to answer its messages.
    pub local_response_timeout: u8,
    /// Repetitions of a message by either side, up to 15.
    pub max_cm_retries: u8,
    /// Vendor options.
    pub ece: Ece,
    /// Up to 92 bytes.
    pub private_data: &'a [u8],
}

/// The parameters of a reply: the contents of a REP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// Our adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN that we receive: each side chooses the PSN with which the other begins.
    pub psn: Psn,
    /// Our queue key, where the transport has one.
    pub qkey: u32,
    /// READs and atomics that we can answer at once.
    pub responder_resources: u8,
    /// READs and atomics that we want to have outstanding.
    pub initiator_depth: u8,
    /// The time in which our adapter acknowledges: a code of 5 bits.
    pub target_ack_delay: u8,
    /// The decision on the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// Our queue pair uses end-to-end credits.
    pub flow_control: bool,
    /// The RNR retry count of the peer's queue pair.
    pub rnr_retry_count: u8,
    /// Our queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Up to 196 bytes.
    pub private_data: &'a [u8],
}

/// A suggestion of another alternate path: the contents of a LAP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suggestion<'a> {
    /// The path.
    pub path: Path,
    /// How long a queue pair waits for an acknowledgement on the path: a code of 5 bits.
    pub ack_timeout: u8,
    /// How long the peer may take to answer: a code of 5 bits.
    pub remote_response_timeout: u8,
    /// Up to 168 bytes.
    pub private_data: &'a [u8],
}

/// A lookup of a datagram service: the contents of a SIDR_REQ.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidrRequest<'a> {
    /// The owner ([`super::Cm::set_owner`]).
    pub owner: u32,
    /// The path to the peer.
    pub path: Path,
    /// The service id.
    pub service_id: u64,
    /// How long the peer may take to answer: a code of 5 bits.
    pub remote_response_timeout: u8,
    /// Repetitions of the SIDR_REQ, up to 15.
    pub max_cm_retries: u8,
    /// Up to 216 bytes.
    pub private_data: &'a [u8],
}

/// The answer to a SIDR_REQ: the contents of a SIDR_REP.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidrReply<'a> {
    /// The status.
    pub status: SidrStatus,
    /// The queue pair that serves.
    pub qpn: Qpn,
    /// Its Q_Key.
    pub qkey: u32,
    /// Vendor options.
    pub ece: Ece,
    /// Additional information about the status; up to 72 bytes.
    pub info: &'a [u8],
    /// Up to 136 bytes.
    pub private_data: &'a [u8],
}

/// What both sides have agreed on so far: the source of queue pair attributes. Values that are not
/// known yet are 0. IBA 12.9.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// The connection's state.
    pub state: CmState,
    /// This side is the active side.
    pub active: bool,
    /// The service id.
    pub service_id: u64,
    /// The transport type.
    pub transport: TransportType,
    /// The path to the peer; its `mtu` and `pkey` are the connection's.
    pub path: Path,
    /// The alternate path.
    pub alternate: Option<Path>,
    /// Our number for the connection.
    pub local_comm_id: u32,
    /// The peer's number for the connection.
    pub remote_comm_id: u32,
    /// The peer's adapter.
    pub remote_ca_guid: u64,
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// The peer's queue pair; for a SIDR request, the queue pair that serves.
    pub remote_qpn: Qpn,
    /// The first PSN that we send: the peer's choice.
    pub send_psn: Psn,
    /// The first PSN that the peer sends: our choice.
    pub receive_psn: Psn,
    /// READs and atomics that we answer at once: our queue pair's `max_dest_rd_atomic`.
    pub responder_resources: u8,
    /// READs and atomics that we may have outstanding: our queue pair's `max_rd_atomic`.
    pub initiator_depth: u8,
    /// Our queue pair's retry count.
    pub retry_count: u8,
    /// Our queue pair's RNR retry count.
    pub rnr_retry_count: u8,
    /// How long our queue pair waits for an acknowledgement: a code of 5 bits.
    pub ack_timeout: u8,
    /// The peer's Q_Key, from a SIDR_REP.
    pub remote_qkey: u32,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
}
