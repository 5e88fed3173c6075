//! The data that pass between a responder and its caller: steps to carry out, their outcomes,
//! answers to send. Only data, no behaviour. Principal types: [`Step`], [`Outcome`], [`Response`].

use crate::reason::Fault;
use crate::responder::Access;
use wire::{Aeth, NakCode, Opcode, Psn};

/// What the executor must do about a packet. After every step except the first three, the caller
/// calls [`crate::Responder::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Nothing: the packet is dropped.
    Ignore(Fault),
    /// Nothing, but there is an answer to transmit: for a repetition, or a refusal (then
    /// [`crate::Responder::dead`] returns it).
    Reply,
    /// The packet comes before one that is missing. Keep it for a short time, or call
    /// [`crate::Responder::missed`]. Only after [`crate::Responder::keep_out_of_order`].
    OutOfOrder,
    /// Payload for a receive request.
    Receive {
        /// The payload's offset in the message. The 40 bytes before a datagram are not counted.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// A message begins: take a receive request, or the one that an abandoned message still
        /// holds.
        first: bool,
        /// The message ends: complete the receive request with these values.
        last: Option<RecvEnd>,
    },
    /// Payload for memory: bytes `[offset, offset + len)` of the `total` bytes that begin at `va`.
    Write {
        /// Where the message begins in memory.
        va: u64,
        /// The rkey; it must not be checked when `total` is 0.
        rkey: u32,
        /// Bytes of the whole message.
        total: u32,
        /// The payload's offset in the message.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// The message begins: check the key for the whole message.
        first: bool,
        /// The message ends.
        last: bool,
        /// Immediate data: take a receive request and complete it with these values. Make sure that
        /// there is one before writing.
        imm: Option<RecvEnd>,
    },
    /// Check that `len` bytes may be read. [`crate::Responder::poll_answer`] requests them later.
    Read {
        /// Where the bytes are.
        va: u64,
        /// The rkey; it must not be checked when `len` is 0.
        rkey: u32,
        /// How many bytes.
        len: u32,
    },
    /// Carry out the atomic once, now, and return the word's old value.
    Atomic {
        /// Which operation.
        op: AtomicOp,
        /// Where the word is; a multiple of 8.
        va: u64,
        /// The rkey.
        rkey: u32,
        /// The new value, or the value to add.
        swap_add: u64,
        /// The value that compare-and-swap expects.
        compare: u64,
    },
    /// Write the payload, eight bytes, atomically.
    AtomicWrite {
        /// Where the word is; a multiple of 8.
        va: u64,
        /// The rkey.
        rkey: u32,
    },
    /// Make sure that earlier writes have reached their placement, then report it.
    Flush {
        /// Where the range begins.
        va: u64,
        /// The rkey, which is checked even if `len` is 0.
        rkey: u32,
        /// Bytes of the range.
        len: u32,
        /// The whole region of the key is meant, whatever the range.
        region: bool,
        /// The rights that the memory must give.
        access: Access,
    },
}

/// The two atomic operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the IBA's own names")]
pub enum AtomicOp {
    CmpSwap,
    FetchAdd,
}

/// The values for the completion of a receive request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvEnd {
    /// Bytes of the message. The 40 bytes before a datagram are not counted.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub invalidate: Option<u32>,
    /// The completion is solicited.
    pub solicited: bool,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The step is done.
    Done,
    /// The atomic is done; this was the word's value before.
    AtomicDone(u64),
    /// There is no receive request. Nothing was changed.
    Rnr,
    /// The step cannot be done. RC: the requester is told, and the responder is dead. UC and UD:
    /// the message is abandoned.
    Refused(Nak),
    /// The packet counts as never received.
    Dropped,
}

/// The NAK that a refused requester gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// The request is not served, or the message is longer than its receive request.
    InvalidRequest,
    /// The key, the range or the access right is wrong.
    RemoteAccess,
    /// An access to the responder's own memory failed.
    RemoteOperational,
    /// XRC: the shared receive queue that the packet names does not belong to the domain.
    InvalidRd,
}

impl From<Nak> for NakCode {
    fn from(nak: Nak) -> NakCode {
        match nak {
            Nak::InvalidRequest => NakCode::InvalidRequest,
            Nak::RemoteAccess => NakCode::RemoteAccess,
            Nak::RemoteOperational => NakCode::RemoteOperational,
            Nak::InvalidRd => NakCode::InvalidRd,
        }
    }
}

/// The end of an RC responder: its NAK, and the reason. The queue pair goes to ERR once the NAK is
/// sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The NAK for the requester.
    pub nak: Nak,
    /// The reason.
    pub fault: Fault,
}

/// Packets to send as an answer. [`crate::Responder::headers`] returns the headers of the first
/// one. There is more than one only in the middle of an answer to a READ: packets with consecutive
/// numbers, the same headers, and `source.len()` bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Its kind.
    pub opcode: Opcode,
    /// The number of the first packet.
    pub psn: Psn,
    /// How many packets.
    pub count: u32,
    /// The acknowledgement.
    pub aeth: Aeth,
    /// The answer to an atomic: the word's old value.
    pub atomic_ack: u64,
    /// The source of the payload.
    pub source: ResponseData,
}

/// The source of an answer's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseData {
    /// The answer has no payload.
    None,
    /// Bytes `[va + offset, va + offset + count * len)`, if `rkey` still permits access. Otherwise
    /// call [`crate::Responder::read_failed`].
    Read {
        /// The READ's start address.
        va: u64,
        /// The rkey; it must not be checked when `len` is 0.
        rkey: u32,
        /// The first packet's offset in the READ.
        offset: u32,
        /// Bytes of payload in each packet.
        len: u32,
        /// XRC: the shared receive queue whose protection domain has the key.
        xrc_srq: u32,
    },
}

impl ResponseData {
    /// Bytes of payload in each packet.
    #[must_use]
    pub const fn len(&self) -> u32 {
        match self {
            Self::None => 0,
            Self::Read { len, .. } => *len,
        }
    }

    /// Whether the answer has no payload.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
