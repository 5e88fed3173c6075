//! Compares the real output of each command with `--json` with docs/json.md, which must name every
//! member.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use harness::{HANG, Pair, Room, cprogram, wait};
use rustix::process::Signal;
use serde_json::Value;

/// A section of the page.
fn section(name: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/json.md");
    let page = fs::read_to_string(page).expect("the page");
    let section = page.split("\n## ").find(|section| section.lines().next() == Some(name));
    section.unwrap_or_else(|| panic!("docs/json.md has no section {name}")).to_owned()
}

/// Collects the names of all members, at any depth.
fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Array(list) => list.iter().for_each(|item| keys(item, found)),
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            found.insert(name.clone());
            keys(value, found);
        }),
        _ => {}
    }
}

/// Checks that the section names all members. `expected` members must be present, so the output was
/// not empty.
#[track_caller]
fn described(name: &str, answers: &[Value], expected: &[&str]) {
    let (section, mut found) = (section(name), BTreeSet::new());
    for answer in answers {
        assert_eq!(answer["schema"], 2, "{answer:#}");
        keys(answer, &mut found);
    }
    found.remove("schema");
    let missing: Vec<&String> = found.iter().filter(|key| !section.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/json.md, section {name}, lacks {missing:?}");
    for key in expected {
        assert!(found.contains(*key), "the output has no {key}: {found:?}");
    }
}

fn json(room: &Room, words: &[&str]) -> Value {
    room.json(words).expect("JSON")
}

#[test]
fn members_of_commands_without_programs_are_described() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let doctor = room.finish(room.softhca(&["doctor", "--json", "--", "/nowhere"])).expect("it ends");
    described("doctor", &[serde_json::from_str(&doctor.output).expect("JSON")], &["verdict", "next"]);
    described("devices", &[json(&room, &["devices", "--json"])], &["max_qp", "port_cap_flags", "ifindex"]);
    let added = json(&room, &["fault", "add", "--json", "loss", "1%"]);
    described("fault", &[added, json(&room, &["fault", "list", "--json"])], &["added", "scope", "pid"]);
    let bench = |measure| json(&room, &["bench", "write", measure, "-n", "100", "--json"]);
    described("bench", &[bench("lat"), bench("bw")], &["p999", "iterations", "busy"]);
}

#[test]
fn members_of_objects_are_described() {
    let room = Room::new().expect("a room");
    let _datagrams = Pair::start(&room, &["ib_send_lat", "-c", "UD", "-D", "60"]).expect("both start");
    let listener = ["rping", "-s", "-P", "-a", "127.0.0.1", "-p", "7996"];
    let mut programs = vec![room.start(room.run(&listener)).expect("it starts")];
    programs.push(room.start(room.run(&["ibv_srq_pingpong", "-g", "0", "-p", "18996"])).expect("it starts"));
    wait::until(HANG, "a listener", || {
        room.show("cm").ok()?.as_array()?.iter().any(|id| id["stage"] == "listening").then_some(())
    })
    .expect("it listens");
    programs.push(room.start(room.run(&["rping", "-c", "-a", "127.0.0.1", "-p", "7996"])).expect("it starts"));
    let all = wait::until(HANG, "every kind of object", || {
        let all = room.json(&["show", "--json"]).ok()?;
        let mut found = BTreeSet::new();
        keys(&all, &mut found);
        let wanted = ["srq", "cqs", "dgid", "stage", "waiting", "rkey", "sq_psn"];
        let lists = all["contexts"].as_array()?.iter().filter(|context| context["ahs"].get(0).is_some()).count();
        (wanted.iter().all(|key| found.contains(*key)) && lists > 0).then_some(all)
    })
    .expect("all are there");
    let kinds = ["contexts", "pd", "cq", "qp", "srq", "mr", "ah", "channel", "cm"];
    let mut answers: Vec<Value> = kinds.iter().map(|kind| json(&room, &["show", "--json", kind])).collect();
    answers.push(all);
    described("show", &answers, &["queue_bytes", "outstanding", "dlid", "iova", "peer", "space"]);
    for program in &mut programs {
        program.signal(Signal::TERM);
        program.wait(HANG).expect("it ends");
    }
}

#[test]
fn members_of_reasons_and_packets_are_described() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let words = ["capture", "--json"];
    let mut capture = room.start(room.softhca(&words)).expect("it starts");
    capture.wait_for_words("listening on", HANG).expect("it listens");
    let path = cprogram::build(&room, "why").expect("it compiles").to_str().expect("a plain path").to_owned();
    for mode in ["rkey", "qkey"] {
        room.finish_run(&[&path, "-m", mode]).expect("it ends");
    }
    room.finish_run(&["rping", "-c", "-a", "127.0.0.1", "-p", "7995", "-C", "1"]).expect("it ends");
    capture.signal(Signal::INT);
    let outcome = capture.wait(HANG).expect("it ends").expect_success();
    let packets = outcome.output.lines().map(|line| serde_json::from_str(line).expect("an object"));
    let packets: Vec<Value> = packets.collect();
    assert!(packets.iter().all(|packet| packet["time"].is_string()), "{}", packets[0]);
    described("capture", &packets, &["rkey", "syndrome", "message", "cause"]);
    let known = json(&room, &["show", "--errors", "--json"]);
    room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    let stored = json(&room, &["show", "--errors", "--json"]);
    described("show --errors", &[known, stored], &["wr_id", "cause", "last_drops", "no_engine", "source"]);
}
