//! The reasons of failures, as sentences that name the numbers, for the person who looks for the
//! mistake. [`Reason`] says why a requester failed a work request. [`Fault`] says why a responder
//! refused or ignored a packet. Both know what a program can do about it. The caller adds facts
//! that are not known here: its own QP number, process and memory regions. No decision depends on
//! these types.

use crate::operation::Operation;
use crate::qp::Service;
use crate::status::Status;
use wire::{Feth, NakCode, Opcode, Psn, Qpn};

/// Why a requester failed a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The caller failed the request, and knows why.
    #[error("the device could not carry it out here")]
    Local,
    /// The queue went to the error state.
    #[error("the queue pair was moved to the error state")]
    Flushed,
    /// The responder answered with a NAK.
    #[error("QP {dest_qp} answered NAK {code} to packet {psn}")]
    Refused {
        /// The responder.
        dest_qp: Qpn,
        /// The NAK code.
        code: NakCode,
        /// The packet that it refused.
        psn: Psn,
    },
    /// No answer came in all tries.
    #[error("QP {dest_qp} did not acknowledge packet {psn} within {} tries (timeout code {timeout}, retry_cnt {retry_cnt})", u32::from(*retry_cnt) + 1)]
    Silence {
        /// The responder.
        dest_qp: Qpn,
        /// The oldest packet without an answer.
        psn: Psn,
        /// The timeout code.
        timeout: u8,
        /// The number of retries allowed.
        retry_cnt: u8,
    },
    /// The responder never had a receive request.
    #[error("QP {dest_qp} had no receive request for packet {psn} in {} tries (rnr_retry {rnr_retry})", u32::from(*rnr_retry) + 1)]
    NotReady {
        /// The responder.
        dest_qp: Qpn,
        /// The packet that needed a receive request.
        psn: Psn,
        /// The number of retries allowed.
        rnr_retry: u8,
    },
    /// An answer of the wrong kind.
    #[error("QP {dest_qp} answered packet {psn}, part of a {operation}, with {opcode}")]
    WrongAnswer {
        /// The responder.
        dest_qp: Qpn,
        /// The packet that it answers.
        psn: Psn,
        /// The operation that the packet is part of.
        operation: Operation,
        /// The opcode of the packet.
        opcode: Opcode,
    },
    /// A READ response of the wrong length.
    #[error("QP {dest_qp} answered packet {psn} of an RDMA READ with {got} bytes, expected {expected}")]
    WrongLength {
        /// The responder.
        dest_qp: Qpn,
        /// The packet that it answers.
        psn: Psn,
        /// Bytes that were expected.
        expected: u32,
        /// Bytes that came.
        got: u32,
    },
    /// The message is longer than any message may be.
    #[error("a message of {length} bytes{} is longer than max_msg_sz, which is {limit}", if *length == u32::MAX { " or more" } else { "" })]
    TooLong {
        /// Bytes of the message; `u32::MAX` also stands for more.
        length: u32,
        /// The limit.
        limit: u32,
    },
    /// The datagram does not fit into one packet.
    #[error("a datagram of {length} bytes is longer than the port's MTU of {mtu}")]
    LongDatagram {
        /// Bytes of the datagram.
        length: u32,
        /// The MTU of the port.
        mtu: u32,
    },
    /// The service does not have the operation.
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
    /// Whether the peer is involved. A request that was refused locally was never sent.
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

    /// What a program can do about it. `None` for a flushed request, because the cause was another
    /// failure.
    #[must_use]
    pub const fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Local | Self::Flushed => return None,
            Self::Refused { code, .. } => match code {
                NakCode::InvalidRequest => {
                    "the peer's receive buffer is too short for it, or the peer's QP does not serve the operation; the peer's reasons say which"
                }
                NakCode::RemoteAccess => {
                    "check rkey, address and length, and the remote rights of the peer's region and QP; the peer's reasons say which"
                }
                NakCode::InvalidRd => {
                    "check the number of the XRC SRQ and its XRC domain; the peer's reasons say which"
                }
                NakCode::RemoteOperational | NakCode::PsnSequence => {
                    "the peer could not carry it out; the peer's reasons say why"
                }
            },
            Self::Silence { .. } => {
                "check that the peer's program is running, its QP is in RTR or RTS, and the address is correct"
            }
            Self::NotReady { .. } => {
                "the peer has to post receive requests in time; with rnr_retry 7 the requester retries without a limit"
            }
            Self::WrongAnswer { .. } => "check that both sides use the same version",
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
    /// The QP refused an earlier packet and serves no more.
    #[error("the QP refused an earlier request and no longer processes packets")]
    Dead,
    /// The packet is for another service than this queue pair's.
    #[error("received {opcode} on a {service} QP")]
    Service {
        /// The opcode of the packet.
        opcode: Opcode,
        /// The queue pair's service.
        service: Service,
    },
    /// Packets before this one are missing. They have been requested again.
    #[error("received packet {got}, expected {expected}")]
    Sequence {
        /// The expected packet.
        expected: Psn,
        /// The packet that arrived.
        got: Psn,
    },
    /// A repeated READ or atomic that is no longer remembered, or never was.
    #[error("{opcode} with packet {psn} is a duplicate of a request that is no longer stored")]
    Forgotten {
        /// The opcode of the packet.
        opcode: Opcode,
        /// Its number.
        psn: Psn,
    },
    /// The rest of a message whose beginning was lost or dropped.
    #[error("{opcode} continues a message that was abandoned")]
    Abandoned {
        /// The opcode of the packet.
        opcode: Opcode,
    },
    /// A datagram with another Q_Key.
    #[error("received Q_Key {got:#x}, expected {expected:#x}")]
    QKey {
        /// The queue pair's Q_Key.
        expected: u32,
        /// The packet's Q_Key.
        got: u32,
    },
    /// A packet that cannot follow the one before it.
    #[error("received {opcode} out of order within a message")]
    Order {
        /// The opcode of the packet.
        opcode: Opcode,
    },
    /// The queue pair's access flags do not allow the operation.
    #[error("received {opcode}, but the QP's access flags {access:#x} do not allow it")]
    NotAllowed {
        /// The opcode of the packet.
        opcode: Opcode,
        /// The queue pair's access flags.
        access: u32,
    },
    /// More READs and atomics than agreed are outstanding.
    #[error("more READs and atomics at once than max_dest_rd_atomic, which is {limit}")]
    TooManyReads {
        /// The agreed number.
        limit: u8,
    },
    /// A payload or message with a wrong length.
    #[error("{opcode} with {got} bytes, MTU {mtu}: the length does not fit")]
    Length {
        /// The opcode of the packet.
        opcode: Opcode,
        /// Bytes of its payload.
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
    /// A FLUSH with an unknown placement or selectivity.
    #[error("FLUSH with placement {:#x}, selectivity {}: these values are not valid", feth.placement, feth.selectivity)]
    Placement {
        /// The FLUSH header.
        feth: Feth,
    },
    /// The executor refused the packet, and knows why.
    #[error("the memory or the receive request did not fit")]
    Executor,
    /// An unreliable message found no receive request.
    #[error("no receive request was posted")]
    NoReceive,
}

impl Fault {
    /// The status of the receive request that the message has taken. For `Executor`, the caller
    /// decides the status.
    #[must_use]
    pub const fn receive_status(&self) -> Status {
        match self {
            Fault::Length { .. } => Status::LocLenErr,
            Fault::Executor => Status::LocAccessErr,
            _ => Status::RemInvReqErr,
        }
    }

    /// What a program can do about it, if that can be known here.
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
