//! Tests an agent with a topology (`softhca agent --topology`): its own subnet manager, Debian's
//! opensm and diagnostics on its switches, and verbs programs on its nodes.

use std::collections::BTreeSet;

use harness::program::send;
use harness::{HANG, Pair, Program, Room, User, process, wait};
use rustix::process::Signal;

/// Three switches in a row, with two links between the first two.
const ROW: &str = "\
Switch 8 \"S1\"
[1] \"H1\"[1]
[3] \"S2\"[3]
[4] \"S2\"[4]

Switch 8 \"S2\"
[1] \"H2\"[1]
[5] \"S3\"[5]

Switch 8 \"S3\"
[1] \"H3\"[1]
[2] \"H3\"[2]

Hca 2 \"H1\"

Hca 1 \"H2\"

Hca 2 \"H3\"
";

/// A room whose agent has this topology and does not manage it.
fn room(user: User, text: &str) -> Room {
    room_with(user, text, &["--no-subnet-manager"])
}

/// A room whose agent has this topology.
fn room_with(user: User, text: &str, options: &[&str]) -> Room {
    Room::of(user).expect("a room").with_topology(text, options).expect("an agent")
}

/// A room whose agent manages this topology, once the subnet is up.
fn managed_room(user: User) -> Room {
    let room = room_with(user, ROW, &[]);
    wait_for_path(&room, "H1", "H3", true);
    room
}

/// The switches on the path between two nodes, with the ports that packets leave by.
fn path(room: &Room, from: &str, to: &str) -> Option<Vec<String>> {
    let words = ["subnet", "path", from, to, "--json"];
    let outcome = room.finish(room.softhca(&words)).expect("it ends").expect_success();
    let path: serde_json::Value = serde_json::from_str(&outcome.output).expect("JSON");
    let hops = path["hops"].as_array()?;
    Some(hops.iter().map(|hop| format!("{}[{}]", hop["node"].as_str().unwrap_or_default(), hop["out"])).collect())
}

#[track_caller]
fn wait_for_path(room: &Room, from: &str, to: &str, exists: bool) -> Vec<String> {
    let found = || Some(path(room, from, to)).filter(|path| path.is_some() == exists);
    wait::until(HANG, "the path", found).expect("it changes").unwrap_or_default()
}

/// How many packets a port of a switch, such as `S1[3]`, has sent.
#[track_caller]
fn sent(room: &Room, port: &str) -> u64 {
    let (node, number) = port.trim_end_matches(']').split_once('[').expect("a port");
    let number: u64 = number.parse().expect("a number");
    let told = room.json(&["subnet", "--json"]).expect("JSON");
    let node = told["subnet"].as_array().into_iter().flatten().find(|one| one["name"] == node).expect("a switch");
    let mut ports = node["ports"].as_array().into_iter().flatten();
    let port = ports.find(|one| one["port"] == number).expect("a port");
    port["counters"]["xmit_packets"].as_u64().unwrap_or(0)
}

#[track_caller]
fn operate(room: &Room, action: &str, at: &str) {
    room.finish(room.softhca(&["subnet", action, at])).expect("it ends").expect_success();
}

#[track_caller]
fn said(room: &Room, node: &str, words: &[&str]) -> String {
    room.finish(room.on(node, words)).expect("it ends").expect_success().everything()
}

/// Runs opensm on a node until the subnet is up. It continues to manage the subnet.
fn manage(room: &Room, node: &str) -> Program {
    manage_with(room, node, &[])
}

fn manage_with(room: &Room, node: &str, options: &[&str]) -> Program {
    let manager = room.opensm(node, options).expect("the subnet comes up");
    let text = std::fs::read_to_string(room.own_dir().join(format!("opensm-{node}.log"))).expect("its log");
    assert!(!text.contains("ERR "), "{text}");
    manager
}

/// The links of a subnet in the text of ibnetdiscover: by the descriptions of the nodes.
fn links(text: &str) -> BTreeSet<String> {
    let mut node = "";
    let mut found = BTreeSet::new();
    for line in text.lines() {
        if line.starts_with(['S', 'C']) {
            node = line.split('"').nth(3).unwrap_or_default();
        } else if line.starts_with('[') {
            let peer = line.split('"').nth(3).unwrap_or_default();
            let port = line.split([']', '(']).next().unwrap_or_default();
            found.insert(format!("{node}{port}] {peer}"));
        }
    }
    found
}

/// Starts a server on one node and its client on another. The client is last.
fn start_pair(room: &Room, (server, client): (&str, &str), words: &[&str]) -> (Program, Program) {
    let Pair { server, client, .. } = Pair::on_nodes(room, (server, words), (client, words)).expect("they start");
    (server, client)
}

#[test]
fn a_subnet_comes_up_by_itself_and_its_counters_follow_the_path() {
    for user in [User::Me, User::Nobody] {
        let room = managed_room(user);
        assert!(said(&room, "H2", &["sminfo"]).contains("SMINFO_MASTER"));
        let nodes = said(&room, "H2", &["saquery", "-N"]);
        assert_eq!(nodes.matches("NodeRecord dump:").count(), 7, "three ports of adapters with two: {nodes}");
        assert!(said(&room, "H1", &["saquery", "-g"]).contains("ff12:401b:ffff::ffff:ffff"), "IPoIB's broadcast group");
        let (server, client) = (("H3", "H1"), ["ib_write_bw", "-n", "1000", "-s", "65536"]);
        let (mut server, mut client) = start_pair(&room, server, &client);
        client.wait(HANG).expect("it ends").expect_success();
        server.wait(HANG).expect("it ends").expect_success();
        let path = wait_for_path(&room, "H1", "H3", true);
        let subnet = room.json(&["subnet", "--json"]).expect("JSON");
        let ports = subnet["subnet"].as_array().expect("nodes").iter().flat_map(|node| {
            let name = node["name"].as_str().unwrap_or_default().to_owned();
            let ports = node["ports"].as_array().cloned().unwrap_or_default();
            ports.into_iter().map(move |port| (format!("{name}[{}]", port["port"]), port["counters"].clone()))
        });
        let ports: std::collections::BTreeMap<String, serde_json::Value> = ports.collect();
        // 16 packets of 4 KiB for each message, with their headers, and some of management.
        let is_right = |packets: Option<u64>| packets.is_some_and(|packets| (16_000..16_500).contains(&packets));
        for at in path.iter().map(String::as_str).chain(["H1[1]"]) {
            let (packets, words) = (&ports[at]["xmit_packets"], ports[at]["xmit_data"].as_u64().unwrap_or(0));
            assert!(is_right(packets.as_u64()), "{at}: {}", ports[at]);
            assert!((16_400_000..16_600_000).contains(&words), "{at}: {words}");
        }
        assert!(is_right(ports["H3[1]"]["rcv_packets"].as_u64()), "{}", ports["H3[1]"]);
        assert!(ports["H2[1]"]["rcv_packets"].as_u64().unwrap_or(0) < 500, "none came here: {}", ports["H2[1]"]);
        let told = said(&room, "H3", &["perfquery", "-C", "H3", "-P", "1", "-x"]);
        let counted = told.lines().find_map(|line| line.strip_prefix("PortRcvPkts:")?.trim_matches('.').parse().ok());
        assert!(is_right(counted), "{told}");
    }
}

#[test]
fn a_link_is_cut_under_load_and_traffic_takes_the_other_one() {
    let room = managed_room(User::Nobody);
    let (mut server, mut client) = start_pair(&room, ("H3", "H1"), &["ib_write_bw", "-D", "6", "-u", "18"]);
    let before = wait_for_path(&room, "H1", "H3", true);
    let load_at = |port: &str| {
        let more = sent(&room, port) + 1000;
        wait::until(HANG, &format!("load at {port}"), || (sent(&room, port) >= more).then_some(())).expect("it comes");
    };
    load_at(&before[0]);
    operate(&room, "cut", &before[0]);
    let after = wait_for_path(&room, "H1", "H3", true);
    assert_ne!(before[0], after[0], "there are two links between the first two switches");
    load_at(&after[0]);
    client.wait(HANG).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
}

#[test]
fn without_a_path_nothing_passes_and_the_reason_says_so() {
    let room = managed_room(User::Nobody);
    operate(&room, "cut", "S2[5]");
    wait_for_path(&room, "H1", "H3", false);
    let (server, mut client) = start_pair(&room, ("H3", "H1"), &["ibv_ud_pingpong", "-n", "10"]);
    // The client has sent its first datagram, and waits for ever.
    let lost = || {
        let errors = room.finish(room.softhca(&["show", "--errors"])).ok()?.output;
        errors.contains("the switches let no packet").then_some(())
    };
    wait::until(HANG, "the reason", lost).expect("it comes");
    [&server, &client].iter().for_each(|program| program.signal(Signal::TERM));
    client.wait(HANG).expect("it ends");
    let outcome = room.finish(room.softhca(&["subnet", "path", "H1", "H3"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.errors.contains("packets end at"), "{}", outcome.told());
    operate(&room, "mend", "S2[5]");
    wait_for_path(&room, "H1", "H3", true);
    let (mut server, mut client) = start_pair(&room, ("H3", "H1"), &["ibv_rc_pingpong", "-n", "100"]);
    client.wait(HANG).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
}

#[test]
fn softhca_sm_brings_a_subnet_up() {
    let room = room(User::Nobody, ROW);
    let lids = room.own_dir().join("lids").display().to_string();
    let words = ["sm", "--node", "H1", "--routing", "up-down", "--lids", &lids];
    let mut manager = room.start(room.softhca(&words)).expect("it starts");
    manager.wait_for_words("subnet up: 3 switches, 3 adapters and routers, 0 errors", HANG).expect("it comes up");
    wait_for_path(&room, "H1", "H3", true);
    assert!(said(&room, "H2", &["sminfo"]).contains("SMINFO_MASTER"));
    let paths = said(&room, "H2", &["saquery", "-p"]);
    assert!(paths.matches("PathRecord dump:").count() > 10, "{paths}");
    let outcome = room.finish(room.softhca(&["sm", "--node", "H2", "--once"])).expect("it ends").expect_success();
    assert!(outcome.output.contains("standby"), "{}", outcome.told());
    let outcome = room.finish(room.softhca(&["sm", "--node", "H1", "--once"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.errors.contains("manager"), "{}", outcome.told());
    let before = wait_for_path(&room, "H1", "H3", true);
    operate(&room, "cut", &before[0]);
    wait_for_path(&room, "H1", "H3", true);
    assert!(std::fs::read_to_string(&lids).expect("written").lines().count() >= 7);
    manager.signal(Signal::TERM);
    manager.wait(HANG).expect("it ends").expect_success();
}

/// No LID changes with it, and no state.
#[test]
fn an_mtu_that_management_sets_reaches_programs() {
    let room = room(User::Nobody, ROW);
    let shown = || said(&room, "H1", &["ibv_devinfo", "-d", "H1", "-i", "1"]);
    assert!(!shown().contains("256 (1)"), "{}", shown());
    said(&room, "H1", &["ibportstate", "-D", "0", "1", "mtu", "1"]);
    let is_set = || shown().lines().any(|line| line.contains("active_mtu") && line.contains("256 (1)")).then_some(());
    wait::until(HANG, "the MTU", is_set).expect("it is set");
}

/// A manager changes one port after the other. The agent's work for each change must not grow with
/// the number of adapters.
#[test]
fn opensm_sets_up_a_tree_of_128_adapters() {
    let (leaves, below) = (8, 16);
    let hosts = |leaf: usize| {
        (1..=below).map(move |port| format!("[{port}] \"H{}\"[1]\n", leaf * below + port - 1)).collect::<String>()
    };
    let spines = |leaf: usize| {
        (0..4).map(move |spine| format!("[{}] \"S{spine}\"[{}]\n", below + 1 + spine, leaf + 1)).collect::<String>()
    };
    let switches = (0..leaves).map(|leaf| format!("Switch 20 \"L{leaf}\"\n{}{}\n", hosts(leaf), spines(leaf)));
    let above = (0..4).map(|spine| format!("Switch 8 \"S{spine}\"\n\n"));
    let adapters = (0..leaves * below).map(|host| format!("Hca 1 \"H{host}\"\n\n"));
    let text: String = switches.chain(above).chain(adapters).collect();
    let room = room(User::Nobody, &text);
    // A longer time for an answer than on hardware, so that none is repeated on a busy machine.
    let mut manager = manage_with(&room, "H5", &["-t", "5000"]);
    let shown = room.json(&["devices", "--json"]).expect("devices");
    let devices = shown["devices"].as_array().expect("a list");
    let active = devices.iter().filter(|device| device["ports"][0]["state"] == "4: ACTIVE").count();
    assert_eq!(active, devices.len(), "{shown}");
    assert_eq!(devices.len(), 128);
    // What programs read in sysfs has followed.
    assert!(said(&room, "H127", &["ibstat", "H127", "1"]).contains("State: Active"));
    manager.signal(Signal::TERM);
    manager.wait(HANG).expect("it ends");
}

/// A manager with a higher priority becomes the master, and the agent's own one takes over again.
#[test]
fn opensm_takes_over_and_gives_back() {
    let room = managed_room(User::Nobody);
    let mut opensm = manage_with(&room, "H2", &["-p", "9"]);
    let master = || said(&room, "H1", &["sminfo"]);
    wait::until(HANG, "opensm to be the master", || master().contains("priority 9 state 3").then_some(()))
        .expect("it is");
    opensm.signal(Signal::TERM);
    opensm.wait(HANG).expect("it ends");
    let again = || {
        let outcome = room.finish(room.on("H1", &["sminfo"])).expect("it ends");
        (outcome.succeeded() && outcome.output.contains("priority 0 state 3")).then_some(())
    };
    wait::until(HANG, "the agent's manager to take over", again).expect("it does");
}

/// Settings of the agent's own manager, in a file and as options. An option comes before the file.
#[test]
fn the_agents_manager_does_as_its_settings_say() {
    let empty = Room::of(User::Nobody).expect("a room");
    let config = empty.folder().join("agent.toml");
    std::fs::write(empty.folder().join("partitions.conf"), "Default=0x7fff : ALL=full ;\nstorage=0x10 : ALL=full ;\n")
        .expect("written");
    let text = "[subnet_manager]\nlmc = 1\npriority = 3\npartitions = \"partitions.conf\"\n";
    std::fs::write(&config, text).expect("written");
    let config = config.display().to_string();
    let room = empty.with_topology(ROW, &["--config", &config, "--lmc", "2"]).expect("an agent");
    room.wait_until_active().expect("they are");
    let said = |words: &[&str]| said(&room, "H2", words);
    let info = said(&["smpquery", "portinfo", "-D", "0"]);
    assert!(info.contains("LMC:.............................2"), "{info}");
    let keys = said(&["smpquery", "pkeys", "-D", "0"]);
    assert!(keys.contains("0xffff") && keys.contains("0x8010"), "{keys}");
    let manager = said(&["sminfo"]);
    assert!(manager.contains("priority 3") && manager.contains("SMINFO_MASTER"), "{manager}");
}

#[test]
fn bad_settings_of_the_agents_manager_are_refused_by_key() {
    let room = Room::of(User::Nobody).expect("a room");
    let file = |name: &str, text: &str| {
        let path = room.folder().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let topology = file("subnet.topo", ROW);
    let devices = file("devices.toml", "[[devices]]\nname = 'mlx5_0'\n");
    let missing = file("missing.toml", "[subnet_manager]\nqos = 'nowhere.conf'\n");
    for (options, words) in [
        (&["--topology", &topology, "--lmc", "8"][..], "`lmc` is 8; 0 to 7 are possible"),
        (&["--topology", &topology, "--config", &devices], "leave `devices` out"),
        (&["--topology", &topology, "--config", &missing], "`qos`: cannot read"),
        (&["--priority", "3"], "--topology FILE"),
    ] {
        let outcome = room.finish(room.softhca(&[&["agent"], options].concat())).expect("it ends");
        assert!(!outcome.succeeded() && outcome.errors.contains(words), "{}", outcome.told());
    }
}

#[test]
fn a_picture_shows_nodes_and_links() {
    let room = managed_room(User::Nobody);
    let file = room.own_dir().join("subnet.svg");
    room.finish(room.softhca(&["subnet", "--svg", &file.display().to_string()])).expect("it ends").expect_success();
    let svg = std::fs::read_to_string(&file).expect("written");
    assert_eq!((svg.matches("<line").count(), svg.matches("<text").count()), (7, 12), "{svg}");
    let outcome = room.finish(room.softhca(&["subnet", "cut", "S1[8]"])).expect("it ends");
    assert!(outcome.errors.contains("S1[8] has no cable"), "{}", outcome.told());
}

#[test]
fn opensm_and_the_diagnostics_find_the_topology() {
    for user in [User::Me, User::Nobody] {
        let room = room(user, ROW);
        let port = said(&room, "H1", &["ibstat", "H1", "1"]);
        assert!(port.contains("State: Initializing") && port.contains("Base lid: 0"), "{port}");
        let mut manager = manage(&room, "H1");
        assert!(said(&room, "H1", &["ibstat", "H1", "1"]).contains("State: Active"));
        assert!(said(&room, "H1", &["ibstat", "H1", "2"]).contains("Physical state: Polling"), "it has no link");
        // From another node.
        let text = said(&room, "H3", &["ibnetdiscover", "-C", "H3", "-P", "1"]);
        let found = links(&text);
        assert_eq!(found.len(), 14, "{text}");
        let expected = ["S1[1] H1", "H1[1] S1", "S1[3] S2", "S2[3] S1", "S1[4] S2", "S2[4] S1", "S2[1] H2", "H2[1] S2"];
        assert!(expected.iter().all(|link| found.iter().any(|line| line.starts_with(link))), "{found:?}");
        let text = said(&room, "H2", &["iblinkinfo"]);
        assert!(!text.contains("Init") && text.contains("Active/  LinkUp"), "{text}");
        assert!(said(&room, "H3", &["sminfo", "-C", "H3", "-P", "1"]).contains("SMINFO_MASTER"));
        let hosts = said(&room, "H2", &["ibhosts"]);
        assert!(["H1", "H2", "H3"].iter().all(|node| hosts.contains(&format!("\"{node}\""))), "{hosts}");
        // RMPP: the answer is longer than a datagram.
        let nodes = said(&room, "H2", &["saquery", "-N"]);
        assert_eq!(nodes.matches("NodeRecord dump:").count(), 7, "three ports of adapters with two: {nodes}");
        let paths = said(&room, "H2", &["saquery", "-p"]);
        assert!(paths.matches("PathRecord dump:").count() > 10, "{paths}");
        manager.signal(Signal::TERM);
        manager.wait(HANG).expect("it ends");
    }
}

#[test]
fn programs_reach_each_other_by_lid_once_the_subnet_is_up() {
    let room = room(User::Nobody, ROW);
    // Before, no packet passes.
    let state = said(&room, "H3", &["ibv_devinfo", "-d", "H3", "-i", "1"]);
    assert!(state.contains("PORT_INIT") && !state.contains("H1"), "{state}");
    let mut manager = manage(&room, "H2");
    for words in [&["ibv_rc_pingpong", "-n", "200"][..], &["ibv_ud_pingpong", "-s", "1024", "-n", "200"]] {
        let port = harness::port::Port::reserve().expect("a port");
        let number = port.number().to_string();
        let server = [words, &["-p", &number]].concat();
        let mut server = room.start(room.on("H1", &server)).expect("it starts");
        let listens = || harness::port::wait_for_listener(server.id(), port.number(), HANG, || false);
        listens().expect("it listens");
        let client = [words, &["-p", &number, "127.0.0.1"]].concat();
        let client = room.finish(room.on("H3", &client)).expect("it ends").expect_success();
        let server = server.wait(HANG).expect("it ends").expect_success();
        assert!(
            client.output.contains("remote address: LID") && server.output.contains("200 iters"),
            "{}",
            client.told()
        );
    }
    manager.signal(Signal::TERM);
    manager.wait(HANG).expect("it ends");
}

/// Two managers: the one on standby takes over when the master is killed, with all LIDs unchanged.
#[test]
fn a_standby_manager_takes_over() {
    let room = room(User::Nobody, ROW);
    let mut master = manage(&room, "H1");
    let lid = |node: &str| {
        said(&room, node, &["ibstat", node, "1"])
            .lines()
            .find_map(|line| line.trim().strip_prefix("Base lid: ").map(str::to_owned))
    };
    let before = [lid("H1"), lid("H2"), lid("H3")];
    let home = room.own_dir().display().to_string();
    let log = room.own_dir().join("standby.log");
    // With its defaults it waits for 40 s.
    let config = room.own_dir().join("standby.conf");
    std::fs::write(&config, "sminfo_polling_timeout 500\npolling_retry_number 2\n").expect("written");
    let config = config.display().to_string();
    let (cache, temporary) = (format!("OSM_CACHE_DIR={home}"), format!("OSM_TMP_DIR={home}"));
    let words = ["env", &cache, &temporary, "opensm", "-F", &config, "-d", "2", "-f", &log.display().to_string()];
    let mut standby = room.start(room.on("H2", &words)).expect("it starts");
    let says = |word: &'static str| {
        let log = log.clone();
        move || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(word)).then_some(())
    };
    wait::until(HANG, "the second manager to stand by", says("Entering STANDBY state")).expect("it does");
    // The program itself, not `softhca run`.
    process::descendants(master.id()).into_iter().for_each(|pid| send(pid, Signal::KILL));
    master.wait(HANG).expect("it ends");
    wait::until(HANG, "the second manager to take over", says("SUBNET UP")).expect("it does");
    assert_eq!([lid("H1"), lid("H2"), lid("H3")], before);
    assert!(said(&room, "H3", &["sminfo", "-C", "H3", "-P", "1"]).contains("SMINFO_MASTER"));
    standby.signal(Signal::TERM);
    standby.wait(HANG).expect("it ends");
}

#[test]
fn what_cannot_be_is_told_by_name() {
    let room = Room::of(User::Nobody).expect("a room");
    let file = room.folder().join("wrong.topo");
    let name = file.display().to_string();
    for (text, words) in [
        ("Hca 1 \"H1\"\n[1] \"S1\"[1]\n", "there is no node \"S1\""),
        ("Switch 8 \"S1\"\n", "no `Hca`"),
        ("Hca 3 \"H1\"\n", "node \"H1\" has 3 ports"),
    ] {
        std::fs::write(&file, text).expect("written");
        let outcome = room.finish(room.softhca(&["agent", "--topology", &name])).expect("it ends");
        assert!(!outcome.succeeded() && outcome.errors.contains(words), "{}", outcome.told());
    }
    let outcome = room.finish(room.on("H1", &["true"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.errors.contains("softhca agent --topology FILE"), "{}", outcome.told());
    let room = self::room(User::Nobody, ROW);
    let outcome = room.finish(room.on("S1", &["true"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.errors.contains("it has H1, H2, H3"), "{}", outcome.told());
}

/// The value of a counter of a port, as sysfs has it.
#[track_caller]
fn counter(room: &Room, node: &str, name: &str) -> u64 {
    let file = format!("/sys/class/infiniband/{node}/ports/1/counters/{name}");
    let told = said(room, node, &["cat", &file]);
    told.lines().find_map(|line| line.trim().parse().ok()).unwrap_or_else(|| panic!("{name}: {told}"))
}

#[test]
fn datagrams_are_counted_at_switches_and_in_sysfs() {
    let room = managed_room(User::Nobody);
    let (mut server, mut client) = start_pair(&room, ("H3", "H1"), &["ibv_ud_pingpong", "-n", "1000", "-s", "1024"]);
    client.wait(HANG).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
    let hop = wait_for_path(&room, "H1", "H3", true).remove(1);
    let (switch, port) = hop.trim_end_matches(']').split_once('[').expect("a port");
    let subnet = room.json(&["subnet", "--json"]).expect("JSON");
    let nodes = subnet["subnet"].as_array().expect("nodes");
    let node = nodes.iter().find(|node| node["name"] == switch).expect("the switch");
    let ports = node["ports"].as_array().expect("ports");
    let port = ports.iter().find(|at| at["port"].as_u64() == port.parse().ok()).expect("the port");
    let is_right = |packets: u64| (1000..1500).contains(&packets);
    assert!(is_right(port["counters"]["xmit_packets"].as_u64().unwrap_or(0)), "{port}");
    assert!(is_right(counter(&room, "H1", "port_xmit_packets")));
    assert!(is_right(counter(&room, "H3", "unicast_rcv_packets")));
    assert!(counter(&room, "H3", "port_rcv_data") > 1000 * 1024 / 4);
}

#[test]
fn what_has_no_path_counts_where_it_is_dropped_and_show_says_where() {
    let room = managed_room(User::Nobody);
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = ["ib_write_bw", "-D", "20", "-t", "1", "-u", "14", "-p", &number];
    let server = room.start(room.on("H3", &words)).expect("it starts");
    let listens = || harness::port::wait_for_listener(server.id(), port.number(), HANG, || false);
    listens().expect("it listens");
    let client = room.start(room.on("H1", &[&words[..], &["127.0.0.1"]].concat())).expect("it starts");
    let connected = || room.json(&["show", "qp", "--json"]).ok().filter(|shown| shown.to_string().contains("\"hops\""));
    let shown = wait::until(HANG, "a connection", connected).expect("it comes");
    let qps = shown["qps"].as_array().expect("a list");
    assert!(qps.iter().any(|qp| qp["subnet_path"]["from"] == "H1[1]" && qp["subnet_path"]["to"] == "H3[1]"), "{shown}");
    operate(&room, "cut", "S2[5]");
    let dropped = || {
        let subnet = room.json(&["subnet", "--json"]).ok()?.to_string();
        (subnet.contains("xmit_discards") || subnet.contains("rcv_switch_relay_errors")).then_some(())
    };
    wait::until(HANG, "the drops", dropped).expect("they are counted");
    [&server, &client].iter().for_each(|program| program.signal(Signal::TERM));
}
