//! Debian's perftest over XRC, on one host and between hosts.
//!
//! Not in the list that every user runs: the program keeps the files that name its domains in `/tmp` under names of its own, and leaves
//! them there, where other users cannot open them.

use softhca_suite::lists;
use softhca_suite::{Family, Hosts, Pair, Room, User};

const TESTS: [&[&str]; 7] = [
    &["ib_send_bw", "-c", "XRC"],
    &["ib_send_lat", "-c", "XRC"],
    &["ib_write_bw", "-c", "XRC", "-a", "-n", "200"],
    &["ib_write_lat", "-c", "XRC"],
    &["ib_read_bw", "-c", "XRC"],
    &["ib_atomic_bw", "-c", "XRC"],
    &["ib_send_bw", "-c", "XRC", "-q", "4", "-b"],
];

/// Takes away what a run leaves, also one that fails.
struct Files;

impl Files {
    fn remove() {
        for end in ["server", "client"] {
            // There may be none.
            let _ = std::fs::remove_file(format!("/tmp/xrc_domain_{end}"));
        }
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        Self::remove();
    }
}

#[test]
fn on_one_host() {
    Files::remove();
    let _files = Files;
    for words in TESTS {
        let room = Room::new().expect("a room");
        lists::expect_figures(words, &Pair::must_succeed(&room, words));
    }
}

#[test]
fn between_hosts() {
    Files::remove();
    let _files = Files;
    for (mtu, family) in [(1500, Family::V4), (9000, Family::V6)] {
        let Some(hosts) = Hosts::joined(mtu, User::Me).expect("two namespaces") else { return };
        for words in TESTS {
            lists::expect_figures(words, &hosts.must_succeed(family, words));
        }
    }
}
