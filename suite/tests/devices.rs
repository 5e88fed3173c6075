//! Tests how programs and users see the devices: ibv_devices, ibv_devinfo, ibv_asyncwatch, `softhca
//! devices`, `softhca show`.

use harness::{HANG, Pair, Room, Sides, User, program};
use rustix::process::Signal;

fn rooms() -> Vec<Room> {
    [User::Me, User::Nobody].map(|user| Room::of(user).expect("a room")).into()
}

#[test]
fn ibv_devices_lists_the_default_device() {
    for room in rooms() {
        let outcome = room.finish_run(&["ibv_devices"]).expect("it ends").expect_success();
        assert!(outcome.output.contains("softhca0"), "{}", outcome.told());
    }
}

#[test]
fn ibv_devinfo_shows_an_active_ethernet_port() {
    for room in rooms() {
        let outcome = room.finish_run(&["ibv_devinfo", "-v"]).expect("it ends").expect_success();
        for words in ["hca_id:\tsofthca0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "GID[  0]:\t\tfe80:", "RoCE v2"] {
            assert!(outcome.output.contains(words), "no {words:?}: {}", outcome.told());
        }
    }
}

#[test]
fn ibv_devinfo_of_an_unknown_device_fails() {
    let room = Room::new().expect("a room");
    let outcome = room.finish_run(&["ibv_devinfo", "-d", "nosuch0"]).expect("it ends");
    assert!(!outcome.succeeded() && outcome.everything().contains("nosuch0"), "{}", outcome.told());
}

#[test]
fn ibv_asyncwatch_shows_that_the_agent_was_killed() {
    let room = Room::new().expect("a room");
    let agent = room.start_agent().expect("an agent");
    let mut watch = room.start(room.run(&["stdbuf", "-oL", "ibv_asyncwatch"])).expect("it starts");
    watch.wait_for_words("async event FD", HANG).expect("it watches");
    program::send(agent, Signal::KILL);
    // IBV_EVENT_DEVICE_FATAL: rdma-core prints "local catastrophic error".
    watch.wait_for_words("event_type", HANG).expect("an event");
    let said = watch.everything();
    assert!(said.contains("catastrophic") || said.contains("(8)"), "{said}");
}

#[test]
fn devices_as_text_and_as_json() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let text = room.finish(room.softhca(&["devices"])).expect("it ends").expect_success();
    assert!(text.output.contains("softhca0") && text.output.contains("ACTIVE"), "{}", text.told());
    let verbose = room.finish(room.softhca(&["devices", "-v"])).expect("it ends").expect_success();
    assert!(verbose.output.contains("fe80:") && verbose.output.contains("max_qp"), "{}", verbose.told());
    let json = room.finish(room.softhca(&["devices", "--json"])).expect("it ends").expect_success();
    let value: serde_json::Value = serde_json::from_str(&json.output).expect("JSON");
    assert_eq!((&value["devices"][0]["name"], &value["schema"]), (&"softhca0".into(), &2.into()), "{value:#}");
    let device = &value["devices"][0];
    for (flags, name) in
        [(&device["device_cap_flags"], "mem-window"), (&device["ports"][0]["port_cap_flags"], "cm-sup")]
    {
        assert!(flags.as_array().is_some_and(|names| names.contains(&name.into())), "{name}: {value:#}");
    }
}

#[test]
fn show_names_the_path_of_each_queue_pair() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let _pair = Pair::start(&room, &["ib_write_bw", "-D", "60"]).expect("both start");
    let rows = harness::wait::until(HANG, "two connected queue pairs", || {
        let rows = room.show("qp").expect("shown");
        let ready = rows.as_array()?.iter().filter(|row| row["path"] != "none").count();
        (ready == 2).then_some(rows)
    })
    .expect("shown");
    for row in rows.as_array().expect("rows") {
        assert_eq!(row["comm"], "ib_write_bw", "{row:#}");
        assert!(row["path"].as_str().is_some_and(|path| path.contains("lane")), "{row:#}");
    }
    for kind in ["contexts", "pd", "cq", "mr"] {
        assert!(room.show(kind).expect("shown").as_array().is_some_and(|rows| rows.len() >= 2), "{kind}");
    }
    let text = room.finish(room.softhca(&["show", "qp"])).expect("it ends").expect_success();
    assert!(text.output.contains("RTS") && text.output.contains("lane"), "{}", text.told());
}

#[test]
fn doctor_finds_nothing_wrong() {
    for room in rooms() {
        let before = room.finish(room.softhca(&["doctor"])).expect("it ends").expect_success();
        assert!(before.output.contains("verbs library"), "{}", before.told());
        assert!(room.agent().is_none(), "doctor started an agent");
        room.start_agent().expect("an agent");
        let after = room.finish(room.softhca(&["doctor", "--json"])).expect("it ends").expect_success();
        let findings: serde_json::Value = serde_json::from_str(&after.output).expect("JSON");
        let wrong = findings["findings"]
            .as_array()
            .expect("findings")
            .iter()
            .filter(|finding| finding["verdict"] == "fail")
            .count();
        assert_eq!(wrong, 0, "{findings:#}");
    }
}

/// Two devices without a list of interfaces have the same GIDs, except index 0.
#[test]
fn devices_with_the_same_addresses_reach_each_other() {
    for room in rooms() {
        let config = room.folder().join("agent.toml");
        std::fs::write(&config, "[[devices]]\nname = \"one\"\n[[devices]]\nname = \"two\"\n").expect("written");
        let room = room.with_agent(&["--config", config.to_str().expect("a path")]).expect("an agent");
        for (server, client) in [("one", "one"), ("two", "two"), ("one", "two"), ("two", "one")] {
            for program in ["ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong"] {
                let words = |device| [program, "-d", device, "-g", "1", "-c", "-s", "1024", "-n", "100"];
                let pair = || Pair::connect(&room, &words(server), &room, &words(client), "127.0.0.1")?.wait(HANG);
                Sides::must_succeed(&words(client), Sides::measured(pair));
            }
        }
    }
}
