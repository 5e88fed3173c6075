//! The work requests that a program posts to a stream. Principal type: [`Request`].

use crate::ddp::Stag;
use crate::rdmap::Atomic;

/// Immediate data, which consumes a receive request of the peer. RFC 7306, section 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Immediate {
    /// The data.
    pub data: [u8; 8],
    /// Solicit an event at the peer.
    pub solicited: bool,
}

/// What a work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A message to a receive request of the peer.
    Send {
        /// The region of the peer that the message invalidates.
        invalidate: Option<Stag>,
        /// Solicit an event at the peer.
        solicited: bool,
    },
    /// A WRITE to the peer's memory.
    Write {
        /// The peer's region.
        stag: Stag,
        /// The offset in that region.
        to: u64,
        /// Immediate data behind the WRITE.
        immediate: Option<Immediate>,
    },
    /// Immediate data alone.
    Immediate(Immediate),
    /// A READ from the peer's memory.
    Read {
        /// The peer's region.
        source: Stag,
        /// The offset in that region.
        source_to: u64,
        /// This side's region, which the response repeats.
        sink: Stag,
        /// The offset in that region.
        sink_to: u64,
    },
    /// An atomic on the peer's memory.
    Atomic {
        /// The peer's region.
        target: Stag,
        /// The offset in that region.
        target_to: u64,
        /// What is done.
        atomic: Atomic,
    },
    /// Something that the owner executes when all work before has been sent.
    Local,
}

impl Operation {
    /// Whether the peer answers.
    pub(crate) const fn is_answered(&self) -> bool {
        matches!(self, Operation::Read { .. } | Operation::Atomic { .. })
    }

    /// Whether the operation ends with a message to a receive request of the peer.
    pub(crate) const fn has_send_msn(&self) -> bool {
        matches!(self, Operation::Send { .. } | Operation::Immediate(_) | Operation::Write { immediate: Some(_), .. })
    }
}

/// A work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The owner's number.
    pub work: u64,
    /// What it does.
    pub operation: Operation,
    /// The bytes of a SEND, WRITE or READ; otherwise 0.
    pub len: u32,
    /// Wait until all earlier READs and atomics are done.
    pub fence: bool,
}

/// Why a work request cannot be posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The stream is closing or closed.
    #[error("the connection is closing or closed")]
    Closed,
    /// The send queue is full.
    #[error("the send queue is full")]
    Full,
    /// The connection was made without READs.
    #[error("the peers agreed on an ORD of 0, so READs and atomics cannot be sent")]
    NoReads,
}
