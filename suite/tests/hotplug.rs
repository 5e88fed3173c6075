//! Tests devices that are added to a running agent and removed from it, with programs that list
//! devices, have them open, or are connected through them.

use harness::{Family, HANG, Outcome, Pair, Program, Room, User, cprogram};

fn rooms() -> Vec<Room> {
    [User::Me, User::Nobody].map(|user| Room::of(user).expect("a room")).into()
}

/// The output of a command of `softhca agent device`.
#[track_caller]
fn device(room: &Room, words: &[&str]) -> String {
    let words: Vec<&str> = ["agent", "device"].iter().chain(words).copied().collect();
    room.finish(room.softhca(&words)).expect("it ends").expect_success().output
}

/// The output of a program.
#[track_caller]
fn said(room: &Room, words: &[&str]) -> String {
    room.finish_run(words).expect("it ends").expect_success().output
}

fn watch(room: &Room, device: &str) -> Program {
    let words = ["stdbuf", "-oL", "ibv_asyncwatch", "-d", device];
    let mut watch = room.start(room.run(&words)).expect("it starts");
    watch.wait_for_words("async event FD", HANG).expect("it watches");
    watch
}

/// Programs on one device do not notice that another one comes and goes.
#[test]
fn devices_come_and_go_while_programs_run() {
    for room in rooms() {
        room.start_agent().expect("an agent");
        let words = ["ib_write_bw", "-d", "softhca0", "-D", "60"];
        let mut pair = Pair::start(&room, &words).expect("both start");
        pair.traffic("ib_write_bw", &room, &room).expect("traffic");
        let first = watch(&room, "softhca0");
        assert_eq!(device(&room, &["add", "ib0", "--link-layer", "infiniband"]), "added: ib0\n");
        assert_eq!(device(&room, &["add", "softhca2"]), "added: softhca2\n");
        let listed = said(&room, &["ibv_devices"]);
        assert!(["softhca0", "ib0", "softhca2"].iter().all(|name| listed.contains(name)), "{listed}");
        // By LID.
        Pair::must_succeed(&room, &["ibv_rc_pingpong", "-d", "ib0", "-c"]);
        Pair::must_succeed(&room, &["ibv_ud_pingpong", "-d", "softhca2", "-g", "0", "-c"]);

        let mut second = watch(&room, "ib0");
        assert_eq!(device(&room, &["remove", "ib0"]), "removed: ib0\n");
        // rdma-core prints "local catastrophic error".
        second.wait_for_words("event_type", HANG).expect("an event");
        assert!(second.everything().contains("catastrophic") || second.everything().contains("(8)"));
        let listed = said(&room, &["ibv_devices"]);
        assert!(listed.contains("softhca2") && !listed.contains("ib0"), "{listed}");
        // The number of the removed device is not given to another one, because the watcher has it.
        let names = "ls /sys/class/infiniband /dev/infiniband";
        let names = said(&room, &["sh", "-c", names]);
        assert!(names.contains("uverbs2") && !names.contains("uverbs1") && !names.contains("ib0"), "{names}");
        let refused = room.finish_run(&["ibv_rc_pingpong", "-d", "ib0"]).expect("it ends");
        assert!(!refused.succeeded() && refused.everything().contains("ib0"), "{}", refused.told());
        // iproute2 sees both devices, with a gap between them.
        let links = said(&room, &["/usr/bin/rdma", "dev"]);
        assert!(links.starts_with("0: softhca0: ") && links.contains("\n2: softhca2: "), "{links}");

        assert!(!first.everything().contains("event_type"), "{}", first.everything());
        let again = pair.traffic("ib_write_bw", &room, &room);
        assert!(again.is_ok(), "the pair on the other device continues: {again:?}");
    }
}

#[test]
fn connections_through_a_removed_device_end() {
    let room = Room::of(User::Nobody).expect("a room");
    let path = cprogram::build_with(&room, "refusals", &["-lrdmacm"]).expect("it compiles");
    let program = path.to_str().expect("a plain path");
    let start = |listens: &str, calls: &str| {
        let place = room.place(Family::V4);
        let server = place.serve(&format!("{program} -a ADDRESS -p PORT -l {listens}")).expect("it listens");
        let client = place.call(&server, &format!("{program} -a ADDRESS -p PORT -c {calls}")).expect("it starts");
        (server.program, client)
    };
    let ended = |program: &mut Program| -> Outcome { program.wait(HANG).expect("it ends") };
    let (mut server, mut client) = start("accept", "established");
    client.wait_for_words("ESTABLISHED", HANG).expect("connected");
    server.wait_for_words("ESTABLISHED", HANG).expect("connected");
    device(&room, &["remove", "softhca0"]);
    // The server has two ids: the listener, and that of the connection.
    for (side, count) in [(&mut server, 2), (&mut client, 1)] {
        let side = ended(side);
        assert_eq!(side.code, 3, "{}", side.told());
        assert_eq!(side.output.matches("DEVICE_REMOVAL status 0").count(), count, "{}", side.told());
    }
    let none = room.finish_run(&["ibv_devices"]).expect("it ends").expect_success();
    assert!(!none.everything().contains("softhca0") && !none.errors.contains("no agent"), "{}", none.told());
    device(&room, &["add", "softhca0"]);
    let (mut server, mut client) = start("accept", "disconnect");
    assert!(ended(&mut client).succeeded() && ended(&mut server).succeeded());
}

#[test]
fn wrong_commands_say_what_is_wrong() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let file = room.folder().join("more.toml");
    std::fs::write(&file, "idle_exit = 5\n[[devices]]\nname = \"more\"\n").expect("written");
    let file = file.display().to_string();
    for (words, code, told) in [
        (vec!["add", "softhca0"], 1, "a device \"softhca0\" already"),
        (vec!["add", "two words"], 1, "letters, digits"),
        (vec!["add", "--config", &file], 1, "unknown field `idle_exit`"),
        (vec!["add", "--config", "/nonexistent"], 1, "/nonexistent: No such file"),
        (vec!["add", "more", "--config", &file], 2, "cannot be used with"),
        (vec!["add"], 2, "required"),
        (vec!["remove", "softhca7"], 1, "`softhca devices` lists them"),
    ] {
        let line: Vec<&str> = ["agent", "device"].into_iter().chain(words).collect();
        let refused = room.finish(room.softhca(&line)).expect("it ends");
        assert!(refused.code == code && refused.errors.contains(told), "{line:?}: {}", refused.told());
    }
    let json = room.json(&["agent", "device", "add", "more", "--json"]).expect("JSON");
    assert_eq!(json["added"], serde_json::json!(["more"]));
    let json = room.json(&["agent", "device", "remove", "more", "--json"]).expect("JSON");
    assert_eq!(json["removed"], serde_json::json!(["more"]));
}
