//! The send operations of a queue pair, and the data that pass between a requester and its caller:
//! operations in, packets out, answers to place. Principal types: [`SendOp`], [`Run`],
//! [`Incoming`], and [`Ring`], which keeps the operations, oldest to newest.
//!
//! Each operation in the ring has a running number that wraps. The requester keeps the positions,
//! the ring keeps the operations. The first post allocates memory. The memory doubles while the
//! queue fills, up to the depth. So an idle or little used queue pair stays small.

use std::fmt;
use wire::{Feth, Opcode, Psn, Qpn};

/// The longest message: 2^31 bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

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
    /// RDMA READ, the atomics, ATOMIC WRITE and FLUSH. Each has an answer of its own. Their number
    /// is limited, and a fence waits for them.
    #[must_use]
    #[inline(always)]
    pub const fn is_read_or_atomic(self) -> bool {
        matches!(self, Operation::Read | Operation::CmpSwap | Operation::FetchAdd) || self.is_confirmed()
    }

    /// ATOMIC WRITE and FLUSH. Their answer is that of an RDMA READ of zero bytes.
    #[must_use]
    pub const fn is_confirmed(self) -> bool {
        matches!(self, Operation::AtomicWrite | Operation::Flush)
    }

    /// Compare-and-swap and fetch-and-add.
    #[must_use]
    pub const fn is_atomic(self) -> bool {
        matches!(self, Operation::CmpSwap | Operation::FetchAdd)
    }

    /// Operations that the requester's side carries out without a packet: see
    /// [`crate::Requester::poll_local`].
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
    /// The receiver's Q_Key. The caller applies the rule for keys with the top bit set (then the
    /// sender's own key is sent).
    pub qkey: u32,
}

/// One send work request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendOp {
    /// The caller's name for the request. It comes back in [`Run`], [`Incoming`] and
    /// [`crate::Completion`].
    pub slot: u32,
    /// What it does.
    pub operation: Operation,
    /// Bytes of the message. 8 for the atomics and ATOMIC WRITE; the length of the range for a
    /// FLUSH.
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
    /// The receiver's completion is solicited.
    pub solicited: bool,
    /// The request must not start before all earlier READs and atomics are complete.
    pub fence: bool,
    /// UD only.
    pub dest: Destination,
    /// XRC only: the shared receive queue at the responder.
    pub xrc_srq: u32,
}

/// Consecutive packets of one request, to be sent now: several middle packets of a SEND or WRITE,
/// or one packet of another kind. They have the same headers, except for the packet number and the
/// request for an acknowledgement. [`crate::Requester::headers`] returns the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The number of the first packet; the others follow it.
    pub first: Psn,
    /// How many packets.
    pub count: u32,
    /// The kind of each packet.
    pub opcode: Opcode,
    /// Whether the last packet requests an acknowledgement; the others do not.
    pub asks: bool,
    /// The request that the packets belong to.
    pub slot: u32,
    /// The offset of the first packet's payload in the message: in the gather list of the request.
    pub offset: u32,
    /// Bytes of payload in each packet; 0 for READ, atomic and FLUSH requests.
    pub len: u32,
    /// How many packet numbers of the request are used up to the end of the run.
    pub(crate) end: u32,
    /// These are all of them.
    pub(crate) ends: bool,
}

impl Run {
    /// The first `most` packets of the run.
    #[inline]
    #[must_use]
    pub fn at_most(self, most: u32) -> Run {
        if self.count <= most {
            return self;
        }
        Run { count: most, asks: false, end: self.end - (self.count - most), ..self }
    }

    /// The number of the packet with this index.
    #[inline]
    #[must_use]
    pub fn psn(&self, index: u32) -> Psn {
        self.first + index
    }

    /// Whether the packet with this index requests an acknowledgement.
    #[inline]
    #[must_use]
    pub fn ack_req(&self, index: u32) -> bool {
        self.asks && index + 1 == self.count
    }
}

/// What the caller must do about an answer. After the two `Place` forms, the caller's next call
/// must be [`crate::Requester::placed`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Incoming {
    /// Nothing. As after every call, there may be completions and packets to send.
    Nothing,
    /// The answer comes before data that is missing. Keep it for a short time, or call
    /// [`crate::Requester::missed_data`]. Only after [`crate::Requester::keep_out_of_order`].
    OutOfOrder,
    /// The payload is bytes `[offset, offset + len)` of the data that the READ in `slot` requested.
    Place {
        /// The READ.
        slot: u32,
        /// Where in its scatter list the payload begins.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// These bytes complete the READ.
        last: bool,
    },
    /// The value that the word had before the atomic in `slot`.
    PlaceAtomic {
        /// The atomic.
        slot: u32,
        /// The word.
        value: u64,
    },
}

/// Entries that the first post allocates.
const FIRST: u32 = 8;

/// An operation. Once it has begun, also the number of its first packet, and its message number,
/// counted from 1.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueuedOperation {
    pub(crate) op: SendOp,
    pub(crate) first: Psn,
    pub(crate) number: u32,
}

#[derive(Debug)]
pub(crate) struct Ring {
    /// Its length is 0 or a power of two.
    entries: Box<[QueuedOperation]>,
    depth: u32,
}

impl Ring {
    pub(crate) fn new(depth: u32) -> Ring {
        Ring { entries: Box::default(), depth }
    }

    fn capacity(&self) -> u32 {
        // At most the next power of two of a u32 depth, see `grow`.
        self.entries.len() as u32
    }

    /// Puts `op` at `head`. `tail` is the oldest entry in use. Returns false if the queue is full.
    #[inline]
    pub(crate) fn put(&mut self, tail: u32, head: u32, op: SendOp) -> bool {
        let used = head.wrapping_sub(tail);
        if used >= self.depth {
            return false;
        }
        if used == self.capacity() {
            self.grow(tail, head);
        }
        *self.at_mut(head) = QueuedOperation { op, ..QueuedOperation::default() };
        true
    }

    #[cold]
    fn grow(&mut self, tail: u32, head: u32) {
        let capacity = (self.capacity() * 2).max(FIRST);
        let mut larger =
            Ring { entries: vec![QueuedOperation::default(); capacity as usize].into(), depth: self.depth };
        let mut index = tail;
        while index != head {
            *larger.at_mut(index) = *self.at(index);
            index = index.wrapping_add(1);
        }
        *self = larger;
    }

    /// The entry with a number that was put and is still in use.
    #[inline]
    pub(crate) fn at(&self, index: u32) -> &QueuedOperation {
        let mask = self.entries.len() - 1;
        &self.entries[index as usize & mask]
    }

    #[inline]
    pub(crate) fn at_mut(&mut self, index: u32) -> &mut QueuedOperation {
        let mask = self.entries.len() - 1;
        &mut self.entries[index as usize & mask]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(slot: u32) -> SendOp {
        SendOp { slot, ..SendOp::default() }
    }

    #[test]
    fn grows_with_what_is_in_it_and_stops_at_the_depth() {
        let mut ring = Ring::new(20);
        assert_eq!(ring.capacity(), 0, "nothing before the first post");
        let (mut tail, mut head) = (u32::MAX - 5, u32::MAX - 5);
        // Entries keep their numbers while the ring grows, also across the wrap of the numbers.
        for round in 0..1000u32 {
            while ring.put(tail, head, op(head)) {
                head = head.wrapping_add(1);
            }
            assert_eq!(head.wrapping_sub(tail), 20);
            for _ in 0..1 + round % 20 {
                assert_eq!(ring.at(tail).op.slot, tail);
                tail = tail.wrapping_add(1);
            }
        }
        assert_eq!(ring.capacity(), 32);
    }
}
