//! Runs small C programs of the suite between hosts: one-sided operations, threads, a network that
//! merges packets from one port, and multicast groups. The programs are in `programs/`.

use harness::hosts::INTERFACE;
use harness::port::{self, Port};
use harness::{Family, HANG, Host, Hosts, Program, Sides, User, cprogram};

fn built(hosts: &Hosts, name: &str) -> String {
    cprogram::build(hosts.left.room(), name).expect("it compiles").to_str().expect("a plain path").to_owned()
}

#[test]
fn one_sided_operations_threads_and_a_target_that_is_blocked() {
    for (mtu, family) in [(1500, Family::V4), (9000, Family::V6)] {
        let Some(hosts) = Hosts::joined(mtu, User::Nobody).expect("two namespaces") else { return };
        hosts.must_succeed(family, &[&built(&hosts, "threads")]);
        let onesided = built(&hosts, "onesided");
        hosts.must_succeed(family, &[&onesided, "-m", "read"]);
        hosts.must_succeed(family, &[&onesided, "-m", "compute"]);
    }
}

/// One process reads the sockets of its address. Meanwhile another process uses another address,
/// whose sockets only the first process could read.
#[test]
fn programs_with_different_addresses_at_once() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let steady = ["ib_write_bw", "-D", "3"];
    let mut over_ipv4 = hosts.start(Family::V4, &steady).expect("both start");
    over_ipv4.traffic(steady[0], hosts.left.room(), hosts.right.room()).expect("traffic");
    for _ in 0..5 {
        hosts.must_succeed(Family::V6, &["ibv_rc_pingpong", "-c", "-n", "200"]);
    }
    Sides::must_succeed(&steady, over_ipv4.wait(HANG));
}

/// One program that waits on a TCP port of its host, and the place where the other programs find
/// it.
struct Waiting {
    program: Program,
    place: String,
    _port: Port,
}

impl Waiting {
    fn start(host: &Host, family: Family, words: &[&str]) -> Self {
        let port = Port::reserve().expect("a port");
        let number = port.number().to_string();
        let index = host.gid_index(family).expect("an address").to_string();
        let mut all = words.to_vec();
        all.extend(["-g", &index, "-p", &number]);
        let mut program = host.room().start(host.room().run(&all)).expect("it starts");
        port::wait_for_listener(program.id(), port.number(), HANG, || program.ended())
            .unwrap_or_else(|why| panic!("{why}: {}", program.everything()));
        Self { program, place: format!("{}:{number}", host.rendezvous()), _port: port }
    }
}

/// Runs one program that talks to all waiting programs. All programs must succeed.
#[track_caller]
fn meet(host: &Host, family: Family, words: &[&str], waiting: &mut [Waiting]) {
    let index = host.gid_index(family).expect("an address").to_string();
    let mut all = words.to_vec();
    all.extend(["-g", &index]);
    all.extend(waiting.iter().map(|other| other.place.as_str()));
    let ended = host.room().finish_run(&all).expect("it ends");
    let others: Vec<_> = waiting.iter_mut().map(|other| other.program.wait(HANG).expect("it ends")).collect();
    let told: String = others.iter().map(harness::Outcome::told).collect();
    assert!(ended.succeeded() && others.iter().all(harness::Outcome::succeeded), "{}{told}", ended.told());
}

/// The number of packets that came in through a host's interface, and the number of IPv6 datagrams
/// that its programs have received.
fn received(host: &Host) -> (u64, u64) {
    let namespace = host.namespace();
    let packets = namespace.script(&format!("cat /sys/class/net/{INTERFACE}/statistics/rx_packets")).expect("a count");
    let datagrams = namespace.script("grep Udp6InDatagrams /proc/net/snmp6").expect("a count");
    let last = |text: &str| text.split_whitespace().last().and_then(|word| word.parse().ok()).expect("a number");
    (last(&packets), last(&datagrams))
}

#[test]
fn packets_merged_by_the_network_are_split_again() {
    for family in [Family::V4, Family::V6] {
        let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
        // Packets wait up to half a millisecond so that the kernel can merge them.
        let merge = format!(
            "ethtool -K {INTERFACE} gro on; cd /sys/class/net/{INTERFACE}; \
             echo 500000 >gro_flush_timeout; echo 100 >napi_defer_hard_irqs"
        );
        hosts.left.namespace().script(&merge).expect("merged");
        // With TCP segmentation on, veth assumes that arriving packets are merged already.
        let apart = format!("ethtool -K {INTERFACE} tso off tx-udp-segmentation off");
        hosts.right.namespace().script(&apart).expect("apart");
        let program = built(&hosts, "oneport");
        let before = received(&hosts.left);
        let mut receivers = [(); 2].map(|()| Waiting::start(&hosts.left, family, &[&program]));
        meet(&hosts.right, family, &[&program], &mut receivers);
        let after = received(&hosts.left);
        let (packets, datagrams) = (after.0 - before.0, after.1 - before.1);
        // IPv4 datagrams of different messages have the same identification, so the kernel does not
        // merge them.
        if family == Family::V6 {
            assert!(datagrams < packets / 2, "{packets} packets came as {datagrams} datagrams: hardly any were merged");
        }
    }
}

#[test]
fn a_multicast_group_has_members_on_two_hosts() {
    for (family, group) in [(Family::V4, "::ffff:239.47.91.1"), (Family::V6, "ff0e::4791")] {
        let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
        let program = built(&hosts, "groups");
        let words = [program.as_str(), "-m", group];
        let mut members = [&hosts.left, &hosts.left, &hosts.right].map(|host| Waiting::start(host, family, &words));
        meet(&hosts.right, family, &words, &mut members);
    }
}

#[test]
fn a_received_message_is_acknowledged_if_the_program_exits_at_once() {
    let hosts = Hosts::loopback(User::Nobody).expect("two agents");
    let program = built(&hosts, "quits");
    for _ in 0..5 {
        let mut quits = [Waiting::start(&hosts.left, Family::V4, &[&program])];
        meet(&hosts.right, Family::V4, &[&program], &mut quits);
    }
}
