//! The first message on a node, and errors before any command: docs/abi.md, "Opening a node",
//! "Messages" and "Command headers".

use crate::harness::{EINVAL, Node, Request, hex, show, word};

/// Sends a bad `Open` and checks the answer. After it the connection is closed.
fn turned_away(open: &str, status: i32) {
    let node = Node::start();
    let client = node.connect();
    let answer = client.exchange(&hex(open));
    assert_eq!(show(&answer[..6]), show(&hex("53484341 0100")), "magic and version come in any case");
    assert_eq!(
        show(&answer[8..]),
        show(&hex(&format!("{} {}", word(status.cast_unsigned()), word(std::process::id()))))
    );
    assert_eq!(answer.len(), 16);
}

#[test]
fn both_profiles_are_opened() {
    let node = Node::start();
    node.open(0);
    node.open(1);
}

#[test]
fn a_bad_open_is_turned_away() {
    turned_away("53484341 0200 0000 00000000 00000000", -93);
    turned_away("53484341 0000 0000 00000000 00000000", -93);
    turned_away("53484342 0100 0000 00000000 00000000", EINVAL);
    turned_away("53484341 0100 0200 00000000 00000000", EINVAL);
    turned_away("53484341 0100 0000 01000000 00000000", EINVAL);
}

#[test]
fn malformed_headers_are_refused_and_the_connection_lives() {
    let node = Node::start();
    let mut client = node.context();
    for (command, what) in [
        ("", "empty"),
        ("03000000 0400 03", "half a header"),
        ("03010000 0400 0300 0100000000000000", "reserved bit"),
        ("03000040 0400 0300 0100000000000000", "reserved bit 30"),
        ("2f000000 0400 0300 0100000000000000", "number 47"),
        ("ff000000 0400 0300 0100000000000000", "number 255"),
        ("29000000 0400 0300 0100000000000000", "number 41 in the mainline profile"),
        ("02000080 0400 0300 0100000000000000", "extended number 2"),
        ("01000080 0100 2600 0100000000000000 0000 0000 000000", "half an extended header"),
        ("01000080 0100 2600 0000000000000000 0000 0000 00000000 0000000000000000", "room but no response"),
        ("01000080 0100 0000 0100000000000000 0000 0000 00000000 0000000000000000", "response but no room"),
        ("01000080 0100 2600 0100000000000000 0000 0000 01000000 0000000000000000", "reserved word"),
        ("01000080 0100 2600 0100000000000000 0100 0000 00000000 0000000000000000", "provider input that is not there"),
    ] {
        client.refused(&Request::from(command), EINVAL, what);
    }
    client.done("03000000 0400 0300 0100000000000000");
}
