//! Tests InfiniBand ports, on one host and between hosts: how tools show them, and programs that
//! give no GID index. The tests of qperf, which works without a GID index only, are in
//! `cm_qperf.rs`.

use harness::{Family, HANG, Hosts, Pair, Place, Room, Sides, User, cprogram, lists};

const INFINIBAND: &[&str] = &["--link-layer", "infiniband"];

/// A room whose only address has LID 1.
fn room(user: User) -> Room {
    let options = [INFINIBAND, &["--address", "127.0.0.1"]].concat();
    Room::of(user).expect("a room").with_agent(&options).expect("an agent")
}

fn hosts(mtu: u32, user: User) -> Option<Hosts> {
    let hosts = Hosts::joined(mtu, user).expect("two namespaces")?;
    Some(hosts.with_agents(INFINIBAND).expect("agents"))
}

#[test]
fn devices_and_doctor_say_what_the_port_is() {
    for user in [User::Me, User::Nobody] {
        let room = room(user);
        let info = room.finish_run(&["ibv_devinfo", "-v"]).expect("it ends").expect_success();
        for words in
            ["link_layer:\t\tInfiniBand", "port_lid:\t\t1\n", "sm_lid:\t\t\t1\n", "port_lmc:\t\t0x00", "PORT_ACTIVE"]
        {
            assert!(info.output.contains(words), "no {words:?}: {}", info.told());
        }
        assert!(!info.output.contains("RoCE"), "{}", info.told());
        let devices = room.finish(room.softhca(&["devices"])).expect("it ends").expect_success();
        assert!(devices.output.contains("LID 1 stands for 127.0.0.1"), "{}", devices.told());
        let json = room.json(&["devices", "--json"]).expect("JSON");
        let port = &json["devices"][0]["ports"][0];
        assert_eq!((port["lid"].as_u64(), port["link_layer"].as_str()), (Some(1), Some("InfiniBand")), "{port:#}");
        let doctor = room.finish(room.softhca(&["doctor"])).expect("it ends").expect_success();
        assert!(doctor.output.contains("InfiniBand; LID 1 stands for 127.0.0.1"), "{}", doctor.told());
    }
}

#[test]
fn doctor_tells_ethernet_users_of_it() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let doctor = room.finish(room.softhca(&["doctor"])).expect("it ends").expect_success();
    assert!(doctor.output.contains("Ethernet (RoCE)") && doctor.output.contains("--link-layer"), "{}", doctor.told());
}

/// Does what Debian's `ibstatus` does: a shell script walks through folders and reads files.
#[test]
fn a_script_in_the_manner_of_ibstatus() {
    let words = "cd /sys/class/infiniband/softhca0/ports/1 && echo \"$(cat gids/0) lid $(cat lid) sm $(cat sm_lid) \
                 $(cat lid_mask_count) $(cat state), $(cat phys_state), $(cat rate), $(cat link_layer), \
                 $(cat gid_attrs/types/1), $(cat ../../node_type)\"";
    let said = room(User::Nobody).finish_run(&["sh", "-c", words]).expect("it ends").expect_success().output;
    assert!(said.starts_with("fe80:0000:0000:0000:"), "{said}");
    let expected = "lid 0x1 sm 0x1 0 4: ACTIVE, 5: LinkUp, 100 Gb/sec (4X EDR), InfiniBand, IB/RoCE v1, 1: CA\n";
    assert!(said.ends_with(expected), "{said}");
}

#[test]
fn run_starts_such_an_agent_and_takes_no_other() {
    let room = Room::new().expect("a room");
    let run = |layer: &str| {
        let words = ["run", "--link-layer", layer, "--", "ibv_devinfo"];
        room.finish(room.softhca(&words)).expect("it ends")
    };
    let first = run("infiniband").expect_success();
    assert!(first.output.contains("link_layer:\t\tInfiniBand"), "{}", first.told());
    run("infiniband").expect_success();
    let refused = run("ethernet");
    assert!(refused.code == 125 && refused.errors.contains("another link layer: InfiniBand"), "{}", refused.told());
    let unknown = run("token-ring");
    assert!(unknown.code == 125 && unknown.errors.contains("infiniband"), "{}", unknown.told());
}

#[test]
fn a_port_of_each_kind() {
    let room = Room::new().expect("a room");
    let file = room.folder().join("agent.toml");
    let config = "[[devices]]\n[[devices.ports]]\n[[devices.ports]]\nlink_layer = 'infiniband'\n";
    std::fs::write(&file, config).expect("written");
    let room = room.with_agent(&["--config", &file.display().to_string(), "--address", "127.0.0.1"]).expect("an agent");
    for (number, layer, lid) in [("1", "Ethernet", "0"), ("2", "InfiniBand", "1")] {
        let words = ["ibv_devinfo", "-i", number];
        let info = room.finish_run(&words).expect("it ends").expect_success();
        let (layer, lid) = (format!("link_layer:\t\t{layer}"), format!("port_lid:\t\t{lid}\n"));
        assert!(info.output.contains(&layer) && info.output.contains(&lid), "{}", info.told());
    }
    Pair::must_succeed(&room, &["ibv_rc_pingpong", "-i", "2", "-c"]);
    Pair::must_succeed(&room, &["ibv_rc_pingpong", "-i", "1", "-g", "0", "-c"]);
}

/// What `softhca port` changes is seen by programs that run, and by those that begin later.
#[test]
fn a_port_changes_while_programs_run() {
    let room = room(User::Me);
    let mut watch = room.start(room.run(&["stdbuf", "-oL", "ibv_asyncwatch"])).expect("it starts");
    watch.wait_for_words("async event FD", HANG).expect("it watches");
    for (options, events) in [
        ("--lid 8 --lmc 2", "LID_CHANGE, SM_CHANGE"),
        ("--sm-lid 1 --sm-sl 3", "SM_CHANGE"),
        ("--pkeys 0xffff,0x8001", "PKEY_CHANGE"),
        ("--subnet-prefix fec0:0:0:1", "GID_CHANGE"),
        ("--reregister", "CLIENT_REREGISTER"),
        ("--state down", "PORT_ERR"),
        ("--state active", "PORT_ACTIVE"),
        ("--subnet-timeout 20 --rate 1X_HDR", "none"),
    ] {
        let options: Vec<String> = options.split(' ').map(|word| word.replace('_', " ")).collect();
        let words: Vec<&str> = ["port"].into_iter().chain(options.iter().map(String::as_str)).collect();
        let told = room.finish(room.softhca(&words)).expect("it ends").expect_success();
        assert!(told.output.contains(&format!("events: {events}\n")), "{}", told.told());
    }
    // It prints its own words for the events; the last one that it gets is of the state.
    for words in
        ["EVENT_LID_CHANGE", "EVENT_SM_CHANGE", "EVENT_PKEY_CHANGE", "EVENT_CLIENT_REREGISTER", "EVENT_PORT_ACTIVE"]
    {
        watch.wait_for_words(words, HANG).expect(words);
    }
    let info = room.finish_run(&["ibv_devinfo", "-v"]).expect("it ends").expect_success();
    for words in
        ["port_lid:\t\t8\n", "port_lmc:\t\t0x02", "sm_lid:\t\t\t1\n", "subnet_timeout:\t\t20", "fec0:0000:0000:0001:"]
    {
        assert!(info.output.contains(words), "no {words:?}: {}", info.told());
    }
    let words = "cd /sys/class/infiniband/softhca0/ports/1 && cat lid lid_mask_count sm_lid sm_sl rate pkeys/1";
    let said = room.finish_run(&["sh", "-c", words]).expect("it ends").expect_success().output;
    assert_eq!(said, "0x8\n2\n0x1\n3\n50 Gb/sec (1X HDR)\n0x8001\n");
    let json = room.json(&["port", "softhca0/1", "--json"]).expect("JSON");
    assert_eq!((json["device"].as_str(), json["port"]["lmc"].as_u64()), (Some("softhca0"), Some(2)), "{json:#}");
    for (words, told) in [
        (["port", "--lid", "9"], "port 1 of softhca0: `lid` is 9; with this `lmc` it is a multiple of 4"),
        (["port", "softhca7", "--reregister"], "`softhca devices` lists the ports"),
        (["port", "softhca0/2", "--reregister"], "its ports are 1 to 1"),
        (["port", "--rate", "fast"], "such as \"4X EDR\""),
    ] {
        let refused = room.finish(room.softhca(&words)).expect("it ends");
        assert!(refused.code == 1 && refused.errors.contains(told), "{}", refused.told());
    }
    Pair::must_succeed(&room, &["ibv_rc_pingpong", "-c"]);
}

/// Programs that exchange LIDs over TCP, with the options for this test.
const BY_LID: &[&[&str]] = &[
    &["ibv_rc_pingpong", "-c"],
    &["ibv_rc_pingpong", "-c", "-e", "-s", "100000", "-m", "2048"],
    &["ibv_uc_pingpong", "-c"],
    &["ibv_ud_pingpong", "-c", "-s", "1000"],
    &["ibv_ud_pingpong", "-c", "-e", "-s", "1000"],
    &["ibv_srq_pingpong", "-c"],
    &["ib_send_bw"],
    &["ib_send_bw", "-c", "UC"],
    &["ib_send_bw", "-c", "UD"],
    &["ib_send_lat", "-c", "UD"],
    &["ib_write_lat"],
    &["ib_write_bw", "-q", "4"],
    &["ib_read_bw"],
    &["ib_atomic_lat", "-A", "FETCH_AND_ADD"],
];

#[test]
fn by_lid_on_one_host() {
    for (words, user) in BY_LID.iter().zip([User::Me, User::Nobody].into_iter().cycle()) {
        lists::expect_figures(words, &Pair::must_succeed(&room(user), words));
    }
}

#[test]
fn by_lid_between_namespaces() {
    for (mtu, user) in [(1500, User::Nobody), (9000, User::Me)] {
        let Some(hosts) = hosts(mtu, user) else { return };
        for words in BY_LID {
            let (there, here) = (hosts.left.room(), hosts.right.room());
            let run = || Pair::connect(there, words, here, words, &hosts.left.rendezvous())?.wait(HANG);
            lists::expect_figures(words, &Sides::must_succeed(words, Sides::measured(run)));
        }
    }
}

fn built(room: &Room) -> String {
    cprogram::build(room, "lids").expect("it compiles").to_str().expect("a plain path").to_owned()
}

#[test]
fn datagrams_come_without_a_grh_and_are_answered_by_lid() {
    for user in [User::Me, User::Nobody] {
        let room = room(user);
        let sides = Pair::must_succeed(&room, &[&built(&room)]);
        assert!(sides.client.output.contains("LID 1 and LID 1"), "{}", sides.client.told());
    }
    for (mtu, user) in [(1500, User::Me), (9000, User::Nobody)] {
        let Some(hosts) = hosts(mtu, user) else { return };
        let (there, here) = (hosts.left.room(), hosts.right.room());
        let words = [&*built(there)];
        let pair =
            Pair::connect(there, &words, here, &words, &hosts.left.rendezvous()).and_then(|mut pair| pair.wait(HANG));
        let sides = Sides::must_succeed(&words, pair);
        assert!(sides.client.output.contains("LID 2 and LID 1"), "{}", sides.client.told());
    }
}

#[test]
fn by_gid_between_namespaces() {
    let Some(hosts) = hosts(1500, User::Nobody) else { return };
    for (family, words) in [
        (Family::V4, &["ibv_rc_pingpong", "-c"][..]),
        (Family::V6, &["ibv_rc_pingpong", "-c"]),
        (Family::V4, &["ibv_ud_pingpong", "-c", "-s", "1000"]),
        (Family::V6, &["ib_send_bw", "-c", "UD"]),
    ] {
        lists::expect_figures(words, &hosts.must_succeed(family, words));
    }
}

/// An Ethernet host and an InfiniBand host. Connections by GID work the same way on both.
#[test]
fn the_kinds_of_ports_understand_each_other() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let right = hosts.right.room();
    for words in [&["agent", "--stop"][..], &["agent", "--link-layer", "infiniband"]] {
        right.finish(right.softhca(words)).expect("it ends").expect_success();
    }
    hosts.must_succeed(Family::V4, &["ibv_rc_pingpong", "-c"]);
    hosts.must_succeed(Family::V4, &["ibv_ud_pingpong", "-c", "-s", "1000"]);
    hosts.place(Family::V4).must_meet("rping -s -a ADDRESS -p PORT -C 10", "rping -c -a ADDRESS -p PORT -C 10 -V");
}

/// The connection manager's own programs, one after the other.
macro_rules! rows {
    ($($name:ident: $server:literal => $client:literal;)*) => {
        const MANAGED: &[(&str, &str)] = &[$(($server, $client)),*];
    };
}

harness::manager_list!(rows);

#[track_caller]
fn managed(place: Place<'_>) {
    for (server, client) in MANAGED {
        place.must_meet(server, client);
    }
    // A member learns the LID of a multicast group together with its GID.
    let receiver = "mckey -m 239.47.91.3 -b OWN -C 10";
    place.must_meet(receiver, &format!("{receiver} -s"));
}

#[test]
fn connections_by_address_on_one_host() {
    managed(room(User::Nobody).place(Family::V4));
}

#[test]
fn connections_by_address_between_namespaces() {
    let Some(hosts) = hosts(1500, User::Me) else { return };
    managed(hosts.place(Family::V4));
    hosts.place(Family::V6).must_meet("rping -s -a ADDRESS -p PORT -C 5", "rping -c -a ADDRESS -p PORT -C 5 -V");
}
