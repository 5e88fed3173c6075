//! Records as they are written and read, and which of them are candidates.

use wire::{Aeth, Headers, Opcode, Operation, Qpn, Reth, Transport};

use super::*;

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
    let path = Path { device: 300, port: 1, slid: 2, dlid: 3, sl: 4, mtu: 5 };
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

use crate::cell::{Cell, Envelope, Path, RunHeaders, decode};

const PATH: Path = Path { device: 1023, port: 2, slid: 0x304, dlid: 0x506, sl: 7, mtu: 3 };

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
    for (syndrome, is_candidate) in [(Syndrome::ACK, true), (Syndrome::Ack(3), false), (Syndrome::RnrNak(1), false)] {
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
    let others = [W::SendFirst, W::WriteFirst, W::SendOnlyImm, W::WriteOnlyImm, W::ReadRequest, W::ReadResponseOnly];
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
