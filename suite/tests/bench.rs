//! Tests `softhca bench` as users type it: every operation, JSON, a plot, another host, and a side
//! that dies.

use harness::{HANG, Hosts, Room, User, process, wait};
use serde_json::Value;

#[test]
fn every_operation_is_measured() {
    let room = Room::new().expect("a room");
    let plot = room.folder().join("plot.svg");
    let plotted = format!("--plot={}", plot.display());
    for operation in ["send", "write", "read", "fetch-add", "cmp-swap"] {
        for measure in ["lat", "rate"] {
            let words = ["bench", operation, measure, "--verify", "-n", "300", "--warmup", "10", "--json", &plotted];
            let told = room.json(&words).expect("it measures");
            assert_eq!((&told["plan"]["operation"], &told["plan"]["measure"]), (&operation.into(), &measure.into()));
            assert!(told["schema"] == 2 && told.get("busy").is_some(), "{told}");
            let case = &told["cases"][0];
            assert!(case["operations"].as_u64() >= Some(280), "{told}");
            let figure = if measure == "lat" { &case["latency_usec"]["p50"] } else { &case["million_per_second"] };
            assert!(figure.as_f64() > Some(0.0), "{told}");
        }
    }
    let svg = std::fs::read_to_string(plot).expect("a plot");
    assert!(svg.starts_with("<svg"), "{svg}");
    for word in ["cmp-swap rate", "host ", " UTC, two processes", "1 queue pair, 1 thread, depth 128, batch 16"] {
        assert!(svg.contains(word), "{word} is not in {svg}");
    }
    let shown = room.finish(room.softhca(&["bench", "write", "bw", "-s", "4k,64k", "-n", "100", "--event"]));
    let shown = shown.expect("it ends").expect_success();
    assert!(shown.output.contains("64 KiB") && shown.output.contains('█'), "{}", shown.told());
    room.wait_until_empty(HANG).expect("nothing is left over");
}

#[test]
fn the_other_side_is_another_host() {
    let hosts = Hosts::loopback(User::Me).expect("two agents");
    let (left, right) = (&hosts.left, &hosts.right);
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = ["bench", "--serve", "--once", "--port", &number];
    let mut server = left.room().start(left.room().softhca(&words)).expect("it starts");
    harness::port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
    let to = format!("{}:{number}", left.rendezvous());
    let told =
        right.room().json(&["bench", "send", "bw", "-s", "8,10000", "-n", "200", "--verify", "--json", "--to", &to]);
    assert_eq!(told.expect("it measures")["cases"].as_array().map(Vec::len), Some(2));
    server.wait(HANG).expect("it ends").expect_success();
}

#[test]
fn a_side_that_dies_is_told() {
    let room = Room::new().expect("a room");
    let asking = |words: &[&str]| room.start(room.softhca(&[&["bench"], words, &["--seconds", "600"]].concat()));
    for words in [&["write", "lat", "--event"][..], &["send", "bw"], &["read", "lat"]] {
        let mut asks = asking(words).expect("it starts");
        let answers = wait::until(HANG, "both sides to be connected", || {
            let rows: Vec<Value> = room.show("qp").ok()?.as_array()?.clone();
            let pids = rows.iter().filter(|row| row["path"] != "none").filter_map(|row| row["pid"].as_u64());
            pids.map(|pid| pid as u32).find(|pid| *pid != asks.id() && rows.len() == 2)
        });
        let answers = answers.expect("the other side");
        harness::program::send(answers, rustix::process::Signal::KILL);
        let outcome = asks.wait(HANG).expect("it ends");
        assert!(!outcome.succeeded() && outcome.errors.contains("was killed by signal 9"), "{}", outcome.told());
        assert!(!process::alive(answers));
    }
    room.wait_until_empty(HANG).expect("nothing is left over");
}
