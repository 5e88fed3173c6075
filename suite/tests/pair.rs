//! Tests `softhca run --pair` with Debian's own programs: servers that listen with TCP, with
//! rdma_cm, and with rsockets.

use harness::{HANG, Outcome, Room, port::Port};

fn pair(room: &Room, options: &[&str], server: &[&str], client: &[&str]) -> Outcome {
    let words = [&["run", "--pair"], options, &["--"], server, &["--"], client].concat();
    let mut program = room.start(room.softhca(&words)).expect("it starts");
    program.wait(HANG).expect("it ends")
}

#[test]
fn a_server_that_listens_with_tcp() {
    let room = Room::new().expect("a room");
    let port = Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = ["ibv_rc_pingpong", "-g", "0", "-c", "-p", &number];
    let outcome = pair(&room, &[], &words, &[&words[..], &["127.0.0.1"]].concat()).expect_success();
    for line in ["server: 1000 iters", "client: 1000 iters"] {
        assert!(outcome.output.contains(line), "{}", outcome.told());
    }
    assert!(outcome.output.lines().all(|line| line.starts_with("server: ") || line.starts_with("client: ")));
}

#[test]
fn a_server_that_listens_with_rdma_cm() {
    let room = Room::new().expect("a room");
    let port = Port::reserve().expect("a port");
    let number = port.number().to_string();
    let common = ["-a", "127.0.0.1", "-C", "3", "-p", &number];
    let server = [&["rping", "-s"][..], &common].concat();
    let outcome = pair(&room, &[], &server, &[&["rping", "-c", "-v"][..], &common].concat()).expect_success();
    assert!(outcome.output.contains("client: ping data: rdma-ping-2"), "{}", outcome.told());
    assert!(!outcome.errors.contains("did not listen"), "{}", outcome.told());
}

#[test]
fn the_reasons_of_a_side_have_its_name() {
    let room = Room::new().expect("a room");
    let port = Port::reserve().expect("a port");
    let number = port.number().to_string();
    // Without -g the pingpong makes a request that an Ethernet port refuses.
    let words = ["ibv_rc_pingpong", "-p", &number];
    let outcome = pair(&room, &[], &words, &[&words[..], &["127.0.0.1"]].concat());
    assert!(!outcome.succeeded(), "{}", outcome.told());
    // Which side is refused first depends on which side is faster.
    let told = ["server", "client"]
        .iter()
        .any(|side| outcome.errors.contains(&format!("{side}: softhca: why something failed:")));
    assert!(told, "{}", outcome.told());
}
