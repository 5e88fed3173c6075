//! Tests captures of InfiniBand ports (`softhca capture`): tshark takes their packets apart as
//! those of an InfiniBand link, with the LIDs, service level, virtual lane and partition that the
//! subnet manager and the programs have chosen.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use harness::{HANG, Program, Room};
use rustix::process::Signal;

const PAIR: &str = "\
Switch 8 \"S1\"
[1] \"H1\"[1]
[2] \"S2\"[2]

Switch 8 \"S2\"
[1] \"H2\"[1]

Hca 1 \"H1\"

Hca 1 \"H2\"
";

const FIELDS: &[&str] = &[
    "frame.interface_name",
    "erf.types.type",
    "infiniband.lrh.slid",
    "infiniband.lrh.dlid",
    "infiniband.lrh.sl",
    "infiniband.lrh.vl",
    "infiniband.lrh.pktlen",
    "infiniband.grh.sgid",
    "infiniband.bth.opcode",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.mad.mgmtclass",
    "frame.len",
    "_ws.expert.severity",
    "_ws.malformed",
];

/// One packet, by tshark's names of its fields.
type Row = BTreeMap<&'static str, String>;

fn number(row: &Row, field: &str) -> u64 {
    let text = row[field].split(',').next().unwrap_or_default();
    let number = text.strip_prefix("0x").map_or_else(|| text.parse(), |hex| u64::from_str_radix(hex, 16));
    number.unwrap_or_else(|_| panic!("{field} is {text:?}: {row:?}"))
}

/// What tshark sees. It must find no fault.
fn read(file: &Path) -> Vec<Row> {
    let mut command = Command::new("tshark");
    command.args(["-n", "-T", "fields", "-E", "separator=/t", "--disable-heuristic", "mellanox_eoib"]);
    command.args(["--disable-protocol", "rpcordma", "-r"]).arg(file);
    command.args(FIELDS.iter().flat_map(|field| ["-e", field]));
    let output = command.output().expect("tshark");
    assert!(output.status.success(), "tshark: {}", String::from_utf8_lossy(&output.stderr));
    let row = |line: &str| -> Row { FIELDS.iter().copied().zip(line.split('\t').map(str::to_owned)).collect() };
    let rows: Vec<Row> = String::from_utf8(output.stdout).expect("text").lines().map(row).collect();
    for row in &rows {
        assert_eq!(row["_ws.malformed"], "", "{row:?}");
        // Without the VCRC.
        if !row["infiniband.lrh.pktlen"].is_empty() {
            assert_eq!(number(row, "infiniband.lrh.pktlen") * 4 + 2, number(row, "frame.len"), "{row:?}");
        }
    }
    rows
}

fn capture(room: &Room, file: &Path) -> Program {
    let mut capture = room.start(room.softhca(&["capture", "-w", &file.display().to_string()])).expect("it starts");
    capture.wait_for_words("listening on", HANG).expect("it listens");
    capture
}

fn stop(mut capture: Program) {
    capture.signal(Signal::INT);
    let outcome = capture.wait(HANG).expect("it ends").expect_success();
    assert!(outcome.errors.contains("\n0 packets dropped by the capture"), "{}", outcome.told());
}

fn said(room: &Room, node: &str, words: &[&str]) -> String {
    room.finish(room.on(node, words)).expect("it ends").expect_success().everything()
}

/// Runs a program of two sides, the server on H2.
fn pair(room: &Room, words: &[&str]) {
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = [words, &["-p", &number]].concat();
    let server = room.start(room.on("H2", &words)).expect("it starts");
    harness::port::wait_for_listener(server.id(), port.number(), HANG, || false).expect("it listens");
    let client = room.on("H1", &[&words[..], &["127.0.0.1"]].concat());
    room.finish(client).expect("it ends").expect_success();
    let mut server = server;
    server.wait(HANG).expect("it ends").expect_success();
}

/// The value after the dots, in the text of smpquery.
fn value<'a>(text: &'a str, name: &str) -> &'a str {
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name} in {text}"));
    line.trim_start_matches(name).trim_start_matches([':', '.'])
}

#[test]
fn tshark_sees_the_lids_levels_and_lanes_of_a_topologys_packets() {
    let room = Room::new().expect("a room").with_topology(PAIR, &[]).expect("an agent");
    room.wait_for_path("H1", "H2", true).expect("it comes up");
    let lid = |node: &str| value(&said(&room, node, &["smpquery", "-D", "portinfo", "0"]), "Lid:").parse::<u64>();
    let [one, two] = ["H1", "H2"].map(|node| lid(node).expect("a LID"));
    let file = room.folder().join("link.pcapng");
    let running = capture(&room, &file);
    pair(&room, &["ibv_rc_pingpong", "-n", "10", "-s", "50000", "-m", "2048", "-l", "3"]);
    pair(&room, &["ibv_ud_pingpong", "-n", "10", "-s", "1000", "-g", "0"]);
    said(&room, "H1", &["smpquery", "nodeinfo", &two.to_string()]);
    said(&room, "H1", &["perfquery", &two.to_string(), "1"]);
    said(&room, "H1", &["saquery", "-p"]);
    stop(running);

    let rows = read(&file);
    assert!(rows.iter().all(|row| number(row, "erf.types.type") == 21), "every packet is one of InfiniBand");
    let lids = |row: &Row| (number(row, "infiniband.lrh.slid"), number(row, "infiniband.lrh.dlid"));
    let of = |opcodes: std::ops::RangeInclusive<u64>| {
        let is_it = move |row: &&Row| opcodes.contains(&number(row, "infiniband.bth.opcode"));
        rows.iter().filter(is_it).collect::<Vec<_>>()
    };
    // 25 packets for each message of 50000 bytes, in both directions, and acknowledgements.
    let sends = of(0..=5);
    assert_eq!(sends.len(), 2 * 10 * 25);
    let table = said(&room, "H1", &["smpquery", "-D", "sl2vl", "0"]);
    let lane = table.rsplit("|").nth(16 - 3).expect("a lane").trim().parse::<u64>().expect("a number");
    for row in sends.iter().chain(&of(17..=17)) {
        let from_one = row["frame.interface_name"] == "H1";
        assert_eq!(lids(row), if from_one { (one, two) } else { (two, one) }, "{row:?}");
        let level = (number(row, "infiniband.lrh.sl"), number(row, "infiniband.lrh.vl"));
        assert_eq!((level, number(row, "infiniband.bth.p_key")), ((3, lane), 0xffff), "{row:?}");
        assert_eq!(row["infiniband.grh.sgid"], "");
    }
    let datagrams = of(100..=100);
    let (mads, others): (Vec<&Row>, Vec<&Row>) =
        datagrams.into_iter().partition(|row| number(row, "infiniband.bth.destqp") <= 1);
    assert_eq!(others.len(), 20);
    assert!(others.iter().all(|row| row["infiniband.grh.sgid"].starts_with("fe80::")), "{:?}", others[0]);
    // Subnet management, subnet administration and performance management, on both ports.
    let classes = |node: &str, lane: u64| {
        let at =
            mads.iter().filter(|row| row["frame.interface_name"] == node && number(row, "infiniband.lrh.vl") == lane);
        at.map(|row| number(row, "infiniband.mad.mgmtclass")).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(classes("H1", 15).contains(&1) && classes("H2", 15).contains(&1), "{:?}", classes("H2", 15));
    assert!([3, 4].iter().all(|class| classes("H1", 0).contains(class)) && classes("H2", 0).contains(&4));
}

#[test]
fn ports_of_infiniband_without_a_topology_are_shown_as_such() {
    let room = Room::new().expect("a room").with_agent(&["--link-layer", "infiniband"]).expect("an agent");
    let file = room.folder().join("link.pcapng");
    let running = capture(&room, &file);
    harness::Pair::must_succeed(&room, &["ibv_rc_pingpong", "-n", "10"]);
    room.finish_run(&["perfquery"]).expect("it ends").expect_success();
    stop(running);
    let rows = read(&file);
    assert!(rows.iter().all(|row| number(row, "erf.types.type") == 21), "every packet is one of InfiniBand");
    assert!(rows.iter().filter(|row| number(row, "infiniband.bth.opcode") <= 5).count() >= 20);
    assert!(rows.iter().all(|row| number(row, "infiniband.lrh.slid") == number(row, "infiniband.lrh.dlid")));
    assert!(rows.iter().any(|row| !row["infiniband.mad.mgmtclass"].is_empty()), "the requests of perfquery");
}
