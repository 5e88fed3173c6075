//! The format of a record on a lane: the path of the packet, its transport headers as on the wire,
//! and the place of its payload.
//!
//! ```text
//!  0  device u8 · port u8 · SLID u16 · DLID u16 · SL u8 · flags u8
//!  8  source QPN u32 · payload length u16 · MTU code u8 · reserved u8
//! 16  [bulk: offset u32] [GRH: 40 bytes] transport headers, then the payload if it
//!     is not in the bulk area
//! ```
//! There is no ICRC and no padding, because a lane is memory. Requests for a remote SRQ and their
//! replies (`srq_request.rs`) have the same first 16 bytes. Decoded data is untrusted; the caller
//! checks whether the peer may send it. Principal type: [`Cell`].

use shm::{LaneRx, RECORD_MAX, Source};
use wire::{Headers, Psn, Qpn};

use crate::run::RunHeaders;
use crate::srq_request::{self, SrqReply, SrqRequest};

pub(crate) mod flag {
    pub(super) const GRH: u8 = 1;
    pub(crate) const BULK: u8 = 2;
    pub(super) const NOTICE: u8 = 4;
    pub(crate) const SRQ_REQUEST: u8 = 8;
    pub(crate) const SRQ_REPLY: u8 = 16;
}

/// The path of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Path {
    /// The destination's device and port.
    pub(crate) device: u8,
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
        let [device, port, a, b, c, d, sl, _, _, _, _, _, _, _, mtu, _] = *self.0;
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
        head(record, self.path, flags, self.src_qp, self.len);
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
pub(crate) fn head(record: &mut [u8], path: Path, flags: u8, src_qp: Qpn, len: u16) {
    let [slid, dlid] = [path.slid, path.dlid].map(u64::from);
    let first = u64::from(path.device) | u64::from(path.port) << 8 | slid << 16 | dlid << 32;
    let first = first | u64::from(path.sl) << 48 | u64::from(flags) << 56;
    let second = u64::from(src_qp.value()) | u64::from(len) << 32 | u64::from(path.mtu) << 48;
    record[..8].copy_from_slice(&first.to_le_bytes());
    record[8..16].copy_from_slice(&second.to_le_bytes());
}

/// Writes a notice; returns its length.
pub(crate) fn encode_notice(notice: &Notice, record: &mut [u8]) -> usize {
    head(record, Path::default(), flag::NOTICE, notice.from, 0);
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

#[cfg(test)]
mod tests {
    use super::*;
    use wire::{Opcode, Operation, Reth, Transport};

    impl Packet {
        fn encode(&self, record: &mut [u8; shm::RECORD_MAX]) -> usize {
            let Packet { path, src_qp, len, grh, .. } = *self;
            let bulk = match self.payload {
                Payload::Bulk(offset) => Some(offset),
                Payload::Inline(_) => None,
            };
            Envelope { path, src_qp, len, grh: grh.as_ref() }.encode((RunHeaders::Full(&self.headers), 0), bulk, record)
        }
    }

    fn packet(payload: Payload, grh: Option<[u8; 40]>) -> Packet {
        let opcode = Opcode::new(Transport::Rc, Operation::WriteOnly);
        let reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa, len: 5 };
        let headers = Headers {
            opcode,
            dest_qp: Qpn::new(0x1234),
            psn: Psn::new(77),
            pkey: 0xffff,
            reth,
            ack_req: true,
            ..Headers::default()
        };
        let path = Path { device: 1, port: 1, slid: 2, dlid: 3, sl: 4, mtu: 5 };
        Packet { path, src_qp: Qpn::new(0xabcde), headers, grh, len: 5, payload }
    }

    #[test]
    fn packets_come_back_as_they_went() {
        for grh in [None, Some([7; 40])] {
            let mut record = [0u8; shm::RECORD_MAX];
            let bulk = packet(Payload::Bulk(4096), grh);
            bulk.encode(&mut record);
            assert_eq!(decode(&record), Some(Cell::Packet(bulk)));

            let len = packet(Payload::Inline(0), grh).encode(&mut record);
            assert_eq!(decode(&record), Some(Cell::Packet(packet(Payload::Inline(len), grh))));
        }
    }

    #[test]
    fn a_small_write_fits_one_cell() {
        let mut record = [0u8; shm::RECORD_MAX];
        assert!(packet(Payload::Inline(0), None).encode(&mut record) + 8 <= 60);
    }

    #[test]
    fn notices_come_back_as_they_went() {
        let mut record = [0u8; shm::RECORD_MAX];
        let notice = Notice { from: Qpn::new(5), to: Qpn::new(6), psn: Psn::new(7) };
        encode_notice(&notice, &mut record);
        assert_eq!(decode(&record), Some(Cell::Notice(notice)));
    }

    #[test]
    fn malformed_records_are_not_decoded() {
        assert_eq!(decode(&[0; 15]), None);
        let mut record = [0u8; shm::RECORD_MAX];
        let mut long = packet(Payload::Inline(0), None);
        long.len = 60;
        long.encode(&mut record);
        assert_eq!(decode(&record[..60]), None, "the payload ends outside of the record");
    }
}
