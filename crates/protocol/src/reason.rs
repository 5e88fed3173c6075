//! Why: sentences that name the numbers, for whoever has to find the mistake. [`Reason`] is why a requester failed a work
//! request, [`Fault`] why a responder refused or ignored a packet. Each knows what a program can do about it. The caller adds what
//! is not known here (its own QP number, process, memory regions). Nothing decides by these.

use crate::{Operation, Service, Status};
use wire::{Feth, NakCode, Opcode, Psn, Qpn};

/// Why a requester failed a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The caller said so, and knows why.
    #[error("the device could not carry it out here")]
    Local,
    /// The queue went to error.
    #[error("the queue pair was moved to the error state")]
    Flushed,
    /// The responder refused.
    #[error("QP {dest_qp} answered NAK {code} to packet {psn}")]
    Refused {
        /// The responder.
        dest_qp: Qpn,
        /// Its reason.
        code: NakCode,
        /// The packet that it refused.
        psn: Psn,
    },
    /// Nothing was heard, again and again.
    #[error("QP {dest_qp} did not acknowledge packet {psn} within {} tries (timeout code {timeout}, retry_cnt {retry_cnt})", u32::from(*retry_cnt) + 1)]
    Silence {
        /// The responder.
        dest_qp: Qpn,
        /// The oldest packet without an answer.
        psn: Psn,
        /// The timeout's code.
        timeout: u8,
        /// Retries that were allowed.
        retry_cnt: u8,
    },
    /// The responder never had a receive request.
    #[error("QP {dest_qp} had no receive request for packet {psn} in {} tries (rnr_retry {rnr_retry})", u32::from(*rnr_retry) + 1)]
    NotReady {
        /// The responder.
        dest_qp: Qpn,
        /// The packet that needed one.
        psn: Psn,
        /// Retries that were allowed.
        rnr_retry: u8,
    },
    /// An answer of the wrong kind.
    #[error("QP {dest_qp} answered packet {psn}, part of a {operation}, with {opcode}")]
    WrongAnswer {
        /// The responder.
        dest_qp: Qpn,
        /// The packet that it answers.
        psn: Psn,
        /// What it was part of.
        operation: Operation,
        /// What came.
        opcode: Opcode,
    },
    /// A READ response of the wrong length.
    #[error("QP {dest_qp} answered packet {psn} of an RDMA READ with {got} bytes, expected were {expected}")]
    WrongLength {
        /// The responder.
        dest_qp: Qpn,
        /// The packet that it answers.
        psn: Psn,
        /// Bytes that belong there.
        expected: u32,
        /// Bytes that came.
        got: u32,
    },
    /// Longer than any message may be.
    #[error("a message of {length} bytes{} is longer than max_msg_sz, which is {limit}", if *length == u32::MAX { " or more" } else { "" })]
    TooLong {
        /// Bytes of the message, as far as a word can say it.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// A datagram that does not fit into one packet.
    #[error("a datagram of {length} bytes is longer than the port's MTU of {mtu}")]
    LongDatagram {
        /// Bytes of the datagram.
        length: u32,
        /// The MTU of the port.
        mtu: u32,
    },
    /// Not an operation of this service.
    #[error("{operation} does not exist on {service}")]
    NotOffered {
        /// The operation.
        operation: Operation,
        /// The service.
        service: Service,
    },
    /// READs and atomics are not possible on this connection.
    #[error("{0} on a QP whose max_rd_atomic is 0")]
    NoInitiatorDepth(Operation),
}

impl Reason {
    /// Whether the peer has a part in it: what was refused here was never sent.
    #[must_use]
    pub const fn is_of_peer(&self) -> bool {
        match self {
            Self::Refused { .. }
            | Self::Silence { .. }
            | Self::NotReady { .. }
            | Self::WrongAnswer { .. }
            | Self::WrongLength { .. } => true,
            Self::Local
            | Self::Flushed
            | Self::TooLong { .. }
            | Self::LongDatagram { .. }
            | Self::NotOffered { .. }
            | Self::NoInitiatorDepth(_) => false,
        }
    }

    /// What a program can do about it. Nothing of what was flushed, for the cause was something else.
    #[must_use]
    pub const fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Local | Self::Flushed => return None,
            Self::Refused { code, .. } => match code {
                NakCode::InvalidRequest => {
                    "the peer's receive buffer is too short for it, or the peer's QP does not serve the operation; the peer's reasons say which"
                }
                NakCode::RemoteAccess => {
                    "check rkey, address and length, and the remote rights of the peer's region and QP, or the key that a SEND invalidates; the peer's reasons say which"
                }
                NakCode::InvalidRd => {
                    "check the number of the XRC SRQ and its XRC domain; the peer's reasons say which"
                }
                NakCode::RemoteOperational | NakCode::PsnSequence => {
                    "the peer could not carry it out; the peer's reasons say why"
                }
            },
            Self::Silence { .. } => "does the peer's program still run, with its QP in RTR, at this address?",
            Self::NotReady { .. } => "the peer has to post receive requests in time; rnr_retry 7 waits for ever",
            Self::WrongAnswer { .. } => "are both sides of one build?",
            Self::WrongLength { .. } => "set the same path_mtu on both sides",
            Self::TooLong { .. } => "send it in several messages",
            Self::LongDatagram { .. } => "send at most one MTU in a datagram, or use an RC or UC QP",
            Self::NotOffered { .. } => "use an operation of the QP's type, or another type of QP",
            Self::NoInitiatorDepth(_) => "set max_rd_atomic to at least 1 in the change to RTS",
        })
    }
}

/// Why a responder refused or ignored a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// It refused an earlier packet and serves no more.
    #[error("the QP has refused an earlier request and serves no more")]
    Dead,
    /// For another service than this queue pair's.
    #[error("{opcode} came to a {service} QP")]
    Service {
        /// What came.
        opcode: Opcode,
        /// What the queue pair is.
        service: Service,
    },
    /// Packets before it are missing; they have been asked for.
    #[error("packet {got} came while {expected} is awaited")]
    Sequence {
        /// The packet that is awaited.
        expected: Psn,
        /// The packet that came.
        got: Psn,
    },
    /// A repeated READ or atomic that is no longer, or was never, remembered.
    #[error("repeated {opcode} with packet {psn} fits no remembered request")]
    Forgotten {
        /// What came.
        opcode: Opcode,
        /// Its number.
        psn: Psn,
    },
    /// The rest of a message whose beginning was lost or dropped.
    #[error("{opcode} continues a message that was abandoned")]
    Abandoned {
        /// What came.
        opcode: Opcode,
    },
    /// A datagram with another Q_Key.
    #[error("Q_Key {got:#x} came, the QP has {expected:#x}")]
    QKey {
        /// What the queue pair has.
        expected: u32,
        /// What the packet has.
        got: u32,
    },
    /// A packet that cannot follow the one before it.
    #[error("{opcode} came out of order within a message")]
    Order {
        /// What came.
        opcode: Opcode,
    },
    /// The queue pair's access flags do not allow the operation.
    #[error("{opcode} came, but the QP's access flags {access:#x} do not allow it")]
    NotAllowed {
        /// What came.
        opcode: Opcode,
        /// The queue pair's access flags.
        access: u32,
    },
    /// More READs and atomics than agreed.
    #[error("more READs and atomics at once than max_dest_rd_atomic, which is {limit}")]
    TooManyReads {
        /// What was agreed.
        limit: u8,
    },
    /// A payload or message whose length does not fit its place.
    #[error("{opcode} with {got} bytes, MTU {mtu}: the length does not fit")]
    Length {
        /// What came.
        opcode: Opcode,
        /// Its payload.
        got: u32,
        /// The path MTU.
        mtu: u32,
    },
    /// An atomic on an address that is not a multiple of 8.
    #[error("atomic at {va:#x}, which is not a multiple of 8")]
    Misaligned {
        /// The address.
        va: u64,
    },
    /// A FLUSH that asks for what does not exist.
    #[error("FLUSH with placement {:#x}, selectivity {}: there is no such thing", feth.placement, feth.selectivity)]
    Placement {
        /// What it asks for.
        feth: Feth,
    },
    /// The executor refused, and knows why.
    #[error("the memory or the receive request did not fit")]
    Executor,
    /// No receive request for an unreliable message.
    #[error("no receive request was posted")]
    NoReceive,
}

impl Fault {
    /// How the receive request that the message has taken ends. `Executor` is the caller's own to say.
    #[must_use]
    pub const fn receive_status(&self) -> Status {
        match self {
            Fault::Length { .. } => Status::LocLenErr,
            Fault::Executor => Status::LocAccessErr,
            _ => Status::RemInvReqErr,
        }
    }

    /// What a program can do about it, where that can be known here.
    #[must_use]
    pub const fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Service { .. } => "connect QPs of the same type with each other",
            Self::QKey { .. } => "set the same Q_Key on both sides",
            Self::NotAllowed { .. } => "add the right to the QP's qp_access_flags",
            Self::TooManyReads { .. } => "set the peer's max_rd_atomic to at most max_dest_rd_atomic of this QP",
            Self::Length { .. } => "set the same path_mtu on both sides",
            Self::Misaligned { .. } => "use remote addresses that are multiples of 8 for atomics",
            Self::NoReceive => "post receive requests before the peer sends, and more of them",
            Self::Dead
            | Self::Sequence { .. }
            | Self::Forgotten { .. }
            | Self::Abandoned { .. }
            | Self::Order { .. }
            | Self::Placement { .. }
            | Self::Executor => return None,
        })
    }
}
