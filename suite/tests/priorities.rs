//! Tests the DSCP and the priority of service levels (`dscp` and `priority` in the configuration):
//! on the network, and as `softhca devices` shows them. Network namespaces need root, and so do
//! tcpdump and nft.

use harness::hosts::INTERFACE;
use harness::{Family, HANG, Host, Hosts, Program, Room, User};
use rustix::process::Signal;

const TABLE: &str = "[[devices]]\n[[devices.ports]]\ndscp = [0, 10, 18, 26]\n";

/// Shows the packets at the interface of a host.
fn tcpdump(host: &Host) -> Program {
    let words = ["-Z", "root", "-i", INTERFACE, "--immediate-mode", "-l", "-v", "-n", "udp", "port", "4791"];
    let mut tcpdump = host.room().start(host.room().command("tcpdump", words)).expect("tcpdump");
    tcpdump.wait_for_words("listening on", HANG).expect("tcpdump listens");
    tcpdump
}

#[test]
fn packets_have_the_dscp_of_their_service_level() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else {
        return eprintln!("skipped: network namespaces need root");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, TABLE).expect("written");
    let hosts = hosts.with_agents(&["--config", &file.display().to_string()]).expect("agents");
    // DSCP 26 and 18 in the upper six bits. A connection also says that it can take ECN marks.
    let (connection, datagram) = ("tos 0x6a", "tos 0x48");
    let mut seen = tcpdump(&hosts.left);
    hosts.must_succeed(Family::V4, &["ibv_rc_pingpong", "-l", "0", "-n", "20"]);
    hosts.must_succeed(Family::V4, &["ibv_ud_pingpong", "-l", "2", "-n", "20", "-s", "1024"]);
    seen.wait_for_words(datagram, HANG).expect("packets of service level 2");
    assert!(!seen.output().contains(connection), "service level 0 has DSCP 0: {}", seen.output());
    hosts.must_succeed(Family::V4, &["ibv_rc_pingpong", "-l", "3", "-n", "20"]);
    seen.wait_for_words(connection, HANG).expect("packets of service level 3");
    // Of both hosts: also the acknowledgements.
    for address in [&hosts.left, &hosts.right].map(|host| host.address(Family::V4)) {
        let text = seen.output();
        let lines: Vec<&str> = text.lines().collect();
        let sent =
            |pair: &[&str]| pair[0].contains(connection) && pair[1].trim_start().starts_with(&format!("{address}."));
        assert!(lines.windows(2).any(sent), "{address}: {text}");
    }
    // IPv6 has a field of its own for it.
    hosts.must_succeed(Family::V6, &["ib_send_lat", "-S", "3", "-n", "20"]);
    seen.wait_for_words("class 0x6a", HANG).expect("IPv6 packets of service level 3");
    seen.signal(Signal::INT);
    seen.wait(HANG).expect("it ends");
}

/// Counts the RoCE packets that a host sends with a priority and with another one.
fn count(host: &Host, priority: u8) {
    let rule = |is: &str| format!("udp dport 4791 meta priority {is} 0:{priority} counter;");
    let [with, without] = [rule("=="), rule("!=")];
    let table =
        format!("table inet seen {{ chain output {{ type filter hook output priority 0; {with} {without} }}; }}");
    host.namespace().script(&format!("nft '{table}'")).expect("counters");
}

/// What was counted since [`count`]. Takes the counters away.
fn counted(host: &Host) -> [u64; 2] {
    let rules = host.namespace().script("nft list table inet seen; nft delete table inet seen").expect("counters");
    let mut counts = rules.split("counter packets ").skip(1).filter_map(|rest| rest.split(' ').next()?.parse().ok());
    [counts.next(), counts.next()].map(|count| count.expect("two counters"))
}

/// The priority of the packets is what the `egress-qos-map` of a VLAN interface maps to a PCP.
#[test]
fn packets_have_the_priority_of_their_service_level() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else {
        return eprintln!("skipped: network namespaces need root");
    };
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("agent.toml");
    // From the DSCP of service level 1, Linux would make another priority.
    let table = "[[devices]]\n[[devices.ports]]\ndscp = [0, 8]\npriority = [1, 3, 5]\n";
    std::fs::write(&file, table).expect("written");
    let hosts = hosts.with_agents(&["--config", &file.display().to_string()]).expect("agents");
    let both = [&hosts.left, &hosts.right];
    for family in [Family::V4, Family::V6] {
        for (level, priority) in [("0", 1), ("1", 3), ("2", 5), ("3", 0)] {
            both.iter().for_each(|host| count(host, priority));
            hosts.must_succeed(family, &["ib_send_lat", "-S", level, "-n", "20"]);
            // Of both hosts: also the acknowledgements.
            for [with, without] in both.map(counted) {
                assert!(with > 0 && without == 0, "{family:?}, {level}: {with} and {without}");
            }
        }
    }
}

#[test]
fn the_table_is_shown_and_wrong_ones_are_refused() {
    let room = Room::new().expect("a room");
    let file = room.folder().join("agent.toml");
    for (dscp, layer, told) in [
        ("[64]", "ethernet", "`dscp` of service level 0 is 64; 0 to 63 are possible"),
        ("[1]", "infiniband", "port 1: `dscp` is for `ethernet` ports"),
    ] {
        let config = format!("[[devices]]\n[[devices.ports]]\nlink_layer = \"{layer}\"\ndscp = {dscp}\n");
        std::fs::write(&file, config).expect("written");
        let words = ["agent", "--config", &file.display().to_string()];
        let refused = room.finish(room.softhca(&words)).expect("it ends");
        assert!(!refused.succeeded() && refused.errors.contains(told), "{}", refused.told());
    }
    std::fs::write(&file, TABLE).expect("written");
    let room = room.with_agent(&["--config", &file.display().to_string()]).expect("an agent");
    let port = room.json(&["devices", "--json"]).expect("devices")["devices"][0]["ports"][0].clone();
    let expected: Vec<u8> = [0, 10, 18, 26].into_iter().chain([0; 12]).collect();
    assert_eq!(port["dscp"], serde_json::json!(expected));
}
