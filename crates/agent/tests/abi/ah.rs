//! CREATE_AH and DESTROY_AH.

use crate::harness::{AV, Client, EBUSY, EINVAL, Kind, Row, check, digits};

#[test]
fn create_ah() {
    check(&Row {
        answer: "00000060".into(),
        room: 4,
        handles: &[(16, Kind::Pd)],
        ..Row::new(56, |client| {
            let pd = client.make(Kind::Pd);
            format!("05000000 1000 0100 0100000000000000 a0a0000000000000 {pd} 00000000 {AV}").into()
        })
    });
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let gid = "fe80000000000000 02000000000000b1";
    for (vector, what) in [
        (format!("{gid} 00000000 00 40 00 00 0000 00 00 00 00 01 00"), "no GRH"),
        (format!("{gid} 00000000 00 40 00 00 0000 00 00 00 01 00 00"), "port 0"),
        (format!("{gid} 00000000 00 40 00 00 0000 00 00 00 01 02 00"), "port 2"),
        (format!("{gid} 00000000 3f 40 00 00 0000 00 00 00 01 01 00"), "empty GID index"),
        (format!("{gid} 00000000 40 40 00 00 0000 00 00 00 01 01 00"), "GID index outside the table"),
    ] {
        let request = format!("05000000 1000 0100 0100000000000000 0000000000000000 {pd} 00000000 {vector}");
        client.refused(&request.into(), EINVAL, what);
    }
    // UCX sets all 32 bits of a flow label, which has 20 bits.
    let vector = format!("{gid} ffffffff 00 40 00 00 0000 00 00 00 01 01 00");
    client.done(&format!("05000000 1000 0100 0100000000000000 0000000000000000 {pd} 00000000 {vector}"));
}

#[test]
fn destroy_ah() {
    check(&Row {
        handles: &[(0, Kind::Ah)],
        ..Row::new(4, |client| format!("08000000 0300 0000 {}", client.make(Kind::Ah)).into())
    });
    let mut client = Client::alone();
    let pd = client.make(Kind::Pd);
    let ah = client.done(&format!("05000000 1000 0100 0100000000000000 0000000000000000 {pd} 00000000 {AV}"));
    client.refused(&format!("04000000 0300 0000 {pd}").into(), EBUSY, "an AH is on it");
    client.destroy(Kind::Ah, &digits(&ah.bytes[..4]));
    client.destroy(Kind::Pd, &pd);
}
