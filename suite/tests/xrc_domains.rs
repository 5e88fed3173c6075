//! Tests XRC domains that processes share: a small C program of four processes, two of which are
//! killed, on one host and between hosts. Also runs Debian's XRC pingpong with several clients at
//! once.

use harness::port::{self, Port};
use harness::{Family, HANG, Hosts, Pair, Room, User, cprogram};

fn built(room: &Room) -> String {
    cprogram::build(room, "domain").expect("it compiles").to_str().expect("a plain path").to_owned()
}

#[test]
fn killed_makers_and_owners_on_one_host() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let program = built(&room);
        Pair::must_succeed(&room, &[&program]);
        room.wait_until_empty(HANG).expect("nothing is left over");
    }
}

#[test]
fn killed_makers_and_owners_between_hosts() {
    for (mtu, family, user) in [(1500, Family::V4, User::Nobody), (9000, Family::V6, User::Me)] {
        let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
        let program = built(hosts.left.room());
        hosts.must_succeed(family, &[&program]);
    }
}

/// One server with the queue, and three clients, each in its own process.
#[test]
fn the_pingpong_with_several_clients() {
    let room = Room::new().expect("a room").with_address("127.0.0.1").expect("an agent");
    let port = Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = ["ibv_xsrq_pingpong", "-g", "0", "-p", &number, "-n", "500"];
    let mut server = room.start(room.run(&[&words[..], &["-c", "3"]].concat())).expect("it starts");
    port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
    let clients = (0..3).map(|_| room.start(room.run(&[&words[..], &["127.0.0.1"]].concat())));
    let clients: Vec<_> = clients.collect::<Result<_, _>>().expect("they start");
    for mut program in clients.into_iter().chain([server]) {
        let ended = program.wait(HANG).expect("it ends").expect_success();
        assert!(ended.output.contains("success"), "{}", ended.told());
    }
}
