//! Runs Debian's perftest over XRC, on one host and between hosts.
//!
//! These tests are not in the list that every user runs. The program keeps the files that name its
//! domains in `/tmp` under fixed names and leaves them there. Other users cannot open these files.

use harness::lists;
use harness::{Family, Hosts, Pair, Room, User};

const TESTS: [&[&str]; 7] = [
    &["ib_send_bw", "-c", "XRC"],
    &["ib_send_lat", "-c", "XRC"],
    &["ib_write_bw", "-c", "XRC", "-a", "-n", "200"],
    &["ib_write_lat", "-c", "XRC"],
    &["ib_read_bw", "-c", "XRC"],
    &["ib_atomic_bw", "-c", "XRC"],
    &["ib_send_bw", "-c", "XRC", "-q", "4", "-b"],
];

/// Removes the files that a run leaves behind, even a run that fails.
struct Files;

impl Files {
    fn remove() {
        for end in ["server", "client"] {
            // There may be no file.
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
