//! Parses the headers of packets only as far as the common packets of a reliable connection need
//! it: SEND and WRITE packets that may be the expected ones, and ACKs. All other packets are parsed
//! in full, by [`crate::cell`] and [`crate::net::deliver`]. Principal type: [`Candidate`].

use shm::RECORD_MAX;
use wire::bth::{LEN as BTH, View};
use wire::{Opcode, Operation, Psn, Reth, Syndrome, Transport, aeth, pkey, reth};

use crate::cell::{Payload, RecordHead, flag};

/// A record of a lane, copied to private memory.
pub(crate) type Record = [u8; RECORD_MAX];

/// The offset of the headers in a record.
const HEADERS: usize = 16;
/// The offset of the headers in a record with its payload in the bulk area.
const HEADERS_OF_BULK: usize = HEADERS + 4;

/// The P_Key of the packets that are parsed here for a QP: full membership in its partition.
#[derive(Clone, Copy)]
pub(crate) struct Partition(u32);

impl Partition {
    /// The partition of a QP with the P_Key `own`. If that names no partition, no packet matches.
    #[inline]
    pub(crate) fn of(own: u16) -> Self {
        Self(if pkey::is_valid(own) { u32::from(own | pkey::FULL) } else { u32::MAX })
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cell::{Cell, Envelope, Path, decode};
    use crate::run::RunHeaders;
    use wire::{Aeth, Headers, Qpn};

    const PATH: Path = Path { device: 1, port: 2, slid: 0x304, dlid: 0x506, sl: 7, mtu: 3 };

    fn headers(operation: Operation) -> Headers {
        Headers {
            opcode: Opcode::new(Transport::Rc, operation),
            dest_qp: Qpn::new(0x12_3456),
            psn: Psn::new(0xfe_dcba),
            pkey: 0x8001,
            migrated: true,
            ack_req: true,
            solicited: operation == Operation::SendOnly,
            ..Headers::default()
        }
    }

    fn record(headers: &Headers, len: u16, bulk: Option<u32>) -> (Record, usize) {
        let mut record = [0; RECORD_MAX];
        let at = Envelope { path: PATH, src_qp: Qpn::new(0xab_cdef), len, grh: None }.encode(
            (RunHeaders::Full(headers), 0),
            bulk,
            &mut record,
        );
        (record, at)
    }

    fn parsed(record: &Record, bytes: usize) -> Option<(Candidate, Payload)> {
        Candidate::of_record(record, bytes, Partition::of(0x8001))
    }

    #[test]
    fn candidates_are_what_the_general_parser_finds() {
        use Operation as W;
        let reth = Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, len: 5 };
        for operation in [W::SendOnly, W::SendMiddle, W::SendLast, W::WriteOnly, W::WriteMiddle, W::WriteLast] {
            let headers =
                Headers { reth: if operation == W::WriteOnly { reth } else { Reth::default() }, ..headers(operation) };
            for (len, bulk) in [(0, None), (5, None), (250, None), (301, Some(0x1_2340)), (0x8000, Some(64))] {
                let (record, at) = record(&headers, len, bulk);
                let bytes = at + if bulk.is_some() { 0 } else { usize::from(len) };
                let Some(Cell::Packet(packet)) = decode(&record[..bytes]) else { panic!("a packet: {headers}") };
                let Headers { opcode, psn, solicited, migrated, ack_req, reth, .. } = packet.headers;
                let candidate = Candidate { opcode, psn, solicited, migrated, ack_req, reth };
                assert_eq!(parsed(&record, bytes), Some((candidate, packet.payload)), "{headers}, {len} bytes");
                assert_eq!(destination(&record), Some(headers.dest_qp.value()));
                if bulk.is_none() && len > 0 {
                    assert_eq!(parsed(&record, bytes - 1), None, "the payload ends outside of the record");
                }
            }
        }
    }

    #[test]
    fn acknowledgements_without_credits_are_candidates_and_others_are_not() {
        for (syndrome, is_candidate) in [(Syndrome::ACK, true), (Syndrome::Ack(3), false), (Syndrome::RnrNak(1), false)]
        {
            let headers = Headers { aeth: Aeth { syndrome, msn: 0xab_cdef }, ..headers(Operation::Acknowledge) };
            let (record, at) = record(&headers, 0, None);
            assert_eq!(parsed(&record, at).is_some(), is_candidate, "{headers}");
        }
    }

    #[test]
    fn headers_that_end_too_early_are_no_candidates() {
        use Operation as W;
        for operation in [W::SendOnly, W::SendLast, W::WriteOnly, W::WriteMiddle, W::Acknowledge] {
            let aeth = Aeth { syndrome: Syndrome::ACK, msn: 1 };
            let mut bytes = [0; wire::MAX_LEN];
            let whole = Headers { aeth, ..headers(operation) }.emit(&mut bytes).expect("room");
            for len in 0..=bytes.len() {
                let parsed = Candidate::parse(&bytes[..len], Partition::of(0x8001));
                assert_eq!(parsed.map(|(_, head)| head), (len >= whole).then_some(whole), "{operation:?}, {len} bytes");
            }
        }
    }

    #[test]
    fn other_packets_are_no_candidates() {
        use Operation as W;
        let others =
            [W::SendFirst, W::WriteFirst, W::SendOnlyImm, W::WriteOnlyImm, W::ReadRequest, W::ReadResponseOnly];
        let mut records: Vec<_> = others.map(|operation| record(&headers(operation), 8, None).0).into();
        let send = headers(Operation::SendOnly);
        for pkey in [0x0001, 0x8002, 0xffff] {
            records.push(record(&Headers { pkey, ..send }, 8, None).0);
        }
        records.push(record(&Headers { pad: 1, ..send }, 8, None).0);
        let opcode = Opcode::new(Transport::Uc, Operation::SendOnly);
        records.push(record(&Headers { opcode, ..send }, 8, None).0);
        let (whole, _) = record(&send, 8, None);
        for (at, value) in [(7, 1), (7, 4), (HEADERS, 0x1f), (HEADERS + 1, 0x0f)] {
            let mut other = whole;
            other[at] |= value;
            records.push(other);
        }
        assert!(parsed(&whole, RECORD_MAX).is_some());
        for record in records {
            assert_eq!(parsed(&record, RECORD_MAX), None, "{:x?}", &record[..32]);
        }
        assert_eq!(Candidate::of_record(&whole, RECORD_MAX, Partition::of(0)), None, "no partition");
        assert!(Candidate::of_record(&whole, RECORD_MAX, Partition::of(0x0001)).is_some(), "a limited member");
    }
}
