//! Tests `softhca capture`, over lanes and over the wire: tshark must parse its files without a
//! fault and with the same result as `wire`. Also tests a pipe, the text output, and that other
//! users' packets stay hidden.

use std::path::{Path, PathBuf};

use harness::{Family, HANG, Hosts, Outcome, Pair, Program, Room, User, wait};
use rustix::process::Signal;
use serde_json::Value;
use softhca_wire::icrc::{Envelope, LEN as ICRC};
use softhca_wire::{Headers, Transport};

use crate::wire_capture::tshark;

/// Number of bytes before the BTH, over IPv4.
const BEFORE: usize = 14 + 20 + 8;

/// Starts `softhca capture` and waits until it listens.
fn start(room: &Room, options: &[&str]) -> Program {
    let mut capture = room.start(room.softhca(&[&["capture"], options].concat())).expect("softhca capture");
    capture.wait_for_words("listening on", HANG).expect("it listens");
    capture
}

/// Ends the capture as ^C does.
fn stop(capture: &mut Program) -> Outcome {
    capture.signal(Signal::INT);
    let outcome = capture.wait(HANG).expect("it ends").expect_success();
    assert!(outcome.errors.contains("\n0 packets dropped by the capture"), "{}", outcome.told());
    outcome
}

/// The frames of a capture file, each with its comment.
fn frames(file: &Path) -> Vec<(Vec<u8>, String)> {
    let bytes = std::fs::read(file).expect("the capture");
    let (mut rest, mut frames) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().expect("four bytes")) as usize;
        let len = word(4);
        if word(0) == 6 {
            let option = 28 + word(20).next_multiple_of(4);
            let comment = &rest[option + 4..][..word(option) >> 16];
            frames.push((rest[28..28 + word(20)].to_vec(), String::from_utf8(comment.to_vec()).expect("text")));
        }
        rest = &rest[len..];
    }
    frames
}

/// The headers and comments in a capture, after checking that tshark and `wire` parse the same
/// headers.
fn judge(file: &Path) -> Vec<(Headers, String)> {
    let (frames, mut rows) = (frames(file), tshark::read(file));
    assert!(!frames.is_empty() && frames.len() == rows.len(), "{} frames, {} rows", frames.len(), rows.len());
    let mut read = Vec::new();
    for ((frame, comment), row) in frames.into_iter().zip(&mut rows) {
        forgive(row, &comment);
        assert_eq!(frame[12..14], [0x08, 0x00], "IPv4");
        let gid = |at: usize| [&[0; 10][..], &[0xff; 2], &frame[at..at + 4]].concat().try_into().expect("sixteen");
        let port = u16::from_be_bytes([frame[34], frame[35]]);
        let packet = &frame[BEFORE..];
        let id = u16::from_be_bytes([frame[18], frame[19]]);
        assert_eq!(Envelope::new(&gid(26), &gid(30), port).check(packet, id), Some(id), "the ICRC of {packet:02x?}");
        // A packet of softhca itself, whose opcode is in the range for manufacturers.
        if packet[0] >= 0xc0 {
            row.has_no_fault();
            continue;
        }
        let headers = Headers::parse(packet).expect("headers");
        let payload = &packet[headers.len()..packet.len() - ICRC - usize::from(headers.pad)];
        row.agrees_with(&headers, payload, packet);
        read.push((headers, comment));
    }
    read
}

/// Removes messages that are not faults: the comment, which tshark reports as a message, and the
/// hop limit of 1 that the pingpongs choose.
fn forgive(row: &mut tshark::Row, comment: &str) {
    let said = row.0["_ws.expert.message"].replace(comment, "").replace("\"Time To Live\" only 1", "");
    if said.trim_matches(',').is_empty() {
        row.0.extend([("_ws.expert.message", String::new()), ("_ws.expert.severity", String::new())]);
    }
}

fn file(room: &Room) -> PathBuf {
    room.folder().join("capture.pcapng")
}

fn rping(server: &Room, client: &Room, address: &str) {
    let words = |side| ["rping", side, "-a", address, "-C", "3", "-S", "3000", "-V"];
    let mut waits = server.start(server.run(&words("-s"))).expect("a server");
    wait::until(HANG, "the server to listen", || server.show("cm").ok()?.to_string().contains("listen").then_some(()))
        .expect("a listener");
    client.finish_run(&words("-c")).expect("it ends").expect_success();
    waits.wait(HANG).expect("it ends").expect_success();
}

#[test]
fn programs_of_one_machine_are_seen_although_nothing_leaves_it() {
    let room = Room::new().expect("a room").with_address("127.0.0.1").expect("an agent");
    let to = file(&room).display().to_string();
    let mut capture = start(&room, &["-w", &to, "--print"]);
    Pair::must_succeed(&room, &["ibv_rc_pingpong", "-g", "1", "-n", "20", "-s", "50000"]);
    Pair::must_succeed(&room, &["ibv_ud_pingpong", "-g", "1", "-n", "20", "-s", "1000"]);
    rping(&room, &room, "127.0.0.1");
    let outcome = stop(&mut capture);

    let packets = judge(&file(&room));
    let lanes = packets.iter().filter(|(_, comment)| comment.starts_with("lane "));
    let of = |transport| lanes.clone().filter(|(headers, _)| headers.opcode.transport == transport).count();
    assert!(
        of(Transport::Rc) >= 40 * 2 && of(Transport::Ud) == 40,
        "{} RC, {} UD",
        of(Transport::Rc),
        of(Transport::Ud)
    );
    assert!(lanes.clone().any(|(_, comment)| comment.contains("(ibv_rc_pingpong) → ")), "programs have names");
    let managed = packets.iter().filter(|(_, comment)| comment.starts_with("inside the agent")).count();
    assert!(managed >= 5, "REQ, REP, RTU, DREQ and DREP: {managed}");
    for words in ["RC SEND first psn", "UD SEND only psn", "ConnectRequest: REQ", "DisconnectReply: DREP", "ACK msn"] {
        assert!(outcome.output.contains(words), "{words} is not in\n{}", outcome.output);
    }
    let count = format!("{} packets captured", packets.len());
    assert!(outcome.errors.contains(&count) && outcome.output.lines().count() == packets.len(), "{}", outcome.errors);
}

#[test]
fn traffic_between_hosts_is_captured_on_both() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let rooms = [hosts.left.room(), hosts.right.room()];
    let server = hosts.left.address(Family::V4).to_string();
    let mut captures = rooms.map(|room| start(room, &["-w", &file(room).display().to_string(), "-B", "65536"]));
    hosts.must_succeed(Family::V4, &["ib_write_bw", "-s", "65536", "-n", "20"]);
    rping(rooms[0], rooms[1], &server);
    captures.iter_mut().for_each(|capture| drop(stop(capture)));
    let [left, right] = rooms.map(|room| judge(&file(room)));
    for (packets, way) in [(&left, "wire, in"), (&right, "wire, out")] {
        let writes = packets
            .iter()
            .filter(|(headers, comment)| headers.opcode.to_string().contains("WRITE") && comment.starts_with(way));
        assert!(writes.count() >= 20 * 64, "{way}");
    }
    let managed =
        |packets: &[(Headers, String)]| packets.iter().filter(|(headers, _)| headers.dest_qp.value() == 1).count();
    assert!(managed(&left) >= 4 && managed(&right) >= 4, "each sees what it sends and what it gets");
}

#[test]
fn a_pipe_into_tshark_is_live_and_ends_when_tshark_does() {
    let room = Room::new().expect("a room").with_address("127.0.0.1").expect("an agent");
    let softhca = room.dist().softhca().display().to_string();
    let script = format!(
        "set -o pipefail; '{softhca}' capture -w - 'dst qp 1 or opcode write' | \
         tshark -l -n -r - -c 20 -T fields -e infiniband.bth.opcode -e frame.comment"
    );
    let mut pipe = room.start(room.command("bash", ["-c", &script])).expect("a shell");
    pipe.wait_for_words("listening on", HANG).expect("it listens");
    Pair::must_succeed(&room, &["ib_write_lat", "-s", "8", "-n", "50"]);
    // tshark has read enough packets and has ended. No process reads the next packets.
    pipe.wait_for_words("lane", HANG).expect("tshark shows what came");
    Pair::must_succeed(&room, &["ib_write_lat", "-s", "8", "-n", "50"]);
    let outcome = pipe.wait(HANG).expect("it ends").expect_success();
    assert_eq!(outcome.output.lines().filter(|line| line.starts_with("10\tlane ")).count(), 20, "{}", outcome.told());
}

#[test]
fn a_user_sees_own_programs_only() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let machine = Room::system("addresses = ['127.0.0.1']\n").expect("an agent for everybody");
    let [alice, bob] = [64_001, 64_002].map(|number| machine.guest(User::Number(number)).expect("a room"));
    let mut captures = [&alice, &machine].map(|room| start(room, &["--json"]));
    let pair = |there: &Room, here: &Room, words: &[&str]| {
        let sides = Pair::start_different(there, words, here, words).and_then(|mut pair| pair.wait(HANG));
        harness::Sides::must_succeed(words, sides);
    };
    pair(&bob, &bob, &["ibv_uc_pingpong", "-g", "0", "-n", "20"]);
    pair(&alice, &bob, &["ibv_rc_pingpong", "-g", "0", "-n", "20"]);
    rping(&bob, &bob, "127.0.0.1");
    let [hers, all] = captures.each_mut().map(stop).map(|outcome| {
        let read = |line: &str| serde_json::from_str(line).expect("an object");
        outcome.output.lines().map(read).collect::<Vec<Value>>()
    });
    assert!(all.iter().all(|packet| packet["schema"] == 2 && packet["time"].is_string()), "{}", all[0]);
    let transports =
        |packets: &[Value], name: &str| packets.iter().filter(|packet| packet["transport"] == name).count();
    assert_eq!(
        transports(&hers, "UC") + transports(&hers, "UD"),
        0,
        "what is Bob's alone, and what the agent says for him"
    );
    assert!(transports(&all, "UC") >= 40 && transports(&all, "UD") >= 5, "root sees everything");
    let sends = |packets: &[Value]| -> Vec<Value> {
        let is_send = |packet: &&Value| {
            packet["transport"] == "RC" && packet["opcode"].as_str().is_some_and(|name| name.starts_with("SEND"))
        };
        packets.iter().filter(is_send).map(|packet| packet["src_qp"].clone()).collect()
    };
    let own = sends(&hers);
    let mut senders = own.clone();
    senders.sort_by_key(Value::as_u64);
    senders.dedup();
    // The pings of one side and the pongs of the other side. rping sends a few more packets, but
    // they are Bob's.
    assert!(own.len() == 40 && senders.len() == 2, "both directions, each packet once: {} of {senders:?}", own.len());
    assert!(sends(&all).len() > 40);
}
