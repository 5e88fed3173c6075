//! Runs Debian's qperf: all its tests of RC, UC and UD, and the tests that verify data. An ordinary
//! user runs a selection.
//!
//! qperf 0.4.11 uses the connection manager only in its tests of RC, and only if `-cm1` says so. In
//! all other cases it gives LIDs and no GRH. So all tests run on InfiniBand ports, and the tests of
//! RC with the connection manager run on Ethernet ports too. qperf's datagrams have 2048 bytes, and
//! its path MTU is 2048.

use harness::{Family, Hosts, Place, Room, User};

const RC: &str = "rc_bi_bw rc_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat \
                  rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add";
const UC: &str = "uc_bi_bw uc_bw uc_lat uc_rdma_write_bw uc_rdma_write_lat uc_rdma_write_poll_lat";
const UD: &str = "ud_bi_bw ud_bw ud_lat";

const SOME_RC: &str = "rc_bi_bw rc_rdma_read_bw rc_rdma_write_poll_lat ver_rc_compare_swap";
const SOME_UC: &str = "uc_bw uc_rdma_write_poll_lat";
const SOME_UD: &str = "ud_bi_bw ud_lat";

const INFINIBAND: &[&str] = &["--link-layer", "infiniband"];

/// Runs tests of qperf. Every test must print its name and at least one figure.
#[track_caller]
fn measures(place: Place<'_>, options: &str, tests: &str) {
    let sides = place.must_meet("qperf -lp PORT", &format!("qperf -lp PORT {options} ADDRESS -t 1 {tests}"));
    for test in tests.split_whitespace() {
        assert!(sides.client.output.contains(&format!("{test}:\n")), "no {test}: {}", sides.client.told());
    }
    assert!(!sides.client.everything().contains("failed"), "{}", sides.client.told());
}

/// The tests to run. With `-cm1` only the tests of RC differ, because qperf 0.4.11 connects UC and
/// UD the same way with and without this option. Each test takes a second, so an ordinary user runs
/// only some tests of each service.
fn tests(user: User, options: &str) -> &'static [&'static str] {
    match (user, options.is_empty()) {
        (User::Me, true) => &[RC, UC, UD],
        (User::Me, false) => &[RC],
        (_, true) => &[SOME_RC, SOME_UC, SOME_UD],
        (_, false) => &[SOME_RC],
    }
}

/// Runs all tests for this user, on one host.
#[track_caller]
fn on_one_host(user: User, options: &str) {
    // A loopback address gives the port the largest MTU on every machine.
    let options_of_agent = [INFINIBAND, &["--address", "127.0.0.1"]].concat();
    let room = Room::of(user).expect("a room").with_agent(&options_of_agent).expect("an agent");
    tests(user, options).iter().for_each(|tests| measures(room.place(Family::V4), options, tests));
}

/// Runs all tests for this user, between two hosts.
#[track_caller]
fn between_namespaces(mtu: u32, user: User, options: &str) {
    let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
    let hosts = hosts.with_agents(INFINIBAND).expect("agents");
    for tests in tests(user, options) {
        // A datagram must fit into one packet.
        let size = if tests.starts_with("ud") && mtu < 2200 { "-m 1K" } else { "" };
        measures(hosts.place(Family::V4), &format!("{options} {size}"), tests);
    }
}

#[test]
fn rc_on_ethernet_ports_of_one_host() {
    measures(Room::of(User::Nobody).expect("a room").place(Family::V4), "-cm1", RC);
}

#[test]
fn rc_on_ethernet_ports_between_namespaces() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    measures(hosts.place(Family::V4), "-cm1", RC);
}

#[test]
fn without_a_grh_ethernet_ports_refuse_and_say_what_helps() {
    let room = Room::of(User::Nobody).expect("a room").with_address("127.0.0.1").expect("an agent");
    let line = "qperf -lp PORT ADDRESS -t 1 uc_bw";
    let sides = room.place(Family::V4).meet("qperf -lp PORT", line).expect("they end");
    assert!(!sides.client.succeeded(), "{}", sides.client.told());
    let said = [sides.client.everything(), sides.server.everything()].concat();
    assert!(said.contains("failed to modify QP to RTR: Invalid argument"), "{said}");
}

#[test]
fn one_host_by_lid() {
    on_one_host(User::Me, "");
}

#[test]
fn one_host_by_lid_ordinary_user() {
    on_one_host(User::Nobody, "");
}

#[test]
fn one_host_by_the_manager() {
    on_one_host(User::Me, "-cm1");
}

#[test]
fn one_host_by_the_manager_ordinary_user() {
    on_one_host(User::Nobody, "-cm1");
}

#[test]
fn namespaces_by_lid() {
    between_namespaces(9000, User::Me, "");
}

#[test]
fn namespaces_by_lid_ordinary_user() {
    between_namespaces(1500, User::Nobody, "");
}

#[test]
fn namespaces_by_the_manager() {
    between_namespaces(1500, User::Me, "-cm1");
}

#[test]
fn namespaces_by_the_manager_ordinary_user() {
    between_namespaces(9000, User::Nobody, "-cm1");
}
