//! The wire's commands.

use crate::harness::{Client, EINVAL, EOPNOTSUPP, Node, Request, Row, check, compare};
use crate::private::hello;

const OPEN: &str = "c5000080 0100 0200 0100000000000000 0000 0000 00000000 00000000 00000000";
const EPERM: i32 = -1;
const EEXIST: i32 = -17;

fn sockets(first: &str, max: &str) -> Request {
    format!("c6000080 0100 1400 0100000000000000 0000 0000 00000000 {first} {max}").into()
}

/// Makes the client an engine; its push socket stays open.
fn engine(client: &mut Client) -> Vec<std::os::fd::OwnedFd> {
    let reply = client.call(&hello());
    assert_eq!(reply.status, 0);
    reply.fds
}

#[test]
fn wire_open() {
    check(&Row {
        answer: "01000000 00000000 ????????00000000".into(),
        fds: 3,
        room: 16,
        ..Row::new(8, |client| {
            engine(client);
            OPEN.into()
        })
    });
    let mut client = Client::alone();
    client.refused(&OPEN.into(), EINVAL, "no engine");
    let _ends = engine(&mut client);
    client.refused(
        &OPEN.replace("00000000 00000000 00000000", "00000000 01000000 00000000").as_str().into(),
        EINVAL,
        "a flag",
    );
    client.done(OPEN);
    client.refused(&OPEN.into(), EEXIST, "a second wire lane");
    let node = Node::with("wire = 'off'\n");
    let mut client = node.context();
    let _ends = engine(&mut client);
    client.refused(&OPEN.into(), EOPNOTSUPP, "no wire");
}

#[test]
fn wire_sockets() {
    check(&Row {
        answer: format!("???????? 00000000 00000000 00000000 {}", "00".repeat(144)),
        room: 160,
        ..Row::new(8, |client| {
            engine(client);
            client.done(OPEN);
            sockets("00000000", "06000000")
        })
    });
    let mut client = Client::alone();
    let _ends = engine(&mut client);
    client.refused(&sockets("00000000", "06000000"), EPERM, "no wire lane");
    client.done(OPEN);
    client.refused(&sockets("00000000", "07000000"), EINVAL, "more than an answer holds");
    let none = client.call(&sockets("ffffffff", "06000000"));
    compare(&none.bytes, &format!("???????? 00000000 00000000 00000000 {}", "00".repeat(144)));
}
