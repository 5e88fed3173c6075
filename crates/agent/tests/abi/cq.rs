//! CREATE_COMP_CHANNEL, CREATE_CQ, RESIZE_CQ and DESTROY_CQ.

use crate::harness::{Client, EBADF, EBUSY, EINVAL, Kind, Row, check, compare, digits};

#[test]
fn create_comp_channel() {
    check(&Row {
        answer: "00000070".into(),
        fds: 1,
        room: 4,
        ..Row::new(8, |_| "11000000 0400 0100 0100000000000000".into())
    });
}

/// CREATE_CQ of 100 entries on a channel, or on none ("ffffffff").
fn create(channel: &str) -> String {
    format!("12000000 0a00 1000 0100000000000000 c0c0000000000000 64000000 03000000 {channel} 00000000")
}

#[test]
fn create_cq() {
    check(&Row {
        answer: "00000030 80000000 01000000 01000000 \
                 02000000 01000000 0000080000000000 0000000000000000 4020000000000000 \
                 80000000 40000000 00000000 00000000"
            .into(),
        fds: 1,
        room: 8,
        ..Row::new(32, |_| create("ffffffff").into())
    });
    check(&Row {
        answer: "00000030 80000000 01000000 01000000 \
                 02000000 01000000 0000080000000000 0000000000000000 4020000000000000 \
                 80000000 40000000 00000000 00000000"
            .into(),
        fds: 1,
        room: 8,
        handles: &[(24, Kind::Channel)],
        ..Row::new(32, |client| create(&client.make(Kind::Channel)).into())
    });
    let mut client = Client::alone();
    for (cqe, vector, channel, what) in [
        ("00000000", "00000000", "ffffffff", "no entries"),
        ("01004000", "00000000", "ffffffff", "more than max_cqe"),
        ("10000000", "04000000", "ffffffff", "completion vector 4 of 4"),
        ("10000000", "00000000", "feffffff", "channel -2"),
    ] {
        let request = format!("12000000 0a00 1000 0100000000000000 0000000000000000 {cqe} {vector} {channel} 00000000");
        client.refused(&request.into(), if what == "channel -2" { EBADF } else { EINVAL }, what);
    }
}

#[test]
fn objects_share_a_region_until_the_last_is_gone() {
    let mut client = Client::alone();
    let (_, first) = (client.make(Kind::Pd), client.make(Kind::Cq));
    let second = client.done(&create("ffffffff"));
    compare(&second.bytes[16..48], "02000000 00000000 0000080000000000 4004000000000000 4020000000000000");
    assert!(second.fds.is_empty(), "the client has that region");
    client.destroy(Kind::Cq, &first);
    client.destroy(Kind::Cq, &digits(&second.bytes[..4]));
    let third = client.done(&create("ffffffff"));
    compare(&third.bytes[16..48], "03000000 01000000 0000080000000000 0000000000000000 4020000000000000");
    assert_eq!(third.fds.len(), 1, "a region's number is never used again");
}

/// RESIZE_CQ to 100 entries.
fn resize(client: &mut Client) -> String {
    let cq = client.make(Kind::Cq);
    format!("13000000 0600 1000 0100000000000000 {cq} 64000000")
}

#[test]
fn resize_cq() {
    check(&Row {
        answer: "80000000 00000000 01000000 01000000 \
                 02000000 00000000 0000080000000000 4004000000000000 4020000000000000 \
                 80000000 40000000 00000000 00000000"
            .into(),
        room: 8,
        handles: &[(8, Kind::Cq)],
        ..Row::new(16, |client| resize(client).into())
    });
    let mut client = Client::alone();
    let cq = client.make(Kind::Cq);
    for (cqe, what) in [("00000000", "no entries"), ("01004000", "more than max_cqe")] {
        let request = format!("13000000 0600 1000 0100000000000000 {cq} {cqe}");
        client.refused(&request.into(), EINVAL, what);
    }
}

#[test]
fn destroy_cq() {
    check(&Row {
        answer: "00000000 00000000".into(),
        room: 8,
        handles: &[(8, Kind::Cq)],
        ..Row::new(16, |client| {
            let cq = client.make(Kind::Cq);
            format!("14000000 0600 0200 0100000000000000 {cq} 00000000").into()
        })
    });
    let mut client = Client::alone();
    let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
    let qp = client.done(&crate::qp::create(&pd, &cq, "00000000", "00"));
    let destroy = format!("14000000 0600 0200 0100000000000000 {cq} 00000000");
    client.refused(&destroy.as_str().into(), EBUSY, "a QP uses it");
    client.destroy(Kind::Qp, &digits(&qp.bytes[..4]));
    client.done(&destroy);
}
