//! Tests changes during connections to another host: programs and agents die, addresses go away and
//! come back, and two agents want the same address.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use harness::hosts::INTERFACE;
use harness::{Family, HANG, Hosts, Pair, Program, Room, User, process, program, wait};
use rustix::process::Signal;

/// perftest uses a timeout of 14 (67 ms) and seven retries. By the standard this takes half a
/// second. The limit here leaves some seconds more.
const RETRIES: Duration = Duration::from_secs(20);

const WRITE: [&str; 3] = ["ib_write_bw", "-D", "120"];

/// Starts a pair of ib_write_bw and waits until it transfers data. Returns the pair and the process
/// ids of its programs.
fn writing(hosts: &Hosts, family: Family) -> (Pair, u32, u32) {
    let mut pair = hosts.start(family, &WRITE).expect("both start");
    let (server, client) = pair.traffic(WRITE[0], hosts.left.room(), hosts.right.room()).expect("traffic");
    (pair, server, client)
}

/// Waits for the end of a program that has lost its connection: it must end with an error, in time.
#[track_caller]
fn expect_failure(program: &mut Program) {
    let ended = program.wait(RETRIES).expect("it ends within the retry time");
    assert!(!ended.succeeded(), "{}", ended.told());
}

/// Every kind of hosts that the suite's user can have.
fn kinds_of_hosts() -> impl Iterator<Item = Hosts> {
    let joined = Hosts::joined(1500, User::Me).expect("two namespaces");
    joined.into_iter().chain(std::iter::once_with(|| Hosts::loopback(User::Nobody).expect("two addresses")))
}

#[test]
fn the_path_to_another_host_is_not_a_lane() {
    for hosts in kinds_of_hosts() {
        let (_pair, _, _) = writing(&hosts, Family::V4);
        for host in [&hosts.left, &hosts.right] {
            let rows = host.room().show("qp").expect("shown");
            assert!(rows[0]["path"].as_str().is_some_and(|path| path.starts_with("wire")), "{rows:#}");
        }
    }
}

#[test]
fn the_client_gets_an_error_when_the_server_is_killed() {
    for hosts in kinds_of_hosts() {
        let (mut pair, server, _) = writing(&hosts, Family::V4);
        program::send(server, Signal::KILL);
        expect_failure(&mut pair.client);
        hosts.right.room().wait_until_empty(HANG).expect("nothing is left over");
        hosts.must_succeed(Family::V4, &["ib_write_bw"]);
    }
}

#[test]
fn programs_end_with_an_error_when_their_agent_is_killed() {
    for hosts in kinds_of_hosts() {
        let (mut pair, _, _) = writing(&hosts, Family::V4);
        program::send(hosts.right.room().agent().expect("an agent"), Signal::KILL);
        expect_failure(&mut pair.client);
        pair.server.wait(RETRIES).expect("the server ends");
        hosts.right.start_agent().expect("another agent");
        hosts.must_succeed(Family::V4, &["ib_write_bw"]);
    }
}

#[test]
fn a_stopped_client_does_not_hang_after_its_agent_was_killed() {
    for hosts in kinds_of_hosts() {
        let (mut pair, server, client) = writing(&hosts, Family::V4);
        program::send(client, Signal::STOP);
        wait::until(HANG, "the client to stop", || (process::state(client) == Some('T')).then_some(()))
            .expect("stopped");
        program::send(hosts.right.room().agent().expect("an agent"), Signal::KILL);
        // A new agent starts without an error. The stopped client may still hold the old agent's
        // socket. Then the new agent says so, waits for the port, and meanwhile connects its own
        // programs to each other.
        hosts.right.start_agent().expect("another agent");
        Pair::must_succeed(hosts.right.room(), &["ibv_rc_pingpong", "-g", "0", "-c"]);
        program::send(client, Signal::CONT);
        expect_failure(&mut pair.client);
        program::send(server, Signal::KILL);
        wait_for_wire(&hosts);
        hosts.must_succeed(Family::V4, &["ib_write_bw"]);
    }
}

/// Waits until the right host's agent has UDP port 4791 on its address.
fn wait_for_wire(hosts: &Hosts) {
    let room = hosts.right.room();
    wait::until(HANG, "the agent to get the port", || {
        (!lacks_wire(room, hosts.right.address(Family::V4))).then_some(())
    })
    .expect("the wire");
}

#[test]
fn a_client_that_is_stopped_for_a_while_loses_nothing() {
    for hosts in kinds_of_hosts() {
        // The server's queue pairs wait while the client is stopped. The client's retries cover the
        // stop: 4 s for each of 8 tries.
        let mut pair = hosts.start(Family::V4, &["ib_read_bw", "-D", "3", "-u", "20"]).expect("both start");
        let (_, client) = pair.traffic("ib_read_bw", hosts.left.room(), hosts.right.room()).expect("traffic");
        program::send(client, Signal::STOP);
        wait::until(HANG, "the client to stop", || (process::state(client) == Some('T')).then_some(()))
            .expect("stopped");
        program::send(client, Signal::CONT);
        let sides = pair.wait(HANG).expect("both end");
        sides.client.expect_success();
        sides.server.expect_success();
    }
}

/// Removes an address from the right host, and waits until the host's GID table shows this.
fn remove(hosts: &Hosts, family: Family) {
    let address = hosts.right.address(family);
    hosts
        .right
        .namespace()
        .script(&format!("ip address del {address}/{} dev {INTERFACE}", bits(family)))
        .expect("done");
    wait::until(HANG, "the GID to go", || {
        hosts.right.room().gid_index(address).expect("a GID table").is_none().then_some(())
    })
    .expect("gone");
}

/// Gives the address back to the right host.
fn restore(hosts: &Hosts, family: Family) {
    let address = hosts.right.address(family);
    let nodad = if family == Family::V6 { "nodad" } else { "" };
    let add = format!("ip address add {address}/{} dev {INTERFACE} {nodad}", bits(family));
    hosts.right.namespace().script(&add).expect("done");
    wait::until(HANG, "the GID to come back", || hosts.right.room().gid_index(address).expect("a GID table"))
        .expect("there again");
}

fn bits(family: Family) -> u32 {
    match family {
        Family::V4 => 24,
        Family::V6 => 64,
    }
}

#[test]
fn queue_pairs_go_on_when_their_address_was_away_for_a_moment() {
    for family in [Family::V4, Family::V6] {
        let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
        // Half a second for each of eight tries.
        let mut pair = hosts.start(family, &["ib_write_bw", "-D", "5", "-u", "17"]).expect("both start");
        pair.traffic("ib_write_bw", hosts.left.room(), hosts.right.room()).expect("traffic");
        remove(&hosts, family);
        restore(&hosts, family);
        let sides = pair.wait(HANG).expect("both end");
        sides.client.expect_success();
        sides.server.expect_success();
    }
}

#[test]
fn queue_pairs_get_an_error_when_their_address_stays_away() {
    let Some(hosts) = Hosts::joined(9000, User::Me).expect("two namespaces") else { return };
    let (mut pair, server, _) = writing(&hosts, Family::V6);
    remove(&hosts, Family::V6);
    expect_failure(&mut pair.client);
    program::send(server, Signal::KILL);
    // The other address works as before.
    hosts.must_succeed(Family::V4, &["ibv_rc_pingpong", "-c"]);
    restore(&hosts, Family::V6);
    hosts.must_succeed(Family::V6, &["ibv_rc_pingpong", "-c"]);
}

/// Whether `softhca devices` and `softhca doctor` say that an address has no wire.
fn lacks_wire(room: &Room, address: IpAddr) -> bool {
    let address = format!("4791 on {address}");
    ["devices", "doctor"].iter().all(|command| {
        let told = room.finish(room.softhca(&[command])).expect("it ends").expect_success().output;
        told.lines().any(|line| line.contains(&address))
    })
}

#[test]
fn the_second_agent_on_an_address_says_so_and_takes_over_later() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let second = Room::of(User::Nobody).expect("a room").entered_by(&hosts.left.namespace().entrance());
    second.start_agent().expect("a second agent");
    let address = hosts.left.address(Family::V4);
    assert!(lacks_wire(&second, address), "{}", second.log());
    assert!(second.log().lines().any(|line| line.contains("4791")), "{}", second.log());
    assert!(!lacks_wire(hosts.left.room(), address), "{}", hosts.left.room().log());
    // Programs of the second agent need no wire among themselves. The first agent's programs have
    // the wire.
    Pair::must_succeed(&second, &["ibv_rc_pingpong", "-g", "0", "-c"]);
    hosts.must_succeed(Family::V4, &["ibv_rc_pingpong", "-c"]);
    let first = hosts.left.room();
    first.finish(first.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    wait::until(HANG, "the second agent to get the address", || (!lacks_wire(&second, address)).then_some(()))
        .expect("taken over");
    let words = |room: &Room, address| {
        let index = room.gid_index(address).expect("a GID table").expect("an address of this host");
        ["ibv_rc_pingpong", "-c", "-g"].map(str::to_owned).into_iter().chain([index.to_string()]).collect::<Vec<_>>()
    };
    let server = words(&second, address);
    let client = words(hosts.right.room(), hosts.right.address(Family::V4));
    let [server, client] = [&server, &client].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
    let mut pair =
        Pair::connect(&second, &server, hosts.right.room(), &client, &hosts.left.rendezvous()).expect("both start");
    let sides = pair.wait(HANG).expect("both end");
    sides.client.expect_success();
    sides.server.expect_success();
}

#[test]
fn two_users_with_four_agents_each_at_once() {
    let rooms: Vec<Room> = [User::Me, User::Nobody]
        .into_iter()
        .flat_map(|user| std::iter::repeat_with(move || Room::of(user).expect("a room")).take(4))
        .collect();
    let words = ["ibv_rc_pingpong", "-g", "0", "-c", "-n", "5000"];
    let mut pairs: Vec<Pair> = rooms.iter().map(|room| Pair::start(room, &words).expect("both start")).collect();
    // Before the programs end: an agent without programs ends after a minute, and on a busy machine
    // the last pair may take longer.
    let agents: BTreeSet<u32> =
        rooms.iter().map(|room| wait::until(HANG, "an agent", || room.agent()).expect("it starts")).collect();
    assert_eq!(agents.len(), rooms.len(), "not an agent for each");
    for pair in &mut pairs {
        let sides = pair.wait(HANG).expect("both end");
        sides.client.expect_success();
        sides.server.expect_success();
    }
}
