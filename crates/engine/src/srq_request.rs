//! Requests and replies for a remote SRQ, as records on a lane: what the engine of an XRC target
//! asks the engine of an SRQ to do, and its reply. They are sent in `remote_srq/requests.rs` and
//! carried out in `proxy.rs`.
//!
//! ```text
//! request: 0  as a packet's first 16 bytes, the source QPN being the target's
//!         16  [bulk: offset u32] id u32 · kind u8 · first u8 · port u8 · SL u8 · token u64
//!             offset u32 · total u32 · VA u64 · rkey u32 · initiator's QPN u32 · connection u32,
//!             then the transport headers and the payload of the packet to which it refers
//! reply:   0  as above
//!         16  [bulk: offset u32] id u32 · outcome u8 · NAK u8 · status u8 (255: none) · 0
//!             value u64, then the fetched bytes
//! ```
//! Decoded data is untrusted. Principal types: [`SrqRequest`] and [`SrqReply`].

use protocol::{Access, AtomicOp, Nak, Outcome, RecvEnd, Status, Step};
use wire::feth::selectivity;
use wire::{Headers, Operation, Qpn};

use crate::cell::{self, Packet, Path, Payload, flag};

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Part of a SEND.
    Receive,
    /// Part of a WRITE.
    Write,
    /// Check whether memory may be read.
    Read,
    Atomic,
    AtomicWrite,
    Flush,
    /// Read memory.
    Fetch,
    /// The current message will not be continued.
    End,
}

const KINDS: [Kind; 8] =
    [Kind::Receive, Kind::Write, Kind::Read, Kind::Atomic, Kind::Fetch, Kind::End, Kind::AtomicWrite, Kind::Flush];

/// A request, without the packet to which it refers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqRequest {
    pub(crate) id: u32,
    pub(crate) kind: Kind,
    /// A message begins.
    pub(crate) first: bool,
    pub(crate) port: u8,
    pub(crate) sl: u8,
    /// The domain's secret, which only engines that have opened the domain know.
    pub(crate) token: u64,
    /// The offset of the payload in the message.
    pub(crate) offset: u32,
    /// The length of the message, or of the range to read.
    pub(crate) total: u32,
    pub(crate) va: u64,
    pub(crate) rkey: u32,
    /// The initiator's QP.
    pub(crate) peer: u32,
    /// The number of the target's connection.
    pub(crate) connection: u32,
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SrqReply {
    pub(crate) id: u32,
    pub(crate) outcome: Outcome,
    /// The error status of the receive request, if it ended with one.
    pub(crate) status: Option<Status>,
}

/// The length of a request after the first 16 bytes.
const REQUEST: usize = 44;
/// The length of a reply after the first 16 bytes.
const REPLY: usize = 16;
const NO_STATUS: u8 = 255;

const NAKS: [Nak; 4] = [Nak::InvalidRequest, Nak::RemoteAccess, Nak::RemoteOperational, Nak::InvalidRd];
/// The error statuses with which a message can end a receive request.
const STATUSES: [Status; 5] =
    [Status::LocLenErr, Status::LocProtErr, Status::LocAccessErr, Status::RemInvReqErr, Status::WrFlushErr];

impl SrqRequest {
    /// The request for a step.
    pub(crate) fn of(step: &Step) -> Self {
        let nothing = Self {
            id: 0,
            kind: Kind::Atomic,
            first: true,
            port: 0,
            sl: 0,
            token: 0,
            offset: 0,
            total: 0,
            va: 0,
            rkey: 0,
            peer: 0,
            connection: 0,
        };
        match *step {
            Step::Receive { offset, first, .. } => Self { kind: Kind::Receive, offset, first, ..nothing },
            Step::Write { va, rkey, total, offset, first, .. } => {
                Self { kind: Kind::Write, va, rkey, total, offset, first, ..nothing }
            }
            Step::Read { va, rkey, len } => Self { kind: Kind::Read, va, rkey, total: len, ..nothing },
            Step::Atomic { va, rkey, .. } => Self { va, rkey, ..nothing },
            Step::AtomicWrite { va, rkey } => Self { kind: Kind::AtomicWrite, va, rkey, ..nothing },
            Step::Flush { va, rkey, len, .. } => Self { kind: Kind::Flush, va, rkey, total: len, ..nothing },
            Step::Ignore(_) | Step::Reply | Step::OutOfOrder => nothing,
        }
    }

    /// The step of the request; `None` if it is invalid.
    pub(crate) fn step(&self, packet: &Packet) -> Option<Step> {
        let Headers { opcode, imm, ieth, solicited, atomic, feth, .. } = packet.headers;
        let (offset, len, first, last) = (self.offset, u32::from(packet.len), self.first, opcode.place().ends());
        let end = |byte_len: u32| RecvEnd {
            byte_len,
            imm: opcode.has_immdt().then_some(imm),
            invalidate: opcode.has_ieth().then_some(ieth),
            solicited,
        };
        let (va, rkey, total) = (self.va, self.rkey, self.total);
        match self.kind {
            Kind::Receive if opcode.is_send() => {
                let whole = offset.checked_add(len)?;
                Some(Step::Receive { offset, len, first, last: last.then(|| end(whole)) })
            }
            Kind::Write if opcode.is_write() && offset.checked_add(len)? <= total => {
                let imm = (last && opcode.has_immdt()).then(|| end(total));
                Some(Step::Write { va, rkey, total, offset, len, first, last, imm })
            }
            Kind::Read => Some(Step::Read { va, rkey, len: total }),
            Kind::Atomic if opcode.is_atomic() && va.is_multiple_of(8) => {
                let op =
                    if opcode.operation == Operation::CompareSwap { AtomicOp::CmpSwap } else { AtomicOp::FetchAdd };
                Some(Step::Atomic { op, va, rkey, swap_add: atomic.swap_add, compare: atomic.compare })
            }
            Kind::AtomicWrite if opcode.operation == Operation::AtomicWrite && len == 8 && va.is_multiple_of(8) => {
                Some(Step::AtomicWrite { va, rkey })
            }
            Kind::Flush if opcode.is_flush() => {
                let access = Access::for_flush(feth).ok()?;
                Some(Step::Flush { va, rkey, len: total, region: feth.selectivity == selectivity::REGION, access })
            }
            _ => None,
        }
    }

    /// Writes everything before the payload; returns the length written.
    pub(crate) fn encode(&self, packet: &Packet, record: &mut [u8]) -> usize {
        let mut at = head(record, flag::SRQ_REQUEST, packet);
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or_default() as u8;
        record[at..at + 4].copy_from_slice(&self.id.to_le_bytes());
        record[at + 4..at + 8].copy_from_slice(&[kind, u8::from(self.first), self.port, self.sl]);
        record[at + 8..at + 16].copy_from_slice(&self.token.to_le_bytes());
        record[at + 16..at + 20].copy_from_slice(&self.offset.to_le_bytes());
        record[at + 20..at + 24].copy_from_slice(&self.total.to_le_bytes());
        record[at + 24..at + 32].copy_from_slice(&self.va.to_le_bytes());
        record[at + 32..at + 36].copy_from_slice(&self.rkey.to_le_bytes());
        record[at + 36..at + 40].copy_from_slice(&self.peer.to_le_bytes());
        record[at + 40..at + 44].copy_from_slice(&self.connection.to_le_bytes());
        at += REQUEST;
        at + packet.headers.emit(&mut record[at..]).expect("a record has room for every header")
    }

    /// The length that `encode` will write.
    pub(crate) fn len(packet: &Packet) -> usize {
        16 + REQUEST + packet.headers.len()
    }

    /// Parses the bytes after the first 16 and the place in bulk.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, Headers, usize)> {
        let fixed: &[u8; REQUEST] = bytes.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let request = Self {
            id: word(0),
            kind: *KINDS.get(usize::from(fixed[4]))?,
            first: fixed[5] != 0,
            port: fixed[6],
            sl: fixed[7],
            token: long(8),
            offset: word(16),
            total: word(20),
            va: long(24),
            rkey: word(32),
            peer: word(36),
            connection: word(40),
        };
        let headers = Headers::parse(&bytes[REQUEST..]).ok()?;
        Some((request, headers, REQUEST + headers.len()))
    }
}

impl SrqReply {
    /// Writes everything before the payload of `packet.len` bytes; returns the length written.
    pub(crate) fn encode(&self, packet: &Packet, record: &mut [u8]) -> usize {
        let at = head(record, flag::SRQ_REPLY, packet);
        let (outcome, nak, value) = match self.outcome {
            Outcome::Done => (0, 0, 0),
            Outcome::AtomicDone(value) => (1, 0, value),
            Outcome::Rnr => (2, 0, 0),
            Outcome::Refused(nak) => (3, NAKS.iter().position(|known| *known == nak).unwrap_or_default() as u8, 0),
            Outcome::Dropped => (3, 0, 0),
        };
        let status = self.status.map_or(NO_STATUS, |status| status.as_u32() as u8);
        record[at..at + 4].copy_from_slice(&self.id.to_le_bytes());
        record[at + 4..at + 8].copy_from_slice(&[outcome, nak, status, 0]);
        record[at + 8..at + 16].copy_from_slice(&value.to_le_bytes());
        at + REPLY
    }

    /// The length that `encode` will write.
    pub(crate) const LEN: usize = 16 + REPLY;

    /// Parses the bytes after the first 16 and the place in bulk.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let fixed: &[u8; REPLY] = bytes.first_chunk()?;
        let mut value = [0; 8];
        value.copy_from_slice(&fixed[8..]);
        let outcome = match fixed[4] {
            0 => Outcome::Done,
            1 => Outcome::AtomicDone(u64::from_le_bytes(value)),
            2 => Outcome::Rnr,
            3 => Outcome::Refused(*NAKS.get(usize::from(fixed[5]))?),
            _ => return None,
        };
        let status = match fixed[6] {
            NO_STATUS => None,
            number => Some(*STATUSES.iter().find(|status| status.as_u32() == u32::from(number))?),
        };
        let id = u32::from_le_bytes([fixed[0], fixed[1], fixed[2], fixed[3]]);
        Some((Self { id, outcome, status }, REPLY))
    }
}

/// The packet of a record about a target, with `len` bytes of payload.
pub(crate) fn about(target: u32, headers: Headers, len: u16) -> Packet {
    Packet { path: Path::default(), src_qp: Qpn::new(target), headers, grh: None, len, payload: Payload::Inline(0) }
}

fn head(record: &mut [u8], kind: u8, packet: &Packet) -> usize {
    let bulk = if matches!(packet.payload, Payload::Bulk(_)) { flag::BULK } else { 0 };
    cell::write_head(record, packet.path, kind | bulk, packet.src_qp, packet.len);
    match packet.payload {
        Payload::Inline(_) => 16,
        Payload::Bulk(offset) => {
            record[16..20].copy_from_slice(&offset.to_le_bytes());
            20
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Cell, decode};
    use wire::{Opcode, Transport};

    fn packet(operation: Operation, payload: Payload) -> Packet {
        let headers =
            Headers { opcode: Opcode::new(Transport::Xrc, operation), xrc_srq: 77, imm: 5, ..Headers::default() };
        Packet { payload, ..about(0x1234, headers, 9) }
    }

    #[test]
    fn a_request_decodes_as_it_was_encoded() {
        for kind in KINDS {
            let request = SrqRequest {
                id: 7,
                kind,
                first: false,
                port: 1,
                sl: 2,
                token: 0x1122_3344_5566_7788,
                offset: 3,
                total: 4,
                va: 0x99aa_bbcc_ddee_ff00,
                rkey: 5,
                peer: 6,
                connection: 8,
            };
            let mut record = [0; shm::RECORD_MAX];
            let far = packet(Operation::WriteLastImm, Payload::Bulk(4096));
            request.encode(&far, &mut record);
            assert_eq!(decode(&record), Some(Cell::SrqRequest(far, request)));
            let near = packet(Operation::WriteLastImm, Payload::Inline(0));
            let len = request.encode(&near, &mut record);
            assert_eq!(len, SrqRequest::len(&near));
            assert_eq!(
                decode(&record),
                Some(Cell::SrqRequest(Packet { payload: Payload::Inline(len), ..near }, request))
            );
            assert_eq!(decode(&record[..len + 8]), None, "the payload ends outside of the record");
        }
    }

    #[test]
    fn a_reply_decodes_as_it_was_encoded() {
        let outcomes = [Outcome::Done, Outcome::AtomicDone(1 << 40), Outcome::Rnr, Outcome::Refused(Nak::InvalidRd)];
        for (outcome, status) in outcomes.into_iter().flat_map(|o| [(o, None), (o, Some(Status::LocLenErr))]) {
            let reply = SrqReply { id: 9, outcome, status };
            let mut record = [0; shm::RECORD_MAX];
            let about = about(0x1234, Headers::default(), 3);
            let len = reply.encode(&about, &mut record);
            assert_eq!(len, SrqReply::LEN);
            let Some(Cell::SrqReply(got, told)) = decode(&record) else { panic!("a reply") };
            assert_eq!((got.src_qp, got.len, got.payload, told), (about.src_qp, 3, Payload::Inline(len), reply));
        }
    }

    #[test]
    fn steps_that_are_none_are_refused() {
        let send = packet(Operation::SendOnly, Payload::Inline(0));
        let request = SrqRequest::of(&Step::Receive { offset: 4, len: 9, first: false, last: None });
        assert!(matches!(request.step(&send), Some(Step::Receive { offset: 4, len: 9, first: false, last: Some(_) })));
        assert_eq!(SrqRequest { offset: u32::MAX, ..request }.step(&send), None);
        assert_eq!(SrqRequest { kind: Kind::Write, total: 12, ..request }.step(&send), None, "a SEND is no WRITE");
        let write = packet(Operation::WriteOnly, Payload::Inline(0));
        assert_eq!(SrqRequest { kind: Kind::Write, total: 12, ..request }.step(&write), None, "more than it said");
    }
}
