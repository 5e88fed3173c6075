//! Tests service levels and virtual lanes that `softhca sm --qos` sets: the tables that Debian's
//! diagnostics read from all ports, and which packets pass.

use harness::{HANG, Room, User, port};

const TWO: &str = "\
Switch 8 \"S1\"\n[1] \"H1\"[1]\n[3] \"S2\"[3]\n\nSwitch 8 \"S2\"\n[1] \"H2\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";

const SETTINGS: &str = "\
qos_max_vls 4
qos_high_limit 3
qos_sl2vl 0,1,2,3,0,1,15,3,0,5,2,3,0,1,2,3
qos_vlarb_high 3:32
qos_vlarb_low 0:64,1:128
";

/// The lanes of the 16 service levels: 5 is above the four lanes, and wraps.
const LANES: [u8; 16] = [0, 1, 2, 3, 0, 1, 15, 3, 0, 1, 2, 3, 0, 1, 2, 3];

/// The numbers between the bars of a line.
fn cells(line: &str) -> Vec<u8> {
    let cells = line.split('|').skip(1).map(str::trim).filter(|cell| !cell.is_empty());
    let number = |cell: &str| match cell.strip_prefix("0x") {
        Some(hex) => u8::from_str_radix(hex, 16),
        None => cell.parse(),
    };
    cells.map(|cell| number(cell).unwrap_or_else(|error| panic!("{line}: {error}"))).collect()
}

#[test]
fn the_tables_of_lanes_arrive_at_all_ports_and_decide_what_passes() {
    let room = Room::of(User::Me).expect("a room").with_topology(TWO, &["--no-subnet-manager"]).expect("an agent");
    let file = room.folder().join("qos.conf");
    std::fs::write(&file, SETTINGS).expect("written");
    let words = ["sm", "--node", "H1", "--once", "--qos", &file.display().to_string()];
    room.finish(room.softhca(&words)).expect("it ends").expect_success();
    let said = |words: &[&str]| room.finish(room.on("H1", words)).expect("it ends").expect_success().output;
    let subnet = room.json(&["subnet", "--json"]).expect("JSON");
    for (name, port) in [("H1", 1_usize), ("H2", 1), ("S1", 1), ("S1", 3), ("S2", 1), ("S2", 3)] {
        let nodes = subnet["subnet"].as_array().expect("nodes");
        let node = nodes.iter().find(|node| node["name"] == name).expect("the node");
        let is_switch = name.starts_with('S');
        let lid = &node["ports"][0]["lid"].to_string();
        let number = port.to_string();
        let table = said(&["smpquery", "sl2vl", lid, &number]);
        // A switch has a table for each port that packets come in by: those in use are set.
        let ingresses: &[usize] = if is_switch { &[1, 3] } else { &[0] };
        for ingress in ingresses {
            let head = format!("in {ingress:2},");
            let line = table.lines().find(|line| line.contains(&head)).unwrap_or_else(|| panic!("{name}: {table}"));
            assert_eq!(cells(line), LANES, "{name}[{port}]: {table}");
        }
        let weights = said(&["smpquery", "vlarb", lid, &number]);
        let rows: Vec<Vec<u8>> = weights.lines().filter(|line| line.contains('|')).map(cells).collect();
        let [low_lanes, low, high_lanes, high] = rows.as_slice() else { panic!("{name}[{port}]: {weights}") };
        assert_eq!((&low_lanes[..2], &low[..3]), (&[0, 1][..], &[64, 128, 0][..]), "{name}[{port}]: {weights}");
        assert_eq!((high_lanes[0], &high[..2]), (3, &[32, 0][..]), "{name}[{port}]: {weights}");
        let info = said(&["smpquery", "portinfo", lid, &number]);
        assert!(info.contains("OperVLs:.........................VL0-3"), "{name}[{port}]: {info}");
        assert!(info.contains("VLHighLimit:.....................3"), "{name}[{port}]: {info}");
    }
    for (level, passes) in [("1", true), ("9", true), ("6", false)] {
        let reserved = port::Port::reserve().expect("a port");
        let number = reserved.number().to_string();
        let words = ["ibv_rc_pingpong", "-n", "10", "-p", &number, "-l", level];
        let server = room.start(room.on("H2", &words)).expect("it starts");
        port::wait_for_listener(server.id(), reserved.number(), HANG, || false).expect("it listens");
        let client = room.finish(room.on("H1", &[&words[..], &["localhost"]].concat())).expect("it ends");
        assert_eq!(client.succeeded(), passes, "level {level}: {}", client.told());
    }
}
