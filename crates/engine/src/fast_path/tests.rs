//! Tests that a fast-path record has the same bytes as a record of the general path, and is parsed
//! alike.

use protocol::{Destination, Operation as Op, Requester, RequesterConfig, SendOp, Service, Time};
use wire::Headers;

use super::*;
use crate::cell::Cell;

const PATH: Path = Path { device: 1, port: 2, slid: 0x304, dlid: 0x506, sl: 7, mtu: 3 };

fn headers(operation: Operation) -> Headers {
    Headers {
        opcode: Opcode::new(Transport::Rc, operation),
        dest_qp: Qpn::new(0x12_3456),
        psn: Psn::new(0xfe_dcba),
        pkey: 0x8001,
        migrated: true,
        ..Headers::default()
    }
}

/// Each kind of fast-path record, and its headers.
fn kinds() -> [(What, Headers); 3] {
    let (va, rkey, total) = (0x1122_3344_5566_7788, 0x99aa_bbcc, 5);
    let reth = Reth { va, rkey, len: total };
    let aeth = Aeth { syndrome: Syndrome::ACK, msn: 0xab_cdef };
    [
        (What::Send, Headers { ack_req: true, solicited: true, ..headers(Operation::SendOnly) }),
        (What::Write { va, rkey, total }, Headers { ack_req: true, reth, ..headers(Operation::WriteOnly) }),
        (What::Ack { msn: 0xab_cdef }, Headers { aeth, ..headers(Operation::Acknowledge) }),
    ]
}

/// The record of the general path: headers, `len` bytes of payload, and their place in the bulk
/// area; and its length.
fn general(headers: &Headers, len: u16, bulk: Option<u32>) -> (Record, usize) {
    let mut record = [0; shm::RECORD_MAX];
    let about = cell::Envelope { path: PATH, src_qp: Qpn::new(0xab_cdef), len, grh: None };
    let at = about.encode(headers, bulk, &mut record);
    (record, at)
}

fn envelope(headers: &Headers) -> Envelope {
    let Headers { dest_qp, pkey, migrated, .. } = *headers;
    Envelope { path: PATH, src_qp: Qpn::new(0xab_cdef), dest_qp, pkey, migrated }
}

#[test]
fn both_ways_write_the_same_record_and_read_the_same_from_it() {
    for (what, headers) in kinds() {
        let is_ack = matches!(what, What::Ack { .. });
        for (len, bulk) in [(0, None), (5, None), (250, None), (301, Some(0x1_2340)), (0x8000, Some(64))] {
            if is_ack && len > 0 {
                continue;
            }
            let (general, at) = general(&headers, len, bulk);
            let mut record = [0; shm::RECORD_MAX];
            let numbers = (headers.psn, headers.solicited);
            let own = match bulk {
                None => envelope(&headers).encode(numbers, len, what, &mut record),
                Some(offset) => envelope(&headers).encode_bulk(numbers, len, what, offset, &mut record),
            };
            assert_eq!(own, at);
            assert_eq!(record[..at], general[..at], "{what:?}");

            let fast = FastRecord::decode(&record, shm::RECORD_MAX, Partition::of(headers.pkey))
                .expect("it is for the fast path");
            let Some(Cell::Packet(packet)) = cell::decode(&record) else { panic!("it is a packet") };
            assert_eq!((fast.path, fast.src_qp), (packet.path, packet.src_qp.value()));
            assert_eq!((fast.dest_qp, fast.psn), (packet.headers.dest_qp.value(), packet.headers.psn));
            assert_eq!((fast.solicited, fast.ack_req), (packet.headers.solicited, packet.headers.ack_req));
            assert_eq!((fast.migrated, fast.what), (packet.headers.migrated, what));
            assert_eq!((fast.len, fast.payload), (packet.len, packet.payload));
            assert_eq!(packet.headers, headers);
        }
    }
}

#[test]
fn unusual_records_are_left_to_the_general_path() {
    for (what, headers) in kinds() {
        for (bulk, bth) in [(None, BTH), (Some(128), BTH_OF_BULK)] {
            let mut record = [0; shm::RECORD_MAX];
            let end = match bulk {
                None => envelope(&headers).encode((headers.psn, false), 0, what, &mut record),
                Some(offset) => envelope(&headers).encode_bulk((headers.psn, false), 0, what, offset, &mut record),
            };
            assert!(FastRecord::decode(&record, end, Partition::of(headers.pkey)).is_some());
            let is_taken_with = |at: usize, value: u8| {
                let mut record = record;
                record[at] = value;
                FastRecord::decode(&record, end, Partition::of(headers.pkey)).is_some_and(|fast| fast.what == what)
            };
            for flag in 0..8 {
                assert!(!is_taken_with(7, record[7] ^ 1 << flag), "a flag of the lane");
            }
            assert!(!is_taken_with(bth + 1, 0x10) && !is_taken_with(bth + 1, 0x01), "padding, or another version");
            assert!(
                !is_taken_with(bth + 2, record[bth + 2] ^ 0x01) && !is_taken_with(bth + 3, !record[bth + 3]),
                "another partition"
            );
            assert!(!is_taken_with(bth + 2, record[bth + 2] ^ 0x80), "a limited member");
            for opcode in (0..=u8::MAX).filter(|opcode| *opcode != record[bth]) {
                assert!(!is_taken_with(bth, opcode), "opcode {opcode:#x}");
            }
            assert!(bulk.is_some() || !is_taken_with(12, 1), "a payload that ends outside of the record");
            if matches!(what, What::Ack { .. }) {
                for syndrome in (0..=u8::MAX).filter(|syndrome| *syndrome != Syndrome::ACK.as_u8()) {
                    assert!(!is_taken_with(bth + bth::LEN, syndrome), "syndrome {syndrome:#x}");
                }
            }
        }
    }
}

#[test]
fn a_record_is_as_long_as_that_of_the_general_way() {
    for (operation, what) in [(Op::Send, What::Send), (Op::Write, What::Write { va: 0, rkey: 0, total: 0 })] {
        for length in [0, 1, 17, 300, 4096] {
            let mut requester = Requester::new(Service::Rc, 1);
            requester.configure(RequesterConfig { mtu: 4096, lossless: true, ..RequesterConfig::default() });
            let op = SendOp { operation, length, dest: Destination::default(), ..SendOp::default() };
            requester.post(op).expect("room");
            let packet = requester.poll_transmit(Time(0)).expect("a packet");
            assert_eq!(what.record_with(length), BTH + packet.headers.len() + length as usize, "{operation}");
        }
    }
}
