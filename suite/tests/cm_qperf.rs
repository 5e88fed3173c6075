//! Debian's qperf: all its tests of RC and those that verify data, with connections by the connection manager. Its tests of UC and UD do
//! not use that, and without it qperf 0.4.11 gives no GRH, which every RoCE port wants.

use softhca_suite::{Family, Hosts, Place, Room, User};

const RC: &str = "rc_bi_bw rc_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat \
                  rc_rdma_write_poll_lat rc_compare_swap_mr rc_fetch_add_mr ver_rc_compare_swap ver_rc_fetch_add";
/// Every test prints its name and then a figure at least.
#[track_caller]
fn measures(place: Place<'_>, options: &str, tests: &str) {
    let sides = place.must_meet("qperf -lp PORT", &format!("qperf -lp PORT {options} ADDRESS -t 1 {tests}"));
    for test in tests.split_whitespace() {
        assert!(sides.client.output.contains(&format!("{test}:\n")), "no {test}: {}", sides.client.told());
    }
    assert!(!sides.client.everything().contains("failed"), "{}", sides.client.told());
}

#[test]
fn rc_on_one_host() {
    measures(Room::of(User::Nobody).expect("a room").place(Family::V4), "-cm1", RC);
}

#[test]
fn rc_between_namespaces() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    measures(hosts.place(Family::V4), "-cm1", RC);
}
