//! Runs Debian's perftest between two hosts. The whole list runs between network namespaces, at
//! both MTUs and over both families; all message sizes run on two of these links. A selection runs
//! between two loopback addresses, for users that cannot have namespaces.
//!
//! These tests check only that the programs print figures. `cargo xtask bench` judges the figures.

use softhca_suite::{Family, Hosts, User, lists};

#[track_caller]
fn between_namespaces(mtu: u32, family: Family, user: User, words: &[&str]) {
    let Some(hosts) = Hosts::joined(mtu, user).expect("two namespaces") else { return };
    lists::expect_figures(words, &hosts.must_succeed(family, words));
}

#[track_caller]
fn between_addresses(words: &[&str]) {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    lists::expect_figures(words, &hosts.must_succeed(Family::V4, words));
}

/// One test for each row and kind of link.
macro_rules! between_namespaces {
    ($($name:ident: $($word:literal)+;)*) => {
        mod mtu_1500_ipv4 { $(
            #[test]
            fn $name() {
                super::between_namespaces(1500, super::Family::V4, super::User::Me, &[$($word),+]);
            }
        )* }
        mod mtu_1500_ipv6 { $(
            #[test]
            fn $name() {
                super::between_namespaces(1500, super::Family::V6, super::User::Nobody, &[$($word),+]);
            }
        )* }
        mod mtu_9000_ipv4 { $(
            #[test]
            fn $name() {
                super::between_namespaces(9000, super::Family::V4, super::User::Nobody, &[$($word),+]);
            }
        )* }
        mod mtu_9000_ipv6 { $(
            #[test]
            fn $name() {
                super::between_namespaces(9000, super::Family::V6, super::User::Me, &[$($word),+]);
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

/// One test for each row, on two links.
macro_rules! sizes_between_namespaces {
    ($($name:ident: $($word:literal)+;)*) => {
        mod sizes_mtu_1500_ipv4 { $(
            #[test]
            fn $name() {
                super::between_namespaces(1500, super::Family::V4, super::User::Nobody, &[$($word),+]);
            }
        )* }
        mod sizes_mtu_9000_ipv6 { $(
            #[test]
            fn $name() {
                super::between_namespaces(9000, super::Family::V6, super::User::Me, &[$($word),+]);
            }
        )* }
    };
}

softhca_suite::perftest_list!(between_namespaces);
softhca_suite::perftest_sizes_list!(sizes_between_namespaces);
softhca_suite::perftest_selection!(between_addresses);
