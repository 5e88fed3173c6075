//! iWARP against a peer that is no softhca: a plain TCP socket. As the listener it sends literal
//! bytes, as the caller it sends what softhca's own programs do not.

mod initiator;
mod mistakes;
mod quirks;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use harness::{Family, HANG, Program, Room, User, cprogram, process, program, wait};
use initiator::Initiator;
use iwarp::Terms;
use iwarp::rdmap::{Atomic, AtomicResponse, Opcode};
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
    replied(room, name, more, REPLY)
}

/// As [`accepted`], with another reply.
fn replied(room: &Room, name: &str, more: &[&str], reply: &[u8]) -> (Program, TcpStream) {
    let path = cprogram::build_with(room, name, &["-lrdmacm"]).expect("it compiles").display().to_string();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    let words = [&[path.as_str(), "-a", "127.0.0.1", "-p", &port], more].concat();
    let client = room.start(room.run(&words)).expect("it starts");
    let (mut socket, _) = listener.accept().expect("it calls");
    let mut request = [0; 24];
    socket.read_exact(&mut request).expect("a request");
    assert!(request.starts_with(b"MPA ID Req Frame"), "{request:02x?}");
    socket.write_all(reply).expect("a reply");
    (client, socket)
}

/// Waits until `lastwords` has stopped itself. Returns its process.
fn stopped(client: &mut Program) -> u32 {
    let pid = client.inner("lastwords", HANG).expect("it runs");
    wait::until(HANG, "the program to stop", || (process::state(pid) == Some('T')).then_some(())).expect("it stops");
    pid
}

#[test]
fn iw_lost_a_message_before_the_end_arrives_although_the_next_send_fails() {
    let room = room();
    let (mut client, mut socket) = accepted(&room, "lastwords", &[]);
    let pid = stopped(&mut client);
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

/// A peer that asks for more than the sockets' buffers hold, and does not read the responses.
#[test]
fn iw_pressure_a_peer_that_reads_no_responses_holds_back_its_queue_pair_only() {
    const READS: u64 = 16;
    const SIZE: u32 = 4 << 20;
    let room = room();
    let path = cprogram::build_with(&room, "pressure", &["-lrdmacm"]).expect("it compiles").display().to_string();
    let place = room.place(Family::V4);
    let mut server = place.serve(&format!("{path} -a ADDRESS -p PORT -l")).expect("it listens");
    let mut peer = Initiator::connect(server.port());
    (0..READS).for_each(|_| peer.read(SIZE));

    let mut other = place.call(&server, &format!("{path} -a ADDRESS -p PORT -c")).expect("it starts");
    let outcome = other.wait(HANG).expect("it ends");
    assert!(outcome.succeeded(), "{}", outcome.told());
    let rows = room.show("qp").expect("shown");
    let sent = rows.as_array().expect("rows").iter().filter_map(|row| row["stream"]["sent_bytes"].as_u64()).max();
    assert!(sent.is_some_and(|sent| sent < READS * u64::from(SIZE) / 2), "{rows:#}");

    for _ in 0..READS {
        let mut received = 0;
        while received < SIZE as usize {
            let (header, data) = peer.next();
            assert_eq!(header.rdmap, Opcode::ReadResponse.emit());
            received += data.len();
            assert_eq!(header.last, received == SIZE as usize);
        }
    }
    drop(peer);
    assert!(server.program.wait(HANG).expect("it ends").succeeded(), "{}", server.program.everything());
    place.must_be_empty();
}

/// softhca asks for no markers, and sends them to a peer that asks.
#[test]
fn iw_markers_stand_in_the_responses_to_a_peer_that_asks_for_them() {
    const SIZE: usize = 40_000;
    let room = room();
    let path = cprogram::build_with(&room, "pressure", &["-lrdmacm"]).expect("it compiles").display().to_string();
    let server = room.place(Family::V4).serve(&format!("{path} -a ADDRESS -p PORT -l")).expect("it listens");
    let mut peer = Initiator::connect_on(server.port(), Terms { ord: 16, markers: true, ..Terms::default() });
    let data: Vec<u8> = (0..SIZE).map(|at| (at % 251) as u8).collect();
    for piece in data.chunks(8000).enumerate() {
        peer.write_at(8000 * piece.0 as u64, piece.1);
    }
    peer.read(SIZE as u32);
    let mut received = Vec::new();
    while received.len() < SIZE {
        // The receiver looks for a marker in each 512 bytes, and at where it points.
        let (header, more) = peer.next();
        assert_eq!(header.rdmap, Opcode::ReadResponse.emit());
        received.extend_from_slice(&more);
    }
    assert!(received == data);
}

/// softhca's programs post atomics without masks.
#[test]
fn iw_atomic_with_masks_changes_the_bits_of_the_mask() {
    let room = room();
    let path = cprogram::build_with(&room, "pressure", &["-lrdmacm"]).expect("it compiles").display().to_string();
    let server = room.place(Family::V4).serve(&format!("{path} -a ADDRESS -p PORT -l")).expect("it listens");
    let mut peer = Initiator::connect(server.port());
    let swap = |swap, swap_mask, compare, compare_mask| Atomic::CompareSwap { swap, swap_mask, compare, compare_mask };
    let add = |add, boundaries| Atomic::FetchAdd { add, boundaries };
    for (atomic, before) in [
        (swap(0x1234, 0xffff, 0, u64::MAX), 0),
        // The compared bits and the replaced bits differ.
        (swap(0xab00, 0xff00, 0x34, 0xff), 0x1234),
        (swap(0, u64::MAX, 0x99, 0xff), 0xab34),
        // The carry out of bit 7 is dropped.
        (add(0xff, 0x80), 0xab34),
        (add(1, 0), 0xab33),
        (add(0, 0), 0xab34),
    ] {
        peer.atomic(atomic);
        let (header, data) = peer.next();
        assert_eq!(header.rdmap, Opcode::AtomicResponse.emit());
        let response = AtomicResponse::parse(data[..].try_into().expect("a response"));
        assert_eq!((response.id, response.value), (7, before), "{atomic:x?}");
    }
}
