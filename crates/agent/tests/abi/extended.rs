//! The extended commands of the mainline ABI.

use crate::harness::{Client, EINVAL, EOPNOTSUPP, Kind, Row, check, compare};

#[test]
fn ex_query_device() {
    let base = "0000010000000000 02000000000000a1 02000000000000a1 0000000000800000 00f0ffffffffffff \
                43485300 01000000 01000000 00000100 00400000 903c3201 1e000000 1e000000 \
                00000100 00004000 00001000 00000100 80000000 00000000 00008000 80000000 00000000 \
                01000000 00000000 00000000 00001000 00000000 00000000 00040000 00010000 00000400 \
                00000200 00000000 00000000 00000100 00400000 1e000000 0100 0f 01 00000000";
    check(&Row {
        answer: format!(
            "{base} 00000000 30010000 0300000000000000 ff000000 27000000 23000000 00000000 \
             ffffffffffffffff 40420f0000000000 903c320140010000 {} ffffffff 00000000 0000100000000000 ff00000000000000",
            "00".repeat(48)
        ),
        room: 184,
        ..Row::new(8, |_| "01000080 0100 2600 0100000000000000 0000 0000 00000000 00000000 00000000".into())
    });
    let mut client = Client::alone();
    let short = client.done("01000080 0100 1700 0100000000000000 0000 0000 00000000 00000000 00000000");
    compare(&short.bytes, &format!("{base} 00000000 b8000000"));
    let mask = "01000080 0100 2600 0100000000000000 0000 0000 00000000 01000000 00000000";
    client.refused(&mask.into(), EINVAL, "unknown comp_mask");
}

#[test]
fn ex_create_cq() {
    check(&Row {
        answer: "00000030 80000000 00000000 10000000 01000000 01000000 \
                 02000000 01000000 0000080000000000 0000000000000000 4020000000000000 \
                 80000000 40000000 00000000 00000000"
            .into(),
        fds: 1,
        room: 16,
        handles: &[(16, Kind::Channel)],
        ..Row::new(32, |client| {
            let channel = client.make(Kind::Channel);
            format!(
                "12000080 0400 0200 0100000000000000 0000 0700 00000000 \
                 c0c0000000000000 64000000 00000000 {channel} 00000000 00000000 00000000"
            )
            .into()
        })
    });
    let mut client = Client::alone();
    for (body, errno, what) in [
        ("00000000 00000000 ffffffff 00000000 00000000 00000000", EINVAL, "no entries"),
        ("10000000 04000000 ffffffff 00000000 00000000 00000000", EINVAL, "completion vector 4 of 4"),
        ("10000000 00000000 ffffffff 01000000 00000000 00000000", EOPNOTSUPP, "comp_mask"),
        ("10000000 00000000 ffffffff 00000000 01000000 00000000", EOPNOTSUPP, "timestamps"),
        ("10000000 00000000 ffffffff 00000000 00000000 01000000", EOPNOTSUPP, "reserved"),
    ] {
        let request = format!("12000080 0400 0200 0100000000000000 0000 0700 00000000 0000000000000000 {body}");
        client.refused(&request.into(), errno, what);
    }
}

#[test]
fn ex_create_qp() {
    check(&Row {
        answer: "00000040 00010000 10000000 08000000 02000000 03000000 40000000 00000000 00000000 28000000 \
                 01000000 00010000 02000000 00000000 0000080000000000 4004000000000000 8008000000000000 \
                 80000000 10000000 60000000 80060000 08000000 40000000 00000000 00000000"
            .into(),
        room: 40,
        handles: &[(8, Kind::Pd), (12, Kind::Cq), (16, Kind::Cq)],
        ..Row::new(56, |client| {
            let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
            create(&pd, &cq, "00000000 00000000 00000000 00000000").into()
        })
    });
    let mut client = Client::alone();
    let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
    client.refused(&create(&pd, &cq, "01000000 00000000 00000000 00000000").into(), EOPNOTSUPP, "indirection table");
    client.refused(&create(&pd, &cq, "00000000 00040000 00000000 00000000").into(), EOPNOTSUPP, "source QPN");
}

/// EX_CREATE_QP with the body of `qp::create` and the bytes after it.
fn create(pd: &str, cq: &str, more: &str) -> String {
    format!(
        "18000080 0800 0500 0100000000000000 0000 0900 00000000 9090000000000000 {pd} {cq} {cq} 00000000 \
         0a000000 05000000 02000000 03000000 40000000 00 02 00 00 {more}"
    )
}

#[test]
fn ex_modify_qp() {
    check(&Row {
        answer: "00000000 08000000".into(),
        room: 8,
        handles: &[(64, Kind::Qp)],
        ..Row::new(112, |client| modify(&client.make(Kind::Qp), "39000000").into())
    });
    let mut client = Client::alone();
    let qp = client.make(Kind::Qp);
    client.refused(&modify(&qp, "39000002").into(), EINVAL, "a rate limit is for QPs that are about to send");
    client.refused(&modify(&qp, "19000000").into(), EINVAL, "PORT is missing");
}

/// EX_MODIFY_QP to INIT with an attribute mask.
fn modify(qp: &str, mask: &str) -> String {
    format!(
        "1a000080 0f00 0100 0100000000000000 0000 0000 00000000 {} {qp} {mask} 00000000 00000000 00000000 00000000 \
         0f000000 0000 0000 01 00 00 00 00 00 00 00 01 00 00 00 00 00 0000 00000000 00000000",
        "00".repeat(64)
    )
}

#[test]
fn ex_modify_cq() {
    check(&Row {
        handles: &[(0, Kind::Cq)],
        ..Row::new(16, |client| {
            let cq = client.make(Kind::Cq);
            format!("39000080 0200 0000 0000000000000000 0000 0000 00000000 {cq} 01000000 0400 6400 00000000").into()
        })
    });
    let mut client = Client::alone();
    let cq = client.make(Kind::Cq);
    for mask in ["00000000", "02000000", "03000000"] {
        let request = format!("39000080 0200 0000 0000000000000000 0000 0000 00000000 {cq} {mask} 0000 0000 00000000");
        client.refused(&request.into(), EOPNOTSUPP, "unknown attribute");
    }
}
