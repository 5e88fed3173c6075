//! The pingpong programs of Debian's ibverbs-utils: polling and event-driven, from 1 byte to 8 MiB, every byte validated.
//!
//! Each test runs as the suite's own user and, where that is root, as an ordinary user too.

use softhca_suite::{Pair, Room, User, figures};

#[track_caller]
fn runs(user: User, words: &[&str]) {
    let room = Room::of(user).expect("a room");
    let sides = Pair::must_succeed(&room, words);
    let figures = figures::pingpong(&sides.client.output);
    assert!(figures.is_some(), "no figures in: {}", sides.client.told());
}

/// One test per user for each row.
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

pingpongs! {
    rc: "ibv_rc_pingpong" "-g" "0" "-c";
    rc_events: "ibv_rc_pingpong" "-g" "0" "-c" "-e";
    uc: "ibv_uc_pingpong" "-g" "0" "-c";
    uc_events: "ibv_uc_pingpong" "-g" "0" "-c" "-e";
    ud: "ibv_ud_pingpong" "-g" "0" "-c";
    ud_events: "ibv_ud_pingpong" "-g" "0" "-c" "-e";
    srq: "ibv_srq_pingpong" "-g" "0" "-c";
    srq_events: "ibv_srq_pingpong" "-g" "0" "-c" "-e";
}

/// Sizes and their iterations: a large message needs no thousand of them.
const SIZES: &[(&str, &str)] = &[
    ("1", "1000"),
    ("7", "1000"),
    ("256", "1000"),
    ("300", "1000"),
    ("4096", "1000"),
    ("4097", "1000"),
    ("32768", "500"),
    ("65536", "500"),
    ("1000003", "50"),
    ("1048576", "50"),
    ("8388608", "20"),
];

#[track_caller]
fn sizes(program: &str, more: &[&str], sizes: &[(&str, &str)]) {
    let room = Room::new().expect("a room");
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
    let sides = pair.wait(softhca_suite::HANG).expect("both end");
    // The server is the first that connects its queue pair; the client sees it go.
    for side in [&sides.server, &sides.client] {
        assert!(!side.succeeded(), "{}", side.told());
    }
    assert!(sides.server.errors.contains("-g 0"), "{}", sides.server.told());
}

/// A side that has received everything closes its queue pair and exits at once; the acknowledgement of the last message, which the
/// other side still waits for, must have been sent by then. Processes that burn CPU make every order of threads likely.
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
