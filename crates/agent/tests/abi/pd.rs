//! ALLOC_PD and DEALLOC_PD.

use crate::harness::{Client, EBUSY, Kind, Row, check};

#[test]
fn alloc_pd() {
    check(&Row {
        answer: "00000010 01000000 01000000".into(),
        room: 4,
        ..Row::new(8, |_| "03000000 0400 0300 0100000000000000".into())
    });
}

#[test]
fn dealloc_pd() {
    check(&Row {
        handles: &[(0, Kind::Pd)],
        ..Row::new(4, |client| format!("04000000 0300 0000 {}", client.make(Kind::Pd)).into())
    });
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let srq =
        client.done(&format!("20000000 0a00 0400 0100000000000000 0000000000000000 {pd} 04000000 01000000 00000000"));
    client.refused(&format!("04000000 0300 0000 {pd}").into(), EBUSY, "an SRQ is on it");
    client.destroy(Kind::Srq, &crate::harness::digits(&srq.bytes[..4]));
    client.destroy(Kind::Pd, &pd);
}
