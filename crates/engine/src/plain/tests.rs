//! That a plain record is the record that the general way writes, and is read as it reads it.

use protocol::{Destination, Operation as Op, Requester, RequesterConfig, SendOp, Service, Time};
use wire::{Aeth, Headers, Opcode, Reth, Syndrome};

use super::*;
use crate::cell::{Cell, Payload};

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

/// Each kind of plain record, and its headers.
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

#[test]
fn both_ways_write_the_same_record_and_read_the_same_from_it() {
    for (what, headers) in kinds() {
        let len = if matches!(what, What::Ack { .. }) { 0 } else { 5 };
        let src_qp = Qpn::new(0xab_cdef);
        let mut general = [0; shm::RECORD_MAX];
        let about = cell::Envelope { path: PATH, src_qp, len, grh: None };
        let at = about.encode(&headers, None, &mut general);
        let mut record = [0; CELL_DATA];
        let envelope =
            Envelope { path: PATH, src_qp, dest_qp: headers.dest_qp, pkey: headers.pkey, migrated: headers.migrated };
        assert_eq!(envelope.encode(headers.psn, headers.solicited, len, what, &mut record), at);
        assert_eq!(record[..at], general[..at], "{what:?}");

        let plain = Plain::decode(&record).expect("it is plain");
        let Some(Cell::Packet(packet)) = cell::decode(&record) else { panic!("it is a packet") };
        assert_eq!((plain.path, plain.src_qp), (packet.path, packet.src_qp.value()));
        assert_eq!((plain.dest_qp, plain.psn), (packet.headers.dest_qp.value(), packet.headers.psn));
        assert_eq!((plain.solicited, plain.ack_req), (packet.headers.solicited, packet.headers.ack_req));
        assert_eq!((plain.migrated, plain.what), (packet.headers.migrated, what));
        assert_eq!((plain.len, Payload::Inline(plain.at)), (packet.len.into(), packet.payload));
        assert_eq!(packet.headers, headers);
    }
}

#[test]
fn what_differs_in_anything_that_matters_is_not_plain() {
    for (what, headers) in kinds() {
        let mut record = [0; CELL_DATA];
        let envelope =
            Envelope { path: PATH, src_qp: Qpn::new(1), dest_qp: headers.dest_qp, pkey: 0xffff, migrated: false };
        envelope.encode(headers.psn, false, 0, what, &mut record);
        assert!(Plain::decode(&record).is_some());
        let odd = |at: usize, value: u8| {
            let mut record = record;
            record[at] = value;
            Plain::decode(&record).is_some_and(|plain| plain.what == what)
        };
        for flag in 0..8 {
            assert!(!odd(7, 1 << flag), "a flag of the lane");
        }
        assert!(!odd(BTH + 1, 0x10) && !odd(BTH + 1, 0x01), "padding, or another version");
        for opcode in (0..=u8::MAX).filter(|opcode| *opcode != record[BTH]) {
            assert!(!odd(BTH, opcode), "opcode {opcode:#x}");
        }
        assert!(!odd(12, 60), "a payload that ends outside of the cell");
        if matches!(what, What::Ack { .. }) {
            for syndrome in (0..=u8::MAX).filter(|syndrome| *syndrome != ACK) {
                assert!(!odd(BEHIND, syndrome), "syndrome {syndrome:#x}");
            }
        }
    }
}

#[test]
fn what_fits_is_what_the_general_way_puts_into_one_cell() {
    for (operation, what) in [(Op::Send, What::Send), (Op::Write, What::Write { va: 0, rkey: 0, total: 0 })] {
        for length in 0..CELL_DATA as u32 {
            let mut requester = Requester::new(Service::Rc, 1);
            requester.configure(RequesterConfig { mtu: 4096, lossless: true, ..RequesterConfig::default() });
            let op = SendOp { operation, length, dest: Destination::default(), ..SendOp::default() };
            requester.post(op).expect("room");
            let packet = requester.poll_transmit(Time(0)).expect("a packet");
            let one_cell = BTH + packet.headers.len() + length as usize <= CELL_DATA;
            assert_eq!(fits(what, length), one_cell, "{operation} of {length} bytes");
        }
    }
}
