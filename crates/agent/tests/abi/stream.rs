//! STREAM_TAKE and STREAM_END.

use crate::harness::{Kind, Node, Row, check};

const ENOTCONN: i32 = -107;
const ENOENT: i32 = -2;

fn take(qp: &str) -> String {
    format!("e8000080 0100 0200 0100000000000000 0000 0000 00000000 {qp} 00000000")
}

fn end(qpn: &str) -> String {
    format!("e9000080 0100 0000 0000000000000000 0000 0000 00000000 {qpn} 00000000")
}

#[test]
fn stream_take() {
    let node = Node::start();
    let mut client = node.context();
    let qp = client.make(Kind::Qp);
    client.refused(&take(&qp).into(), ENOTCONN, "no connection was made");
    client.refused(&take("77000000").into(), ENOENT, "no such QP");
}

#[test]
fn stream_end() {
    check(&Row { ..Row::new(8, |_| end("00000000").into()) });
}
