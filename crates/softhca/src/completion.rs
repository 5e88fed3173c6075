//! Completions: how a request ended, and the memory that it gives back. Principal type:
//! [`Completion`].

use std::fmt;

use abi::cq::{Wc, opcode, wc_flags};
use engine::Engine;
use protocol::Status;

use crate::endpoint::Source;
use crate::error::{Error, Result};
use crate::gid::Gid;
use crate::memory::Buffer;
use crate::message::Parts;
use crate::operation::{Operation, reason, status};

#[cfg(feature = "tokio")]
use crate::rejected::Rejected;

/// Number of bytes before the payload of a received datagram.
pub(crate) const DATAGRAM_HEADER: usize = wire::grh::LEN;

/// What was posted: the id that the program gave, the operation, and the memory.
pub(crate) struct Posted {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) parts: Parts,
}

/// The end of a request, successful or not. It contains the buffers that were posted.
pub struct Completion {
    id: u64,
    qp: u32,
    operation: Operation,
    status: Status,
    bytes: usize,
    immediate: Option<u32>,
    /// QPN of a datagram's sender.
    source_qp: Option<u32>,
    /// Why the request failed.
    why: Option<Box<str>>,
    parts: Parts,
}

impl Completion {
    /// The completion of a request on one of the engine's queue pairs.
    pub(crate) fn new(wc: &Wc, posted: Posted, datagrams: bool, engine: &Engine) -> Self {
        let Posted { id, operation: posted, parts } = posted;
        let status = status(wc.status);
        let good = status == Status::Success;
        let datagram = datagrams && posted.is_receive() && good;
        let operation = if good && wc.opcode == opcode::RECV_RDMA_WITH_IMM { Operation::ReceiveWrite } else { posted };
        let before = if datagram { DATAGRAM_HEADER } else { 0 };
        let bytes = match posted {
            Operation::Batch => parts.total() as usize,
            _ => (wc.byte_len as usize).saturating_sub(before),
        };
        Self {
            id,
            qp: wc.qp_num,
            operation,
            status,
            bytes: if good { bytes } else { 0 },
            immediate: (good && wc.wc_flags & wc_flags::WITH_IMM != 0).then(|| u32::from_be(wc.imm_data)),
            source_qp: datagram.then_some(wc.src_qp),
            why: (!good).then(|| reason(status, wc, engine)),
            parts,
        }
    }

    /// The id that the request was posted with.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The number of the queue pair.
    #[must_use]
    pub fn qp(&self) -> u32 {
        self.qp
    }

    /// The operation that was executed, or tried.
    #[must_use]
    pub fn operation(&self) -> Operation {
        self.operation
    }

    /// The status of the request.
    #[must_use]
    pub fn status(&self) -> Status {
        self.status
    }

    /// Number of bytes that were transferred; 0 when the request failed. For a datagram the header
    /// before the payload is not counted. For a batch the bytes of all its buffers are counted.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The immediate data of the message.
    #[must_use]
    pub fn immediate(&self) -> Option<u32> {
        self.immediate
    }

    /// The sender of a received datagram.
    #[must_use]
    pub fn source(&self) -> Option<Source> {
        let mut header = [0; DATAGRAM_HEADER];
        let qpn = self.source_qp?;
        self.parts.as_slice().first()?.head(&mut header)?;
        let (source, destination) = wire::grh::Network::parse(&header).ok()?.gids();
        Some(Source { gid: Gid(source), qpn, destination: Gid(destination) })
    }

    /// The data that was received or read, as far as it is in the first buffer. For a datagram this
    /// is its payload. Empty when the request failed, and for a batch, which gives its buffers
    /// back.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        use Operation as O;
        let moved = matches!(self.operation, O::Receive | O::Read | O::FetchAdd | O::CompareSwap);
        let Some(part) = self.parts.as_slice().first().filter(|_| moved) else { return &[] };
        let Some(buffer) = part.owned() else { return &[] };
        let before = if self.source_qp.is_some() { DATAGRAM_HEADER } else { 0 };
        let end = (before + self.bytes).min(part.len());
        &buffer[part.at() + before.min(end)..part.at() + end]
    }

    /// The previous value of the peer's word after an atomic, in native byte order.
    #[must_use]
    pub fn word(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        let atomic = matches!(self.operation, Operation::FetchAdd | Operation::CompareSwap);
        self.parts.as_slice().first().filter(|_| atomic && self.status == Status::Success)?.head(&mut bytes)?;
        Some(u64::from_ne_bytes(bytes))
    }

    /// Returns the completion if the request succeeded.
    ///
    /// # Errors
    /// The status with its reason. The buffers are dropped then; look at [`Completion::status`]
    /// first to keep them.
    pub fn ok(self) -> Result<Self> {
        match self.error() {
            None => Ok(self),
            Some(error) => Err(error),
        }
    }

    /// Returns the completion if the request succeeded, else its buffers with the reason.
    #[cfg(feature = "tokio")]
    pub(crate) fn settled(self) -> Result<Self, Rejected> {
        match self.error() {
            None => Ok(self),
            Some(error) => Err(Rejected { error, buffers: self.into_buffers() }),
        }
    }

    /// Why the request failed, if it did.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        let Self { status, id, qp, .. } = *self;
        let reason = self.why.as_deref()?.to_owned();
        Some(Error::Failed { status, id, qp, reason })
    }

    /// The sentence that says why the request failed and, where known, what to do. For a flushed
    /// request: why its queue pair entered the error state first.
    #[must_use]
    pub fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The whole buffer that was posted; the first if there were several.
    ///
    /// # Panics
    /// If no buffer was posted: inline data and exposed memory. Use [`Completion::into_buffers`]
    /// where that is possible.
    #[must_use]
    pub fn into_buffer(self) -> Buffer {
        self.parts.into_buffer().expect("the request was posted with a buffer")
    }

    /// The whole buffers that were posted, in their order; for a batch the buffers of all its
    /// requests.
    #[must_use]
    pub fn into_buffers(self) -> Vec<Buffer> {
        self.parts.into_buffers()
    }
}

impl fmt::Debug for Completion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completion")
            .field("id", &self.id)
            .field("qp", &format_args!("{:#x}", self.qp))
            .field("operation", &self.operation)
            .field("status", &self.status)
            .field("bytes", &self.bytes)
            .field("immediate", &self.immediate)
            .finish_non_exhaustive()
    }
}
