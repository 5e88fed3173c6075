//! Tests which packets of programs pass the switches and routers of a topology: many adapters, two
//! subnets, a narrow link, and adapters that come and go.

use harness::{HANG, Program, Room, User, cprogram, wait};
use serde_json::Value;

/// Two switches with so many adapters each.
fn pair_of_switches(each: usize) -> String {
    let ports = each + 1;
    let switch = |number: usize| {
        let adapters = (1..=each).map(|port| format!("[{port}] \"H{}\"[1]\n", (number - 1) * each + port));
        format!("Switch {ports} \"S{number}\"\n{}", adapters.collect::<String>())
    };
    let adapters = (1..=2 * each).map(|number| format!("Hca 1 \"H{number}\"\n\n"));
    format!("{}[{ports}] \"S2\"[{ports}]\n\n{}\n{}", switch(1), switch(2), adapters.collect::<String>())
}

/// A room whose agent has this topology, once all adapters are active.
fn room(user: User, text: &str) -> Room {
    let room = Room::of(user).expect("a room").with_topology(text, &[]).expect("an agent");
    room.wait_until_active().expect("they are");
    room
}

fn nodes(room: &Room) -> Vec<Value> {
    room.json(&["subnet", "--json"]).expect("JSON")["subnet"].as_array().cloned().unwrap_or_default()
}

/// The LID of a node's port.
fn lid(room: &Room, node: &str, port: u64) -> String {
    let nodes = nodes(room);
    let node = nodes.iter().find(|known| known["name"] == node).expect("it is there");
    let mut ports = node["ports"].as_array().into_iter().flatten();
    ports.find(|known| known["port"] == port).expect("it has a cable")["lid"].to_string()
}

/// Starts a server on one node and its client on another, each with words of its own. The client is
/// last.
fn start_pair(room: &Room, server: (&str, &[&str]), client: (&str, &[&str])) -> (Program, Program) {
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = [server.1, &["-p", &number]].concat();
    let server = room.start(room.on(server.0, &words)).expect("it starts");
    let listens = || harness::port::wait_for_listener(server.id(), port.number(), HANG, || false);
    listens().expect("it listens");
    let words = [client.1, &["-p", &number, "127.0.0.1"]].concat();
    (server, room.start(room.on(client.0, &words)).expect("it starts"))
}

#[track_caller]
fn talk(room: &Room, (server, client): (&str, &str), words: &[&str]) {
    let (mut server, mut client) = start_pair(room, (server, words), (client, words));
    client.wait(HANG).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
}

/// More adapters than fit into one byte of a number.
#[test]
fn programs_run_on_every_adapter_of_a_large_topology() {
    let room = Room::in_memory(User::Nobody).expect("a room");
    let room = room.with_topology(&pair_of_switches(150), &[]).expect("an agent");
    room.wait_until_active().expect("they are");
    let listed = room.finish(room.on("H300", &["ibv_devinfo"])).expect("it ends").expect_success().everything();
    assert!(listed.contains("H300") && !listed.contains("H44"), "{listed}");
    for pair in [("H300", "H1"), ("H44", "H257")] {
        talk(&room, pair, &["ibv_rc_pingpong", "-n", "100"]);
        talk(&room, pair, &["ibv_ud_pingpong", "-n", "100", "-s", "1024"]);
    }
}

/// Runs `routed.c` on H2 and H1, with their routers' ports and the number of routers between them.
#[track_caller]
fn talk_through_routers(room: &Room, ports: [(&str, u64); 2], routers: usize) {
    let program = cprogram::build(room, "routed").expect("it compiles").display().to_string();
    let lids = ports.map(|(router, port)| format!("ROUTER_LID={}", lid(room, router, port)));
    let routers = format!("ROUTERS={routers}");
    let words = |side: usize| ["env", &lids[side], &routers, &program];
    let (mut server, mut client) = start_pair(room, ("H2", &words(1)), ("H1", &words(0)));
    for program in [&mut client, &mut server] {
        let outcome = program.wait(HANG).expect("it ends").expect_success();
        assert!(outcome.output.contains("routers forward"), "{}", outcome.told());
    }
}

/// A counter of a port.
fn counter(nodes: &[Value], node: &str, port: u64, name: &str) -> u64 {
    let node = nodes.iter().find(|known| known["name"] == node).expect("it is there");
    let mut ports = node["ports"].as_array().into_iter().flatten();
    ports.find(|known| known["port"] == port).and_then(|port| port["counters"][name].as_u64()).unwrap_or(0)
}

#[test]
fn programs_in_two_subnets_talk_through_a_router() {
    let room = room(User::Nobody, &Room::row_of_routers(1));
    talk_through_routers(&room, [("R1", 1), ("R1", 2)], 1);
    let nodes = nodes(&room);
    let packets = counter(&nodes, "R1", 2, "xmit_packets");
    assert!(packets >= 2, "the router's port counts them: {nodes:?}");
    for port in [1, 2] {
        let dropped = counter(&nodes, "R1", port, "rcv_switch_relay_errors");
        assert!(dropped >= 2, "R1[{port}] drops {dropped} packets whose hop limit is used up: {nodes:?}");
    }
}

/// Each side sends a message of 3000 bytes, which is two packets, and a datagram of 1000 bytes
/// through both routers, and gets an acknowledgement. Nothing passes with a hop limit of 2: the
/// router next to the receiver drops it, and the packets count up to there.
#[test]
fn programs_in_two_subnets_talk_through_two_routers_and_a_third_subnet() {
    let room = room(User::Nobody, &Room::row_of_routers(2));
    talk_through_routers(&room, [("R1", 1), ("R2", 2)], 2);
    let nodes = nodes(&room);
    for (router, port) in [("R1", 1), ("R1", 2), ("R2", 1), ("R2", 2)] {
        for (packets, words) in [("xmit_packets", "xmit_data"), ("rcv_packets", "rcv_data")] {
            let counted = [packets, words].map(|name| counter(&nodes, router, port, name));
            let all = counted[0] >= 4 && counted[1] >= (3000 + 1000) / 4;
            assert!(all, "{router}[{port}]: {counted:?} of {packets}: {nodes:?}");
        }
    }
    for (router, port, drops) in [("R1", 1, false), ("R1", 2, true), ("R2", 1, true), ("R2", 2, false)] {
        let dropped = counter(&nodes, router, port, "rcv_switch_relay_errors");
        assert_eq!(dropped >= 2, drops, "{router}[{port}] drops {dropped}: {nodes:?}");
    }
}

/// A site-local group: the receiver is behind two routers. With the sender, there are members in two
/// subnets, so the routers join, also in the third one.
#[test]
fn members_of_a_group_meet_through_two_routers() {
    let room = room(User::Nobody, &Room::row_of_routers(2));
    let group = ["mckey", "-M", "ff15:a01b::9", "-C", "10", "-b"];
    let mut receiver = room.start(room.on("H2", &[&group[..], &["127.1.0.2"]].concat())).expect("it starts");
    let joined = || {
        let told = room.finish(room.on("H2", &["saquery", "-g"])).ok()?.output;
        told.contains("ff15:a01b::9").then_some(())
    };
    wait::until(HANG, "the group", joined).expect("it is there");
    let sender = room.on("H1", &[&group[..], &["127.1.0.1", "-s"]].concat());
    room.finish(sender).expect("it ends").expect_success();
    receiver.wait(HANG).expect("it ends").expect_success();
    for (asker, node) in [("H1", "R1"), ("H2", "H2")] {
        let words = ["perfquery", "-x", &lid(&room, node, 1), "1"];
        let told = room.finish(room.on(asker, &words)).expect("it ends").expect_success().output;
        let line = told.lines().find(|line| line.contains("MulticastRcvPkts")).expect("a counter");
        assert!(line.ends_with(".10"), "{node} gets each packet once: {told}");
    }
    let left = || {
        let told = room.finish(room.on("H1", &["saquery", "-g"])).ok()?.output;
        (!told.contains("ff15:a01b")).then_some(())
    };
    wait::until(HANG, "the group to end", left).expect("it ends");
}

#[test]
fn a_packet_that_is_longer_than_a_links_mtu_is_lost_and_the_reason_names_the_link() {
    let room = room(User::Me, &pair_of_switches(1));
    // 4 is the code of 2048 bytes.
    for node in ["S1", "S2"] {
        let words = ["ibportstate", &lid(&room, node, 0), "2", "mtu", "4"];
        room.finish(room.on("H1", &words)).expect("it ends").expect_success();
    }
    let narrow = || {
        let path = room.json(&["subnet", "path", "H1", "H2", "--json"]).ok()?;
        (path["mtu"] == 2048).then_some(())
    };
    wait::until(HANG, "the narrow link", narrow).expect("it is");
    talk(&room, ("H2", "H1"), &["ibv_rc_pingpong", "-n", "50", "-m", "2048", "-s", "10000"]);
    talk(&room, ("H2", "H1"), &["ibv_rc_pingpong", "-n", "50", "-m", "4096", "-s", "2000"]);
    let words = ["ibv_rc_pingpong", "-n", "1", "-m", "4096", "-s", "4096"];
    let (server, mut client) = start_pair(&room, ("H2", &words), ("H1", &words));
    let outcome = client.wait(HANG).expect("it ends");
    assert!(!outcome.succeeded() && outcome.everything().contains("retry counter exceeded"), "{}", outcome.told());
    server.signal(rustix::process::Signal::TERM);
    let errors = room.finish(room.softhca(&["show", "--errors"])).expect("it ends").output;
    assert!(errors.contains("the MTU of the link at S1[2] is 2048"), "{errors}");
    let words = ["ibv_ud_pingpong", "-n", "1", "-s", "4096"];
    let (server, client) = start_pair(&room, ("H2", &words), ("H1", &words));
    let lost = || {
        let errors = room.finish(room.softhca(&["show", "--errors"])).ok()?.output;
        errors.contains("its 4096 bytes are more than the MTU 2048 of a link").then_some(())
    };
    wait::until(HANG, "the datagram to be lost", lost).expect("it is");
    [&server, &client].iter().for_each(|program| program.signal(rustix::process::Signal::TERM));
}

#[test]
fn an_adapter_leaves_a_running_subnet_and_comes_back_and_others_have_no_place() {
    let room = room(User::Nobody, &pair_of_switches(2));
    talk(&room, ("H4", "H1"), &["ibv_rc_pingpong", "-n", "10"]);
    let outcome = room.finish(room.softhca(&["agent", "device", "add", "H5"])).expect("it ends");
    assert!(
        !outcome.succeeded() && outcome.errors.contains("the topology has no adapter \"H5\""),
        "{}",
        outcome.told()
    );
    room.finish(room.softhca(&["agent", "device", "remove", "H4"])).expect("it ends").expect_success();
    room.finish(room.softhca(&["agent", "device", "add", "H4"])).expect("it ends").expect_success();
    room.wait_until_active().expect("they are");
    talk(&room, ("H4", "H1"), &["ibv_rc_pingpong", "-n", "10"]);
}
