//! XRC_FIND, XRC_ADOPT and XRC_EVENT.

use std::fs::File;

use crate::harness::{Client, EINVAL, Kind, Node, Request, Row, check, compare, digits};
use crate::private::engine;
use crate::xrc::{of_file, open, qp, srq};

const ENOENT: i32 = -2;

fn find(qp: &str, srqn: &str) -> String {
    format!("e0000080 0100 0100 0100000000000000 0000 0000 00000000 {qp} {srqn}")
}

fn adopt(qpn: &str) -> Request {
    format!("e1000080 0100 1800 0100000000000000 0000 0000 00000000 {qpn} 00000000").into()
}

fn event(qp: &str, kind: &str) -> String {
    format!("e2000080 0100 0000 0000000000000000 0000 0000 00000000 {qp} {kind}")
}

/// Creates a domain of a file, and a target in it. Returns the domain's handle, the target's
/// handle, and the target's number.
fn target(client: &mut Client, file: &File) -> (String, String, String) {
    let opened = client.call(&of_file(file, "40000000"));
    let xrcd = digits(&opened.bytes[..4]);
    let made = client.done(&qp("0a", &xrcd, "00000000"));
    (xrcd, digits(&made.bytes[..4]), digits(&made.bytes[4..8]))
}

#[test]
fn xrc_find() {
    check(&Row {
        answer: "01000000 00000000".into(),
        room: 8,
        handles: &[(0, Kind::Qp)],
        ..Row::new(8, |client| {
            let (xrcd, target, _) = target(client, &tempfile::tempfile().unwrap());
            let (pd, cq) = (client.make(Kind::Pd), client.make(Kind::Cq));
            let made = client.done(&srq("01000000", &pd, &xrcd, &cq));
            find(&target, &digits(&made.bytes[12..16])).into()
        })
    });
    let (node, file) = (Node::start(), tempfile::tempfile().unwrap());
    let (mut one, mut two) = (node.context(), node.context());
    let (_, target, qpn) = target(&mut one, &file);
    let xrcd = digits(&two.call(&of_file(&file, "00000000")).bytes[..4]);
    let (pd, cq) = (two.make(Kind::Pd), two.make(Kind::Cq));
    let made = two.done(&srq("01000000", &pd, &xrcd, &cq));
    let srqn = digits(&made.bytes[12..16]);
    compare(&one.done(&find(&target, &srqn)).bytes, "02000000 00000000");
    one.refused(&find(&target, "77000000").into(), ENOENT, "no such SRQ");
    let alone = two.make(Kind::Xrcd);
    let other = two.done(&srq("01000000", &pd, &alone, &cq));
    one.refused(&find(&target, &digits(&other.bytes[12..16])).into(), ENOENT, "another domain's");
    two.refused(&find(&target, &srqn).into(), ENOENT, "a handle of another context");
    let opened = two.done(&open(&xrcd, &qpn, "0a"));
    compare(&two.done(&find(&digits(&opened.bytes[..4]), &srqn)).bytes, "02000000 00000000");
    let pair = one.make(Kind::Qp);
    one.refused(&find(&pair, &srqn).into(), EINVAL, "no target");
}

#[test]
fn xrc_adopt() {
    let (node, file) = (Node::start(), tempfile::tempfile().unwrap());
    let (mut one, mut two, mut three) = (node.context(), node.context(), node.context());
    let (_, made, qpn) = target(&mut one, &file);
    let (_, pushes) = engine(&mut two);
    let (_, later) = engine(&mut three);
    let hold = |client: &mut Client| {
        let xrcd = digits(&client.call(&of_file(&file, "00000000")).bytes[..4]);
        digits(&client.done(&open(&xrcd, &qpn, "0a")).bytes[..4])
    };
    let (held, bystander) = (hold(&mut two), hold(&mut three));
    two.refused(&adopt(&qpn), EINVAL, "it is served");
    one.done(&format!("1b000000 0600 0100 0100000000000000 {made} 00000000"));
    let mut push = [0; 64];
    let received = pushes.recv(&mut push).unwrap();
    compare(&push[..12], &format!("05000000 00000000 {qpn}"));
    assert_eq!((received.len, received.fds.len()), (40, 0));
    three.refused(&adopt(&qpn), EINVAL, "it was offered to another one");
    let adopted = two.call(&adopt(&qpn));
    assert_eq!((adopted.status, adopted.bytes.len(), adopted.fds.len()), (0, 192, 1));
    compare(&adopted.bytes[112..128], &format!("01000000 00000000 01000000 {qpn}"));
    two.refused(&adopt(&qpn), EINVAL, "it is served");
    for (client, handle) in [(&mut two, held), (&mut three, bystander)] {
        client.done(&format!("19000000 0600 2000 0100000000000000 {handle} 00000000"));
        client.destroy(Kind::Qp, &handle);
    }
    assert_eq!(later.recv(&mut push).unwrap().len, 40);
    compare(&push[..12], &format!("05000000 00000000 {qpn}"));
    one.refused(&open("000000a0", &qpn, "0a").into(), EINVAL, "it has gone with the last");
}

#[test]
fn xrc_event() {
    check(&Row {
        handles: &[(0, Kind::Qp)],
        ..Row::new(8, |client| event(&target(client, &tempfile::tempfile().unwrap()).1, "02000000").into())
    });
    let (node, file) = (Node::start(), tempfile::tempfile().unwrap());
    let (mut one, mut two) = (node.context(), node.context());
    let (_, target, qpn) = target(&mut one, &file);
    let xrcd = digits(&two.call(&of_file(&file, "00000000")).bytes[..4]);
    let held = digits(&two.done(&open(&xrcd, &qpn, "0a")).bytes[..4]);
    one.refused(&event(&target, "08000000").into(), EINVAL, "no event of a QP");
    two.refused(&event(&held, "02000000").into(), EINVAL, "it is not the one that serves it");
    one.done(&event(&target, "03000000"));
}
