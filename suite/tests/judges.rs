//! What judges subnets of hardware judges a subnet of softhca: osmtest its subnet administration,
//! opensm's routing engines its switches, and ibdiagnet and ibdmchk of ibutils both. The programs
//! are Debian's, unmodified.

use std::path::Path;

use harness::{HANG, Pair, Room, User};

/// Two leaves and two spines: a fat tree, and a mesh of two by two. All links have the rate that
/// IPoIB's group has.
const TREE: &str = "\
Switch 8 \"L1\"
[1] \"H1\"[1] 4xSDR
[2] \"H2\"[1] 4xSDR
[5] \"S1\"[1] 4xSDR
[6] \"S2\"[1] 4xSDR

Switch 8 \"L2\"
[1] \"H3\"[1] 4xSDR
[2] \"H4\"[1] 4xSDR
[5] \"S1\"[2] 4xSDR
[6] \"S2\"[2] 4xSDR

Switch 8 \"S1\"

Switch 8 \"S2\"

Hca 1 \"H1\"

Hca 1 \"H2\"

Hca 1 \"H3\"

Hca 2 \"H4\"
[2] \"L2\"[3] 4xSDR
";

/// The mesh, for torus-2QoS: from a switch, which neighbour is in which direction. The switches have
/// their GUIDs in the order of the file.
const MESH: &str = "mesh 2 2 1\nxp_link 0x200000 0x200002\nyp_link 0x200000 0x200003\n";

fn room(options: &[&str]) -> Room {
    Room::of(User::Nobody).expect("a room").with_topology(TREE, options).expect("an agent")
}

fn managed_room() -> Room {
    let room = room(&[]);
    room.wait_until_active().expect("the subnet comes up");
    room
}

/// Some requests of osmtest get no answer from any manager. It waits for them.
#[track_caller]
fn osmtest(room: &Room, node: &str, flow: &str) {
    let home = room.own_dir().display().to_string();
    let (inventory, log) = (format!("{home}/inventory"), format!("{home}/osmtest-{flow}.log"));
    let temporary = format!("OSM_TMP_DIR={home}");
    let words = ["env", "-C", &home, &temporary, "osmtest", "-f", flow, "-i", &inventory, "-t", "800", "-l", &log];
    let outcome = room.finish(room.on(node, &words)).expect("it ends");
    let log = std::fs::read_to_string(log).unwrap_or_default();
    assert!(outcome.output.contains("\" PASS"), "{}{log}", outcome.told());
}

/// All flows but the one that floods. The inventory must hold over another sweep. The flow of
/// services waits for ten seconds until a lease ends, so the others run beside it.
#[track_caller]
fn pass_osmtest(room: &Room) {
    osmtest(room, "H1", "c");
    std::thread::scope(|scope| {
        let services = scope.spawn(|| osmtest(room, "H1", "s"));
        for action in ["cut", "mend"] {
            room.finish(room.softhca(&["subnet", action, "L1[2]"])).expect("it ends").expect_success();
        }
        room.wait_until_active().expect("the subnet comes up again");
        ["v", "q", "m", "e", "t"].iter().for_each(|flow| osmtest(room, "H3", flow));
        services.join().expect("it passes");
    });
}

#[test]
fn osmtest_passes_at_the_agents_manager() {
    pass_osmtest(&managed_room());
}

#[test]
fn osmtest_passes_at_opensm() {
    let room = room(&["--no-subnet-manager"]);
    let _manager = room.opensm("H2", &["-t", "5000"]).expect("the subnet comes up");
    room.wait_until_active().expect("the subnet comes up");
    pass_osmtest(&room);
}

/// ibdmchk follows each path of a subnet in three files. It crashes after its last line.
#[track_caller]
fn check_routes(room: &Room, folder: &Path, [links, tables, groups]: [&str; 3], paths: usize) {
    let file = |name: &str| folder.join(name).display().to_string();
    let words = ["-s", &file(links), "-f", &file(tables), "-m", &file(groups)];
    let told = room.finish(room.command("ibdmchk", words)).expect("it ends").everything();
    assert!(told.contains(&format!("-I- Scanned:{paths} CA to CA paths")), "{told}");
    assert!(told.contains("no credit loops found") && !told.contains("-E-"), "{told}");
}

/// Each engine fills the tables of the same switches anew.
#[test]
fn opensm_routes_with_each_of_its_engines() {
    let room = room(&["--no-subnet-manager"]);
    let home = room.own_dir();
    let torus = home.join("torus.conf");
    std::fs::write(&torus, MESH).expect("written");
    for engine in ["minhop", "updn", "dnup", "ftree", "lash", "dor", "dfsssp", "sssp", "nue", "torus-2QoS"] {
        let log = home.join(format!("{engine}.log"));
        let place = |name: &str| format!("{name}={}", home.display());
        // What it logs: errors, what it does, and its tables in files.
        let words = ["env", &place("OSM_CACHE_DIR"), &place("OSM_TMP_DIR"), "opensm", "-o", "-D", "0x43", "-t", "5000"];
        let of_engine =
            ["-R", engine, "--torus_config", &torus.display().to_string(), "-f", &log.display().to_string()];
        let quality: &[&str] = if engine == "torus-2QoS" { &["-Q"] } else { &[] };
        let words = [&words[..], &of_engine, quality].concat();
        let outcome = room.finish(room.on("H1", &words)).expect("it ends");
        let log = std::fs::read_to_string(&log).unwrap_or_default();
        let routed = log.contains(&format!("{engine} tables configured on all switches"));
        assert!(routed && log.contains("SUBNET UP") && !log.contains("ERR "), "{}{log}", outcome.told());
        check_routes(&room, &home, ["opensm-subnet.lst", "opensm.fdbs", "opensm.mcfdbs"], 20);
        let words = &["ibv_rc_pingpong", "-n", "20"];
        let mut pair = Pair::on_nodes(&room, ("H4", words), ("H1", words)).expect("they start");
        let sides = pair.wait(HANG).expect("they end");
        assert!(sides.server.succeeded() && sides.client.succeeded(), "{engine}: {}", sides.client.told());
    }
}

/// The stages of ibdiagnet with the number of their errors.
fn stages(report: &str) -> Vec<(String, String)> {
    let rows = report.split("Stages Status Report").nth(1).unwrap_or_default().lines().skip(2);
    let rows = rows.map_while(|line| {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let errors = (words.pop(), words.pop()).1?.to_owned();
        Some((words.join(" "), errors))
    });
    rows.collect()
}

#[test]
fn ibdiagnet_and_ibdmchk_find_no_fault_in_what_the_agents_manager_sets() {
    let room = managed_room();
    let folder = room.own_dir();
    let words = ["ibdiagnet", "-o", &folder.display().to_string()];
    let told = room.finish(room.on("H1", &words)).expect("it ends").expect_success().everything();
    let stages = stages(&told);
    assert!(stages.len() >= 6 && stages.iter().all(|(_, errors)| errors == "0"), "{stages:?}: {told}");
    assert!(told.contains("8 nodes (4 Switches & 4 CA-s) discovered"), "{told}");
    check_routes(&room, &folder, ["ibdiagnet.lst", "ibdiagnet.fdbs", "ibdiagnet.mcfdbs"], 20);
}
