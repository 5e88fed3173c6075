//! What users ask for, and what both sides have agreed on. Principal types: [`Request`], [`Reply`], [`Connection`].

use super::{Path, State};
use wire::cm::{Ece, SidrStatus, TransportType};
use wire::{Psn, Qpn};

/// A connection to ask for: what goes into a REQ. Timeouts are codes of 5 bits ([`crate::timeout`]).
#[derive(Clone, Copy, Debug, Default)]
pub struct Request<'a> {
    /// Whose it is ([`super::Cm::set_owner`]).
    pub owner: u32,
    /// The way there; its MTU is the connection's.
    pub path: Path,
    /// Where to migrate to.
    pub alternate: Option<Path>,
    /// What the connection is for.
    pub service_id: u64,
    /// What kind of connection.
    pub transport: TransportType,
    /// Our adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN that we receive: each side chooses what the other begins with.
    pub psn: Psn,
    /// Our queue key, where the transport has one.
    pub qkey: u32,
    /// READs and atomics that we can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that we want to have under way.
    pub initiator_depth: u8,
    /// Our queue pair heeds credits.
    pub flow_control: bool,
    /// How often the peer's queue pair tries again, and ours.
    pub retry_count: u8,
    /// How often the peer's queue pair tries again after RNR.
    pub rnr_retry_count: u8,
    /// Our queue pair has a shared receive queue.
    pub srq: bool,
    /// How long a queue pair waits for an acknowledgement: twice the packet life time and what acknowledging takes.
    pub ack_timeout: u8,
    /// How long the peer may take to answer our messages.
    pub remote_response_timeout: u8,
    /// How long we may take to answer its messages.
    pub local_response_timeout: u8,
    /// How often either side repeats a message, up to 15.
    pub max_cm_retries: u8,
    /// Vendor options.
    pub ece: Ece,
    /// Up to 92 bytes.
    pub private_data: &'a [u8],
}

/// How to agree to a REQ: what goes into a REP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reply<'a> {
    /// Our adapter.
    pub ca_guid: u64,
    /// Our queue pair.
    pub qpn: Qpn,
    /// The first PSN that we receive: each side chooses what the other begins with.
    pub psn: Psn,
    /// Our queue key, where the transport has one.
    pub qkey: u32,
    /// READs and atomics that we can answer at a time.
    pub responder_resources: u8,
    /// READs and atomics that we want to have under way.
    pub initiator_depth: u8,
    /// How long our adapter takes to acknowledge: a code of 5 bits.
    pub target_ack_delay: u8,
    /// What becomes of the alternate path: 0 accepted, 1 not supported, 2 rejected.
    pub failover_accepted: u8,
    /// Our queue pair heeds credits.
    pub flow_control: bool,
    /// How often the peer's queue pair tries again after RNR.
    pub rnr_retry_count: u8,
    /// Our queue pair has a shared receive queue.
    pub srq: bool,
    /// Vendor options.
    pub ece: Ece,
    /// Up to 196 bytes.
    pub private_data: &'a [u8],
}

/// Another alternate path: what goes into a LAP.
#[derive(Clone, Copy, Debug, Default)]
pub struct Suggestion<'a> {
    /// The path.
    pub path: Path,
    /// How long a queue pair waits for an acknowledgement on it: a code of 5 bits.
    pub ack_timeout: u8,
    /// How long the peer may take to answer: a code of 5 bits.
    pub remote_response_timeout: u8,
    /// Up to 168 bytes.
    pub private_data: &'a [u8],
}

/// A datagram service to look for: what goes into a SIDR_REQ.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidrRequest<'a> {
    /// Whose it is ([`super::Cm::set_owner`]).
    pub owner: u32,
    /// The way there.
    pub path: Path,
    /// The service.
    pub service_id: u64,
    /// How long the peer may take to answer: a code of 5 bits.
    pub remote_response_timeout: u8,
    /// How often the question is repeated, up to 15.
    pub max_cm_retries: u8,
    /// Up to 216 bytes.
    pub private_data: &'a [u8],
}

/// The answer to a SIDR_REQ.
#[derive(Clone, Copy, Debug, Default)]
pub struct SidrReply<'a> {
    /// How it is answered.
    pub status: SidrStatus,
    /// The queue pair that serves.
    pub qpn: Qpn,
    /// Its key.
    pub qkey: u32,
    /// Vendor options.
    pub ece: Ece,
    /// What else there is to say about the status; up to 72 bytes.
    pub info: &'a [u8],
    /// Up to 136 bytes.
    pub private_data: &'a [u8],
}

/// What both sides have said so far: what queue pair attributes are made of. What has not been said is 0. IBA 12.9.8.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Where it stands.
    pub state: State,
    /// We asked for it.
    pub active: bool,
    /// What it is for.
    pub service_id: u64,
    /// What kind it is.
    pub transport: TransportType,
    /// The way to the peer; its `mtu` and `pkey` are the connection's.
    pub path: Path,
    /// Where to migrate to.
    pub alternate: Option<Path>,
    /// Our number for it.
    pub local_comm_id: u32,
    /// The peer's number for it.
    pub remote_comm_id: u32,
    /// The peer's adapter.
    pub remote_ca_guid: u64,
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// The peer's queue pair; for a SIDR question the one that serves.
    pub remote_qpn: Qpn,
    /// The first PSN that we send: the peer's choice.
    pub send_psn: Psn,
    /// The first PSN that the peer sends: our choice.
    pub receive_psn: Psn,
    /// READs and atomics that we answer at a time: our queue pair's `max_dest_rd_atomic`.
    pub responder_resources: u8,
    /// READs and atomics that we have under way: our queue pair's `max_rd_atomic`.
    pub initiator_depth: u8,
    /// How often our queue pair tries again.
    pub retry_count: u8,
    /// How often our queue pair tries again after RNR.
    pub rnr_retry_count: u8,
    /// How long our queue pair waits for an acknowledgement: a code of 5 bits.
    pub ack_timeout: u8,
    /// The peer's queue key: of a SIDR answer.
    pub remote_qkey: u32,
    /// The peer's queue pair has a shared receive queue.
    pub srq: bool,
}
