//! The headers of ATOMIC WRITE and FLUSH as literal bytes, parsed and encoded.

use softhca_wire::{Feth, Headers, MAX_LEN, Opcode, Operation, Psn, Qpn, Reth, Transport};

fn headers(operation: Operation) -> Headers {
    Headers {
        opcode: Opcode::new(Transport::Rc, operation),
        pkey: 0xffff,
        dest_qp: Qpn::new(0x01_0203),
        psn: Psn::new(0x0a_0b0c),
        reth: Reth { va: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc, len: 8 },
        ..Headers::default()
    }
}

fn both_ways(headers: &Headers, expected: &[u8]) {
    let mut bytes = [0xee; MAX_LEN];
    let len = headers.emit(&mut bytes).expect("room");
    assert_eq!((&bytes[..len], headers.len()), (expected, expected.len()));
    assert_eq!(Headers::parse(expected).as_ref(), Ok(headers));
    for short in 0..expected.len() {
        assert!(Headers::parse(&expected[..short]).is_err(), "{short} bytes");
    }
}

#[test]
fn an_atomic_write() {
    let expected = [
        0x1d, 0x00, 0xff, 0xff, 0x00, 0x01, 0x02, 0x03, 0x00, 0x0a, 0x0b, 0x0c, // BTH
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 8, // RETH
    ];
    both_ways(&headers(Operation::AtomicWrite), &expected);
}

#[test]
fn a_flush_has_its_own_header_before_the_rdma_header() {
    let expected = [
        0x1c, 0x00, 0xff, 0xff, 0x00, 0x01, 0x02, 0x03, 0x00, 0x0a, 0x0b, 0x0c, // BTH
        0, 0, 0, 0x11, // FETH
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 8, // RETH
    ];
    let flush = Headers { feth: Feth { placement: 1, selectivity: 1 }, ..headers(Operation::Flush) };
    both_ways(&flush, &expected);
    assert!(flush.to_string().contains("FLUSH") && flush.to_string().contains("placement 0x1"), "{flush}");
}
