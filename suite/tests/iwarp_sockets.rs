//! Rsockets on iWARP devices, where messages are SENDs: the rsocket programs of rdmacm-utils, and
//! socket programs that know nothing of RDMA. On one host, between network namespaces, and for an
//! ordinary user.

use harness::{Family, Hosts, Place, Room, User};

const AGENT: &[&str] = &["--transport", "iwarp"];

#[track_caller]
fn on_one_host(user: User, run: impl FnOnce(Place<'_>)) {
    let room = Room::of(user).expect("a room").with_agent(AGENT).expect("an agent");
    run(room.place(Family::V4));
}

#[track_caller]
fn between_namespaces(user: User, family: Family, run: impl FnOnce(Place<'_>)) {
    let Some(hosts) = Hosts::joined(1500, user).expect("two namespaces") else { return };
    let hosts = hosts.with_agents(AGENT).expect("agents");
    run(hosts.place(family));
}

/// A test of each row for each place.
macro_rules! rows {
    ($($name:ident: $server:literal => $client:literal;)*) => {
        mod one_host { $(
            #[test]
            fn $name() {
                super::on_one_host(super::User::Nobody, |place| { place.must_meet($server, $client); });
            }
        )* }
        mod namespaces { $(
            #[test]
            fn $name() {
                super::between_namespaces(super::User::Me, super::Family::V4, |place| {
                    place.must_meet($server, $client);
                });
            }
        )* }
    };
}

rows! {
    rstream: "rstream -b ADDRESS -p PORT -T v -I 20 -C 10 -S 65536" => "rstream -s ADDRESS -p PORT -T v -I 20 -C 10 -S 65536";
    rstream_async: "rstream -b ADDRESS -p PORT -T a -C 10 -S 4096" => "rstream -s ADDRESS -p PORT -T a -C 10 -S 4096";
    rstream_small: "rstream -b ADDRESS -p PORT -C 2000 -S 100" => "rstream -s ADDRESS -p PORT -C 2000 -S 100";
    riostream: "riostream -b ADDRESS -p PORT -T v -C 10 -S 65536" => "riostream -s ADDRESS -p PORT -T v -C 10 -S 65536";
}

#[test]
fn rsockets_with_ipv6() {
    between_namespaces(User::Nobody, Family::V6, |place| {
        place.must_meet("rstream -b ADDRESS -p PORT -T v -C 10", "rstream -s ADDRESS -p PORT -T v -C 10");
    });
}

#[test]
fn iperf3() {
    let run = |place: Place<'_>| {
        for more in ["-n 16M", "-n 16M -R", "-n 8M -P 2"] {
            let client = format!("env LD_PRELOAD=SOCKETS iperf3 -c ADDRESS -p PORT {more}");
            let sides = place.must_meet("env LD_PRELOAD=SOCKETS iperf3 -s -1 -B ADDRESS -p PORT", &client);
            assert!(sides.client.output.contains("iperf Done"), "{}", sides.client.told());
        }
    };
    on_one_host(User::Nobody, run);
    between_namespaces(User::Me, Family::V4, run);
}

/// curl and Python's HTTP server.
#[test]
fn a_file_arrives_complete() {
    let room = Room::of(User::Nobody).expect("a room").with_agent(AGENT).expect("an agent");
    let bytes: Vec<u8> = (0..5_000_017_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(room.folder().join("file"), &bytes).expect("written");
    let (folder, target) = (room.folder().display(), room.own_dir().join("fetched"));
    let server =
        format!("env LD_PRELOAD=SOCKETS /usr/bin/python3 -m http.server --bind ADDRESS --directory {folder} PORT");
    let client =
        format!("env LD_PRELOAD=SOCKETS curl --silent --show-error -o {} http://ADDRESS:PORT/file", target.display());
    room.place(Family::V4).must_meet(&server, &client);
    assert!(std::fs::read(&target).expect("fetched") == bytes, "the copy differs");
}
