//! Tests congestion between two hosts: the network sets the CE mark (ECN) on packets instead of
//! losing them, and the link goes down and comes back. The programs are Debian's perftest and the
//! suite's own, unmodified.

use harness::hosts::INTERFACE;
use harness::{Family, HANG, Hosts, Sides, User, cprogram};

/// The number of packets that the counter in chain `chain` of the namespace's table `marks` has
/// seen.
fn counted(hosts: &Hosts, chain: &str) -> u64 {
    let rules = hosts.right.namespace().script(&format!("nft list chain inet marks {chain}")).expect("the chain");
    let count = rules.split_once("counter packets ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
    count.unwrap_or_else(|| panic!("{rules}"))
}

#[test]
fn packets_that_are_marked_are_answered_with_notifications_and_arrive() {
    for (family, ip) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
        let Some(hosts) = Hosts::joined(1500, User::Nobody).expect("two namespaces") else { return };
        // The rules set the CE mark on every packet of the client that is capable of ECN. They
        // count the CNPs that come back.
        hosts
            .right
            .namespace()
            .script(&format!(
                "nft 'table inet marks {{ \
                 chain out {{ type filter hook postrouting priority 0; \
                 {ip} ecn != not-ect udp dport 4791 counter {ip} ecn set ce; }}; \
                 chain in {{ type filter hook input priority 0; udp dport 4791 @th,64,8 0x81 counter; }}; }}'"
            ))
            .expect("rules");
        hosts.must_succeed(family, &["ib_write_bw", "-n", "500"]);
        assert!(counted(&hosts, "out") > 0, "connections are capable of ECN");
        assert!(counted(&hosts, "in") > 0, "who sent what was marked is told");
        for (host, name) in [
            (&hosts.left, "np_ecn_marked_roce_packets"),
            (&hosts.left, "np_cnp_sent"),
            (&hosts.right, "rp_cnp_handled"),
        ] {
            let file = format!("/sys/class/infiniband/softhca0/ports/1/hw_counters/{name}");
            let value = host.room().finish_run(&["cat", &file]).expect("it ends").expect_success().output;
            assert!(value.trim().parse::<u64>().is_ok_and(|value| value > 0), "{name}: {value}");
        }
        for words in [["ib_send_bw", "-n", "200"], ["ib_read_bw", "-n", "200"], ["ib_atomic_bw", "-n", "200"]] {
            hosts.must_succeed(family, &words);
        }
        let threads = cprogram::build(hosts.left.room(), "threads").expect("it compiles").display().to_string();
        hosts.must_succeed(family, &[&threads]);
    }
}

#[test]
fn a_link_that_flaps_under_traffic() {
    let Some(hosts) = Hosts::joined(1500, User::Nobody).expect("two namespaces") else { return };
    let words = ["ib_write_bw", "-q", "8", "-D", "2"];
    let mut pair = hosts.start(Family::V4, &words).expect("both start");
    pair.traffic(words[0], hosts.left.room(), hosts.right.room()).expect("traffic");
    for _ in 0..3 {
        let flap = format!("ip link set {INTERFACE} down; ip link set {INTERFACE} up");
        hosts.right.namespace().script(&flap).expect("it goes and comes");
    }
    Sides::must_succeed(&words, pair.wait(HANG));
}
