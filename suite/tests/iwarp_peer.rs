//! iWARP against a peer that is no softhca: a plain TCP socket that sends literal bytes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use harness::{HANG, Program, Room, User, cprogram, process, program, wait};
use rustix::net::sockopt::set_socket_linger;
use rustix::process::Signal;

/// A reply in revision 2 with CRCs, IRD and ORD 4, and no private data.
const REPLY: &[u8] = b"MPA ID Rep Frame\x50\x02\x00\x04\x00\x04\x00\x04";
/// The first FPDU of a stream: a SEND of "hello".
const HELLO: &[u8] = b"\x00\x17\x41\x43\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0hello\0\0\0\xb9\x90\xb1\x0c";

fn room() -> Room {
    Room::of(User::Me).expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent")
}

/// Starts a program of the suite as a client, and accepts its connection.
fn accepted(room: &Room, name: &str, more: &[&str]) -> (Program, TcpStream) {
    let path = cprogram::build_with(room, name, &["-lrdmacm"]).expect("it compiles").display().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let words = [&[path.as_str(), "-a", "127.0.0.1", "-p", &port], more].concat();
    let client = room.start(room.run(&words)).expect("it starts");
    let (mut socket, _) = listener.accept().expect("it calls");
    let mut request = [0; 24];
    socket.read_exact(&mut request).expect("a request");
    assert!(request.starts_with(b"MPA ID Req Frame"), "{request:02x?}");
    socket.write_all(REPLY).expect("a reply");
    (client, socket)
}

#[test]
fn iw_lost_a_message_before_the_end_arrives_although_the_next_send_fails() {
    let room = room();
    let (mut client, mut socket) = accepted(&room, "lastwords", &[]);
    let pid = client.inner("lastwords", HANG).expect("it runs");
    wait::until(HANG, "the program to stop", || (process::state(pid) == Some('T')).then_some(())).expect("it stops");
    socket.write_all(HELLO).expect("sent");
    set_socket_linger(&socket, Some(Duration::ZERO)).expect("an option");
    drop(socket);
    program::send(pid, Signal::CONT);
    let outcome = client.wait(HANG).expect("it ends");
    assert!(outcome.succeeded(), "{}", outcome.told());
}

#[test]
fn iw_close_sqd_has_no_way_back_while_the_peer_keeps_its_side_open() {
    let room = room();
    let (mut client, mut socket) = accepted(&room, "streams", &["sqd"]);
    // The ready-to-receive message, and the end.
    let mut sent = Vec::new();
    socket.read_to_end(&mut sent).expect("the client's end");
    let outcome = client.wait(HANG).expect("it ends");
    assert!(outcome.everything().contains("SQD has closed the connection"), "{}", outcome.told());
    assert_eq!(outcome.code, 2, "{}", outcome.told());
}
