//! CREATE_QP, QUERY_QP, MODIFY_QP and DESTROY_QP.

use crate::harness::{Client, DEST, EBUSY, EINVAL, EOPNOTSUPP, Kind, Row, check, compare, digits};

/// CREATE_QP of an RC QP for 10 sends (2 entries, 64 inline bytes) and 5 receives (3 entries).
pub(crate) fn create(pd: &str, cq: &str, srq: &str, is_srq: &str) -> String {
    format!(
        "18000000 1000 1a00 0100000000000000 9090000000000000 {pd} {cq} {cq} {srq} \
         0a000000 05000000 02000000 03000000 40000000 00 02 {is_srq} 00"
    )
}

#[test]
fn create_qp() {
    check(&Row {
        answer: "00000040 00010000 10000000 08000000 02000000 03000000 40000000 00000000 01000000 00010000 \
                 02000000 00000000 0000080000000000 4004000000000000 8008000000000000 \
                 80000000 10000000 60000000 80060000 08000000 40000000 00000000 00000000"
            .into(),
        room: 32,
        handles: &[(16, Kind::Pd), (20, Kind::Cq), (24, Kind::Cq)],
        ..Row::new(56, |client| {
            let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
            create(&pd, &cq, "00000000", "00").into()
        })
    });
}

#[test]
fn create_qp_on_an_srq() {
    check(&Row {
        answer: "00000040 00010000 10000000 00000000 02000000 00000000 40000000 00000000 01000000 00010000 \
                 02000000 00000000 0000080000000000 0005000000000000 8006000000000000 \
                 80000000 10000000 60000000 80060000 00000000 20000000 00000000 00000000"
            .into(),
        room: 32,
        handles: &[(28, Kind::Srq)],
        ..Row::new(56, |client| {
            let pd = client.make(Kind::Pd);
            let (srq, cq) = (make_srq(client, &pd), client.make(Kind::Cq));
            create(&pd, &cq, &srq, "01").into()
        })
    });
    let mut client = Client::alone();
    let (pd, cq, foreign) = (client.make(Kind::Pd), client.make(Kind::Cq), client.make(Kind::Srq));
    let other = client.done(&create(&pd, &cq, &foreign, "01"));
    client.destroy(Kind::Qp, &digits(&other.bytes[..4]));
    let srq = make_srq(&mut client, &pd);
    let qp = client.done(&create(&pd, &cq, &srq, "01"));
    let destroy = format!("23000000 0600 0100 0100000000000000 {srq} 00000000");
    client.refused(&destroy.as_str().into(), EBUSY, "a QP uses the SRQ");
    client.refused(&format!("04000000 0300 0000 {pd}").into(), EBUSY, "a QP is on the PD");
    client.destroy(Kind::Qp, &digits(&qp.bytes[..4]));
    client.done(&destroy);
}

fn make_srq(client: &mut Client, pd: &str) -> String {
    let srq =
        client.done(&format!("20000000 0a00 1200 0100000000000000 5050000000000000 {pd} 04000000 01000000 00000000"));
    digits(&srq.bytes[..4])
}

#[test]
fn create_qp_keeps_to_the_limits() {
    let mut client = Client::alone();
    let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
    let request = |caps: &str, qp_type: &str| {
        format!(
            "18000000 1000 1a00 0100000000000000 0000000000000000 {pd} {cq} {cq} 00000000 {caps} 00 {qp_type} 00 00"
        )
    };
    for (caps, what) in [
        ("01400000 01000000 01000000 01000000 00000000", "max_send_wr"),
        ("01000000 01400000 01000000 01000000 00000000", "max_recv_wr"),
        ("01000000 01000000 1f000000 01000000 00000000", "max_send_sge"),
        ("01000000 01000000 01000000 1f000000 00000000", "max_recv_sge"),
        ("01000000 01000000 01000000 01000000 01020000", "max_inline_data"),
    ] {
        client.refused(&request(caps, "02").into(), EINVAL, what);
    }
    for qp_type in ["00", "01", "05", "08", "ff"] {
        let caps = "01000000 01000000 01000000 01000000 00000000";
        client.refused(&request(caps, qp_type).into(), EOPNOTSUPP, qp_type);
    }
}

#[test]
fn query_qp() {
    check(&Row {
        answer: "00".repeat(64) + "04000000 04000000 01000000 01000000 10000000" + &"00".repeat(44),
        room: 128,
        handles: &[(8, Kind::Qp)],
        ..Row::new(16, |client| {
            let qp = client.make(Kind::Qp);
            format!("19000000 0600 2000 0100000000000000 {qp} 01000000").into()
        })
    });
}

const NO_DEST: &str = "00000000000000000000000000000000 00000000 0000 0000 00 00 00 00 00 00 00 00";

/// MODIFY_QP to INIT on port 1, with all access flags for the peer.
pub(crate) fn to_init(qp: &str) -> String {
    format!(
        "1a000000 1e00 0000 {NO_DEST} {NO_DEST} {qp} 39000000 00000000 00000000 00000000 00000000 0f000000 0000 0000 \
         01 00 00 00 00 00 00 00 01 00 00 00 00 00 0000"
    )
}

/// MODIFY_QP to RTR: path MTU 1024, peer 0x777777, PSN 0x123456.
pub(crate) fn to_rtr(qp: &str) -> String {
    format!(
        "1a000000 1e00 0000 {DEST} {NO_DEST} {qp} 81911200 00000000 56341200 00000000 77777700 00000000 0000 0000 \
         02 00 03 00 00 00 04 0c 00 00 00 00 00 00 0000"
    )
}

/// MODIFY_QP to RTS: PSN 0x654321.
pub(crate) fn to_rts(qp: &str) -> String {
    format!(
        "1a000000 1e00 0000 {NO_DEST} {NO_DEST} {qp} 012e0100 00000000 00000000 21436500 00000000 00000000 0000 0000 \
         03 00 00 00 00 05 00 00 00 0e 07 06 00 00 0000"
    )
}

#[test]
fn modify_qp() {
    check(&Row { handles: &[(64, Kind::Qp)], ..Row::new(112, |client| to_init(&client.make(Kind::Qp)).into()) });
    let mut client = Client::alone();
    let qp = client.make(Kind::Qp);
    client.refused(&to_rtr(&qp).into(), EINVAL, "RESET to RTR");
    client.done(&to_init(&qp));
    client.done(&to_rtr(&qp));
    client.done(&to_rts(&qp));
    let query = client.done(&format!("19000000 0600 2000 0100000000000000 {qp} 00000000"));
    compare(
        &query.bytes,
        &format!(
            "{DEST} {NO_DEST} 04000000 04000000 01000000 01000000 10000000 \
             00000000 56341200 21436500 77777700 0f000000 0000 0000 03 03 03 00 00 05 04 0c 01 0e 07 06 00 00 00 0000000000"
        ),
    );
}

#[test]
fn modify_qp_refuses_bad_values() {
    let mut client = Client::alone();
    let qp = client.make(Kind::Qp);
    let good = to_init(&qp);
    for (from, to, what) in [
        ("39000000", "19000000", "PORT is missing"),
        ("39000000", "79000000", "QKEY is one too many"),
        ("39000000", "39000020", "unknown attribute"),
        ("0f000000 0000 0000 01", "0f000000 0100 0000 01", "P_Key index outside the table"),
        ("00 00 01 00 00 00 00 00 0000", "00 00 02 00 00 00 00 00 0000", "port 2"),
        ("0f000000 0000 0000 01", "0f000080 0000 0000 01", "unknown right"),
        ("0000 0000 01 00", "0000 0000 07 00", "no such state"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        client.refused(&bad.into(), EINVAL, what);
    }
    client.done(&good);
    let good = to_rtr(&qp);
    for (from, to, what) in [
        ("02 00 03 00", "02 00 06 00", "path MTU code 6"),
        ("02 00 03 00", "02 00 00 00", "path MTU code 0"),
        ("00 04 0c 00", "00 81 0c 00", "max_dest_rd_atomic 129"),
        ("00 04 0c 00", "00 04 20 00", "min_rnr_timer 32"),
        ("00 00 00 00 01 01", "00 00 00 00 00 01", "no GRH"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good);
        client.refused(&bad.into(), EINVAL, what);
    }
    client.done(&good);
}

#[test]
fn destroy_qp() {
    check(&Row {
        answer: "00000000".into(),
        room: 4,
        handles: &[(8, Kind::Qp)],
        ..Row::new(16, |client| {
            let qp = client.make(Kind::Qp);
            format!("1b000000 0600 0100 0100000000000000 {qp} 00000000").into()
        })
    });
}

#[test]
fn a_thousand_qps_need_few_regions_and_leave_none() {
    let mut client = Client::alone();
    let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
    let mut regions = 0;
    let mut made = Vec::new();
    for _ in 0..1_000 {
        let qp = client.done(&create(&pd, &cq, "00000000", "00"));
        regions += qp.fds.len();
        made.push(digits(&qp.bytes[..4]));
    }
    assert!(regions <= 4, "{regions} regions for 1,000 QPs");
    for qp in &made {
        client.destroy(Kind::Qp, qp);
    }
    client.destroy(Kind::Cq, &cq);
    let cq = client.done("12000000 0a00 1000 0100000000000000 0000000000000000 10000000 00000000 ffffffff 00000000");
    assert_eq!(cq.fds.len(), 1, "every region was gone, so the next object comes with a new one");
}
