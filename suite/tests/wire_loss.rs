//! Tests a network that loses one packet in a hundred, outside of softhca: an nft rule in the
//! bridge between two namespaces. Reliable operations complete, and data arrives as it was sent.
//! Each test proves that packets were lost.

use harness::{Family, Hosts, User, cprogram, lists};

const PERCENT: u32 = 1;

/// Runs the pairs one after the other on links that lose packets.
#[track_caller]
fn complete(mtu: u32, family: Family, pairs: &[&[&str]]) {
    let Some(hosts) = Hosts::bridged(mtu, User::Me).expect("two namespaces and a bridge") else { return };
    hosts.lose(PERCENT).expect("a rule that loses packets");
    for words in pairs {
        let before = hosts.lost().expect("a count");
        let sides = hosts.must_succeed(family, words);
        if !words[0].starts_with('/') {
            lists::expect_figures(words, &sides);
        }
        assert!(hosts.lost().expect("a count") > before, "{}: nothing was lost, nothing is proved", words.join(" "));
    }
}

#[test]
fn send_in_all_sizes() {
    complete(1500, Family::V4, &[&["ib_send_bw", "-a", "-n", "5"]]);
}

#[test]
fn write_in_all_sizes() {
    complete(1500, Family::V6, &[&["ib_write_bw", "-a", "-n", "5"]]);
}

#[test]
fn read_in_all_sizes() {
    complete(1500, Family::V4, &[&["ib_read_bw", "-a", "-n", "5"]]);
}

#[test]
fn large_packets_both_ways() {
    complete(
        9000,
        Family::V4,
        &[
            &["ib_send_bw", "-a", "-n", "5", "-b"],
            &["ib_write_bw", "-a", "-n", "5", "-b"],
            &["ib_read_bw", "-a", "-n", "5", "-b"],
        ],
    );
}

#[test]
fn atomics() {
    complete(1500, Family::V4, &[&["ib_atomic_bw", "-A", "FETCH_AND_ADD"], &["ib_atomic_lat", "-A", "CMP_AND_SWAP"]]);
}

/// These programs check every byte. The pingpongs check too, but a pingpong exits without a
/// farewell when it has received everything. If this loses the last acknowledgement, the other side
/// rightly reports an error.
#[test]
fn every_byte_is_what_was_sent_written_or_read() {
    for (mtu, family) in [(1500, Family::V4), (9000, Family::V6)] {
        let Some(hosts) = Hosts::bridged(mtu, User::Me).expect("two namespaces and a bridge") else { return };
        hosts.lose(PERCENT).expect("a rule that loses packets");
        for (program, more) in [("onesided", &["-m", "read"][..]), ("threads", &[])] {
            let path = cprogram::build(hosts.left.room(), program).expect("it compiles");
            let mut words = vec![path.to_str().expect("a plain path")];
            words.extend(more);
            hosts.must_succeed(family, &words);
        }
        assert!(hosts.lost().expect("a count") > 0, "nothing was lost, nothing is proved");
    }
}
