//! Tests connected receive sockets: a host that sends again and again gets its own receive socket.
//! No other behaviour changes, whichever program or agent comes, ends or stops.

use std::net::IpAddr;

use harness::{Family, HANG, Hosts, Pair, User, process, program, wait};
use rustix::process::Signal;

const FOR_LONG: [&str; 5] = ["ib_send_lat", "-s", "8", "-D", "120"];
const OTHERS: [&[&str]; 3] =
    [&["ib_send_lat", "-n", "2000"], &["ib_write_bw", "-n", "500"], &["ibv_rc_pingpong", "-c"]];

/// The kinds of hosts. Root has both kinds.
fn kinds_of_hosts() -> impl Iterator<Item = Hosts> {
    let joined = Hosts::joined(1500, User::Me).expect("two namespaces");
    joined.into_iter().chain(std::iter::once_with(|| Hosts::loopback(User::Nobody).expect("two addresses")))
}

/// The kernel's text for an IPv4 address and UDP port.
fn name(address: IpAddr, port: Option<u16>) -> String {
    let IpAddr::V4(v4) = address else { unreachable!("an IPv4 address") };
    let ip = u32::from_le_bytes(v4.octets());
    port.map_or_else(|| format!("{ip:08X}:"), |port| format!("{ip:08X}:{port:04X}"))
}

/// Whether the agent of the left host has a socket that is connected to the right host.
fn is_connected(hosts: &Hosts) -> bool {
    let agent = hosts.left.room().agent().expect("an agent");
    let table = std::fs::read_to_string(format!("/proc/{agent}/net/udp")).expect("the host's UDP sockets");
    let local = name(hosts.left.address(Family::V4), Some(4791));
    let remote = name(hosts.right.address(Family::V4), None);
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(&local) && words.next().is_some_and(|word| word.starts_with(&remote))
    })
}

/// Runs a pair until the left host has connected a receive socket to the right host.
fn connected(hosts: &Hosts) -> (Pair, u32, u32) {
    let mut pair = hosts.start(Family::V4, &FOR_LONG).expect("both start");
    let (server, client) = pair.traffic(FOR_LONG[0], hosts.left.room(), hosts.right.room()).expect("traffic");
    wait::until(HANG, "the receive socket to be connected", || is_connected(hosts).then_some(())).expect("connected");
    (pair, server, client)
}

#[test]
fn other_hosts_are_served_beside_the_connected_one() {
    for hosts in kinds_of_hosts() {
        let (mut pair, _, client) = connected(&hosts);
        for words in OTHERS {
            hosts.must_succeed(Family::V4, words);
        }
        assert!(!pair.client.ended() && process::state(client).is_some(), "it goes on");
    }
}

#[test]
fn a_connected_receiver_is_no_burden_when_its_engine_is_killed_or_stopped() {
    for hosts in kinds_of_hosts() {
        for signal in [Signal::KILL, Signal::STOP] {
            let (pair, server, _) = connected(&hosts);
            program::send(server, signal);
            for words in OTHERS {
                hosts.must_succeed(Family::V4, words);
            }
            program::send(server, Signal::KILL);
            drop(pair);
        }
    }
}
