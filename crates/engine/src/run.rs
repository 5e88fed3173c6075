//! Packets to be sent: their headers, and where their payload comes from. Where they go is in
//! `exit.rs`. Principal type: [`OutgoingRun`].

use protocol::{Requester, Responder, Response};
use wire::{Headers, Psn, Qpn};

use crate::wqe::Ring;

/// The source of a packet's payload.
#[derive(Clone, Copy)]
pub(crate) enum Origin<'a> {
    Nothing,
    /// The engine's own bytes.
    Bytes(&'a [u8]),
    /// Part of the gather list of the request at `index`, or of its inline data.
    Request {
        sq: &'a Ring,
        index: u32,
        offset: u32,
    },
    /// Registered memory that a peer reads.
    Memory {
        pd: u32,
        rkey: u32,
        addr: u64,
    },
}

impl<'a> Origin<'a> {
    /// The payload of these packets.
    #[inline(always)]
    pub(crate) fn of_request(sq: &'a Ring, run: &protocol::Run) -> Self {
        if run.len == 0 {
            return Self::Nothing;
        }
        Self::Request { sq, index: run.slot, offset: run.offset }
    }
}

/// Packets of one message with consecutive numbers and consecutive payload. They have the same
/// headers, except for the number and the request for an acknowledgement. Most runs have one
/// packet.
///
/// The fields are values, and rare cases that a function of its own handles get a copy. So the
/// compiler keeps the run of the common case in registers.
#[derive(Clone, Copy)]
pub(crate) struct OutgoingRun<'a> {
    /// The sender.
    pub(crate) src_qp: Qpn,
    pub(crate) headers: RunHeaders<'a>,
    pub(crate) count: u32,
    /// Bytes of payload in each packet.
    pub(crate) len: u32,
    /// The payload.
    pub(crate) from: Origin<'a>,
}

/// The headers of a run.
#[derive(Clone, Copy)]
pub(crate) enum RunHeaders<'a> {
    /// Packets that the requester has just returned.
    Request(&'a Requester, protocol::Run),
    /// An answer of the responder.
    Answer(&'a Responder, Response),
    /// These headers, with consecutive numbers.
    Full(&'a Headers),
}

impl RunHeaders<'_> {
    /// Bytes of the headers of one packet.
    #[inline]
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Request(_, run) => run.opcode.headers_len(),
            Self::Answer(_, response) => response.opcode.headers_len(),
            Self::Full(headers) => headers.len(),
        }
    }

    /// Encodes the headers of the packet with this index. `bytes` has room for all headers.
    #[inline(always)]
    pub(crate) fn emit(self, index: u32, bytes: &mut [u8]) -> usize {
        match self {
            Self::Request(requester, run) => requester.emit(&run, index, bytes),
            Self::Answer(responder, response) => responder.emit(&response, index, bytes),
            Self::Full(_) => self.emit_full(index, bytes),
        }
    }

    #[inline(never)]
    fn emit_full(self, index: u32, bytes: &mut [u8]) -> usize {
        self.full(index).emit(bytes).expect("there is room for all headers")
    }

    /// The number of the packet with this index, and whether it requests an acknowledgement.
    #[inline]
    pub(crate) fn number(self, index: u32) -> (Psn, bool) {
        match self {
            Self::Request(_, run) => (run.psn(index), run.ack_req(index)),
            Self::Answer(_, response) => (response.psn + index, false),
            Self::Full(headers) => (headers.psn + index, headers.ack_req),
        }
    }

    /// The headers of the packet with this index.
    #[cold]
    pub(crate) fn full(self, index: u32) -> Headers {
        match self {
            Self::Request(requester, run) => {
                let (psn, ack_req) = self.number(index);
                Headers { psn, ack_req, ..requester.headers(&run) }
            }
            Self::Answer(responder, response) => Headers { psn: response.psn + index, ..responder.headers(&response) },
            Self::Full(headers) => Headers { psn: headers.psn + index, ..*headers },
        }
    }
}
