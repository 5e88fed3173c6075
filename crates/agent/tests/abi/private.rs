//! softhca's own commands.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use shm::socket::Socket;
use shm::wake_word::WakeWord;

use crate::harness::{Client, EBUSY, EINVAL, Kind, Node, Request, Row, check, compare, digits, hex, word};

const HELLO: &str = "c0000080 0100 0300 0100000000000000 0000 0000 00000000 00000000 00000000";

fn wake() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC).unwrap()
}

pub(crate) fn hello() -> Request {
    let (_, wake_word) = WakeWord::create().unwrap();
    Request { bytes: hex(HELLO), fds: vec![wake_word, wake()] }
}

#[test]
fn engine_hello() {
    check(&Row {
        answer: "01000000 00000000 0030c40000000000 00000000 18000000".into(),
        fds: 2,
        room: 24,
        ..Row::new(8, |_| hello())
    });
    let mut client = Client::alone();
    let wake_word = || WakeWord::create().unwrap().1;
    for (fds, what) in [
        (vec![], "no descriptors"),
        (vec![wake_word()], "one descriptor"),
        (vec![wake_word(), wake(), wake()], "three descriptors"),
        (vec![wake(), wake()], "a wake word that is not memory"),
        (vec![wake_word(), wake_word()], "a kick that is not an eventfd"),
    ] {
        client.refused(&Request { bytes: hex(HELLO), fds }, EINVAL, what);
    }
    assert_eq!(client.call(&hello()).status, 0);
    client.refused(&hello(), -17, "a second engine");
}

/// Makes the client an engine. Returns its number and push socket.
pub(crate) fn engine(client: &mut Client) -> (String, Socket) {
    let mut reply = client.call(&hello());
    assert_eq!(reply.status, 0);
    (digits(&reply.bytes[..4]), Socket::from(reply.fds.remove(1)))
}

fn open_lane(engine: &str, lane_index: &str) -> String {
    format!("c1000080 0100 0400 0100000000000000 0000 0000 00000000 {engine} {lane_index}")
}

#[test]
fn lane_open() {
    check(&Row {
        answer: format!("01000000 00000000 01000000 {} 00000000 00000000 ????????00000000", word(std::process::id())),
        fds: 4,
        room: 32,
        ..Row::new(8, |client| open_lane(&engine(client).0, "00000000").into())
    });
    let node = Node::start();
    let (mut one, mut two) = (node.context(), node.context());
    one.refused(&open_lane("02000000", "00000000").into(), EINVAL, "no engine of one's own");
    let (first, _pushes) = engine(&mut one);
    one.refused(&open_lane("02000000", "00000000").into(), -3, "a context that is no engine");
    one.refused(&open_lane("09000000", "00000000").into(), -3, "no such engine");
    let (second, pushes) = engine(&mut two);
    one.refused(&open_lane(&second, "40000000").into(), EINVAL, "lane index 64");
    let opened = one.done(&open_lane(&second, "00000000"));
    let pid = word(std::process::id());
    compare(&opened.bytes[..24], &format!("01000000 00000000 {second} {pid} 00000000 00000000"));
    let again = one.done(&open_lane(&second, "00000000"));
    assert_eq!(again.bytes, opened.bytes, "the same lane");

    let mut push = [0; 64];
    let received = pushes.recv(&mut push).unwrap();
    compare(&push[..32], &format!("01000000 00000000 01000000 01000000 {first} {pid} 00000000 00000000"));
    assert_eq!((received.len, received.fds.len()), (40, 4));
    let back = two.done(&open_lane(&first, "00000000"));
    compare(&back.bytes[..12], &format!("01000000 01000000 {first}"));

    drop(one);
    let received = pushes.recv(&mut push).unwrap();
    compare(&push[..20], &format!("02000000 00000000 01000000 00000000 {first}"));
    assert_eq!((received.len, received.fds.len()), (40, 0));
}

#[test]
fn mcast_resolve() {
    check(&Row {
        answer: format!("???????? 01000000 01000000 {}", "00".repeat(260)),
        room: 272,
        ..Row::new(32, |client| {
            let qp = client.make(Kind::UdQp);
            client.done(&format!("1e000000 0800 0000 ff12000000000000 {:0>16} {qp} 0000 0000", "abc"));
            format!(
                "c2000080 0400 2200 0100000000000000 0000 0000 00000000 ff12000000000000 {:0>16} 01000000 00000000 01000000 00000000",
                "abc"
            )
            .into()
        })
    });
    let mut client = Client::alone();
    let ask = |gid: &str, max: &str| {
        format!("c2000080 0400 2200 0100000000000000 0000 0000 00000000 {gid} {max} 00000000 01000000 00000000")
    };
    let nobody = client.done(&ask("ff12000000000000 0000000000000def", "40000000"));
    compare(&nobody.bytes, &format!("???????? {}", "00".repeat(268)));
    client.refused(&ask("ff12000000000000 0000000000000def", "41000000").into(), EINVAL, "more than 64");
    client.refused(&ask("fe80000000000000 02000000000000b1", "40000000").into(), EINVAL, "no multicast GID");
}

#[test]
fn path_resolve() {
    let mut client = Client::alone();
    let ask = "c9000080 0400 0e00 0100000000000000 0000 0000 00000000 \
        0000000000000000 0000000000000000 00000000 01 01 0000 00 00 0000 00000000";
    client.refused(&ask.into(), EINVAL, "without an engine");
    assert_eq!(client.call(&hello()).status, 0);
    client.refused(&ask.into(), EINVAL, "without switches");
}

#[test]
fn channel_destroy() {
    check(&Row { handles: &[(0, Kind::Channel)], ..Row::new(8, |client| destroy(&client.make(Kind::Channel)).into()) });
    let mut client = Client::alone();
    let channel = client.make(Kind::Channel);
    let cq = client
        .done(&format!("12000000 0a00 1000 0100000000000000 0000000000000000 10000000 00000000 {channel} 00000000"));
    client.refused(&destroy(&channel).into(), EBUSY, "a CQ uses it");
    client.destroy(Kind::Cq, &digits(&cq.bytes[..4]));
    client.done(&destroy(&channel));
}

fn destroy(channel: &str) -> String {
    format!("c3000080 0100 0000 0000000000000000 0000 0000 00000000 {channel} 00000000")
}

#[test]
fn resize_undo() {
    let undo =
        |handle: &str, kind: &str| format!("ca000080 0100 0000 0000000000000000 0000 0000 00000000 {handle} {kind}");
    let mut client = Client::alone();
    let cq = client.make(Kind::Cq);
    client.refused(&undo(&cq, "00000000").into(), EINVAL, "it was not resized");
    client.refused(&undo(&cq, "02000000").into(), EINVAL, "no kind of queue");
}

#[test]
fn gid_entry() {
    check(&Row {
        answer: "fe80000000000000 02000000000000b1 00000000 01000000 02000000 ??000000".into(),
        room: 32,
        ..Row::new(8, |_| "c4000080 0100 0400 0100000000000000 0000 0000 00000000 01000000 00000000".into())
    });
    let mut client = Client::alone();
    let ask = |port: &str, index: &str| {
        Request::from(format!("c4000080 0100 0400 0100000000000000 0000 0000 00000000 {port} {index}"))
    };
    client.refused(&ask("02000000", "00000000"), EINVAL, "port 2");
    client.refused(&ask("01000000", "40000000"), EINVAL, "index outside the table");
    client.refused(&ask("01000000", "3f000000"), -61, "an empty entry");
}

#[test]
fn direct_ask() {
    fn ask(engine: &str) -> String {
        format!("c7000080 0200 0000 0000000000000000 0000 0000 00000000 {engine} 11000000 22000000 00330000")
    }
    check(&Row::new(16, |client| ask(&engine(client).0).into()));
    let node = Node::start();
    let (mut one, mut two) = (node.context(), node.context());
    one.refused(&ask("02000000").into(), EINVAL, "no engine of one's own");
    let ((first, _), (second, pushes)) = (engine(&mut one), engine(&mut two));
    one.done(&ask(&second));
    let mut push = [0; 64];
    let received = pushes.recv(&mut push).unwrap();
    let zeros = "00000000 00000000";
    compare(&push[..40], &format!("09000000 00000000 11000000 22000000 {first} {zeros} 00330000 {zeros}"));
    assert_eq!((received.len, received.fds.len()), (40, 0));
    // A question to an engine that does not exist reaches no engine.
    one.done(&ask("09000000"));
}

#[test]
fn violation() {
    fn told(port: &str, kind: &str) -> String {
        let (head, gids) = ("cb000080 0700 0000 0000000000000000 0000 0000 00000000", "00".repeat(32));
        format!("{head} {port}{kind}0300 0400 0500 34120000 11000000 01000000 {gids} 00000000")
    }
    check(&Row::new(56, |_| told("01", "00").into()));
    let node = Node::start();
    let mut client = node.context();
    for kind in ["00", "01", "02"] {
        client.done(&told("01", kind));
    }
    client.refused(&told("01", "03").into(), EINVAL, "no such kind");
    for port in ["00", "03"] {
        client.refused(&told(port, "00").into(), EINVAL, "no such port");
    }
}

#[test]
fn direct_grant() {
    fn grant(engine: &str, fds: Vec<OwnedFd>) -> Request {
        let bytes =
            hex(&format!("c8000080 0200 0000 0000000000000000 0000 0000 00000000 {engine} 11000000 22000000 33000000"));
        Request { bytes, fds }
    }
    check(&Row::new(16, |client| {
        let number = engine(client).0;
        grant(&number, vec![wake(), wake()])
    }));
    let node = Node::start();
    let (mut one, mut two) = (node.context(), node.context());
    one.refused(&grant("02000000", vec![wake(), wake()]), EINVAL, "no engine of one's own");
    let ((first, _), (second, pushes)) = (engine(&mut one), engine(&mut two));
    one.refused(&grant(&second, vec![wake()]), EINVAL, "one descriptor");
    assert_eq!(one.call(&grant(&second, vec![wake(), wake()])).status, 0);
    let mut push = [0; 64];
    let received = pushes.recv(&mut push).unwrap();
    let zeros = "00000000 00000000";
    compare(&push[..40], &format!("0a000000 00000000 11000000 22000000 {first} {zeros} 33000000 {zeros}"));
    assert_eq!((received.len, received.fds.len()), (40, 2));
}
