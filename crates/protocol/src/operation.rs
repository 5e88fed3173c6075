//! What passes between a requester and its caller: operations in, packets out, answers to place. Only data, no behaviour.
//! Principal types: [`SendOp`], [`Transmit`], [`Incoming`].

use std::fmt;
use wire::{Feth, Headers, Qpn};

/// What a send work request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the IBA's own names")]
pub enum Operation {
    #[default]
    Send,
    SendImm,
    SendInv,
    Write,
    WriteImm,
    Read,
    CmpSwap,
    FetchAdd,
    BindMw,
    LocalInv,
    AtomicWrite,
    Flush,
}

impl Operation {
    /// RDMA READ, the atomics, ATOMIC WRITE and FLUSH: each has an answer of its own, their number is limited, and a fence waits for
    /// them.
    #[must_use]
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Operation::Read | Operation::CmpSwap | Operation::FetchAdd) || self.is_confirmed()
    }

    /// ATOMIC WRITE and FLUSH: their answer is that of an RDMA READ of nothing.
    #[must_use]
    pub const fn is_confirmed(self) -> bool {
        matches!(self, Operation::AtomicWrite | Operation::Flush)
    }

    /// Compare-and-swap and fetch-and-add.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Operation::CmpSwap | Operation::FetchAdd)
    }

    /// Carried out at the requester, without a packet: see [`crate::Requester::poll_local`].
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Operation::BindMw | Operation::LocalInv)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Operation::Send => "SEND",
            Operation::SendImm => "SEND with immediate",
            Operation::SendInv => "SEND with invalidate",
            Operation::Write => "RDMA WRITE",
            Operation::WriteImm => "RDMA WRITE with immediate",
            Operation::Read => "RDMA READ",
            Operation::CmpSwap => "compare and swap",
            Operation::FetchAdd => "fetch and add",
            Operation::BindMw => "memory window bind",
            Operation::LocalInv => "local invalidate",
            Operation::AtomicWrite => "ATOMIC WRITE",
            Operation::Flush => "FLUSH",
        })
    }
}

/// Where a datagram goes. Unused by the connected services.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The receiving queue pair.
    pub dest_qp: Qpn,
    /// The key that it asks for. The rule for keys with the top bit set (the sender's own key is sent) is the caller's.
    pub qkey: u32,
}

/// One send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOp {
    /// The caller's name for it: comes back in [`Transmit`], [`Incoming`] and [`crate::Completion`].
    pub slot: u32,
    /// What it does.
    pub operation: Operation,
    /// Bytes of the message; 8 for the atomics and ATOMIC WRITE; those that a FLUSH is about.
    pub length: u32,
    /// RDMA and atomics: address at the responder.
    pub remote_addr: u64,
    /// RDMA and atomics: key at the responder.
    pub rkey: u32,
    /// Immediate data, or the key that SEND with invalidate invalidates.
    pub imm: u32,
    /// FLUSH: what it waits for.
    pub feth: Feth,
    /// Compare and swap: the expected value.
    pub compare: u64,
    /// The value to swap in, or to add.
    pub swap_add: u64,
    /// The receiver's completion is a solicited one.
    pub solicited: bool,
    /// Not to be started before all earlier READs and atomics are complete.
    pub fence: bool,
    /// UD only.
    pub dest: Destination,
    /// XRC only: the shared receive queue at the responder.
    pub xrc_srq: u32,
}

/// A packet to be sent: these headers, then bytes `[offset, offset + len)` of the gather list of the request in `slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The headers.
    pub headers: Headers,
    /// The request that it belongs to.
    pub slot: u32,
    /// Where its payload begins in the message.
    pub offset: u32,
    /// Bytes of payload; 0 for READ, atomic and FLUSH requests.
    pub len: u32,
}

/// What an answer asks the caller to do. After the two `Place` forms comes [`crate::Requester::placed`], before anything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Incoming {
    /// Nothing. There may be completions and packets to send, as after every call.
    Nothing,
    /// It comes before data that is missing: keep it for a moment, or say [`crate::Requester::missed_data`]. Only where
    /// [`crate::Requester::keep_out_of_order`] was said.
    OutOfOrder,
    /// The payload is bytes `[offset, offset + len)` of what the READ in `slot` asked for.
    Place {
        /// The READ.
        slot: u32,
        /// Where in its scatter list the payload begins.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// With these the READ is complete.
        last: bool,
    },
    /// The word as it was before the atomic in `slot`.
    PlaceAtomic {
        /// The atomic.
        slot: u32,
        /// The word.
        value: u64,
    },
}
