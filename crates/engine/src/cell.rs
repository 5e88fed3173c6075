//! Packets on their way: what is sent, the format of a record on a lane, and how a record is
//! parsed.
//!
//! An [`OutgoingRun`] is packets to be sent: their headers, and where their payload comes from. A
//! record has the path of the packet, its transport headers as on the wire, and the place of its
//! payload:
//!
//! ```text
//!  0  device 12 bits · port 4 bits · SLID u16 · DLID u16 · SL u8 · flags u8
//!  8  source QPN u32 · payload length u16 · MTU code u8 · reserved u8
//! 16  [bulk: offset u32] [GRH: 40 bytes] transport headers, then the payload if it
//!     is not in the bulk area
//! ```
//! There is no ICRC and no padding, because a lane is memory. Requests for a remote SRQ and their
//! replies (`srq_request.rs`) have the same first 16 bytes. Decoded data is untrusted; the caller
//! checks whether the peer may send it.
//!
//! Most packets are SENDs and WRITEs that may be the expected ones, and ACKs. They are parsed only
//! as far as a reliable connection needs it ([`Candidate`]), also on the wire. All others are
//! parsed in full ([`decode`], and [`crate::net::deliver`]). Principal types: [`Cell`],
//! [`OutgoingRun`], [`Candidate`].

#[cfg(test)]
mod tests;

use crate::memory::Ring;
use crate::srq_request::{self, SrqReply, SrqRequest};
use protocol::{Requester, Responder, Response};
use shm::{LaneRx, RECORD_MAX, Source};
use wire::bth::{LEN as BTH, View};
use wire::{Headers, Opcode, Operation, Psn, Qpn, Reth, Syndrome, Transport, aeth, pkey, reth};

pub(crate) mod flag {
    pub(super) const GRH: u8 = 1;
    pub(crate) const BULK: u8 = 2;
    pub(super) const NOTICE: u8 = 4;
    pub(crate) const SRQ_REQUEST: u8 = 8;
    pub(crate) const SRQ_REPLY: u8 = 16;
}

/// Where the port is in the first two bytes of a record, behind the device.
const PORT_SHIFT: u32 = 12;
const DEVICE: u16 = (1 << PORT_SHIFT) - 1;
const _: () = assert!(abi::board::DEVICE_MAX <= DEVICE as u32 + 1 && abi::board::PORT_MAX < 16);

/// The path of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The destination's device and port.
    pub(crate) device: u16,
    pub(crate) port: u8,
    pub(crate) slid: u16,
    pub(crate) dlid: u16,
    pub(crate) sl: u8,
    /// The code of the packets' path MTU; 0 stands for the lane's own MTU.
    pub(crate) mtu: u8,
}

/// The first 16 bytes of every record. They are untrusted: the peer may have written any value.
#[derive(Clone, Copy)]
pub(crate) struct RecordHead<'a>(pub(crate) &'a [u8; 16]);

impl RecordHead<'_> {
    #[inline]
    pub(crate) fn path(self) -> Path {
        let [place, of_port, a, b, c, d, sl, _, _, _, _, _, _, _, mtu, _] = *self.0;
        let place = u16::from_le_bytes([place, of_port]);
        let (device, port) = (place & DEVICE, (place >> PORT_SHIFT) as u8);
        Path { device, port, slid: u16::from_le_bytes([a, b]), dlid: u16::from_le_bytes([c, d]), sl, mtu }
    }

    #[inline]
    pub(crate) fn flags(self) -> u8 {
        self.0[7]
    }

    #[inline]
    pub(crate) fn src_qp(self) -> Qpn {
        Qpn::new(u32::from_le_bytes([self.0[8], self.0[9], self.0[10], self.0[11]]))
    }

    /// The length of the payload.
    #[inline]
    pub(crate) fn len(self) -> u16 {
        u16::from_le_bytes([self.0[12], self.0[13]])
    }
}

/// A packet on a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) path: Path,
    pub(crate) src_qp: Qpn,
    pub(crate) headers: Headers,
    pub(crate) grh: Option<[u8; 40]>,
    pub(crate) len: u16,
    pub(crate) payload: Payload,
}

/// Where a packet's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Payload {
    /// In the record, from this offset.
    Inline(usize),
    /// In the bulk area, at this offset.
    Bulk(u32),
}

/// The notice "your packet `psn` from `to` did not reach a QP that can take it". The sender then
/// runs its timers, although a lane loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// The QP that could not take the packet.
    pub(crate) from: Qpn,
    /// The QP that sent it.
    pub(crate) to: Qpn,
    pub(crate) psn: Psn,
}

/// One record, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Packet(Packet),
    Notice(Notice),
    /// A request of a target's engine, with the packet to which it refers.
    SrqRequest(Packet, SrqRequest),
    /// The result of a request; the packet names the target and has the place of fetched bytes.
    SrqReply(Packet, SrqReply),
}

/// The fields before a packet's headers.
#[derive(Clone, Copy)]
pub(crate) struct Envelope<'a> {
    pub(crate) path: Path,
    pub(crate) src_qp: Qpn,
    pub(crate) len: u16,
    pub(crate) grh: Option<&'a [u8; 40]>,
}

impl Envelope<'_> {
    /// Bytes before the payload, if the payload is not in the bulk area.
    #[inline(always)]
    pub(crate) fn len_with(&self, head: RunHeaders<'_>) -> usize {
        16 + if self.grh.is_some() { wire::grh::LEN } else { 0 } + head.len()
    }

    /// Writes everything before the payload of the packet with this index, which may be in the bulk
    /// area; returns the length written.
    #[inline(always)]
    pub(crate) fn encode<const N: usize>(
        &self,
        (headers, index): (RunHeaders<'_>, u32),
        bulk: Option<u32>,
        record: &mut [u8; N],
    ) -> usize {
        let flags = if self.grh.is_some() { flag::GRH } else { 0 } | if bulk.is_some() { flag::BULK } else { 0 };
        write_head(record, self.path, flags, self.src_qp, self.len);
        let mut at = 16;
        if let Some(offset) = bulk {
            record[at..at + 4].copy_from_slice(&offset.to_le_bytes());
            at += 4;
        }
        if let Some(grh) = self.grh {
            record[at..at + 40].copy_from_slice(grh);
            at += 40;
        }
        at + headers.emit(index, &mut record[at..])
    }
}

/// Writes the first 16 bytes of every record. They are written as words, because they are soon read
/// as words: a read of what was written in smaller parts stalls (store forwarding fails).
#[inline]
pub(crate) fn write_head(record: &mut [u8], path: Path, flags: u8, src_qp: Qpn, len: u16) {
    let [slid, dlid] = [path.slid, path.dlid].map(u64::from);
    let first = u64::from(path.device) | u64::from(path.port) << PORT_SHIFT | slid << 16 | dlid << 32;
    let first = first | u64::from(path.sl) << 48 | u64::from(flags) << 56;
    let second = u64::from(src_qp.value()) | u64::from(len) << 32 | u64::from(path.mtu) << 48;
    record[..8].copy_from_slice(&first.to_le_bytes());
    record[8..16].copy_from_slice(&second.to_le_bytes());
}

/// Writes a notice; returns its length.
pub(crate) fn encode_notice(notice: &Notice, record: &mut [u8]) -> usize {
    write_head(record, Path::default(), flag::NOTICE, notice.from, 0);
    record[16..20].copy_from_slice(&notice.to.value().to_le_bytes());
    record[20..24].copy_from_slice(&notice.psn.value().to_le_bytes());
    24
}

/// Parses a record; returns `None` if it is invalid.
pub(crate) fn decode(record: &[u8]) -> Option<Cell> {
    let head = RecordHead(record.first_chunk()?);
    let (flags, src_qp, len) = (head.flags(), head.src_qp(), head.len());
    let word =
        |at: usize| record.get(at..at + 4).map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    if flags & flag::NOTICE != 0 {
        return Some(Cell::Notice(Notice { from: src_qp, to: Qpn::new(word(16)?), psn: Psn::new(word(20)?) }));
    }
    let mut at = 16;
    let mut bulk = None;
    if flags & flag::BULK != 0 {
        bulk = Some(word(at)?);
        at += 4;
    }
    let mut grh = None;
    if flags & flag::GRH != 0 {
        grh = Some(*record.get(at..)?.first_chunk::<40>()?);
        at += 40;
    }
    if flags & (flag::SRQ_REQUEST | flag::SRQ_REPLY) != 0 {
        return srq_request(record, flags, (src_qp, len), bulk, at);
    }
    let headers = Headers::parse(record.get(at..)?).ok()?;
    at += headers.len();
    let payload = match bulk {
        Some(offset) => Payload::Bulk(offset),
        None if at + usize::from(len) <= record.len() => Payload::Inline(at),
        None => return None,
    };
    Some(Cell::Packet(Packet { path: head.path(), src_qp, headers, grh, len, payload }))
}

/// Parses a request for a remote SRQ, or the reply to one; its own fields begin at `at`.
#[cold]
fn srq_request(record: &[u8], flags: u8, (src_qp, len): (Qpn, u16), bulk: Option<u32>, at: usize) -> Option<Cell> {
    let rest = record.get(at..)?;
    let place = |own: usize| match bulk {
        Some(offset) => Some(Payload::Bulk(offset)),
        None if at + own + usize::from(len) <= record.len() => Some(Payload::Inline(at + own)),
        None => None,
    };
    let packet = srq_request::about(src_qp.value(), Headers::default(), len);
    if flags & flag::SRQ_REPLY != 0 {
        let (reply, own) = SrqReply::decode(rest)?;
        return Some(Cell::SrqReply(Packet { payload: place(own)?, ..packet }, reply));
    }
    let (request, headers, own) = SrqRequest::decode(rest)?;
    Some(Cell::SrqRequest(Packet { headers, payload: place(own)?, ..packet }, request))
}

/// A payload of `len` bytes; `None` if the place is invalid.
#[inline]
pub(crate) fn place<'a>(
    rx: &'a LaneRx,
    record: &'a [u8; RECORD_MAX],
    payload: Payload,
    len: u16,
) -> Option<Source<'a>> {
    match payload {
        Payload::Inline(at) => record.get(at..at + usize::from(len)).map(Source::from),
        Payload::Bulk(offset) => rx.bulk.piece(offset, u32::from(len)),
    }
}

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

/// A record of a lane, copied to private memory.
pub(crate) type Record = [u8; RECORD_MAX];

/// The offset of the headers in a record.
const HEADERS: usize = 16;
/// The offset of the headers in a record with its payload in the bulk area.
const HEADERS_OF_BULK: usize = HEADERS + 4;

/// The P_Key of the packets that are parsed here for a QP: full membership in its partition.
#[derive(Clone, Copy)]
pub(crate) struct Partition(u32);

impl Default for Partition {
    /// The partition of no packet.
    fn default() -> Self {
        Self(u32::MAX)
    }
}

impl Partition {
    /// The partition of a QP with the P_Key `own`. If that names no partition, no packet matches.
    #[inline]
    pub(crate) fn of(own: u16) -> Self {
        if pkey::is_valid(own) { Self(u32::from(own | pkey::FULL)) } else { Self::default() }
    }
}

/// The headers of a packet that may be common. They are untrusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) opcode: Opcode,
    pub(crate) psn: Psn,
    pub(crate) solicited: bool,
    pub(crate) migrated: bool,
    pub(crate) ack_req: bool,
    /// Zero if the packet has none.
    pub(crate) reth: Reth,
}

impl Candidate {
    /// Parses the headers at the beginning of `bytes`; also returns their length. Returns `None` if
    /// they must be parsed in full, are invalid, or are not of this partition.
    #[inline(always)]
    pub(crate) fn parse(bytes: &[u8], partition: Partition) -> Option<(Self, usize)> {
        let (bth, behind) = bytes.split_first_chunk::<BTH>()?;
        let view = View(bth);
        if view.pkey_pad_version() != partition.0 {
            return None;
        }
        let opcode = Opcode::from_u8(view.opcode()).filter(|opcode| opcode.transport == Transport::Rc)?;
        let mut reth = Reth::default();
        let len = match opcode.operation {
            Operation::SendOnly
            | Operation::SendMiddle
            | Operation::SendLast
            | Operation::WriteMiddle
            | Operation::WriteLast => BTH,
            Operation::WriteOnly => {
                reth = Reth::parse(behind.first_chunk()?);
                BTH + reth::LEN
            }
            // Without credits.
            Operation::Acknowledge if behind.first_chunk::<{ aeth::LEN }>()?[0] == Syndrome::ACK.as_u8() => {
                BTH + aeth::LEN
            }
            _ => return None,
        };
        let (psn, solicited, migrated, ack_req) = (view.psn(), view.solicited(), view.migrated(), view.ack_req());
        Some((Self { opcode, psn, solicited, migrated, ack_req, reth }, len))
    }

    /// Parses a record of `bytes` bytes; also returns the place of its payload.
    #[inline(always)]
    pub(crate) fn of_record(record: &Record, bytes: usize, partition: Partition) -> Option<(Self, Payload)> {
        let head = head(record);
        match head.flags() {
            0 => {
                let (candidate, len) = Self::parse(&record[HEADERS..], partition)?;
                let at = HEADERS + len;
                (at + usize::from(head.len()) <= bytes).then_some((candidate, Payload::Inline(at)))
            }
            flag::BULK => {
                let offset = u32::from_le_bytes(*record[HEADERS..].first_chunk()?);
                Some((Self::parse(&record[HEADERS_OF_BULK..], partition)?.0, Payload::Bulk(offset)))
            }
            _ => None,
        }
    }
}

/// The first fields of a record.
#[inline(always)]
pub(crate) fn head(record: &Record) -> RecordHead<'_> {
    RecordHead(record.first_chunk().expect("a record has room for them"))
}

/// The destination QP of a record that may have a [`Candidate`].
#[inline]
pub(crate) fn destination(record: &Record) -> Option<u32> {
    let at = match head(record).flags() {
        0 => HEADERS,
        flag::BULK => HEADERS_OF_BULK,
        _ => return None,
    };
    Some(View(record[at..].first_chunk()?).dest_qp().value())
}
