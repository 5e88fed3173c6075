//! Tests the connection manager on the nodes of a topology: addresses of nodes, paths of the subnet
//! manager, programs that connect by address through three switches, and groups.

use std::collections::BTreeSet;

use harness::port::{self, Port};
use harness::{HANG, Pair, Program, Room, Sides, User, cprogram, lists, process, wait};
use rustix::process::Signal;

/// Three switches in a row, with two links between the first two.
const ROW: &str = "\
Switch 8 \"S1\"
[1] \"H1\"[1]
[2] \"H4\"[1]
[3] \"S2\"[3]
[4] \"S2\"[4]

Switch 8 \"S2\"
[1] \"H2\"[1]
[5] \"S3\"[5]

Switch 8 \"S3\"
[1] \"H3\"[1]

Hca 1 \"H1\"

Hca 1 \"H2\"

Hca 1 \"H3\"
# address 127.9.9.3

Hca 1 \"H4\"
";

/// The addresses of H1 and H3.
const H1: &str = "127.1.0.1";
const H3: &str = "127.9.9.3";

/// A room whose agent manages this topology, once the subnet is up.
fn room(user: User) -> Room {
    let room = Room::of(user).expect("a room").with_topology(ROW, &[]).expect("an agent");
    room.wait_for_path("H1", "H3", true).expect("it comes up");
    room
}

/// Starts a server on a node, and waits until it listens or is a member of a group.
#[track_caller]
fn serve(room: &Room, node: &str, words: &[&str]) -> Program {
    let server = room.start(room.on(node, words)).expect("it starts");
    let is_ready = || {
        let own: BTreeSet<u32> = process::descendants(server.id()).into_iter().collect();
        let ids = room.manager_ids().ok()?;
        let mut of_server = ids.iter().filter(|id| id["pid"].as_u64().is_some_and(|pid| own.contains(&(pid as u32))));
        of_server.any(|id| id["stage"] == "listening" || id["groups"] != 0).then_some(())
    };
    wait::until(HANG, "the server", is_ready).expect("it is ready");
    server
}

/// Runs a server on H3 and its client on H1, and ends a server that serves for ever.
#[track_caller]
fn meet(room: &Room, server: &[&str], client: &[&str]) {
    meet_on(room, "H3", server, client);
}

/// The same with a server on another node.
#[track_caller]
fn meet_on(room: &Room, node: &str, server: &[&str], client: &[&str]) {
    let mut server = serve(room, node, server);
    let outcome = room.finish(room.on("H1", client)).expect("it ends");
    if !outcome.succeeded() {
        server.signal(Signal::TERM);
        let server = server.wait(HANG).expect("it ends");
        panic!("{}\nthe server: {}", outcome.told(), server.told());
    }
    server.wait(HANG).expect("it ends").expect_success();
}

/// A reserved port, with its number as a word.
fn reserve() -> (Port, String) {
    let port = Port::reserve().expect("a port");
    let number = port.number().to_string();
    (port, number)
}

/// Programs that connect by address.
#[track_caller]
fn programs_of_rdmacm_utils_connect(room: &Room) {
    let (_port, p) = reserve();
    let both =
        |server: &[&str], client: &[&str]| meet(room, &[server, &["-p", &p]].concat(), &[client, &["-p", &p]].concat());
    both(&["rping", "-s", "-C", "10"], &["rping", "-c", "-a", H3, "-C", "10"]);
    both(&["ucmatose", "-c", "4"], &["ucmatose", "-s", H3, "-c", "4"]);
    meet(room, &["udaddy", "-c", "4"], &["udaddy", "-s", H3, "-c", "4"]);
    both(&["rdma_server"], &["rdma_client", "-s", H3]);
    both(&["ib_send_lat", "-R", "-n", "20"], &["ib_send_lat", "-R", "-n", "20", H3]);
    both(&["ib_write_bw", "-R", "-n", "1000"], &["ib_write_bw", "-R", "-n", "1000", H3]);
    room.wait_until_all_is_forgotten(HANG).expect("it is empty");
}

#[test]
fn programs_of_rdmacm_utils_connect_through_three_switches() {
    for user in [User::Me, User::Nobody] {
        programs_of_rdmacm_utils_connect(&room(user));
    }
}

/// The paths of connections come from opensm's subnet administration.
#[test]
fn programs_connect_and_meet_by_lid_on_a_subnet_that_opensm_manages() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(ROW, &["--no-subnet-manager"]).expect("an agent");
    let mut opensm = room.opensm("H2", &["-t", "5000"]).expect("the subnet comes up");
    room.wait_for_path("H1", "H3", true).expect("it is there");
    programs_of_rdmacm_utils_connect(&room);
    programs_meet_by_lid(&room);
    for words in [
        &["ib_write_bw", "-n", "1000"][..],
        &["ib_send_bw", "-c", "UD", "-n", "1000"],
        &["ib_read_lat", "-n", "100"],
        &["ib_atomic_bw", "-n", "1000"],
    ] {
        let sides = Sides::measured(|| Pair::on_nodes(&room, ("H3", words), ("H1", words))?.wait(HANG));
        lists::expect_figures(words, &Sides::must_succeed(words, sides));
    }
    opensm.signal(Signal::TERM);
    opensm.wait(HANG).expect("it ends");
}

/// The sockets' own datagrams leave from 127.0.0.1, which belongs to no node.
#[test]
fn datagram_sockets_meet_through_three_switches() {
    let room = room(User::Nobody);
    for (mode, own) in [("s", &[][..]), ("e", &["-b", H1])] {
        let (port, number) = reserve();
        let rest = ["-p", &number, "-T", mode, "-C", "100", "-S", "1000"];
        let mut server = room.start(room.on("H3", &[&["udpong", "-b", H3], &rest[..]].concat())).expect("it starts");
        port::wait_for_datagrams(server.id(), port.number(), HANG, || server.ended()).expect("it is ready");
        let client = room.finish(room.on("H1", &[&["udpong", "-s", H3], own, &rest[..]].concat())).expect("it ends");
        server.signal(Signal::TERM);
        assert!(client.succeeded(), "{}\nthe server: {}", client.told(), server.wait(HANG).expect("it ends").told());
    }
}

/// The path of subnet administration leads to a router. The side that listens answers by the router
/// from which the request came.
#[test]
fn programs_connect_through_routers() {
    const H2: &str = "127.1.0.2";
    for routers in [1, 2] {
        let room = Room::of(User::Nobody).expect("a room");
        let room = room.with_topology(&Room::row_of_routers(routers), &[]).expect("an agent");
        room.wait_until_active().expect("they are");
        let (_port, p) = reserve();
        let both = |server: &[&str], client: &[&str]| {
            meet_on(&room, "H2", &[server, &["-p", &p]].concat(), &[client, &["-p", &p]].concat());
        };
        both(&["rping", "-s", "-C", "10"], &["rping", "-c", "-a", H2, "-C", "10"]);
        meet_on(&room, "H2", &["udaddy", "-c", "4"], &["udaddy", "-s", H2, "-c", "4"]);
        both(&["rdma_server"], &["rdma_client", "-s", H2]);
        both(&["ib_send_bw", "-R", "-n", "500"], &["ib_send_bw", "-R", "-n", "500", H2]);
        let subnet = room.json(&["subnet", "--json"]).expect("JSON");
        let nodes = subnet["subnet"].as_array().into_iter().flatten();
        let last = nodes.filter(|node| node["name"] == format!("R{routers}")).flat_map(|node| node["ports"].as_array());
        let sent: Vec<_> = last.flatten().filter_map(|port| port["counters"]["xmit_packets"].as_u64()).collect();
        assert!(matches!(sent[..], [back, there] if back > 0 && there >= 500), "the last router: {sent:?}");
        room.wait_until_all_is_forgotten(HANG).expect("it is empty");
    }
}

/// Each node has its own ports, and its programs have its address only.
#[test]
fn nodes_are_hosts_of_their_own() {
    let room = room(User::Nobody);
    let subnet = room.json(&["subnet", "--json"]).expect("JSON");
    let nodes = subnet["subnet"].as_array().expect("nodes").iter();
    let addresses: Vec<_> = nodes.filter_map(|node| node["ports"][0]["address"].as_str()).collect();
    assert_eq!(addresses, [H1, "127.1.0.2", H3, "127.1.0.4"]);
    let (_port, p) = reserve();
    // Both listen at every address of theirs.
    let mut servers = ["H2", "H3"].map(|node| serve(&room, node, &["rping", "-s", "-p", &p, "-C", "1"]));
    for address in ["127.1.0.2", H3] {
        let client = room.on("H1", &["rping", "-c", "-a", address, "-p", &p, "-C", "1"]);
        room.finish(client).expect("it ends").expect_success();
    }
    servers.iter_mut().for_each(|server| drop(server.wait(HANG).expect("it ends").expect_success()));
    let outcome = room.finish(room.on("H2", &["rping", "-s", "-a", H3, "-p", &p])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.everything().contains("is not an address"), "{}", outcome.told());
    let outcome = room.finish(room.on("H2", &["rping", "-c", "-a", "127.9.9.9", "-p", &p])).expect("it ends");
    assert!(outcome.errors.contains("no adapter of the topology has the address"), "{}", outcome.told());
}

/// Members on one switch and on two, in a group of the subnet manager. The sender joins last, sends
/// and leaves at once.
#[test]
fn mckey_meets_in_a_group_of_the_subnet_manager() {
    let room = room(User::Nobody);
    let group = ["mckey", "-m", "239.1.2.3", "-C", "10"];
    let groups = || room.finish(room.on("H2", &["saquery", "-g"])).ok().map(|outcome| outcome.output);
    let is_there = || groups()?.contains("ff12:4001:ffff::f01:203").then_some(());
    for node in ["H4", "H3"] {
        let mut receiver = serve(&room, node, &group);
        wait::until(HANG, "the group", is_there).expect("it is there");
        let sender = room.on("H1", &[&group[..], &["-s"]].concat());
        room.finish(sender).expect("it ends").expect_success();
        receiver.wait(HANG).expect("it ends").expect_success();
        wait::until(HANG, "the group to end", || (!groups()?.contains("4001")).then_some(())).expect("it ends");
    }
}

/// Without a path, the subnet manager has no record, and programs get RDMA_CM_EVENT_ROUTE_ERROR. A
/// connection to another node does not notice.
#[test]
fn without_a_path_there_is_a_route_error() {
    let room = room(User::Nobody);
    let (_port, p) = reserve();
    let (_other, q) = reserve();
    let mut neighbour = serve(&room, "H4", &["rping", "-s", "-p", &q, "-C", "500"]);
    let words = ["rping", "-c", "-a", "127.1.0.4", "-p", &q, "-C", "500", "-v"];
    let mut busy = room.start(room.on("H1", &words)).expect("it starts");
    busy.wait_for_words("rdma-ping", HANG).expect("it is connected");
    let mut server = serve(&room, "H3", &["rping", "-s", "-P", "-p", &p]);
    let cut = |action: &str| room.finish(room.softhca(&["subnet", action, "S2[5]"])).expect("it ends").expect_success();
    cut("cut");
    room.wait_for_path("H1", "H3", false).expect("it changes");
    // The manager finds the cut in its next sweep.
    let client = || room.finish(room.on("H1", &["rping", "-c", "-a", H3, "-p", &p, "-C", "1"])).expect("it ends");
    let refused = || client().everything().contains("RDMA_CM_EVENT_ROUTE_ERROR").then_some(());
    wait::until(HANG, "the manager to know", refused).expect("it knows");
    cut("mend");
    room.wait_for_path("H1", "H3", true).expect("it changes");
    wait::until(HANG, "the manager to know", || client().succeeded().then_some(())).expect("it knows");
    server.signal(Signal::TERM);
    server.wait(HANG).expect("it ends");
    busy.wait(HANG).expect("it ends").expect_success();
    neighbour.wait(HANG).expect("it ends").expect_success();
    room.wait_until_all_is_forgotten(HANG).expect("it is empty");
}

/// Programs that find each other over TCP, and then connect by LID.
#[test]
fn qperf_ucx_and_libfabric_run_through_three_switches() {
    programs_meet_by_lid(&room(User::Nobody));
}

#[track_caller]
fn programs_meet_by_lid(room: &Room) {
    let ucx = |node: &str| format!("UCX_NET_DEVICES={node}:1");
    let (ucx1, ucx3) = (ucx("H1"), ucx("H3"));
    let over_tcp = |server: &[&str], client: &[&str], port: &Port, ends: bool| {
        let mut server = room.start(room.on("H3", server)).expect("it starts");
        port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
        let outcome = room.finish(room.on("H1", client)).expect("it ends");
        if !ends {
            server.signal(Signal::TERM);
        }
        let served = server.wait(HANG).expect("it ends");
        assert!(outcome.succeeded(), "{}\nthe server: {}", outcome.told(), served.told());
        outcome.everything()
    };
    let (port, p) = reserve();
    let client = ["qperf", "-lp", &p, H3, "-t", "1", "rc_bw", "ud_lat"];
    let told = over_tcp(&["qperf", "-lp", &p], &client, &port, false);
    assert!(told.contains("rc_bw:\n") && told.contains("ud_lat:\n"), "{told}");
    let client = ["qperf", "-lp", &p, "-cm1", H3, "-t", "1", "rc_lat"];
    let told = over_tcp(&["qperf", "-lp", &p], &client, &port, false);
    assert!(told.contains("rc_lat:\n"), "{told}");
    let server = ["env", &ucx3, "UCX_TLS=rc_verbs,ud_verbs", "ucx_perftest", "-p", &p];
    let client = ["env", &ucx1, "UCX_TLS=rc_verbs,ud_verbs", "ucx_perftest", "-p", &p, H3, "-t", "tag_bw", "-n", "500"];
    over_tcp(&server, &client, &port, true);
    // Endpoints of datagrams name themselves by LID and queue pair. The others name the address of
    // the node's IPoIB interface.
    for (provider, endpoint) in [("verbs", "dgram"), ("verbs", "msg"), ("verbs;ofi_rxm", "rdm")] {
        let fabric = ["fi_pingpong", "-p", provider, "-e", endpoint, "-I", "50"];
        let server = [&fabric[..], &["-B", &p]].concat();
        let told = over_tcp(&server, &[&fabric[..], &["-P", &p, H3]].concat(), &port, true);
        assert!(told.contains("4k      50"), "{provider} {endpoint}: {told}");
    }
}

/// Two adapters on two switches, each with two ports.
const PLANES: &str = "\
Switch 4 \"S1\"
[1] \"H1\"[1]
[2] \"H2\"[1]
[4] \"S2\"[4]

Switch 4 \"S2\"
[1] \"H1\"[2]
[2] \"H2\"[2]

Hca 2 \"H1\"

Hca 2 \"H2\"
";

/// The path between the first ports is cut, and the connection takes that between the second ones.
#[test]
fn a_connection_migrates_to_its_alternate_path() {
    let room = Room::of(User::Nobody).expect("a room");
    let file = room.folder().join("subnet.topo");
    std::fs::write(&file, PLANES).expect("written");
    let room = room.with_agent(&["--topology", &file.display().to_string()]).expect("an agent");
    for (from, to) in [("H1[1]", "H2[1]"), ("H1[2]", "H2[2]")] {
        let is_up = || room.finish(room.softhca(&["subnet", "path", from, to])).ok()?.succeeded().then_some(());
        wait::until(HANG, "the path", is_up).expect("it is there");
    }
    let program = cprogram::build(&room, "migrates").expect("it compiles");
    let mut program = room.start(room.run(&[program.to_str().expect("a plain path")])).expect("it starts");
    program.wait_for_words("armed", HANG).expect("it writes");
    room.finish(room.softhca(&["subnet", "cut", "S1[2]"])).expect("it ends").expect_success();
    let outcome = program.wait(HANG).expect("it ends").expect_success();
    assert!(outcome.output.contains("migrated"), "{}", outcome.told());
}
