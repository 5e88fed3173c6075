//! Tests a subnet on two hosts: two agents, each with a topology, and a link between them. The
//! hosts are network namespaces.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use softhca_suite::namespace::Namespace;
use softhca_suite::program::send;
use softhca_suite::{HANG, Program, Room, wait};

/// One host: a switch with an adapter, and a link to the switch of the other host.
struct Side {
    room: Room,
    options: Vec<String>,
    // The namespace is declared after the room, so that the room's agent ends first.
    _namespace: Namespace,
}

/// The hosts 10.9.0.1, with H1 at S1, and 10.9.0.2, with H2 at S2. `None` without root.
fn sides(mtu: u32, options: [&[&str]; 2]) -> Option<[Side; 2]> {
    let (one, other) = (Namespace::new().expect("a namespace")?, Namespace::new().expect("a namespace")?);
    one.join("eth0", &other, "eth0").expect("joined");
    for (number, namespace) in [(1, &one), (2, &other)] {
        let script = format!("ip addr add 10.9.0.{number}/24 dev eth0; ip link set eth0 mtu {mtu} up");
        namespace.script(&script).expect("an interface");
    }
    let side = |namespace: Namespace, number: u8, options: &[&str]| {
        let room = Room::new().expect("a room").entered_by(&namespace.entrance());
        let (file, peer) = (room.folder().join("subnet.topo"), 3 - number);
        let text = format!(
            "Switch 8 \"S{number}\"\n[1] \"H{number}\"[1]\n[3] \"@10.9.0.{peer}/S{peer}\"[3]\n\nHca 1 \"H{number}\"\n"
        );
        std::fs::write(&file, text).expect("written");
        let file = file.display().to_string();
        let words = [&["--topology", &file], options].concat();
        let room = room.with_agent(&words).expect("an agent");
        let options = words.into_iter().map(str::to_owned).collect();
        Side { room, options, _namespace: namespace }
    };
    Some([side(one, 1, options[0]), side(other, 2, options[1])])
}

impl Side {
    /// A command on a node.
    fn on(&self, node: &str, words: &[&str]) -> Command {
        self.room.softhca(&[&["run", "--node", node, "--"], words].concat())
    }

    #[track_caller]
    fn said(&self, node: &str, words: &[&str]) -> String {
        self.room.finish(self.on(node, words)).expect("it ends").expect_success().everything()
    }

    /// A member of a port in `softhca subnet --json`.
    fn port(&self, node: &str, port: u8, member: &str) -> Value {
        let subnet = self.room.json(&["subnet", "--json"]).unwrap_or_default();
        let nodes = subnet["subnet"].as_array().cloned().unwrap_or_default();
        let found = nodes.into_iter().find(|one| one["name"] == node).unwrap_or_default();
        let ports = found["ports"].as_array().cloned().unwrap_or_default();
        ports.into_iter().find(|one| one["port"] == port).map_or(Value::Null, |one| one[member].clone())
    }

    #[track_caller]
    fn wait_for(&self, node: &str, port: u8, member: &str, is: impl Fn(&Value) -> bool) -> Value {
        let found = || Some(self.port(node, port, member)).filter(|value| is(value));
        wait::until(HANG, &format!("{node}[{port}] {member}"), found).expect("it comes")
    }

    #[track_caller]
    fn kill(&self) {
        let agent = self.room.agent().expect("an agent");
        send(agent, Signal::KILL);
        let ended = || (!softhca_suite::process::alive(agent)).then_some(());
        wait::until(HANG, "the agent to end", ended).expect("it ends");
    }

    #[track_caller]
    fn start_again(&self) {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let words = [&["agent"], &options[..]].concat();
        self.room.finish(self.room.softhca(&words)).expect("it ends").expect_success();
    }
}

fn is_active(state: &Value) -> bool {
    state == "ACTIVE"
}

/// Waits until both links and both adapters are active.
#[track_caller]
fn wait_until_up(sides: &[Side; 2]) -> [u64; 2] {
    let lid = |side: &Side, number: u8| {
        side.wait_for(&format!("S{number}"), 3, "state", is_active);
        let node = format!("H{number}");
        side.wait_for(&node, 1, "state", is_active);
        side.port(&node, 1, "lid").as_u64().unwrap_or(0)
    };
    [lid(&sides[0], 1), lid(&sides[1], 2)]
}

/// Runs opensm until the subnet is up. It continues to manage the subnet.
fn opensm(side: &Side, node: &str) -> Program {
    let home = side.room.own_dir().display().to_string();
    let log = side.room.own_dir().join("opensm.log");
    let (cache, temporary) = (format!("OSM_CACHE_DIR={home}"), format!("OSM_TMP_DIR={home}"));
    let words = ["env", &cache, &temporary, "opensm", "-d", "2", "-f", &log.display().to_string()];
    side.room.start(side.on(node, &words)).expect("it starts")
}

#[test]
fn a_manager_on_one_host_brings_up_the_subnet_of_both() {
    let Some(sides) = sides(9000, [&[], &["--no-subnet-manager"]]) else { return };
    let [here, there] = &sides;
    let lids = wait_until_up(&sides);
    assert_ne!(lids[0], lids[1]);
    for (side, node) in [(here, "H1"), (there, "H2")] {
        let found = side.said(node, &["ibnetdiscover"]);
        for name in ["S1", "S2", "H1", "H2"] {
            assert!(found.contains(&format!("\"{name}\"")), "{name} is there: {found}");
        }
        assert_eq!(found.lines().filter(|line| line.starts_with("[3]")).count(), 2, "both ends of the link: {found}");
        assert!(side.said(node, &["saquery", "-N"]).matches("NodeRecord dump:").count() == 4);
        assert!(side.said(node, &["sminfo"]).contains("SMINFO_MASTER"));
    }
    assert!(here.said("H1", &["smpquery", "nodedesc", &lids[1].to_string()]).contains("H2"), "by LID");
    assert!(there.said("H2", &["perfquery", &lids[0].to_string(), "1"]).contains("PortXmitPkts"), "QP 1");

    there.kill();
    here.wait_for("S1", 3, "state", |state| state == "DOWN");
    let gone = || (here.said("H1", &["saquery", "-N"]).matches("NodeRecord dump:").count() == 2).then_some(());
    wait::until(HANG, "the manager to notice", gone).expect("it does");
    there.start_again();
    wait_until_up(&sides);
    here.room.finish(here.room.softhca(&["subnet", "cut", "S1[3]"])).expect("it ends").expect_success();
    there.wait_for("S2", 3, "state", |state| state == "DOWN");
    here.room.finish(here.room.softhca(&["subnet", "mend", "S1[3]"])).expect("it ends").expect_success();
    wait_until_up(&sides);
}

/// Starts a server on H1, and a client on H2 that connects to it. The client is last.
fn start_pair([here, there]: &[Side; 2], words: &[&str]) -> (Program, Program) {
    let port = softhca_suite::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = [words, &["-p", &number]].concat();
    let server = here.room.start(here.on("H1", &words)).expect("it starts");
    let listens = softhca_suite::port::wait_for_listener(server.id(), port.number(), HANG, || false);
    listens.expect("it listens");
    let client = there.room.start(there.on("H2", &[&words[..], &["10.9.0.1"]].concat())).expect("it starts");
    (server, client)
}

#[track_caller]
fn must_succeed((mut server, mut client): (Program, Program)) {
    client.wait(HANG).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
}

#[test]
fn queue_pairs_on_two_hosts_reach_each_other_by_lid_while_the_link_is_there() {
    let Some(sides) = sides(9000, [&[], &["--no-subnet-manager"]]) else { return };
    let operate = |action: &str| {
        let command = sides[0].room.softhca(&["subnet", action, "S1[3]"]);
        sides[0].room.finish(command).expect("it ends").expect_success();
    };
    wait_until_up(&sides);
    must_succeed(start_pair(&sides, &["ibv_rc_pingpong", "-n", "1000", "-c"]));
    operate("cut");
    sides[1].wait_for("S2", 3, "state", |state| state == "DOWN");
    let (server, mut client) = start_pair(&sides, &["ibv_rc_pingpong", "-n", "10"]);
    let outcome = client.wait(HANG).expect("it ends");
    assert!(outcome.everything().contains("transport retry counter exceeded"), "{}", outcome.told());
    server.signal(Signal::TERM);
    operate("mend");
    wait_until_up(&sides);
    must_succeed(start_pair(&sides, &["ibv_rc_pingpong", "-n", "1000", "-c"]));

    let load = start_pair(&sides, &["ib_write_bw", "-D", "4", "-u", "19"]);
    operate("cut");
    sides[1].wait_for("S2", 3, "state", |state| state == "DOWN");
    operate("mend");
    must_succeed(load);
}

#[test]
fn opensm_manages_the_subnet_of_both_hosts_with_the_mtu_of_the_network() {
    let Some(sides) = sides(1500, [&["--no-subnet-manager"], &["--no-subnet-manager"]]) else { return };
    let mut manager = opensm(&sides[0], "H1");
    wait_until_up(&sides);
    for (side, name) in sides.iter().zip(["S1", "S2"]) {
        assert_eq!(side.port(name, 3, "mtu"), 1024, "what fits into packets of 1500 bytes");
        assert!(side.room.log().contains("have MTU 1024, because"), "{}", side.room.log());
    }
    assert!(sides[1].said("H2", &["ibnetdiscover"]).contains("\"S1\""));
    manager.signal(Signal::TERM);
    manager.wait(HANG).expect("it ends");
}
