//! Tests bad networks made outside of softhca: a relay between two namespaces loses, reorders,
//! duplicates and corrupts packets, a link goes down and comes back, a router marks packets.
//! Reliable operations complete within perftest's own retries, and data arrives as it was sent.
//! Each test proves that packets were harmed.

use std::time::Duration;

use harness::{Family, Harm, Hosts, LossyLink, User, cprogram, lists, process, wait};

const NO_HARM: Harm = Harm { lost: 0.0, held: 0.0, twice: 0.0, spoilt: 0.0 };
const EVERYTHING: Harm = Harm { lost: 5.0, held: 5.0, twice: 1.0, spoilt: 0.1 };

/// Runs pairs on a bad link. Each count in `harmed` must be greater than zero.
#[track_caller]
fn complete(mtu: u32, family: Family, harm: Harm, pairs: &[&[&str]], harmed: &[&str]) {
    let Some(hosts) = Hosts::apart(mtu, User::Me).expect("namespaces") else { return };
    complete_between(&hosts, family, harm, pairs, harmed);
}

/// As [`complete`], between these hosts.
#[track_caller]
fn complete_between(hosts: &Hosts, family: Family, harm: Harm, pairs: &[&[&str]], harmed: &[&str]) {
    let link = LossyLink::lay(hosts, 11, harm).expect("a link");
    for words in pairs {
        lists::expect_figures(words, &hosts.must_succeed(family, words));
    }
    let count = link.take_away().expect("a count");
    for what in harmed {
        assert!(count.of(what) > 0, "nothing was {what}, nothing is proved: {count:?}");
    }
}

#[test]
fn five_percent_are_lost() {
    let pairs: [&[&str]; 4] = [
        &["ib_send_bw", "-s", "65536", "-n", "40"],
        &["ib_write_bw", "-s", "65536", "-n", "40"],
        &["ib_read_bw", "-s", "65536", "-n", "20"],
        &["ib_atomic_bw", "-n", "200"],
    ];
    complete(1500, Family::V4, Harm { lost: 5.0, ..NO_HARM }, &pairs, &["lost"]);
}

/// These pairs send more packets, so that rare harm occurs often enough.
#[test]
fn one_percent_is_lost_or_a_thousandth_spoilt() {
    let Some(hosts) = Hosts::apart(1500, User::Me).expect("namespaces") else { return };
    let pairs: [&[&str]; 2] =
        [&["ib_write_bw", "-s", "65536", "-n", "150"], &["ib_read_bw", "-s", "65536", "-n", "50"]];
    complete_between(&hosts, Family::V4, Harm { lost: 1.0, ..NO_HARM }, &pairs, &["lost"]);
    complete_between(&hosts, Family::V4, Harm { spoilt: 0.1, ..NO_HARM }, &pairs, &["spoilt"]);
}

#[test]
fn packets_overtake_each_other_and_come_twice() {
    let pairs: [&[&str]; 2] = [&["ib_send_bw", "-s", "65536", "-n", "20"], &["ib_read_bw", "-s", "65536", "-n", "10"]];
    complete(1500, Family::V6, Harm { held: 5.0, ..NO_HARM }, &pairs[..1], &["held"]);
    complete(9000, Family::V4, Harm { twice: 1.0, held: 1.0, ..NO_HARM }, &pairs, &["twice"]);
}

/// The programs check every byte of SENDs, WRITEs, READs and atomics. Bits are flipped so often
/// that some corrupted packets with a matching UDP checksum arrive.
#[test]
fn every_byte_is_right_when_everything_goes_wrong() {
    for (mtu, family) in [(1500, Family::V4), (9000, Family::V6)] {
        let Some(hosts) = Hosts::apart(mtu, User::Me).expect("namespaces") else { return };
        let link = LossyLink::lay(&hosts, 5, Harm { spoilt: 1.0, ..EVERYTHING }).expect("a link");
        let path = cprogram::build(hosts.left.room(), "onesided").expect("it compiles");
        hosts.must_succeed(family, &[path.to_str().expect("a plain path"), "-m", "read"]);
        let line = "-a ADDRESS -p PORT -V -S 30000 -C 50";
        hosts.place(family).must_meet(&format!("rping -s {line}"), &format!("rping -c {line}"));
        let count = link.take_away().expect("a count");
        for what in ["lost", "held", "twice", "spoilt", "refitted"] {
            assert!(count.of(what) > 0, "nothing was {what}, nothing is proved: {count:?}");
        }
    }
}

/// The link loses its carrier for a moment while a program sends.
#[test]
fn a_link_goes_and_comes_back() {
    let Some(hosts) = Hosts::apart(1500, User::Me).expect("namespaces") else { return };
    let link = LossyLink::lay(&hosts, 1, NO_HARM).expect("a link");
    // Enough to last until the link has gone twice, also on a busy machine. There, the link may be
    // away for longer than the default timeouts last: 4 s for each of eight tries.
    let words = ["ib_write_bw", "-s", "4096", "-n", "200000", "-u", "18"];
    let mut pair = hosts.start(Family::V4, &words).expect("they start");
    let (_, client) = pair.traffic(words[0], hosts.left.room(), hosts.right.room()).expect("traffic");
    let used = || process::cpu_time(client).expect("the client goes on, because it has more to send");
    for side in ["left", "right"] {
        hosts.middle().script(&format!("ip link set {side} down")).expect("down");
        // The client goes on polling, so this waits long enough for packets to be lost.
        let before = used();
        wait::until(harness::HANG, "the client to poll in vain", || {
            (used() > before + Duration::from_millis(50)).then_some(())
        })
        .expect("it goes on");
        hosts.middle().script(&format!("ip link set {side} up")).expect("up");
    }
    let sides = pair.wait(harness::HANG).expect("they end");
    assert!(sides.client.succeeded() && sides.server.succeeded(), "{}{}", sides.client.told(), sides.server.told());
    assert!(link.take_away().expect("a count").of("carried") > 0);
}

/// A router sets the CE mark on packets. softhca accepts these packets like any others.
#[test]
fn packets_with_a_congestion_mark_pass() {
    for family in [Family::V4, Family::V6] {
        let Some(hosts) = Hosts::bridged(1500, User::Me).expect("two namespaces and a bridge") else { return };
        hosts
            .middle()
            .script(
                "nft 'table bridge marks { chain forward { type filter hook forward priority 0; \
                 ether type ip udp dport 4791 numgen random mod 10 < 3 counter ip ecn set ce; \
                 ether type ip6 udp dport 4791 numgen random mod 10 < 3 counter ip6 ecn set ce; }; }'",
            )
            .expect("a rule that marks packets");
        for words in [&["ib_send_bw", "-s", "65536", "-n", "100"], &["ib_read_bw", "-s", "65536", "-n", "100"]] {
            lists::expect_figures(words, &hosts.must_succeed(family, words));
        }
        let rules = hosts.middle().script("nft list table bridge marks").expect("rules");
        let counts = rules.matches("counter packets 0 ").count();
        assert_eq!(counts, 1, "those of the other family alone are unmarked: {rules}");
    }
}
