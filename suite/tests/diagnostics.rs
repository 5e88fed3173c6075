//! Tests the diagnostics of `infiniband-diags` that no other test runs, on switches that the agent's
//! own manager has set up: what they print is what the topology, its tables and its counters are.
//! `judges.rs` has the programs of opensm and ibutils, and `ibsim.rs` compares the others.

use std::collections::BTreeMap;

use harness::{HANG, Outcome, Pair, Program, Room, User, wait};

/// Two switches with two links between them. Four adapters are at the second one.
const TOPOLOGY: &str = "\
Switch 8 \"S1\"
[1] \"H1\"[1]
[2] \"H2\"[1]
[7] \"S2\"[7]
[8] \"S2\"[8]

Switch 8 \"S2\"
[1] \"H3\"[1]
[2] \"H4\"[1]
[3] \"H5\"[1]
[4] \"H6\"[1]

Hca 1 \"H1\"

Hca 1 \"H2\"

Hca 1 \"H3\"

Hca 1 \"H4\"

Hca 1 \"H5\"

Hca 1 \"H6\"
";

/// A subnet that is up, and its LIDs.
struct Subnet {
    room: Room,
    lids: BTreeMap<String, u64>,
}

impl Subnet {
    fn new() -> Self {
        let room = Room::of(User::Nobody).expect("a room").with_topology(TOPOLOGY, &[]).expect("an agent");
        room.wait_until_active().expect("the subnet comes up");
        let subnet = room.json(&["subnet", "--json"]).expect("JSON");
        let nodes = subnet["subnet"].as_array().expect("nodes").iter();
        let lid = |node: &serde_json::Value| node["ports"][0]["lid"].as_u64().expect("a LID");
        let lids = nodes.map(|node| (node["name"].as_str().expect("a name").to_owned(), lid(node))).collect();
        Self { room, lids }
    }

    /// How a command on H1 ends. `@S1` stands for the LID of this node.
    #[track_caller]
    fn run(&self, line: &str) -> Outcome {
        let line = self
            .lids
            .iter()
            .fold(line.to_owned(), |line, (name, lid)| line.replace(&format!("@{name}"), &lid.to_string()));
        let words: Vec<&str> = line.split_whitespace().collect();
        self.room.finish(self.room.on("H1", &words)).expect("it ends")
    }

    #[track_caller]
    fn says(&self, line: &str) -> String {
        self.run(line).expect_success().output
    }

    /// The text has these parts, in this order.
    #[track_caller]
    fn expect(&self, line: &str, parts: &[&str]) {
        let text = self.says(line);
        let mut rest = text.as_str();
        for part in parts {
            let at = rest.find(part).unwrap_or_else(|| panic!("{line}: no {part:?} in {text}"));
            rest = &rest[at + part.len()..];
        }
    }

    #[track_caller]
    fn refuses(&self, line: &str, words: &str) {
        let outcome = self.run(line);
        assert!(!outcome.succeeded() && outcome.everything().contains(words), "{line}: {}", outcome.told());
    }

    /// A script in Perl that keeps a file in /var. It uses the room's folder in its place.
    #[track_caller]
    fn script(&self, words: &[&str]) -> String {
        let folder = self.room.own_dir().display().to_string();
        let run = "$IBswcountlimits::cache_dir = shift; $0 = shift; do $0; die $@ if $@";
        let words = [&["perl", "-MIBswcountlimits", "-e", run, &folder], words].concat();
        self.room.finish(self.room.on("H1", &words)).expect("it ends").expect_success().output
    }

    /// A file in the room's folder.
    fn file(&self, name: &str) -> String {
        self.room.own_dir().join(name).display().to_string()
    }

    /// A field of a port, as a diagnostic prints it.
    #[track_caller]
    fn field(&self, line: &str, name: &str) -> u64 {
        let text = self.says(line);
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = value.unwrap_or_else(|| panic!("{line}: no {name} in {text}"));
        value.trim_matches('.').parse().unwrap_or_else(|error| panic!("{value}: {error}"))
    }
}

#[test]
fn nodes_and_tables() {
    let subnet = Subnet::new();
    let lid = |name: &str| subnet.lids[name];
    let nodes = subnet.says("ibnodes");
    let count = |kind: &str| nodes.lines().filter(|line| line.starts_with(kind)).count();
    assert_eq!((count("Ca\t: 0x"), count("Switch\t: 0x")), (6, 2), "{nodes}");
    // The other switch has half of its adapters behind each link.
    let tables = subnet.says("dump_lfts");
    let first = tables.split("Unicast lids ").find(|table| table.contains("(S1):")).expect(&tables);
    let exit = |name: &str| {
        let row = format!("{:#06x} ", lid(name));
        let line = first.lines().find(|line| line.starts_with(&row)).unwrap_or_else(|| panic!("{name}: {tables}"));
        assert!(line.ends_with(&format!(": '{name}')")), "{line}");
        line[row.len()..].split(' ').next().and_then(|port| port.parse().ok()).unwrap_or(0_u8)
    };
    assert_eq!([exit("S1"), exit("H1"), exit("H2")], [0, 1, 2]);
    let mut far = ["H3", "H4", "H5", "H6"].map(exit);
    let by_last = (1..=4).filter(|port| far[port - 1] == 8).map(|port| format!("H{}", port + 2)).collect::<Vec<_>>();
    far.sort_unstable();
    assert_eq!(far, [7, 7, 8, 8]);
    let (dumped, cache, edited) = (subnet.file("lfts"), subnet.file("cache"), subnet.file("edited"));
    std::fs::write(&dumped, &tables).expect("written");
    subnet.says(&format!("ibnetdiscover --cache {cache}"));
    let balance = format!("check_lft_balance -v -l {dumped} -i {cache}");
    subnet.expect(&balance, &["Switch Port Usage: S1, 0x0000000000200000\nPort 007: 2\nPort 008: 2\n"]);
    assert!(!subnet.says(&balance).contains("Unbalanced"));
    std::fs::write(&dumped, tables.replace(" 007 :", " 008 :")).expect("written");
    subnet.expect(&balance, &["Unbalanced Switch Port Usage: S1, 0x0000000000200000\nPort 007: 0\nPort 008: 4\n"]);
    let users = subnet.script(&["/usr/sbin/ibfindnodesusing", "-R", "0x0000000000200000", "8"]);
    let (there, back) = users.split_once("<<==").expect(&users);
    assert!(there.contains("0x0000000000200000 8 (\"S1\" base)  ==>>  0x0000000000200001 8 (S2)"), "{users}");
    assert!(
        by_last.iter().all(|name| there.contains(&name[1..])) && back.contains("H1") != back.contains("H2"),
        "{users}"
    );
    assert_eq!(subnet.script(&["/usr/sbin/ibidsverify", "-R"]), "", "all LIDs and GUIDs are different");
    // A cache with another GUID differs in this node.
    subnet.says(&format!("ibcacheedit --caguid 0x100002:0x777 {cache} {edited}"));
    assert_eq!(subnet.says(&format!("ibnetdiscover --diff {cache}")).trim(), "");
    subnet.expect(&format!("ibnetdiscover --diff {edited}"), &["< caguid=0x777\n", "> caguid=0x100002\n"]);
}

/// The ports of a switch with an `x` in a row of dump_mfts.
fn ports(row: &str) -> Vec<usize> {
    row.match_indices('x').skip(1).map(|(at, _)| (at - 12) / 2).collect()
}

#[test]
fn groups() {
    let subnet = Subnet::new();
    assert!(!subnet.says("dump_mfts").contains("\n0xc0"), "nobody has joined");
    let join = |node: &str| -> Program {
        subnet.room.start(subnet.room.on(node, &["mckey", "-m", "239.1.2.3", "-C", "10"])).expect("it starts")
    };
    let _members = ["H1", "H4"].map(join);
    let joined = || {
        let text = subnet.says("dump_mfts");
        let of = |name: &str| {
            let table = text.split("Multicast mlids ").find(|table| table.contains(name))?;
            Some(ports(table.lines().find(|line| line.starts_with("0xc0"))?))
        };
        let (first, second) = (of("(S1):")?, of("(S2):")?);
        (first.len() == 2 && second.len() == 2).then_some((first, second))
    };
    let (first, second) = wait::until(HANG, "both members", joined).expect("they join");
    assert_eq!((first[0], second[0]), (1, 2));
    assert!(first[1] == second[1] && first[1] >= 7, "one of the two links: {first:?} {second:?}");
}

#[test]
fn attributes_of_ports() {
    let subnet = Subnet::new();
    let port_guid = "0x0000000000100005";
    // NodeInfo by a directed route, and PortInfo by LID with the state ACTIVE, in hexadecimal.
    subnet
        .expect("smpdump -D 0,1 0x11", &["0101 0208 0000 0000 0020 0000 0000 0000\n0020 0000", "\nSMP status: 0x8000"]);
    let state = format!("\n{:04x} {:04x} ", subnet.lids["H3"], subnet.lids["S1"].min(subnet.lids["S2"]));
    subnet.expect("smpdump @H3 0x15 1", &["0000 0000 0000 0000 fe80 0000 0000 0000", &state]);
    subnet.expect("smpquery guidinfo @H3", &[&format!("   0: {port_guid} 0x0000000000000000\n   2: ")]);
    subnet.expect("smpquery pkeys @H3 1", &["   0: 0xffff 0x0000", "\n128 pkeys capacity for this port\n"]);
    subnet.expect("smpquery sl2vl @S1 7", &["ports: in  0, out  7: | 0| "]);
    subnet.expect("smpquery vlarb @S1 7", &["port 7 LowCap 8 HighCap 8", "# High priority VL Arbitration Table:\n"]);
    let lid = format!("\tbase lid:\t {:#x}\n", subnet.lids["H1"]);
    let gid = "port 1 status:\n\tdefault gid:\t fe80:0000:0000:0000:0000:0000:0010:0001\n";
    subnet.expect("ibstatus H1:1", &[gid, &lid, "4: ACTIVE\n", "5: LinkUp\n", "100 Gb/sec (4X EDR)\n", "InfiniBand\n"]);
    // What an adapter without these classes and attributes answers.
    subnet.refuses("smpquery mepi @H3 1", "Mellanox ext port info query failed");
    subnet.refuses("vendstat -N @H3", "classportinfo query");
    subnet.refuses("ibccquery CongestionInfo @S1", "congestion info query failed");
    subnet.refuses("ibccconfig CongestionKeyInfo @S1 1 1 0 0", "congestion key info config failed");
    subnet.refuses("perfquery -T @S1 8", "cannot query PortExtendedSpeedsCounters");
    // Without the server, the port answers that it does not know the class, and there is no name.
    assert_eq!(subnet.says("ibsysstat @H3 host").trim(), "");
    let _server = subnet.room.start(subnet.room.on("H3", &["ibsysstat", "-S"])).expect("it starts");
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let serves = || subnet.says("ibsysstat @H3 host").starts_with(name.trim()).then_some(());
    wait::until(HANG, "the server", serves).expect("it answers");
    subnet.expect("ibsysstat @H3 cpu", &["cpu 0: "]);
}

#[test]
fn counters_are_shown_and_cleared() {
    let subnet = Subnet::new();
    let words = &["ibv_rc_pingpong", "-n", "100"][..];
    let sides = Pair::on_nodes(&subnet.room, ("H3", words), ("H1", words)).and_then(|mut pair| pair.wait(HANG));
    let sides = sides.expect("they end");
    assert!(sides.server.succeeded() && sides.client.succeeded(), "{}", sides.client.told());
    // 5 packets for each message: 4 of 1 KiB, and an acknowledgement.
    let sent = subnet.field("perfquery @S1 1", "PortXmitPkts");
    assert!((500..700).contains(&sent), "{sent}");
    assert!(subnet.field("perfquery -x @S1 1", "PortUnicastXmitPkts") >= sent);
    let all = subnet.field("perfquery -a @S1", "PortRcvPkts");
    let each = subnet.says("perfquery -l -a @S1");
    let each = each.lines().filter_map(|line| line.strip_prefix("PortRcvPkts:")?.trim_matches('.').parse::<u64>().ok());
    let each: Vec<u64> = each.collect();
    // The requests of perfquery itself count as well.
    assert!(each.len() == 8 && each.iter().sum::<u64>() >= all && all >= 2 * sent, "{all} {each:?}");
    assert!(subnet.field("perfquery -r @H3 1", "PortXmitPkts") >= 500, "the values before the reset");
    assert!(subnet.field("perfquery @H3 1", "PortXmitPkts") < 100);
    for (reset, read) in [("perfquery -R @S1 1", "perfquery @S1 1"), ("perfquery -x -R @S1 1", "perfquery -x @S1 1")] {
        subnet.says(reset);
        assert!(subnet.field(read, "PortXmitPkts") < 100, "{reset}");
    }
    assert!(subnet.field("perfquery -x @S1 1", "PortUnicastXmitPkts") < 100);
    assert_eq!(subnet.field("perfquery -D @S1 8", "PortInactiveDiscards"), 0);
    assert_eq!(subnet.field("perfquery -E @S1 8", "PortLoopingErrors"), 0);
}

#[test]
fn ports_are_disabled_and_enabled_and_get_another_speed() {
    let subnet = Subnet::new();
    let none = "## Summary: 8 nodes checked, 0 bad nodes found\n";
    subnet.expect("ibqueryerrors", &[none]);
    subnet.expect("ibportstate @S2 1 query", &["LinkState:.......................Active\n"]);
    subnet.expect("ibportstate @S2 1 disable", &["After PortInfo set:", "PhysLinkState:...................Disabled\n"]);
    subnet.room.wait_for_path("H1", "H3", false).expect("it is down");
    let down = "LinkState:.......................Down\nPhysLinkState:...................Disabled\n";
    subnet.expect("ibportstate @S2 1 query", &[down]);
    let at_end = subnet.room.on("H3", &["ibstat", "H3", "1"]);
    let at_end = subnet.room.finish(at_end).expect("it ends").expect_success().output;
    assert!(at_end.contains("State: Down\n") && at_end.contains("Physical state: Polling\n"), "{at_end}");
    subnet.expect("ibportstate @S2 1 enable", &["After PortInfo set:"]);
    subnet.room.wait_for_path("H1", "H3", true).expect("it is up again");
    let outcome = subnet.run("ibqueryerrors -k");
    let told = outcome.everything();
    let counted = ["GUID 0x100005 port 1: [LinkDownedCounter == 1", "GUID 0x200001 port 1: [LinkDownedCounter == 1"];
    assert!(!outcome.succeeded() && counted.iter().all(|line| told.contains(line)), "{told}");
    subnet.expect("ibqueryerrors", &[none]);
    for (settings, rate, parts) in [
        (
            "width 1 espeed 30 speed 2",
            "5 Gb/sec (1X DDR)",
            ["LinkWidthActive:.................1X\n", "LinkSpeedActive:.................5.0 Gbps\n"],
        ),
        (
            "width 3 espeed 31 speed 15",
            "100 Gb/sec (4X EDR)",
            ["LinkWidthActive:.................4X\n", "LinkSpeedExtActive:..............25.78125 Gbps\n"],
        ),
    ] {
        subnet.says(&format!("ibportstate @S2 1 {settings} reset"));
        let has_rate = || subnet.room.on("H3", &["cat", "/sys/class/infiniband/H3/ports/1/rate"]);
        let is_up = || {
            let told = subnet.room.finish(has_rate()).ok()?.output;
            (told.trim() == rate && subnet.says("ibportstate @S2 1 query").contains("Active\n")).then_some(())
        };
        wait::until(HANG, rate, is_up).expect("the link trains");
        subnet.expect("ibportstate @S2 1 query", &parts);
        // The port at the other end of the link as well.
        subnet.expect("ibportstate @S2 1 query", &["Peer PortInfo:", parts[0], parts[1]]);
    }
}
