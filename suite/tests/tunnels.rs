//! Tests a subnet on several hosts: each has an agent with a topology, and a link to the next one.
//! The hosts are network namespaces.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use harness::namespace::Namespace;
use harness::program::send;
use harness::{HANG, Program, Room, cprogram, wait};
use rustix::process::Signal;
use serde_json::Value;

/// One host: a switch with an adapter, and links to the switches of the hosts beside it.
struct Side {
    room: Room,
    options: Vec<String>,
    // The namespace is declared after the room, so that the room's agent ends first.
    _namespace: Namespace,
    /// The bridge between the hosts.
    _network: Arc<Namespace>,
}

/// The hosts 10.9.0.1, with H1 at S1, 10.9.0.2, with H2 at S2, and so on, on one network. `S1[3]`
/// leads to `S2[3]`, `S2[4]` to `S3[4]`. `None` without root.
fn sides<const N: usize>(mtu: u32, options: [&[&str]; N]) -> Option<[Side; N]> {
    let network = Arc::new(Namespace::new().expect("a namespace")?);
    network.script("ip link add br0 type bridge; ip link set br0 up").expect("a bridge");
    let side = |index: usize| {
        let (namespace, number) = (Namespace::new().expect("a namespace")?, index + 1);
        let port = format!("port{number}");
        namespace.join("eth0", &network, &port).expect("joined");
        let script = format!("ip addr add 10.9.0.{number}/24 dev eth0; ip link set eth0 mtu {mtu} up");
        namespace.script(&script).expect("an interface");
        network.script(&format!("ip link set {port} mtu {mtu} master br0 up")).expect("a port");
        let room = Room::new().expect("a room").entered_by(&namespace.entrance());
        let file = room.folder().join("subnet.topo");
        let link = |port: usize, peer: usize| format!("[{port}] \"@10.9.0.{peer}/S{peer}\"[{port}]\n");
        let before = if index > 0 { link(number + 1, number - 1) } else { String::new() };
        let after = if number < N { link(number + 2, number + 1) } else { String::new() };
        let (switch, adapter) = (format!("Switch 8 \"S{number}\"\n[1] \"H{number}\""), format!("Hca 1 \"H{number}\""));
        let text = format!("{switch}[1]\n{before}{after}\n{adapter}\n# address 127.9.9.{number}\n");
        std::fs::write(&file, text).expect("written");
        let file = file.display().to_string();
        let words = [&["--topology", &file], options[index]].concat();
        let room = room.with_agent(&words).expect("an agent");
        let options = words.into_iter().map(str::to_owned).collect();
        Some(Side { room, options, _namespace: namespace, _network: Arc::clone(&network) })
    };
    (0..N).map(side).collect::<Option<Vec<_>>>()?.try_into().ok()
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

    /// A counter of a port of the second host's switch.
    #[track_caller]
    fn counted(&self, port: &str, member: &str) -> u64 {
        let switch = self.port("S2", 0, "lid").as_u64().unwrap_or(0).to_string();
        let told = self.said("H2", &["perfquery", "-x", &switch, port]);
        let found = told.lines().find_map(|line| line.strip_prefix(member)?.rsplit('.').next()?.parse().ok());
        found.unwrap_or_else(|| panic!("{member}: {told}"))
    }

    /// A process on this side's node that is a member of a group until it has got `datagrams`.
    #[track_caller]
    fn member(&self, node: &str, group: &str, datagrams: &str) -> Program {
        let words = ["mckey", "-m", group, "-C", datagrams];
        let member = self.room.start(self.on(node, &words)).expect("it starts");
        let groups = || self.room.json(&["show", "--json"]).ok()?["groups"].as_array().cloned();
        let is_member = || (!groups()?.is_empty()).then_some(());
        wait::until(HANG, "the member", is_member).expect("it is attached");
        member
    }

    /// Lets a thread of the agent run only when no other thread wants the processor.
    #[track_caller]
    fn idle_thread(&self, name: &str) {
        let tasks = format!("/proc/{}/task", self.room.agent().expect("an agent"));
        let threads = std::fs::read_dir(tasks).expect("threads").filter_map(|entry| Some(entry.ok()?.path()));
        let has_name = |path: &PathBuf| std::fs::read_to_string(path.join("comm")).is_ok_and(|is| is.trim() == name);
        let thread = threads.into_iter().find(has_name).expect("a thread of this name");
        let id = thread.file_name().and_then(|id| id.to_str()).expect("a number").to_owned();
        let changed = Command::new("chrt").args(["--idle", "--pid", "0", &id]).status().expect("chrt");
        assert!(changed.success(), "{thread:?}");
    }

    #[track_caller]
    fn kill(&self) {
        let agent = self.room.agent().expect("an agent");
        send(agent, Signal::KILL);
        let ended = || (!harness::process::alive(agent)).then_some(());
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

/// Waits until all links and adapters are active. Returns the LIDs of the adapters.
#[track_caller]
fn wait_until_up<const N: usize>(sides: &[Side; N]) -> [u64; N] {
    std::array::from_fn(|index| {
        let (side, number) = (&sides[index], index + 1);
        let links = [index + 2, index + 3].into_iter().filter(|port| (3..N + 2).contains(port));
        links.for_each(|port| drop(side.wait_for(&format!("S{number}"), port as u8, "state", is_active)));
        let node = format!("H{number}");
        side.wait_for(&node, 1, "state", is_active);
        side.port(&node, 1, "lid").as_u64().unwrap_or(0)
    })
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

/// Starts a server on H1, and a client on the adapter of the last host that connects to it. The
/// client is last.
fn start_pair<const N: usize>(sides: &[Side; N], words: &[&str]) -> (Program, Program) {
    let (here, there) = (&sides[0], &sides[N - 1]);
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = [words, &["-p", &number]].concat();
    let server = here.room.start(here.on("H1", &words)).expect("it starts");
    let listens = harness::port::wait_for_listener(server.id(), port.number(), HANG, || false);
    listens.expect("it listens");
    let node = format!("H{N}");
    let client = there.room.start(there.on(&node, &[&words[..], &["10.9.0.1"]].concat())).expect("it starts");
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
    let mut manager = sides[0].room.opensm("H1", &[]).expect("the subnet comes up");
    wait_until_up(&sides);
    for (side, name) in sides.iter().zip(["S1", "S2"]) {
        assert_eq!(side.port(name, 3, "mtu"), 1024, "what fits into packets of 1500 bytes");
        assert!(side.room.log().contains("have MTU 1024, because"), "{}", side.room.log());
    }
    assert!(sides[1].said("H2", &["ibnetdiscover"]).contains("\"S1\""));
    manager.signal(Signal::TERM);
    manager.wait(HANG).expect("it ends");
}

/// Packets pass the switches of the host between, whose ports count them, and so do copies of
/// multicast packets, which the agents carry.
#[test]
fn the_first_and_the_third_of_three_hosts_reach_each_other_and_their_groups() {
    let leaves = ["--no-subnet-manager"];
    let Some(sides) = sides(9000, [&[], &leaves, &leaves]) else { return };
    wait_until_up(&sides);
    let counted = |port: &str, member: &str| sides[1].counted(port, member);
    const BOTH_WAYS: [(&str, &str); 4] = [
        ("3", "PortUnicastRcvPkts"),
        ("4", "PortUnicastXmitPkts"),
        ("4", "PortUnicastRcvPkts"),
        ("3", "PortUnicastXmitPkts"),
    ];
    for words in [&["ibv_rc_pingpong", "-n", "1000", "-c"][..], &["ibv_ud_pingpong", "-n", "1000"]] {
        let before = BOTH_WAYS.map(|(port, member)| counted(port, member));
        must_succeed(start_pair(&sides, words));
        for ((port, member), before) in BOTH_WAYS.into_iter().zip(before) {
            let grown = || (counted(port, member) >= before + 1000).then_some(());
            wait::until(HANG, &format!("{member} of S2[{port}]"), grown).expect("it is counted");
        }
    }

    let mut members = [sides[1].member("H2", "239.1.2.3", "10"), sides[2].member("H3", "239.1.2.3", "10")];
    const COPIES: [(&str, &str); 2] = [("3", "PortMulticastRcvPkts"), ("4", "PortMulticastXmitPkts")];
    let before = COPIES.map(|(port, member)| counted(port, member));
    let sender = sides[0].on("H1", &["mckey", "-m", "239.1.2.3", "-C", "10", "-s"]);
    sides[0].room.finish(sender).expect("it ends").expect_success();
    members.iter_mut().for_each(|member| drop(member.wait(HANG).expect("it ends").expect_success()));
    let after = COPIES.map(|(port, member)| counted(port, member));
    assert_eq!(after, before.map(|count| count + 10), "each packet once");
}

/// A datagram that is completed has left: it passes the links although its queue pair is destroyed,
/// or its process ends, directly after the completion. Meanwhile, the agent's thread that takes the
/// datagrams of programs hardly gets a processor.
#[test]
fn datagrams_to_a_group_outlive_their_queue_pair_and_their_process() {
    const PROGRAMS: u64 = 3;
    const ROUNDS: u64 = 50;
    let leaves = ["--no-subnet-manager"];
    let Some(sides) = sides(9000, [&[], &leaves, &leaves]) else { return };
    wait_until_up(&sides);
    let room = &sides[0].room;
    let program = cprogram::build_with(room, "farewell", &["-lrdmacm"]).expect("it compiles").display().to_string();
    // The member expects more than there is, for copies end with its membership.
    let more = (PROGRAMS * ROUNDS * 10 + 1).to_string();
    let mut member = sides[2].member("H3", "239.1.2.4", &more);
    let before = sides[1].counted("4", "PortMulticastXmitPkts");
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let spin = |_| room.start(room.command("sh", ["-c", "while :; do :; done"])).expect("it starts");
    let mut spinning: Vec<Program> = (0..processors).map(spin).collect();
    sides[0].idle_thread("softhca-wire");
    for _ in 0..PROGRAMS {
        sides[0].said("H1", &[&program, "-m", "239.1.2.4", "-r", &ROUNDS.to_string(), "-n", "10"]);
    }
    for program in &mut spinning {
        program.signal(Signal::KILL);
        program.wait(HANG).expect("it ends");
    }
    let arrived = || (sides[1].counted("4", "PortMulticastXmitPkts") >= before + PROGRAMS * ROUNDS * 10).then_some(());
    wait::until(HANG, "the last datagram", arrived).expect("it comes");
    member.signal(Signal::TERM);
    member.wait(HANG).expect("it ends");
}

/// While the agent between gets no processor, what arrives there waits in its socket. The member
/// beside the sender keeps the tables of the switches as they are when the sender joins and leaves.
#[test]
fn a_burst_waits_for_the_agent_between() {
    const DATAGRAMS: u64 = 400;
    let leaves = ["--no-subnet-manager"];
    let Some(sides) = sides(9000, [&[], &leaves, &leaves]) else { return };
    wait_until_up(&sides);
    let program = cprogram::build_with(&sides[0].room, "farewell", &["-lrdmacm"]).expect("it compiles");
    // They expect more than there is, for copies end with a membership.
    let more = (DATAGRAMS + 1).to_string();
    let members = [sides[0].member("H1", "239.1.2.5", &more), sides[2].member("H3", "239.1.2.5", &more)];
    let before = sides[1].counted("4", "PortMulticastXmitPkts");
    let between = sides[1].room.agent().expect("an agent");
    send(between, Signal::STOP);
    let rounds = (DATAGRAMS / 50).to_string();
    sides[0].said("H1", &[&program.display().to_string(), "-m", "239.1.2.5", "-r", &rounds, "-n", "50"]);
    send(between, Signal::CONT);
    let arrived = || (sides[1].counted("4", "PortMulticastXmitPkts") >= before + DATAGRAMS).then_some(());
    wait::until(HANG, "the last datagram", arrived).expect("it comes");
    for mut member in members {
        member.signal(Signal::TERM);
        member.wait(HANG).expect("it ends");
    }
}

/// The completions of datagrams name the sender's LID and service level, and an address handle made
/// of them leads back, also behind the host between.
#[test]
fn datagrams_of_other_hosts_are_answered_by_lid() {
    let leaves = ["--no-subnet-manager"];
    let Some(sides) = sides(1500, [&[], &leaves, &leaves]) else { return };
    let lids = wait_until_up(&sides);
    let program = cprogram::build(&sides[0].room, "lids").expect("it compiles").display().to_string();
    let (mut server, mut client) = start_pair(&sides, &[&program]);
    let told = client.wait(HANG).expect("it ends").expect_success();
    assert!(told.output.contains(&format!("LID {} and LID {}", lids[2], lids[0])), "{}", told.told());
    server.wait(HANG).expect("it ends").expect_success();
}

/// Nodes have the addresses of the files of all hosts, also behind the host between, and GIDs. A
/// request that nobody expects is turned away.
#[test]
fn programs_on_two_hosts_connect_by_the_addresses_of_their_nodes() {
    let leaves = ["--no-subnet-manager"];
    let Some(sides) = sides(9000, [&[], &leaves, &leaves]) else { return };
    wait_until_up(&sides);
    let port = harness::port::Port::reserve().expect("a port");
    let p = port.number().to_string();
    let client = |index: usize, words: &[&str]| {
        let node = format!("H{}", index + 1);
        sides[index].room.finish(sides[index].on(&node, words)).expect("it ends")
    };
    // The agents have told each other their addresses when this one is turned away.
    let turned_away = || {
        let told = client(2, &["rping", "-c", "-a", "127.9.9.1", "-p", &p, "-C", "1"]).everything();
        told.contains("RDMA_CM_EVENT_REJECTED").then_some(())
    };
    wait::until(HANG, "the address of H1", turned_away).expect("it is known");
    let gid = here_gid(&sides[0]);
    let by_gid = ["ucmatose", "-P", "ib", "-c", "4", "-f", "gid", "-p", &p];
    let rows: [(&[&str], &[&str]); 5] = [
        (&["rping", "-s", "-C", "10", "-p", &p], &["rping", "-c", "-C", "10", "-a", "127.9.9.1", "-p", &p]),
        (&["ib_send_bw", "-R", "-n", "1000", "-p", &p], &["ib_send_bw", "-R", "-n", "1000", "127.9.9.1", "-p", &p]),
        (&["ucmatose", "-c", "4", "-p", &p], &["ucmatose", "-c", "4", "-s", "127.9.9.1", "-p", &p]),
        (&["udaddy", "-c", "4"], &["udaddy", "-c", "4", "-s", "127.9.9.1"]),
        (&[&by_gid[..], &["-b", &gid]].concat(), &[&by_gid[..], &["-s", &gid]].concat()),
    ];
    for (words, client_words) in rows {
        for index in [1, 2] {
            let side = &sides[0];
            let mut server = side.room.start(side.on("H1", words)).expect("it starts");
            let listens = || {
                let ids = side.room.manager_ids().ok()?;
                ids.iter().any(|id| id["stage"] == "listening").then_some(())
            };
            wait::until(HANG, "the server", listens).expect("it listens");
            let outcome = client(index, client_words);
            if !outcome.succeeded() {
                server.signal(Signal::TERM);
                let server = server.wait(HANG).expect("it ends");
                panic!("{}\nthe server: {}", outcome.told(), server.told());
            }
            server.wait(HANG).expect("it ends").expect_success();
        }
    }
}

/// The GID of H1, as an address of the family AF_IB.
fn here_gid(side: &Side) -> String {
    let told = side.room.finish(side.on("H1", &["cat", "/sys/class/infiniband/H1/ports/1/gids/0"]));
    told.expect("it ends").expect_success().output.trim().to_owned()
}
