//! Compares softhca's switches, adapters and subnet manager with ibsim, the simulator of subnets
//! that others wrote: the same topology, the same programs, the same text.

use std::collections::BTreeMap;
use std::process::Command;

use harness::{HANG, Ibsim, Program, Room, User};

/// Three switches in a row, with two links between the first two. ibsim wants each link at both
/// ends. Its links have 10 Gb/s.
const ROW: &str = "\
vendid=0x2c9
devid=0xcb20
Switch 8 \"S1\"
[1] \"H1\"[1] # 4xSDR
[3] \"S2\"[3] # 4xSDR
[4] \"S2\"[4] # 4xSDR

vendid=0x2c9
devid=0xcb20
Switch 8 \"S2\"
[1] \"H2\"[1] # 4xSDR
[3] \"S1\"[3] # 4xSDR
[4] \"S1\"[4] # 4xSDR
[5] \"S3\"[5] # 4xSDR

vendid=0x2c9
devid=0xcb20
Switch 8 \"S3\"
[1] \"H3\"[1] # 4xSDR
[2] \"H3\"[2] # 4xSDR
[5] \"S2\"[5] # 4xSDR

vendid=0x2c9
devid=0x1003
Hca 2 \"H1\"
[1] \"S1\"[1] # 4xSDR

vendid=0x2c9
devid=0x1003
Hca 1 \"H2\"
[1] \"S2\"[1] # 4xSDR

vendid=0x2c9
devid=0x1003
Hca 2 \"H3\"
[1] \"S3\"[1] # 4xSDR
[2] \"S3\"[2] # 4xSDR
";

/// What the programs show of nodes, links and tables. `S1` stands for the LID of this node.
const SHOWN: &[&str] = &[
    "ibnetdiscover",
    "ibnetdiscover -p",
    "ibnetdiscover -l",
    "iblinkinfo",
    "iblinkinfo -l",
    "ibhosts",
    "ibswitches",
    "ibrouters",
    "dump_fts",
    "ibaddr H3",
    "ibroute S1",
    "ibroute -D 0,1,3",
    "ibtracert H1 H3",
    "ibtracert H3 H1",
    "smpquery nodeinfo H3",
    "smpquery nodeinfo -D 0,1,3",
    "smpquery nodedesc S2",
    "smpquery portinfo H3 1",
    "smpquery portinfo -D 0,1 2",
    "smpquery portinfo -D 0,1 3",
    "smpquery switchinfo S2",
];

/// What subnet administration knows.
const KNOWN: &[&str] = &["saquery -c", "saquery NR S1", "saquery LFTR S2/0", "saquery LR S2/5", "saquery GIR H3/0"];

/// The lines of what an implementation can do, or of its own choices, in which ibsim differs.
const OWN: &[&str] = &[
    "# Topology file: generated on",
    "CapMask",
    "CapabilityMask2",
    "\t\t\t\tIs",
    "DefMcast",
    "GuidCap",
    "HoqLife",
    "InboundPartEnf",
    "LifeTime",
    "LinearFdbCap",
    "LinkSpeedEnabled",
    "LinkSpeedExt",
    "LinkSpeedSupported",
    "LinkWidthEnabled",
    "LinkWidthSupported",
    "LocalPhysErr",
    // ibsim answers a request by LID with 0.
    "LocalPort",
    "McastFdbCap",
    "MkeyLeasePeriod",
    "MtuCap",
    "MulticastFDBTop",
    "NeighborMTU",
    "OutboundPartEnf",
    "OverrunErr",
    "PartCap",
    "PartEnforceCap",
    "RespTimeVal",
    "Revision",
    "SubnetTimeout",
    "VLStallCount",
    "\t\trevision",
];

/// The text without those lines, and without what a link could be.
fn common(text: &str) -> String {
    let lines = text.lines().filter(|line| !OWN.iter().any(|own| line.starts_with(own)));
    lines
        .map(|line| line.split(" (Could be").next().unwrap_or(line).trim_end_matches(" ( )").to_owned() + "\n")
        .collect()
}

#[track_caller]
fn said(room: &Room, command: Command) -> String {
    room.finish(command).expect("it ends").expect_success().everything()
}

/// The first LID of each node, by its name.
fn lids(room: &Room) -> BTreeMap<String, String> {
    let subnet = room.json(&["subnet", "--json"]).expect("JSON");
    let nodes = subnet["subnet"].as_array().expect("nodes");
    nodes
        .iter()
        .map(|node| (node["name"].as_str().expect("a name").to_owned(), node["ports"][0]["lid"].to_string()))
        .collect()
}

/// The text up to its second record. ibsim has no RMPP: what does not fit into a datagram is zeros.
fn first_record(text: &str) -> String {
    let title = text.lines().next().unwrap_or_default();
    let end = text.match_indices(title).nth(1).map_or(text.len(), |(at, _)| at);
    common(&text[..end])
}

/// The programs print the same on both, in this form.
#[track_caller]
fn compare(room: &Room, ibsim: &Ibsim<'_>, lines: &[&str], form: fn(&str) -> String) {
    let lids = lids(room);
    for line in lines {
        let line = lids.iter().fold((*line).to_owned(), |line, (name, lid)| line.replace(name, lid));
        let words: Vec<&str> = line.split_whitespace().collect();
        let [theirs, ours] = [ibsim.on("H2", &words), room.on("H2", &words)].map(|command| said(room, command));
        assert_eq!(form(&ours), form(&theirs), "{line}");
    }
}

/// opensm brings a subnet up, and ends.
#[track_caller]
fn sweep(room: &Room, name: &str, on: impl Fn(&[&str]) -> Command) {
    let home = room.own_dir().display().to_string();
    let (cache, temporary) = (format!("OSM_CACHE_DIR={home}"), format!("OSM_TMP_DIR={home}"));
    let log = format!("{home}/{name}.log");
    // One thread, so that LIDs follow the order of the answers.
    let words = ["env", &cache, &temporary, "opensm", "-o", "-d", "1", "-t", "5000", "-f", &log];
    let outcome = room.finish(on(&words)).expect("it ends");
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    assert!(log.contains("SUBNET UP"), "{}{log}", outcome.told());
}

#[test]
fn the_diagnostics_print_what_they_print_on_ibsim() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(ROW, &["--no-subnet-manager"]).expect("an agent");
    let ibsim = Ibsim::start(&room, ROW).expect("ibsim");
    sweep(&room, "theirs", |words| ibsim.on("H1", words));
    sweep(&room, "ours", |words| room.on("H1", words));
    compare(&room, &ibsim, SHOWN, common);
}

/// softhca's manager on the switches of others: it comes up, and does there what it does at home.
#[test]
fn the_manager_brings_ibsims_subnet_up_as_its_own() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(ROW, &["--no-subnet-manager"]).expect("an agent");
    let ibsim = Ibsim::start(&room, ROW).expect("ibsim");
    let start = |command| -> Program {
        let mut manager = room.start(command).expect("it starts");
        manager.wait_for_words("subnet up: 3 switches, 3 adapters and routers, 0 errors", HANG).expect("it comes up");
        manager
    };
    let _there = start(ibsim.client(env!("CARGO_BIN_EXE_ibsim-manager"), &["H1"]));
    let _here = start(room.softhca(&["sm", "--node", "H1"]));
    compare(&room, &ibsim, SHOWN, common);
    compare(&room, &ibsim, KNOWN, first_record);
    for master in [ibsim.on("H2", &["sminfo"]), room.on("H2", &["sminfo"])] {
        assert!(said(&room, master).contains("SMINFO_MASTER"));
    }
    let nodes = said(&room, ibsim.on("H2", &["saquery", "-N"]));
    assert!(nodes.starts_with("NodeRecord dump:") && nodes.contains("\tNodeDescription.........H1"), "{nodes}");
}
