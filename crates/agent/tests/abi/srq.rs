//! CREATE_SRQ, MODIFY_SRQ, QUERY_SRQ and DESTROY_SRQ.

use crate::harness::{Client, EINVAL, Kind, Row, check, compare};

#[test]
fn create_srq() {
    check(&Row {
        answer: "00000050 08000000 03000000 00000000 01000000 01000000 \
                 02000000 01000000 0000080000000000 0000000000000000 4002000000000000 \
                 40000000 08000000 40000000 00000000"
            .into(),
        fds: 1,
        room: 16,
        handles: &[(16, Kind::Pd)],
        ..Row::new(32, |client| {
            let pd = client.make(Kind::Pd);
            format!("20000000 0a00 1200 0100000000000000 5050000000000000 {pd} 07000000 03000000 02000000").into()
        })
    });
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    for (caps, what) in [
        ("00000000 01000000 00000000", "no work requests"),
        ("01400000 01000000 00000000", "more than max_srq_wr"),
        ("01000000 1f000000 00000000", "more than max_srq_sge"),
        ("04000000 01000000 05000000", "limit above max_wr"),
    ] {
        let request = format!("20000000 0a00 1200 0100000000000000 0000000000000000 {pd} {caps}");
        client.refused(&request.into(), EINVAL, what);
    }
    let none = format!("20000000 0a00 1200 0100000000000000 0000000000000000 {pd} 01000000 00000000 00000000");
    compare(&client.done(&none).bytes[4..12], "01000000 01000000");
}

#[test]
fn modify_srq() {
    check(&Row {
        handles: &[(0, Kind::Srq)],
        ..Row::new(16, |client| {
            let srq = client.make(Kind::Srq);
            format!("21000000 0600 0000 {srq} 02000000 00000000 03000000").into()
        })
    });
    let mut client = Client::alone();
    let srq = client.make(Kind::Srq);
    for (change, errno, what) in [
        ("00000000 00000000 00000000", EINVAL, "nothing to change"),
        ("04000000 00000000 00000000", EINVAL, "unknown attribute"),
        ("02000000 00000000 05000000", EINVAL, "limit above max_wr"),
        ("01000000 00000000 00000000", EINVAL, "no size"),
        ("01000000 01400000 00000000", EINVAL, "more than max_srq_wr"),
        ("03000000 08000000 09000000", EINVAL, "limit above the new size"),
    ] {
        client.refused(&format!("21000000 0600 0000 {srq} {change}").into(), errno, what);
    }
    client.done(&format!("21000000 0600 0000 {srq} 02000000 00000000 04000000"));
    let query = client.done(&format!("22000000 0600 0400 0100000000000000 {srq} 00000000"));
    compare(&query.bytes, "04000000 01000000 04000000 00000000");
    client.refused(&format!("21000000 0600 0000 {srq} 01000000 02000000 00000000").into(), EINVAL, "armed above it");
    let resized = client.done(&format!("21000000 0600 0e00 {srq} 03000000 09000000 05000000"));
    compare(
        &resized.bytes,
        "01000000 01000000 02000000 00000000 0000080000000000 c000000000000000 4002000000000000 \
         40000000 10000000 20000000 00000000",
    );
    let query = client.done(&format!("22000000 0600 0400 0100000000000000 {srq} 00000000"));
    compare(&query.bytes, "10000000 01000000 05000000 00000000");
}

#[test]
fn query_srq() {
    check(&Row {
        answer: "04000000 01000000 00000000 00000000".into(),
        room: 16,
        handles: &[(8, Kind::Srq)],
        ..Row::new(16, |client| {
            let srq = client.make(Kind::Srq);
            format!("22000000 0600 0400 0100000000000000 {srq} 00000000").into()
        })
    });
}

#[test]
fn destroy_srq() {
    check(&Row {
        answer: "00000000".into(),
        room: 4,
        handles: &[(8, Kind::Srq)],
        ..Row::new(16, |client| {
            let srq = client.make(Kind::Srq);
            format!("23000000 0600 0100 0100000000000000 {srq} 00000000").into()
        })
    });
}
