//! Runs the pingpong programs of Debian's ibverbs-utils between two hosts, from 1 byte to 8 MiB.
//! They validate every byte. The hosts are network namespaces, at both MTUs and over both families,
//! or two loopback addresses.

use harness::lists::{self, SIZES};
use harness::wait::until;
use harness::{Family, HANG, Hosts, Pair, Sides, User};

/// The links on which every pingpong runs, each with the user that runs it.
const LINKS: [(u32, Family, User); 4] = [
    (1500, Family::V4, User::Nobody),
    (1500, Family::V6, User::Me),
    (9000, Family::V4, User::Me),
    (9000, Family::V6, User::Nobody),
];

#[track_caller]
fn on_every_link(words: &[&str]) {
    for (mtu, family, user) in LINKS {
        let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
        lists::expect_figures(words, &hosts.must_succeed(family, words));
    }
}

#[track_caller]
fn on_loopback(words: &[&str]) {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    lists::expect_figures(words, &hosts.must_succeed(Family::V4, words));
}

/// One test for each row between namespaces, and one between loopback addresses.
macro_rules! pingpongs {
    ($($name:ident: $($word:literal)+;)*) => { $(
        mod $name {
            #[test]
            fn on_every_link() {
                super::on_every_link(&[$($word),+]);
            }
            #[test]
            fn on_loopback() {
                super::on_loopback(&[$($word),+]);
            }
        }
    )* };
}

harness::pingpong_list!(pingpongs);

/// The program for XRC prints no figures. It says that it has succeeded.
#[test]
fn xsrq_on_every_link() {
    for (mtu, family, user) in LINKS {
        let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
        for more in [&[][..], &["-e"], &["-s", "100000", "-n", "50"]] {
            let sides = hosts.must_succeed(family, &[&["ibv_xsrq_pingpong", "-g", "0"], more].concat());
            assert!(sides.client.output.contains("success"), "{}", sides.client.told());
        }
    }
}

/// GID index 0 of a usual agent is the link-local address of its interface. Some programs know no
/// other index.
#[test]
fn index_zero_reaches_the_other_host() {
    for mtu in [1500, 9000] {
        let Some(hosts) = Hosts::joined(mtu, User::Nobody).expect("two namespaces") else { return };
        for host in [&hosts.left, &hosts.right] {
            let ready = || {
                let devices = host.room().json(&["devices", "--json"]).ok()?;
                devices["devices"][0]["ports"][0]["gids"][0]["wire"].as_bool().filter(|ready| *ready)
            };
            until(HANG, "the end of duplicate address detection", ready).expect("index 0 is on the wire");
        }
        for words in [
            &["ibv_rc_pingpong", "-g", "0", "-c"][..],
            &["ibv_uc_pingpong", "-g", "0", "-c"],
            &["ibv_ud_pingpong", "-g", "0", "-c", "-s", "1024"],
            &["ib_write_bw", "-x", "0", "-n", "200"],
        ] {
            let [left, right] = [&hosts.left, &hosts.right].map(harness::Host::room);
            let pair = || Pair::connect(left, words, right, words, &hosts.left.rendezvous())?.wait(HANG);
            Sides::must_succeed(words, Sides::measured(pair));
        }
    }
}

#[track_caller]
fn sizes(hosts: &Hosts, family: Family, program: &str, more: &[&str], sizes: &[(&str, &str)]) {
    for (size, iterations) in sizes {
        let mut words = vec![program, "-c", "-s", size, "-n", iterations];
        words.extend(more);
        hosts.must_succeed(family, &words);
    }
}

#[track_caller]
fn sizes_on_every_link(program: &str, more: &[&str]) {
    for (mtu, family, user) in LINKS {
        let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
        sizes(&hosts, family, program, more, SIZES);
    }
}

#[test]
fn rc_sizes() {
    sizes_on_every_link("ibv_rc_pingpong", &[]);
}

#[test]
fn rc_sizes_with_events() {
    sizes_on_every_link("ibv_rc_pingpong", &["-e"]);
}

#[test]
fn uc_sizes() {
    sizes_on_every_link("ibv_uc_pingpong", &[]);
}

#[test]
fn srq_sizes() {
    sizes_on_every_link("ibv_srq_pingpong", &["-q", "4"]);
}

#[test]
fn sizes_on_loopback() {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    for program in ["ibv_rc_pingpong", "ibv_uc_pingpong"] {
        sizes(&hosts, Family::V4, program, &[], SIZES);
    }
}

#[test]
fn rc_sizes_at_every_path_mtu() {
    for (mtu, path_mtus) in [(1500, &["256", "512", "1024"][..]), (9000, &["256", "2048", "4096"])] {
        let Some(hosts) = Hosts::joined(mtu, User::Me).expect("two namespaces") else { return };
        for path_mtu in path_mtus {
            let few = [("1", "100"), ("5000", "100"), ("1048576", "10")];
            sizes(&hosts, Family::V4, "ibv_rc_pingpong", &["-m", path_mtu], &few);
        }
    }
}

#[test]
fn a_path_mtu_above_the_link_s_loses_long_packets_and_no_others() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    sizes(&hosts, Family::V4, "ibv_rc_pingpong", &["-m", "4096"], &[("1", "100"), ("1024", "100")]);
    let mut pair = hosts.start(Family::V4, &["ibv_rc_pingpong", "-m", "4096", "-s", "4096"]).expect("a pair");
    let client = pair.client.wait(HANG).expect("an end");
    assert_ne!(client.code, 0, "{}", client.told());
    for why in ["transport retry counter exceeded", "a path MTU above the port's active MTU has this effect"] {
        assert!(client.errors.contains(why), "{}", client.told());
    }
}

#[test]
fn ud_sizes_up_to_the_mtu_of_the_link() {
    for (mtu, sizes_of_link) in [(1500, &["1", "300", "1023", "1024"][..]), (9000, &["1", "2048", "4095", "4096"])] {
        for family in [Family::V4, Family::V6] {
            let Some(hosts) = Hosts::joined(mtu, User::Me).expect("two namespaces") else { return };
            let thousands: Vec<_> = sizes_of_link.iter().map(|size| (*size, "1000")).collect();
            sizes(&hosts, family, "ibv_ud_pingpong", &[], &thousands);
        }
    }
}
