//! Runs the pingpong programs of Debian's ibverbs-utils: polling and event-driven, from 1 byte to 8
//! MiB. They validate every byte.
//!
//! Each test runs as the suite's own user. If this user is root, the test also runs as an ordinary
//! user.

use harness::lists::{self, SIZES};
use harness::{Pair, Room, User};

#[track_caller]
fn runs(user: User, words: &[&str]) {
    let room = Room::of(user).expect("a room");
    lists::expect_figures(words, &Pair::must_succeed(&room, words));
}

/// One test for each row and user.
macro_rules! pingpongs {
    ($($name:ident: $($word:literal)+;)*) => { $(
        mod $name {
            #[test]
            fn me() {
                super::runs(super::User::Me, &[$($word),+]);
            }
            #[test]
            fn ordinary_user() {
                super::runs(super::User::Nobody, &[$($word),+]);
            }
        }
    )* };
}

harness::pingpong_list!(pingpongs);

#[track_caller]
fn sizes(program: &str, more: &[&str], sizes: &[(&str, &str)]) {
    // A loopback address gives the port the largest MTU on every machine.
    let room = Room::new().expect("a room").with_address("127.0.0.1").expect("an agent");
    for (size, iterations) in sizes {
        let mut words = vec![program, "-g", "0", "-c", "-s", size, "-n", iterations];
        words.extend(more);
        Pair::must_succeed(&room, &words);
    }
}

#[test]
fn rc_sizes() {
    sizes("ibv_rc_pingpong", &[], SIZES);
}

#[test]
fn rc_sizes_with_events() {
    sizes("ibv_rc_pingpong", &["-e"], SIZES);
}

#[test]
fn rc_sizes_at_every_path_mtu() {
    for mtu in ["256", "512", "2048", "4096"] {
        sizes("ibv_rc_pingpong", &["-m", mtu], &[("1", "100"), ("5000", "100"), ("1048576", "10")]);
    }
}

#[test]
fn uc_sizes() {
    sizes("ibv_uc_pingpong", &[], SIZES);
}

#[test]
fn uc_sizes_with_events() {
    sizes("ibv_uc_pingpong", &["-e"], SIZES);
}

#[test]
fn srq_sizes() {
    sizes("ibv_srq_pingpong", &["-q", "4"], SIZES);
}

/// The program for XRC prints no figures. It says that it has succeeded.
#[test]
fn xsrq() {
    let room = Room::new().expect("a room").with_address("127.0.0.1").expect("an agent");
    for more in [&[][..], &["-e"], &["-s", "1000000", "-n", "20"], &["-m", "256", "-s", "5000"]] {
        let sides = Pair::must_succeed(&room, &[&["ibv_xsrq_pingpong", "-g", "0"], more].concat());
        for side in [&sides.server, &sides.client] {
            assert!(side.output.contains("success"), "{}", side.told());
        }
    }
}

#[test]
fn ud_sizes_up_to_the_mtu() {
    sizes(
        "ibv_ud_pingpong",
        &[],
        &[("1", "1000"), ("300", "1000"), ("2048", "1000"), ("4095", "1000"), ("4096", "1000")],
    );
}

#[test]
fn without_a_gid_index_the_reason_says_what_to_add() {
    let room = Room::new().expect("a room");
    let mut pair = Pair::start(&room, &["ibv_rc_pingpong"]).expect("both start");
    let sides = pair.wait(harness::HANG).expect("both end");
    // The server is the first to connect its queue pair. The client notices when the queue pair
    // goes away.
    for side in [&sides.server, &sides.client] {
        assert!(!side.succeeded(), "{}", side.told());
    }
    assert!(sides.server.errors.contains("-g 0"), "{}", sides.server.told());
}

/// A side that has received everything destroys its queue pair and exits at once. Before that it
/// must send the acknowledgement of the last message, for which the other side still waits.
/// Processes that burn CPU make every order of threads likely.
#[test]
fn the_last_acknowledgement_is_not_lost_when_a_side_leaves() {
    let room = Room::new().expect("a room");
    let burning: Vec<_> =
        (0..2).map(|_| room.start(room.command("sh", ["-c", "while :; do :; done"])).expect("it starts")).collect();
    for round in 0..30 {
        let events = if round % 2 == 0 { "-c" } else { "-e" };
        Pair::must_succeed(&room, &["ibv_rc_pingpong", "-g", "0", events, "-n", "20", "-s", "256"]);
    }
    drop(burning);
}
