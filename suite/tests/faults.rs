//! Tests faults on demand as programs see them: lost packets, a command that fails, a port that
//! goes down, a refused connection, a bad link.

use harness::{Family, HANG, Hosts, Outcome, Pair, Program, Room, User, cprogram, lists};
use rustix::process::Signal;
use serde_json::Value;

/// Runs a program with a fault rule of its own.
fn with_fault(room: &Room, rule: &str, words: &[&str]) -> Program {
    let all = [&["run", "--fault", rule, "--"], words].concat();
    room.start(room.softhca(&all)).expect("it starts")
}

fn add(room: &Room, rule: &str) {
    room.finish(room.softhca(&["fault", "add", rule])).expect("it ends").expect_success();
}

fn list(room: &Room) -> Vec<Value> {
    room.json(&["fault", "list", "--json"]).expect("it answers")["rules"].as_array().expect("a list").clone()
}

/// perftest with its default settings, on lanes.
#[test]
fn perftest_gets_over_losses_of_each_kind_and_of_all() {
    let room = Room::of(User::Me).expect("a room");
    for rules in [
        "loss 1%",
        "loss 5% seed 7",
        "reorder 5%",
        "duplicate 1%",
        "corrupt 0.1%",
        "loss 5%; reorder 5% seed 2; duplicate 1% seed 3; corrupt 0.1% seed 4",
    ] {
        add(&room, rules);
        let words = ["ib_write_bw", "-n", "200"];
        lists::expect_figures(&words, &Pair::must_succeed(&room, &words));
        for row in list(&room) {
            assert!(row["acted"].as_u64() > Some(0), "{row}");
        }
        room.finish(room.softhca(&["fault", "clear"])).expect("it ends").expect_success();
        assert!(list(&room).is_empty());
    }
}

/// Between two agents, where rules take the place of a bad link (`wire_bad`). Each rule alone, and
/// all rules together.
#[test]
fn perftest_gets_over_the_same_between_hosts() {
    let hosts = Hosts::loopback(User::Me).expect("two addresses");
    for rules in [
        "loss 1%",
        "corrupt 0.1% seed 5",
        "loss 5% seed 7; reorder 5% seed 2; duplicate 1% seed 3; corrupt 0.1% seed 4",
    ] {
        for side in [&hosts.left, &hosts.right] {
            add(side.room(), rules);
        }
        for words in [["ib_write_bw", "-n", "100"], ["ib_read_bw", "-n", "40"]] {
            lists::expect_figures(&words, &hosts.must_succeed(Family::V4, &words));
        }
        for side in [&hosts.left, &hosts.right] {
            let acted: u64 = list(side.room()).iter().filter_map(|row| row["acted"].as_u64()).sum();
            assert!(acted > 0, "{rules}");
            side.room().finish(side.room().softhca(&["fault", "clear"])).expect("it ends").expect_success();
        }
    }
}

#[test]
fn a_program_with_rules_of_its_own_fails_as_they_say_and_is_told_so() {
    let room = Room::of(User::Nobody).expect("a room");
    let mut program = with_fault(&room, "fail create_qp ENOMEM", &["ibv_rc_pingpong"]);
    let outcome = program.wait(HANG).expect("it ends");
    assert!(!outcome.succeeded());
    for words in ["Couldn't create QP", "fault: create_qp fails with ENOMEM", "by rule"] {
        assert!(outcome.everything().contains(words), "{words} is not in: {}", outcome.told());
    }
    // An invalid rule is an error before anything runs.
    let outcome = with_fault(&room, "lose 5%", &["true"]).wait(HANG).expect("it ends");
    assert_eq!(outcome.code, 125, "{}", outcome.told());
    assert!(outcome.errors.contains("unknown kind of fault \"lose\"; kinds are loss, delay"), "{}", outcome.told());
}

/// The number of packets that a rule lost, from the line of `softhca run` about this rule.
fn printed(errors: &str, rule: &str) -> Option<u64> {
    let line =
        errors.lines().find_map(|line| line.strip_prefix("softhca: fault rule ")?.split_once(&format!(" ({rule}): ")));
    line?.1.split_once(" packets were lost")?.0.parse().ok()
}

#[test]
fn a_run_prints_the_count_of_the_fault_list() {
    const RULE: &str = "loss 5% seed 7";
    let room = Room::of(User::Me).expect("a room");
    add(&room, RULE);
    let sides = Pair::must_succeed(&room, &["ib_write_bw", "-n", "200"]);
    let sides = [&sides.server, &sides.client];
    for side in sides {
        assert!(!side.errors.contains("fault: by rule"), "{}", side.told());
        assert_eq!(side.errors.matches("fault rule ").count(), 1, "{}", side.told());
    }
    // The side that ended last has counted all packets.
    let last = sides.iter().filter_map(|side| printed(&side.errors, RULE)).max();
    assert_eq!(last, list(&room)[0]["acted"].as_u64(), "{}\n{}", sides[0].told(), sides[1].told());
}

#[test]
fn counts_of_own_rules_are_printed_after_the_program_also_without_an_agent() {
    let room = Room::of(User::Me).expect("a room");
    let agent = room.start_agent().expect("an agent").to_string();
    let path = cprogram::build(&room, "strict").expect("it compiles").to_str().expect("a plain path").to_owned();
    let outcome = with_fault(&room, "loss count 1", &[&path]).wait(HANG).expect("it ends").expect_success();
    let about = |outcome: &Outcome| -> Vec<String> {
        let lines = outcome.errors.lines().filter_map(|line| line.split_once("(loss count 1): "));
        lines.map(|(_, words)| words.to_owned()).collect()
    };
    // The program opens the device several times, and each time the rule counts anew. The agent has
    // added these counts up.
    let lines = about(&outcome);
    let lost = lines.first().and_then(|line| line.split_once(' ')?.0.parse::<u32>().ok());
    assert!(lines.len() == 1 && lost.is_some_and(|lost| lost > 0), "{}", outcome.told());
    let script = format!("{path} && kill -{} {agent}", Signal::KILL.as_raw());
    let mut program = with_fault(&room, "loss count 1", &["sh", "-c", &script]);
    let outcome = program.wait(HANG).expect("it ends").expect_success();
    let lines = about(&outcome);
    let all = lines.iter().all(|line| line == "at least 1 packet was lost");
    assert!(!lines.is_empty() && all, "{}", outcome.told());
}

#[test]
fn a_port_that_goes_down_for_a_while_is_seen_by_who_watches() {
    let room = Room::of(User::Me).expect("a room");
    let mut watch = room.start(room.run(&["stdbuf", "-oL", "ibv_asyncwatch"])).expect("it starts");
    watch.wait_for_words("async event FD", HANG).expect("it watches");
    add(&room, "port-down for 100ms");
    watch.wait_for_words("EVENT_PORT_ERR", HANG).expect("PORT_ERR");
    watch.wait_for_words("EVENT_PORT_ACTIVE", HANG).expect("PORT_ACTIVE");
    add(&room, "remove");
    watch.wait_for_words("EVENT_DEVICE_FATAL", HANG).expect("DEVICE_FATAL");
}

#[test]
fn a_connection_request_is_rejected_with_a_reason_or_gets_through_losses() {
    let room = Room::of(User::Me).expect("a room");
    let place = room.place(Family::V4);
    let server = place.serve("rping -s -a ADDRESS -p PORT -P").expect("it listens");
    add(&room, "cm-reject 28 count 1");
    let mut client = place.call(&server, "rping -c -a ADDRESS -p PORT -C 3").expect("it starts");
    let outcome = client.wait(HANG).expect("it ends");
    assert!(outcome.everything().contains("RDMA_CM_EVENT_REJECTED, error 28"), "{}", outcome.told());
    // The next connection is not refused. It survives lost packets.
    add(&room, "loss 5% seed 7");
    let mut client = place.call(&server, "rping -c -a ADDRESS -p PORT -C 200 -V").expect("it starts");
    assert!(client.wait(HANG).expect("it ends").succeeded());
}

/// Two switches with one link between them, and two adapters at the first.
const ROW: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"S2\"[3]\n\nSwitch 8 \"S2\"\n[1] \"H3\"[1]\n\n\
    Hca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n";

/// A pingpong between two nodes of a topology.
#[track_caller]
fn talk(room: &Room, [server, client]: [&str; 2]) {
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = ["ibv_rc_pingpong", "-n", "1000", "-s", "1024", "-p", &number];
    let mut server = room.start(room.on(server, &words)).expect("it starts");
    let listens = || harness::port::wait_for_listener(server.id(), port.number(), HANG, || false);
    listens().expect("it listens");
    room.finish(room.on(client, &[&words[..], &["127.0.0.1"]].concat())).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
}

/// The value that `perfquery` prints of a port of the second switch.
#[track_caller]
fn errors_behind_the_link(room: &Room, name: &str) -> u64 {
    let subnet = room.json(&["subnet", "--json"]).expect("JSON");
    let mut nodes = subnet["subnet"].as_array().expect("nodes").iter();
    let node = nodes.find(|node| node["name"] == "S2").expect("it is there");
    let lid = node["ports"][0]["lid"].to_string();
    let told = room.finish(room.on("H1", &["perfquery", &lid, "3"])).expect("it ends").expect_success().everything();
    let line = told.lines().find_map(|line| line.strip_prefix(name)?.trim_start_matches([':', '.']).parse().ok());
    line.unwrap_or_else(|| panic!("{name}: {told}"))
}

#[test]
fn a_bad_link_is_found_by_the_counters_behind_it() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(ROW, &[]).expect("an agent");
    room.wait_until_active().expect("they are");
    add(&room, "corrupt 5% seed 3 direction out link \"S1\"[3]");
    talk(&room, ["H2", "H1"]);
    assert_eq!(list(&room)[0]["acted"], 0, "another link");
    talk(&room, ["H3", "H1"]);
    let rule = &list(&room)[0];
    let acted = rule["acted"].as_u64().expect("a number");
    assert!(acted > 0 && rule["rule"].as_str().is_some_and(|rule| rule.contains("link \"S1\"[3]")), "{rule}");
    for name in ["SymbolErrorCounter", "PortRcvErrors"] {
        assert_eq!(errors_behind_the_link(&room, name), acted, "{name}");
    }
    let outcome = room.finish(room.softhca(&["fault", "add", "loss link S1[4]"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.errors.contains("there is no cable"), "{}", outcome.told());
}

#[test]
fn a_link_that_is_down_for_a_while_is_trained_again() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(ROW, &[]).expect("an agent");
    room.wait_until_active().expect("they are");
    let mut watch = room.start(room.on("H3", &["stdbuf", "-oL", "ibv_asyncwatch"])).expect("it starts");
    watch.wait_for_words("async event FD", HANG).expect("it watches");
    add(&room, "port-down for 100ms link H3[1]");
    watch.wait_for_words("EVENT_PORT_ERR", HANG).expect("PORT_ERR");
    watch.wait_for_words("EVENT_PORT_ACTIVE", HANG).expect("PORT_ACTIVE");
    add(&room, "port-down link S1[3]");
    room.wait_for_path("H1", "H3", false).expect("the manager finds none");
    room.finish(room.softhca(&["fault", "clear"])).expect("it ends").expect_success();
    room.wait_for_path("H1", "H3", true).expect("it is trained and routed again");
    talk(&room, ["H3", "H1"]);
}
