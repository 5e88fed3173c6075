//! Tests programs that send and receive management datagrams through `/dev/infiniband/umad0`:
//! libibumad, libibmad and the diagnostics of Debian, unmodified.

use harness::program::send;
use harness::{HANG, Hosts, Outcome, Program, Room, User, cprogram, process, wait};
use rustix::process::Signal;

/// A room whose agent has an InfiniBand port.
fn room(user: User) -> Room {
    Room::of(user).and_then(|room| room.with_agent(&["--link-layer", "infiniband"])).expect("a room with an agent")
}

#[track_caller]
fn said(room: &Room, words: &[&str]) -> String {
    room.finish_run(words).expect("it ends").expect_success().everything()
}

fn failed(room: &Room, words: &[&str]) -> Outcome {
    let outcome = room.finish_run(words).expect("it ends");
    assert!(!outcome.succeeded(), "{}", outcome.told());
    outcome
}

/// The LID of the port, as libibumad reads it.
fn lid(room: &Room) -> String {
    let text = said(room, &["ibstat"]);
    let line = text.lines().find_map(|line| line.trim().strip_prefix("Base lid: "));
    line.expect(&text).to_owned()
}

/// Whether a server of `ibping` at `lid` answers.
fn answers(room: &Room, lid: &str) -> bool {
    room.finish_run(&["ibping", "-c", "1", "-t", "200", lid]).expect("it ends").everything().contains(" 1 received")
}

/// A server that answers at `lid`.
fn ping_server(room: &Room) -> Program {
    let server = room.start(room.run(&["ibping", "-S"])).expect("it starts");
    let lid = lid(room);
    wait::until(HANG, "the server to answer", || answers(room, &lid).then_some(())).expect("it does");
    server
}

#[test]
fn a_port_answers_the_diagnostics() {
    for user in [User::Me, User::Nobody] {
        let room = room(user);
        let lid = lid(&room);
        let text = said(&room, &["ibstat"]);
        for words in ["CA 'softhca0'", "State: Active", "Physical state: LinkUp", "Link layer: InfiniBand"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        // By a directed route without hops, and by LID.
        let guid = said(&room, &["ibstat", "-p"]).trim().to_owned();
        for way in [&["-D", "0"][..], &[lid.as_str()]] {
            let text = said(&room, &[&["smpquery", "nodeinfo"], way].concat());
            assert!(text.contains("Channel Adapter") && text.contains(&guid), "{text}");
            assert!(said(&room, &[&["smpquery", "nodedesc"], way].concat()).contains("softhca0"));
        }
        let text = said(&room, &["smpquery", "portinfo", &lid]);
        for words in ["LinkState:.......................Active", "IsCommunicatonManagementSupported"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(said(&room, &["smpquery", "pkeys", &lid]).contains("0: 0xffff 0x0000"));
        assert!(said(&room, &["perfquery"]).contains("SymbolErrorCounter:..............0"));
        assert!(said(&room, &["perfquery", "-x"]).contains("PortXmitData:"));
        assert!(said(&room, &["ibaddr"]).contains(&format!("LID start {:#x}", lid.parse::<u16>().expect("a number"))));
        // No manager runs there.
        assert!(failed(&room, &["sminfo"]).everything().contains("failed"));
        // Nobody has this LID.
        assert!(failed(&room, &["smpquery", "-t", "50", "nodeinfo", "4000"]).everything().contains("failed"));
    }
}

/// The bit IsSM, and a LID that a subnet manager sets.
#[test]
fn a_subnet_manager_works_at_the_port() {
    let room = room(User::Nobody);
    let home = room.own_dir().display().to_string();
    let (cache, log) = (format!("OSM_CACHE_DIR={home}"), room.own_dir().join("opensm.log"));
    let once = ["env", &cache, &format!("OSM_TMP_DIR={home}"), "opensm", "-o", "-f", &log.display().to_string()];
    let outcome = room.finish_run(&once).expect("it ends");
    let text = std::fs::read_to_string(&log).expect("its log");
    assert!(text.contains("SUBNET UP"), "{}{text}", outcome.told());
    let port = room.json(&["devices", "--json"]).expect("the devices")["devices"][0]["ports"][0].clone();
    assert_eq!(port["lid"], port["sm_lid"], "opensm is its own manager: {port}");
}

#[test]
fn programs_serve_classes_of_their_own_until_they_end() {
    let room = room(User::Nobody);
    let lid = lid(&room);
    let mut server = ping_server(&room);
    let ping = ["ibping", "-c", "3", "-f", &lid];
    let text = said(&room, &ping);
    assert!(text.contains("3 received, 0% packet loss"), "{text}");
    // The program itself, not `softhca run`.
    process::descendants(server.id()).into_iter().for_each(|pid| send(pid, Signal::KILL));
    server.wait(HANG).expect("it ends");
    wait::until(HANG, "nobody to answer", || (!answers(&room, &lid)).then_some(())).expect("the server has ended");
}

/// Datagrams of QP 1 pass between hosts by LID.
#[test]
fn hosts_ping_each_other() {
    let Some(hosts) = Hosts::joined(1500, User::Nobody).expect("two namespaces") else {
        return eprintln!("skipped: network namespaces need root");
    };
    let hosts = hosts.with_agents(&["--link-layer", "infiniband"]).expect("agents");
    let (left, right) = (hosts.left.room(), hosts.right.room());
    let _server = ping_server(right);
    let text = said(left, &["ibping", "-c", "3", "-f", &lid(right)]);
    assert!(text.contains("3 received, 0% packet loss"), "{text}");
    assert!(said(left, &["perfquery", &lid(right), "1"]).contains("PortSelect:......................1"));
}

/// An Ethernet port has QP 1 only, as with a kernel.
#[test]
fn an_ethernet_port_has_no_subnet_management() {
    let room = Room::of(User::Nobody).expect("a room");
    room.start_agent().expect("an agent");
    assert!(said(&room, &["ibstat"]).contains("Link layer: Ethernet"));
    failed(&room, &["smpquery", "nodeinfo", "-D", "0"]);
    let nodes = said(&room, &["ls", "/dev/infiniband"]);
    assert!(nodes.contains("umad0") && !nodes.contains("issm0"), "{nodes}");
}

/// An agent for every user serves root, and those that the configuration names.
#[test]
fn other_users_need_the_configuration_to_allow_them() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: another user needs root");
    }
    for (config, allowed) in [("", false), ("mad_users = [65534]\n", true)] {
        let config = format!("{config}[[devices]]\n[[devices.ports]]\nlink_layer = \"infiniband\"\n");
        let room = Room::system(&config).expect("a room");
        let guest = room.guest(User::Nobody).expect("a guest");
        assert!(said(&room, &["smpquery", "nodeinfo", "-D", "0"]).contains("Channel Adapter"));
        let outcome = guest.finish_run(&["smpquery", "nodeinfo", "-D", "0"]).expect("it ends");
        assert_eq!(outcome.succeeded(), allowed, "{}", outcome.told());
    }
}

/// Both run with the path redirector: the dist's libibumad, which does not need it, and Debian's.
#[test]
fn libibumad_gives_the_results_of_debians() {
    let room = room(User::Me);
    let path = cprogram::build_with(&room, "umad", &["-libumad"]).expect("it compiles");
    let path = path.to_str().expect("a plain path");
    let ours = said(&room, &[path]);
    assert!(ours.contains("answer 1 256 0 81 0011"), "{ours}");
    assert_eq!(said(&room, &["env", "-u", "LD_LIBRARY_PATH", path]), ours);
}
