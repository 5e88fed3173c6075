//! The proxy engine: POST_SEND, POST_RECV, POST_SRQ_RECV, POLL_CQ and REQ_NOTIFY_CQ. `slow_path.rs`
//! tests that data arrives.

use crate::harness::{Client, EINVAL, ENOSPC, EOPNOTSUPP, Kind, Row, check, compare};
use crate::qp::{to_init, to_rtr, to_rts};

/// A SEND without data.
const SEND: &str = "0100000000000000 00000000 02000000 02000000 00000000 0000000000000000 0000000000000000 \
                    0000000000000000 0000000000000000";
/// A receive without memory.
const RECV: &str = "0200000000000000 00000000 00000000";

fn qp_in_rts(client: &mut Client) -> String {
    let qp = client.make(Kind::Qp);
    client.done(&to_init(&qp));
    client.done(&to_rtr(&qp));
    client.done(&to_rts(&qp));
    qp
}

/// Checks a refusal that has the number of the bad work request before its sentence.
fn bad_wr(client: &mut Client, command: &str, errno: i32, number: &str, what: &str) {
    let reply = client.call(&command.into());
    assert_eq!(reply.status, errno, "{what}: {}", String::from_utf8_lossy(&reply.bytes));
    compare(&reply.bytes[..4], number);
    assert!(reply.bytes.len() > 4, "{what}: refused without a reason");
}

#[test]
fn post_send() {
    check(&Row {
        answer: "00000000".into(),
        room: 4,
        handles: &[(8, Kind::Qp)],
        ..Row::new(24, |client| {
            let qp = qp_in_rts(client);
            format!("1c000000 1600 0100 0100000000000000 {qp} 01000000 00000000 38000000 {SEND}").into()
        })
    });
    let mut client = Client::alone();
    let qp = qp_in_rts(&mut client);
    let head = |words: &str, counts: &str| format!("1c000000 {words} 0100 0100000000000000 {qp} {counts}");
    let bad_opcode = SEND.replacen("02000000", "63000000", 1);
    let inline = SEND.replacen("02000000 02000000", "02000000 0a000000", 1);
    for (command, number, what) in [
        (format!("{} {SEND}", head("1600", "02000000 00000000 38000000")), "??000000", "fewer WRs than announced"),
        (format!("{} {SEND}", head("1600", "01000000 01000000 38000000")), "??000000", "fewer SGEs than announced"),
        (format!("{} {SEND}", head("1600", "01000000 00000000 30000000")), "??000000", "wqe_size too small"),
        (format!("{} {bad_opcode}", head("1600", "01000000 00000000 38000000")), "01000000", "no such opcode"),
        (format!("{} {SEND} {bad_opcode}", head("2400", "02000000 00000000 38000000")), "02000000", "the second"),
        (format!("{} {inline}", head("1600", "01000000 00000000 38000000")), "01000000", "inline"),
    ] {
        bad_wr(&mut client, &command, EINVAL, number, what);
    }
    let early = client.make(Kind::Qp);
    let command = format!("1c000000 1600 0100 0100000000000000 {early} 01000000 00000000 38000000 {SEND}");
    bad_wr(&mut client, &command, EINVAL, "01000000", "in RESET");
}

#[test]
fn post_recv() {
    check(&Row {
        answer: "00000000".into(),
        room: 4,
        handles: &[(8, Kind::Qp)],
        ..Row::new(24, |client| {
            let qp = client.make(Kind::Qp);
            client.done(&to_init(&qp));
            format!("1d000000 0c00 0100 0100000000000000 {qp} 01000000 00000000 10000000 {RECV}").into()
        })
    });
    let mut client = Client::alone();
    let qp = client.make(Kind::Qp);
    let one = format!("1d000000 0c00 0100 0100000000000000 {qp} 01000000 00000000 10000000 {RECV}");
    bad_wr(&mut client, &one, EINVAL, "01000000", "in RESET");
    client.done(&to_init(&qp));
    let five = format!(
        "1d000000 1c00 0100 0100000000000000 {qp} 05000000 00000000 10000000 {RECV} {RECV} {RECV} {RECV} {RECV}"
    );
    bad_wr(&mut client, &five, -12, "05000000", "the queue has four entries");
}

#[test]
fn post_srq_recv() {
    check(&Row {
        answer: "00000000".into(),
        room: 4,
        handles: &[(8, Kind::Srq)],
        ..Row::new(24, |client| {
            let srq = client.make(Kind::Srq);
            format!("24000000 0c00 0100 0100000000000000 {srq} 01000000 00000000 10000000 {RECV}").into()
        })
    });
    let mut client = Client::alone();
    let srq = client.make(Kind::Srq);
    let five = format!(
        "24000000 1c00 0100 0100000000000000 {srq} 05000000 00000000 10000000 {RECV} {RECV} {RECV} {RECV} {RECV}"
    );
    bad_wr(&mut client, &five, -12, "05000000", "the queue has four entries");
}

#[test]
fn poll_cq() {
    check(&Row {
        answer: "00000000 00000000".into(),
        room: 8,
        handles: &[(8, Kind::Cq)],
        ..Row::new(16, |client| {
            let cq = client.make(Kind::Cq);
            format!("15000000 0600 0e00 0100000000000000 {cq} 01000000").into()
        })
    });
    let mut client = Client::alone();
    let cq = client.make(Kind::Cq);
    let two = format!("15000000 0600 0e00 0100000000000000 {cq} 02000000");
    client.refused(&two.into(), ENOSPC, "room for one of two completions");
}

#[test]
fn req_notify_cq() {
    check(&Row {
        handles: &[(0, Kind::Cq)],
        ..Row::new(8, |client| {
            let cq = client.make(Kind::Cq);
            format!("17000000 0400 0000 {cq} 00000000").into()
        })
    });
}

/// A context with an engine posts to queue memory; the agent does not interfere.
#[test]
fn an_engine_of_ones_own_and_the_slow_path_exclude_each_other() {
    let mut client = Client::alone();
    let cq = client.make(Kind::Cq);
    assert_eq!(client.call(&crate::private::hello()).status, 0);
    let poll = format!("15000000 0600 0e00 0100000000000000 {cq} 01000000");
    client.refused(&poll.as_str().into(), EOPNOTSUPP, "POLL_CQ with an engine");
    bad_wr(
        &mut client,
        &format!("1c000000 1600 0100 0100000000000000 00000040 01000000 00000000 38000000 {SEND}"),
        EOPNOTSUPP,
        "01000000",
        "POST_SEND with an engine",
    );
    let mut other = Client::alone();
    let cq = other.make(Kind::Cq);
    other.done(&format!("15000000 0600 0e00 0100000000000000 {cq} 01000000"));
    other.refused(&crate::private::hello(), -17, "ENGINE_HELLO of a client with a proxy engine");
}
