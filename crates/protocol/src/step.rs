//! What passes between a responder and its caller: steps to carry out, how they went, answers to send. Only data, no behaviour.
//! Principal types: [`Step`], [`Outcome`], [`Response`].

use crate::{Access, Fault};
use wire::{Headers, NakCode};

/// What the executor has to do about a packet. After any but the first three comes [`crate::Responder::finish`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Step {
    /// Nothing: the packet is dropped.
    Ignore(Fault),
    /// Nothing, but there is something to transmit: a repetition, or a refusal (then [`crate::Responder::dead`] says so).
    Reply,
    /// It comes before one that is missing: keep it for a moment, or say [`crate::Responder::missed`]. Only where
    /// [`crate::Responder::keep_out_of_order`] was said.
    OutOfOrder,
    /// Payload for a receive request.
    Receive {
        /// Where in the message it begins. The 40 bytes before a datagram are not counted.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// A message begins: take a receive request, or the one still held from a message that was abandoned.
        first: bool,
        /// The message ends: complete the receive request so.
        last: Option<RecvEnd>,
    },
    /// Payload for memory: bytes `[offset, offset + len)` of the `total` that begin at `va`.
    Write {
        /// Where the message goes.
        va: u64,
        /// The key that opens it; not to be looked at when `total` is 0.
        rkey: u32,
        /// Bytes of the whole message.
        total: u32,
        /// Where in the message the payload begins.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// The message begins: check the key for all of it.
        first: bool,
        /// The message ends.
        last: bool,
        /// Immediate data: take a receive request and complete it so. See that there is one before writing.
        imm: Option<RecvEnd>,
    },
    /// Check that `len` bytes may be read; they are asked for later, by [`crate::Responder::poll_transmit`].
    Read {
        /// Where they are.
        va: u64,
        /// The key that opens them; not to be looked at when `len` is 0.
        rkey: u32,
        /// How many.
        len: u32,
    },
    /// Carry it out once, now, and say what the word was.
    Atomic {
        /// Which.
        op: AtomicOp,
        /// Where the word is; a multiple of 8.
        va: u64,
        /// The key that opens it.
        rkey: u32,
        /// The new value, or what is added.
        swap_add: u64,
        /// The value that compare-and-swap expects.
        compare: u64,
    },
    /// Put the payload, eight bytes, there at one moment.
    AtomicWrite {
        /// Where the word is; a multiple of 8.
        va: u64,
        /// The key that opens it.
        rkey: u32,
    },
    /// See that what was written before is where it shall be; then say so.
    Flush {
        /// Where the range begins.
        va: u64,
        /// The key that opens it, which is looked at even if `len` is 0.
        rkey: u32,
        /// Bytes of the range.
        len: u32,
        /// All of the key's region is meant, whatever the range.
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

/// What the completion of a receive request says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecvEnd {
    /// Bytes of the message. The 40 bytes before a datagram are not counted.
    pub byte_len: u32,
    /// Immediate data.
    pub imm: Option<u32>,
    /// The key to invalidate.
    pub invalidate: Option<u32>,
    /// It is a solicited one.
    pub solicited: bool,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is done.
    Done,
    /// The atomic is done; the word was this.
    AtomicDone(u64),
    /// No receive request is there; nothing was changed.
    Rnr,
    /// It cannot be done. RC: the requester is told and the responder is dead; UC and UD: the message is abandoned.
    Refused(Nak),
    /// As if the packet had never come.
    Dropped,
}

/// What a requester is told when it is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nak {
    /// Not a request that is served; or a message longer than its receive request.
    InvalidRequest,
    /// The key, the range or the right does not fit.
    RemoteAccess,
    /// The responder's own memory failed it.
    RemoteOperational,
    /// XRC: the shared receive queue that it names is not one of the domain.
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

/// The end of an RC responder: what the requester is told, and why. The queue pair goes to ERR, once the NAK is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What the requester is told.
    pub nak: Nak,
    /// Why.
    pub fault: Fault,
}

/// A packet to be sent in answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// The headers.
    pub headers: Headers,
    /// Where the payload comes from.
    pub source: Source,
}

/// Where an answer's payload comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// There is none.
    None,
    /// Bytes `[va + offset, va + offset + len)`, if `rkey` still opens them; else say [`crate::Responder::read_failed`].
    Read {
        /// Where the READ began.
        va: u64,
        /// The key; not to be looked at when `len` is 0.
        rkey: u32,
        /// Where this packet is in the READ.
        offset: u32,
        /// Bytes of payload.
        len: u32,
        /// XRC: the shared receive queue on whose protection domain the key is.
        xrc_srq: u32,
    },
}
