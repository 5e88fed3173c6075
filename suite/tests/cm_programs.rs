//! Runs the programs of Debian's rdmacm-utils: on one host, between network namespaces and between
//! two loopback addresses.

use harness::{Family, Hosts, Place, Room, Sides, User, lists};

#[track_caller]
fn on_one_host(user: User, family: Family, server: &str, client: &str) {
    let room = Room::of(user).expect("a room");
    room.place(family).must_meet(server, client);
}

#[track_caller]
fn between_namespaces(user: User, family: Family, server: &str, client: &str) {
    let Some(hosts) = Hosts::joined(1500, user).expect("two namespaces") else { return };
    hosts.place(family).must_meet(server, client);
}

#[track_caller]
fn between_addresses(server: &str, client: &str) {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    hosts.place(Family::V4).must_meet(server, client);
}

/// One test for each row and each place that has all addresses of a host.
macro_rules! hosts {
    ($($name:ident: $server:literal => $client:literal;)*) => {
        mod one_host { $(
            #[test]
            fn $name() {
                super::on_one_host(super::User::Me, super::Family::V4, $server, $client);
            }
        )* }
        mod one_host_ordinary_user_ipv6 { $(
            #[test]
            fn $name() {
                super::on_one_host(super::User::Nobody, super::Family::V6, $server, $client);
            }
        )* }
        mod namespaces_ipv4 { $(
            #[test]
            fn $name() {
                super::between_namespaces(super::User::Me, super::Family::V4, $server, $client);
            }
        )* }
        mod namespaces_ordinary_user_ipv6 { $(
            #[test]
            fn $name() {
                super::between_namespaces(super::User::Nobody, super::Family::V6, $server, $client);
            }
        )* }
    };
}

/// One test for each row, between two loopback addresses.
macro_rules! addresses {
    ($($name:ident: $server:literal => $client:literal;)*) => {
        mod loopback_ordinary_user { $(
            #[test]
            fn $name() {
                super::between_addresses($server, $client);
            }
        )* }
    };
}

harness::manager_list!(hosts);
harness::manager_list!(addresses);

/// Tests of datagram rsockets. They begin with UDP, whose source address the kernel chooses.
/// Between two loopback addresses the kernel chooses 127.0.0.1, which belongs to neither agent.
mod datagrams {
    use super::{between_addresses, between_namespaces, on_one_host};
    use harness::{Family, User};

    harness::manager_datagram_list!(hosts);
    harness::manager_datagram_list!(addresses);
}

/// As many connections at once as real programs have.
#[test]
fn a_thousand_connections() {
    let room = Room::of(User::Nobody).expect("a room");
    let place = room.place(Family::V4);
    place.must_meet("ucmatose -b ADDRESS -p PORT -c 1000 -C 2", "ucmatose -s ADDRESS -p PORT -c 1000 -C 2");
    let sides = place.must_meet("cmtime -b ADDRESS -p PORT", "cmtime -s ADDRESS -p PORT -c 1000");
    assert!(!sides.client.everything().contains("fail"), "{}", sides.client.told());
}

/// Both sides join a group. mckey itself waits some seconds until the network knows the group.
fn members(place: Place<'_>, group: &str) {
    let receiver = format!("mckey -m {group} -b OWN -C 10");
    place.must_meet(&receiver, &format!("{receiver} -s"));
}

#[test]
fn mckey_on_one_host() {
    members(Room::of(User::Nobody).expect("a room").place(Family::V4), "239.47.91.2");
}

#[test]
fn mckey_between_namespaces() {
    for (family, group) in [(Family::V4, "239.47.91.2"), (Family::V6, "ff0e::4792")] {
        let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
        members(hosts.place(family), group);
    }
}

#[test]
fn rcopy_copies_a_file() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let bytes: Vec<u8> = (0..3_000_017_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        std::fs::write(room.folder().join("from"), &bytes).expect("written");
        let (from, to) = (room.folder().join("from"), room.own_dir().join("to"));
        let client = format!("rcopy {} ADDRESS:{} -p PORT", from.display(), to.display());
        room.place(Family::V4).must_meet("rcopy -p PORT", &client);
        assert!(std::fs::read(&to).expect("copied") == bytes, "the copy differs");
    }
}

/// rdma_xclient sends 16 bytes inline on a queue pair with max_inline_data 0. Adapters still accept
/// as many inline bytes as fit into a gather entry.
#[test]
fn rdma_xclient() {
    for user in [User::Me, User::Nobody] {
        on_one_host(user, Family::V4, "rdma_xserver -p PORT -c r", "rdma_xclient -s ADDRESS -p PORT -c r");
    }
}

/// The id of an initiator connects to an id of a target, whose XRC domain is the library's own.
#[test]
fn rdma_xclient_with_xrc() {
    for user in [User::Me, User::Nobody] {
        on_one_host(user, Family::V4, "rdma_xserver -p PORT -c x", "rdma_xclient -s ADDRESS -p PORT -c x");
    }
}

#[test]
fn rdma_xclient_with_xrc_between_namespaces() {
    between_namespaces(User::Me, Family::V4, "rdma_xserver -p PORT -c x", "rdma_xclient -s ADDRESS -p PORT -c x");
}

/// One test for each row and place.
macro_rules! perftests {
    ($($name:ident: $server:literal => $client:literal;)*) => {
        mod perftest_one_host { $(
            #[test]
            fn $name() {
                let room = super::Room::of(super::User::Nobody).expect("a room");
                super::perftest(room.place(super::Family::V4), $server, $client);
            }
        )* }
        mod perftest_namespaces { $(
            #[test]
            fn $name() {
                let Some(hosts) = super::Hosts::joined(1500, super::User::Me).expect("two namespaces") else { return };
                super::perftest(hosts.place(super::Family::V4), $server, $client);
            }
        )* }
    };
}

harness::manager_perftest_list!(perftests);

/// Runs perftest, and repeats it if its client connected too early. After the TCP exchange both
/// sides go on at once, so the client may connect before its server listens. The client does not
/// survive the refusal: it goes on with objects that it has destroyed.
#[track_caller]
fn perftest(place: Place<'_>, server: &str, client: &str) {
    const TRIES: usize = 10;
    for _ in 0..TRIES {
        let sides = Sides::measured(|| place.meet(server, client)).unwrap_or_else(|why| panic!("{why}"));
        if sides.client.succeeded() || !sides.client.errors.contains("nobody listens at this service id") {
            let words: Vec<&str> = client.split_whitespace().collect();
            lists::expect_figures(&words, &Sides::must_succeed(&words, Ok(sides)));
            return place.must_be_empty();
        }
    }
    panic!("the client has come too early {TRIES} times");
}
