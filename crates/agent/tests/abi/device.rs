//! GET_CONTEXT and the queries.

use crate::harness::{Client, EINVAL, ENOSPC, Node, Request, Row, check, compare};

#[test]
fn get_context() {
    let node = Node::start();
    let mut client = node.open(0);
    client.refused(&"00000000 0300 0c00 01000000".into(), EINVAL, "short length");
    client.refused(&"00000000 0400 0100 0100000000000000".into(), ENOSPC, "response too small");
    let reply = client.call(&"00000000 0500 0c00 0100000000000000 01000000".into());
    assert_eq!(reply.status, 0, "a private tail is not looked at");
    compare(
        &reply.bytes,
        "00000000 04000000 01000000 00000000 \
         01000000 01000000 0040010000000000 0000000000000000 0040010000000000",
    );
    assert_eq!(reply.fds.len(), 2, "the async eventfd and the region of the context page");
    client.refused(&"00000000 0400 0c00 0100000000000000".into(), EINVAL, "a second context");

    let mut modest = node.open(1);
    let reply = modest.done("00000000 0400 0200 0100000000000000");
    compare(&reply.bytes, "00000000 04000000");
}

#[test]
fn query_device() {
    check(&Row {
        answer: "0000010000000000 02000000000000a1 02000000000000a1 0000000000800000 00f0ffffffffffff \
                 43485300 01000000 01000000 00000100 00400000 903c3201 1e000000 1e000000 \
                 00000100 00004000 00001000 00000100 80000000 00000000 00008000 80000000 00000000 \
                 01000000 00000000 00000000 00001000 00000000 00000000 00040000 00010000 00000400 \
                 00000200 00000000 00000000 00000100 00400000 1e000000 0100 0f 01 00000000"
            .into(),
        room: 176,
        ..Row::new(8, |_| "01000000 0400 2c00 0100000000000000".into())
    });
}

#[test]
fn query_port() {
    check(&Row {
        answer: "00000104 00000080 00000000 00000000 40000000 0100 0000 0000 04 05 05 00 01 00 00 00 02 20 05 02 01 00"
            .into(),
        room: 40,
        ..Row::new(16, |_| "02000000 0600 0a00 0100000000000000 01 00000000000000".into())
    });
    let mut client = Client::alone();
    client.refused(&"02000000 0600 0a00 0100000000000000 00 00000000000000".into(), EINVAL, "port 0");
    client.refused(&"02000000 0600 0a00 0100000000000000 02 00000000000000".into(), EINVAL, "port 2");
}

#[test]
fn query_gid() {
    check(&Row {
        answer: "fe80000000000000 02000000000000b1".into(),
        room: 16,
        ..Row::new(24, |_| "2d000000 0800 0400 0100000000000000 00000000 01 000000 0000000000000000".into())
    });
    let mut client = Client::alone();
    let empty = client.done("2d000000 0800 0400 0100000000000000 3f000000 01 000000 0000000000000000");
    compare(&empty.bytes, "0000000000000000 0000000000000000");
    let beyond: Request = "2d000000 0800 0400 0100000000000000 40000000 01 000000 0000000000000000".into();
    client.refused(&beyond, EINVAL, "index outside the table");
    let port: Request = "2d000000 0800 0400 0100000000000000 00000000 02 000000 0000000000000000".into();
    client.refused(&port, EINVAL, "port 2");
}

#[test]
fn query_pkey() {
    check(&Row {
        answer: "ffff 0000".into(),
        room: 4,
        ..Row::new(24, |_| "2e000000 0800 0100 0100000000000000 00000000 01 000000 0000000000000000".into())
    });
    let mut client = Client::alone();
    let beyond: Request = "2e000000 0800 0100 0100000000000000 01000000 01 000000 0000000000000000".into();
    client.refused(&beyond, EINVAL, "index outside the table");
}
