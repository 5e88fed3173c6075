//! OPEN_XRCD, CLOSE_XRCD, CREATE_XSRQ, OPEN_QP, and CREATE_QP of XRC's two types.

use crate::harness::{
    Client, EAGAIN, EBADF, EBUSY, EINVAL, ENOENT, EOPNOTSUPP, Kind, Request, Row, check, compare, digits,
};

/// OPEN_XRCD for the inode of a file, with flags.
pub(crate) fn of_file(file: &std::fs::File, oflags: &str) -> Request {
    let mut request: Request = format!("25000000 0600 0500 0100000000000000 00000000 {oflags}").into();
    request.fds.push(file.try_clone().unwrap().into());
    request
}

#[test]
fn open_xrcd() {
    check(&Row {
        answer: "000000a0 01000000 01000000 0000000000000000".into(),
        room: 4,
        ..Row::new(16, |_| "25000000 0600 0500 0100000000000000 ffffffff 00000000".into())
    });
    let mut client = Client::alone();
    let file = tempfile::tempfile().unwrap();
    client.refused(&"25000000 0600 0300 0100000000000000 00000000 40000000".into(), EBADF, "no file came along");
    client.refused(&of_file(&file, "00000000"), EAGAIN, "nobody has made it");
    let made = client.call(&of_file(&file, "c0000000"));
    compare(&made.bytes, "000000a0 01000000 01000000 ????????????????");
    assert_ne!(made.bytes[12..], [0; 8], "a token");
    client.refused(&of_file(&file, "c0000000"), EINVAL, "O_EXCL");
    let token = digits(&made.bytes[12..]);
    compare(&client.call(&of_file(&file, "40000000")).bytes, &format!("010000a0 01000000 01000000 {token}"));
}

#[test]
fn close_xrcd() {
    check(&Row {
        handles: &[(0, Kind::Xrcd)],
        ..Row::new(4, |client| {
            let xrcd = client.make(Kind::Xrcd);
            format!("26000000 0300 0000 {xrcd}").into()
        })
    });
}

pub(crate) fn srq(srq_type: &str, pd: &str, xrcd: &str, cq: &str) -> String {
    format!(
        "27000000 0e00 1200 0100000000000000 5050000000000000 {srq_type} {pd} 07000000 03000000 02000000 00000000 {xrcd} {cq}"
    )
}

#[test]
fn create_xsrq() {
    check(&Row {
        answer: "00000050 08000000 03000000 01000000 01000000 01000000 \
                 02000000 00000000 0000080000000000 4004000000000000 4002000000000000 \
                 40000000 08000000 40000000 00000000"
            .into(),
        room: 16,
        handles: &[(20, Kind::Pd), (40, Kind::Xrcd), (44, Kind::Cq)],
        ..Row::new(48, |client| {
            let (pd, cq, xrcd) = (client.make(Kind::Pd), client.make(Kind::Cq), client.make(Kind::Xrcd));
            srq("01000000", &pd, &xrcd, &cq).into()
        })
    });
    let mut client = Client::alone();
    let (pd, cq, xrcd) = (client.make(Kind::Pd), client.make(Kind::Cq), client.make(Kind::Xrcd));
    client.refused(&srq("02000000", &pd, &xrcd, &cq).into(), EOPNOTSUPP, "tag matching");
    client.refused(&srq("03000000", &pd, &xrcd, &cq).into(), EINVAL, "no such type");
    let plain = client.done(&srq("00000000", &pd, "00000000", "00000000"));
    compare(&plain.bytes[12..16], "00000000");
    let made = client.done(&srq("01000000", &pd, &xrcd, &cq));
    for (what, request) in [
        ("the domain", format!("26000000 0300 0000 {xrcd}")),
        ("the CQ", format!("14000000 0600 0200 0100000000000000 {cq} 00000000")),
        ("the PD", format!("04000000 0300 0000 {pd}")),
    ] {
        client.refused(&request.into(), EBUSY, what);
    }
    client.destroy(Kind::Srq, &digits(&made.bytes[..4]));
    client.destroy(Kind::Xrcd, &xrcd);
    client.destroy(Kind::Cq, &cq);
}

/// CREATE_QP with 10 sends and 5 receives; an XRC QP uses only the sizes that it has.
pub(crate) fn qp(qp_type: &str, pd: &str, cq: &str) -> String {
    format!(
        "18000000 1000 1a00 0100000000000000 9090000000000000 {pd} {cq} {cq} 00000000 \
         0a000000 05000000 02000000 03000000 40000000 00 {qp_type} 00 00"
    )
}

pub(crate) fn open(xrcd: &str, qpn: &str, qp_type: &str) -> String {
    format!("28000000 0a00 0800 0100000000000000 9191000000000000 {xrcd} {qpn} {qp_type} 00000000000000")
}

#[test]
fn open_qp() {
    check(&Row {
        answer: "000000b0 00010000 00000000 00000000 00000000 00000000 00000000 00000000".into(),
        room: 32,
        handles: &[(16, Kind::Xrcd)],
        ..Row::new(32, |client| {
            let xrcd = client.make(Kind::Xrcd);
            let made = client.done(&qp("0a", &xrcd, "00000000"));
            open(&xrcd, &digits(&made.bytes[4..8]), "0a").into()
        })
    });
    let mut client = Client::alone();
    let (xrcd, other, pd, cq) =
        (client.make(Kind::Xrcd), client.make(Kind::Xrcd), client.make(Kind::Pd), client.make(Kind::Cq));
    let target = client.done(&qp("0a", &xrcd, "00000000"));
    compare(&target.bytes[8..28], "00000000 00000000 00000000 00000000 00000000");
    let initiator = client.done(&qp("09", &pd, &cq));
    compare(&initiator.bytes[8..28], "10000000 00000000 02000000 00000000 40000000");
    let qpn = digits(&target.bytes[4..8]);
    client.refused(&open(&xrcd, &qpn, "09").into(), EINVAL, "not a target's type");
    client.refused(&open(&other, &qpn, "0a").into(), EINVAL, "another domain");
    client.refused(&open(&xrcd, &digits(&initiator.bytes[4..8]), "0a").into(), EINVAL, "not a target");

    let opened = client.done(&open(&xrcd, &qpn, "0a"));
    let (made, opened) = (digits(&target.bytes[..4]), digits(&opened.bytes[..4]));
    let query = |handle: &str| format!("19000000 0600 2000 0100000000000000 {handle} 00000000");
    client.done(&query(&opened));
    client.destroy(Kind::Qp, &made);
    client.refused(&query(&made).into(), ENOENT, "its maker has let go of it");
    client.done(&query(&opened));
    client.refused(&format!("26000000 0300 0000 {xrcd}").into(), EBUSY, "somebody else holds it");
    client.destroy(Kind::Qp, &opened);
    client.refused(&open(&xrcd, &qpn, "0a").into(), EINVAL, "it is gone");
    client.destroy(Kind::Xrcd, &xrcd);
}
