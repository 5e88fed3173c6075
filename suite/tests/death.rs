//! Tests sudden ends: a program or the agent is killed. The other processes must get an error in
//! time and continue.

use std::time::{Duration, Instant};

use harness::{HANG, Pair, Room, process, program, wait};
use rustix::process::Signal;

/// perftest uses a timeout of 14 (67 ms) and seven retries. By the standard this takes half a
/// second. The limit here leaves some seconds more.
const RETRIES: Duration = Duration::from_secs(20);

/// Starts a pair of ib_write_bw and waits until it transfers data. Returns the pair and the process
/// ids of its programs.
fn writing(room: &Room) -> (Pair, u32, u32) {
    let mut pair = Pair::start(room, &["ib_write_bw", "-D", "120"]).expect("both start");
    let (server, client) = pair.traffic("ib_write_bw", room, room).expect("traffic");
    (pair, server, client)
}

#[test]
fn the_client_gets_an_error_when_the_server_is_killed() {
    let room = Room::new().expect("a room");
    let (mut pair, server, _) = writing(&room);
    let killed = Instant::now();
    program::send(server, Signal::KILL);
    let client = pair.client.wait(RETRIES).expect("the client ends within the retry time");
    assert!(!client.succeeded(), "{}", client.told());
    assert!(
        client.everything().contains("Completion with error") || client.everything().contains("status"),
        "{}",
        client.told()
    );
    assert!(killed.elapsed() < RETRIES);
    assert!(client.errors.contains("softhca: why"), "no reason: {}", client.told());
    room.wait_until_empty(HANG).expect("nothing is left over");
    Pair::must_succeed(&room, &["ib_write_bw"]);
}

#[test]
fn the_server_is_left_in_peace_when_the_client_is_killed() {
    let room = Room::new().expect("a room");
    let (mut pair, _, client) = writing(&room);
    program::send(client, Signal::KILL);
    // The server of ib_write_bw waits on its TCP connection, which closes.
    pair.server.wait(RETRIES).expect("the server ends");
    room.wait_until_empty(HANG).expect("nothing is left over");
    Pair::must_succeed(&room, &["ib_write_bw"]);
}

#[test]
fn others_go_on_when_a_pair_is_killed() {
    let room = Room::new().expect("a room");
    let mut steady =
        Pair::start(&room, &["ibv_rc_pingpong", "-g", "0", "-c", "-e", "-n", "20000"]).expect("both start");
    let (pair, server, client) = writing(&room);
    program::send(server, Signal::KILL);
    program::send(client, Signal::KILL);
    drop(pair);
    let sides = steady.wait(HANG).expect("the others end");
    sides.client.expect_success();
    sides.server.expect_success();
}

#[test]
fn programs_end_with_an_error_when_the_agent_is_killed() {
    let room = Room::new().expect("a room");
    let (mut pair, _, _) = writing(&room);
    program::send(room.agent().expect("an agent"), Signal::KILL);
    let client = pair.client.wait(RETRIES).expect("the client ends");
    assert!(!client.succeeded(), "{}", client.told());
    pair.server.wait(RETRIES).expect("the server ends");
    Pair::must_succeed(&room, &["ib_write_bw"]);
}

#[test]
fn a_stopped_program_does_not_hang_after_the_agent_was_killed() {
    let room = Room::new().expect("a room");
    let (mut pair, server, client) = writing(&room);
    program::send(client, Signal::STOP);
    wait::until(HANG, "the client to stop", || (process::state(client) == Some('T')).then_some(())).expect("stopped");
    program::send(room.agent().expect("an agent"), Signal::KILL);
    // A new agent starts without an error while the stopped client still holds the old agent's
    // memory.
    let fresh = Room::finish_run(&room, &["ibv_devinfo"]).expect("it ends");
    fresh.expect_success();
    program::send(client, Signal::CONT);
    let ended = pair.client.wait(RETRIES).expect("the client ends");
    assert!(!ended.succeeded(), "{}", ended.told());
    program::send(server, Signal::KILL);
    Pair::must_succeed(&room, &["ib_write_bw"]);
}

#[test]
fn a_stopped_program_can_be_killed_and_leaves_nothing() {
    let room = Room::new().expect("a room");
    let (mut pair, _, client) = writing(&room);
    program::send(client, Signal::STOP);
    program::send(client, Signal::KILL);
    pair.server.wait(RETRIES).expect("the server ends");
    room.wait_until_empty(HANG).expect("nothing is left over");
}
