//! Captures the packets on the wire with tcpdump and parses them with tshark, which does not know
//! softhca: every opcode of RC, UC and UD, the refusals, and a connection made by address. tshark
//! must find no fault and parse what softhca meant, and the ICRC must match the separate
//! computation in [`icrc`]. Network namespaces and tcpdump need root.

mod expected;
mod icrc;
#[path = "../../crates/wire/tests/pcap/mod.rs"]
mod pcap;
pub(crate) mod tshark;

use std::path::{Path, PathBuf};

use expected::{Numbers, expect};
use harness::hosts::INTERFACE;
use harness::{Family, HANG, Host, Hosts, Program, User, cprogram, wait};
use rustix::process::Signal;

/// The payload of the last datagram of a capture.
const MARK: &str = "here ends the capture";

/// Captures the packets at the interface of `host` while `during` runs.
fn capture<T>(host: &Host, during: impl FnOnce() -> T) -> (PathBuf, T) {
    let file = host.room().folder().join("capture.pcap");
    let shown = file.display().to_string();
    // tcpdump reserves buffer space of `-s` bytes for each packet. With 2048 bytes, the buffer is
    // large enough for a burst.
    let room = ["-s", "2048", "-B", "65536"];
    let how = ["-Z", "root", "-i", INTERFACE, "--immediate-mode", "-U", "-w", &shown, "udp", "port", "4791"];
    let words = [&room[..], &how].concat();
    let mut tcpdump = host.room().start(host.room().command("tcpdump", words)).expect("tcpdump");
    tcpdump.wait_for_words("listening on", HANG).expect("tcpdump listens");
    let result = during();
    mark(host, &file, &mut tcpdump);
    (file, result)
}

/// Sends the mark, waits until tcpdump has written it and so all packets before it, and ends
/// tcpdump. The mark's destination does not exist.
fn mark(host: &Host, file: &Path, tcpdump: &mut Program) {
    let script = format!("bash -c 'echo {MARK} >/dev/udp/10.47.91.99/4791'");
    let arp = format!("ip neighbour replace 10.47.91.99 lladdr 02:00:00:00:00:99 dev {INTERFACE}");
    host.namespace().script(&format!("{arp}; {script}")).expect("a mark");
    let seen = || std::fs::read(file).is_ok_and(|bytes| bytes.windows(MARK.len()).any(|part| part == MARK.as_bytes()));
    wait::until(HANG, "tcpdump to write the mark", || seen().then_some(())).expect("the mark");
    tcpdump.signal(Signal::INT);
    tcpdump.wait(HANG).expect("it ends").expect_success();
}

/// Checks what must hold for every packet of the capture, and returns the packets. tshark and
/// `wire` must parse the same headers.
fn judge(file: &Path) -> Vec<pcap::Captured> {
    let mut packets = pcap::read_file(file);
    let mark = packets.pop().expect("the mark");
    assert!(mark.packet.starts_with(MARK.as_bytes()), "the last is the mark");
    let frames = icrc::frames(file);
    let rows = tshark::read(file);
    assert!(!packets.is_empty() && packets.len() + 1 == frames.len() && frames.len() == rows.len());
    for ((captured, frame), row) in packets.iter().zip(&frames).zip(&rows) {
        let icrc = captured.packet.last_chunk::<4>().expect("an ICRC");
        assert_eq!(icrc::of(frame), *icrc, "the ICRC of {:02x?}", captured.packet);
        if is_probe(captured) {
            row.has_no_fault();
        } else {
            let (headers, payload) = captured.parts();
            row.agrees_with(&headers, payload, &captured.packet);
        }
    }
    packets.retain(|captured| !is_probe(captured));
    packets
}

/// Whether this is a packet of softhca itself, whose opcode is in the range for manufacturers.
fn is_probe(captured: &pcap::Captured) -> bool {
    captured.packet[0] >= 0xc0
}

/// Two hosts whose packets appear in a capture one by one.
fn hosts() -> Option<Hosts> {
    let hosts = Hosts::joined(1500, User::Me).expect("two namespaces")?;
    for host in [&hosts.left, &hosts.right] {
        // Without this, a capture sees up to 64 KiB of packets as one.
        host.namespace().script(&format!("ethtool -K {INTERFACE} tx-udp-segmentation off")).expect("apart");
    }
    Some(hosts)
}

fn every_opcode(family: Family) {
    let Some(hosts) = hosts() else { return };
    let program = cprogram::build(hosts.left.room(), "everyopcode").expect("it compiles").display().to_string();
    let (file, sides) = capture(&hosts.right, || hosts.must_succeed(family, &[&program]));
    let packets = judge(&file);
    let [server, client] = [&sides.server, &sides.client].map(|side| Numbers::told(&side.output));
    expect(&packets, hosts.left.address(family), &server, &client);
}

#[test]
fn every_opcode_over_ipv4() {
    every_opcode(Family::V4);
}

#[test]
fn every_opcode_over_ipv6() {
    every_opcode(Family::V6);
}

/// The connection manager's datagrams, and a long stream of packets.
#[test]
fn connections_and_long_messages() {
    let Some(hosts) = hosts() else { return };
    let server = hosts.left.address(Family::V4).to_string();
    let (file, ()) = capture(&hosts.right, || {
        let rping = |side| ["rping", side, "-a", server.as_str(), "-C", "5", "-S", "3000", "-V"];
        let mut waits = hosts.left.room().start(hosts.left.room().run(&rping("-s"))).expect("a server");
        wait::until(HANG, "the server to listen", || {
            let rows = hosts.left.room().show("cm").ok()?;
            rows.to_string().contains("listen").then_some(())
        })
        .expect("a listener");
        hosts.right.room().finish_run(&rping("-c")).expect("it ends").expect_success();
        waits.wait(HANG).expect("it ends").expect_success();
    });
    let packets = judge(&file);
    let datagrams = packets.iter().filter(|captured| captured.parts().0.dest_qp.value() == 1).count();
    assert!(datagrams >= 4, "REQ, REP, RTU and DREQ: {datagrams}");
    for words in [&["ib_write_bw", "-s", "65536", "-n", "20"][..], &["ib_read_bw", "-s", "65536", "-n", "20"]] {
        let (file, _) = capture(&hosts.right, || hosts.must_succeed(Family::V4, words));
        let packets = judge(&file);
        assert!(packets.len() >= 20 * 64, "{}: {} packets", words[0], packets.len());
    }
}
