//! Runs Debian's perftest between two hosts. The whole list runs between network namespaces, at
//! both MTUs: one of them over IPv4 and the other over IPv6, one as root and the other as an
//! ordinary user. A selection runs between two loopback addresses, for users that cannot have
//! namespaces.
//!
//! These tests check only that the programs print figures. `cargo xtask bench` judges the figures.

use harness::{Family, Hosts, User, lists};

/// Which family a row uses at an MTU, so that half of the rows use IPv4 at each MTU.
fn family(mtu: u32, words: &[&str]) -> Family {
    let sum: usize = words.iter().flat_map(|word| word.bytes()).map(usize::from).sum();
    if sum.is_multiple_of(2) == (mtu == 1500) { Family::V4 } else { Family::V6 }
}

#[track_caller]
fn between_namespaces(mtu: u32, words: &[&str]) {
    let family = family(mtu, words);
    let user = if family == Family::V4 { User::Me } else { User::Nobody };
    let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
    lists::expect_figures(words, &hosts.must_succeed(family, words));
}

#[track_caller]
fn between_addresses(words: &[&str]) {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    lists::expect_figures(words, &hosts.must_succeed(Family::V4, words));
}

/// The acknowledgement of a message leaves together with the program's reply.
#[test]
fn a_message_and_the_acknowledgement_of_the_last_one_are_one_datagram() {
    const MESSAGES: u32 = 5000;
    let Some(hosts) = Hosts::joined(9000, User::Me).expect("two namespaces") else { return };
    hosts.must_succeed(Family::V4, &["ib_send_lat", "-s", "8", "-n", &MESSAGES.to_string()]);
    let datagrams: u32 = [hosts.left.namespace(), hosts.right.namespace()]
        .map(|namespace| {
            let words = namespace.script("grep ^Udp: /proc/net/snmp | tail -1").expect("the counters");
            // UDP's fourth counter, OutDatagrams.
            words.split_whitespace().nth(4).and_then(|word| word.parse::<u32>().ok()).expect("a number")
        })
        .iter()
        .sum();
    // A program that loses its processor between a message and its reply leaves the acknowledgement
    // to its helper thread.
    assert!(datagrams < 2 * MESSAGES * 5 / 4, "{datagrams} datagrams for {MESSAGES} messages each way");
}

/// One test for each row and MTU.
macro_rules! between_namespaces {
    ($small:ident $large:ident $($name:ident: $($word:literal)+;)*) => {
        mod $small { $(
            #[test]
            fn $name() {
                super::between_namespaces(1500, &[$($word),+]);
            }
        )* }
        mod $large { $(
            #[test]
            fn $name() {
                super::between_namespaces(9000, &[$($word),+]);
            }
        )* }
    };
}

/// One test for each row, as an ordinary user.
macro_rules! between_addresses {
    ($($name:ident: $($word:literal)+;)*) => {
        mod loopback { $(
            #[test]
            fn $name() {
                super::between_addresses(&[$($word),+]);
            }
        )* }
    };
}

/// The rows with messages of one size.
macro_rules! one_size {
    ($($rows:tt)*) => { between_namespaces! { mtu_1500 mtu_9000 $($rows)* } };
}

/// The rows with messages of all sizes.
macro_rules! all_sizes {
    ($($rows:tt)*) => { between_namespaces! { sizes_mtu_1500 sizes_mtu_9000 $($rows)* } };
}

harness::perftest_list!(one_size);
harness::perftest_sizes_list!(all_sizes);
harness::perftest_selection!(between_addresses);
