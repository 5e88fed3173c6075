//! Tests ports that belong to several partitions, with unmodified programs on one host and between
//! hosts.

use harness::{Family, HANG, Hosts, Pair, Room, Sides, User, lists};

/// Index 1 and 2 are the full and the limited member of one partition; index 3 is another
/// partition.
const CONFIG: &str = "[[devices]]\n[[devices.ports]]\npkeys = [0xffff, 0x8001, 0x0001, 0x8002]\n";

fn configured(room: &Room, config: &str) -> String {
    let file = room.folder().join("partitions.toml");
    std::fs::write(&file, config).expect("written");
    file.display().to_string()
}

fn room(user: User) -> Room {
    let room = Room::of(user).expect("a room");
    let file = configured(&room, CONFIG);
    room.with_agent(&["--config", &file]).expect("an agent")
}

#[test]
fn programs_see_the_table() {
    let room = room(User::Nobody);
    let words = "cat /sys/class/infiniband/softhca0/ports/1/pkeys/*";
    let said = room.finish_run(&["sh", "-c", words]).expect("it ends").expect_success().output;
    assert_eq!(said, "0xffff\n0x8001\n0x0001\n0x8002\n");
    let info = room.finish_run(&["ibv_devinfo", "-v"]).expect("it ends").expect_success();
    assert!(info.output.contains("max_pkeys:\t\t\t4\n"), "{}", info.told());
    let json = room.json(&["devices", "--json"]).expect("JSON");
    let pkeys = &json["devices"][0]["ports"][0]["pkeys"];
    assert_eq!(*pkeys, serde_json::json!([0xffff, 0x8001, 0x0001, 0x8002]));
}

#[test]
fn members_of_one_partition_communicate() {
    for (user, program) in [(User::Me, "ib_write_bw"), (User::Nobody, "ib_send_lat")] {
        let room = room(user);
        for [server, client] in [["1", "1"], ["1", "2"], ["2", "1"], ["3", "3"]] {
            let words = |index| format!("--pkey_index={index}");
            let (server, client) = (words(server), words(client));
            let sides = Sides::measured(|| {
                Pair::start_different(&room, &[program, &server], &room, &[program, &client])?.wait(HANG)
            });
            let sides = Sides::must_succeed(&[program, &client], sides);
            lists::expect_figures(&[program], &sides);
        }
    }
}

#[test]
fn members_of_different_partitions_do_not_and_the_reason_names_the_keys() {
    let room = room(User::Nobody);
    for [server, client, keys] in
        [["1", "3", "0x8002|0x8001"], ["2", "2", "0x0001|0x0001"], ["0", "1", "0x8001|0xffff"]]
    {
        let words = |index| format!("--pkey_index={index}");
        let (server, client) = (words(server), words(client));
        let mut pair =
            Pair::start_different(&room, &["ib_send_lat", &server], &room, &["ib_send_lat", "-u", "8", &client])
                .expect("both start");
        // The server waits for ever, as it does on hardware.
        let client = pair.client.wait(HANG).expect("it ends");
        assert!(!client.succeeded(), "{}", client.told());
        let errors = room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success();
        let (theirs, own) = keys.split_once('|').expect("two keys");
        let reason = format!("its P_Key is {theirs}, which the QP's P_Key {own} does not accept");
        assert!(errors.output.contains(&reason), "no {reason:?} in {}", errors.told());
    }
}

#[test]
fn connections_by_address_are_made_in_the_first_partition() {
    let config = "[[devices]]\n[[devices.ports]]\npkeys = [0x8001]\n";
    let room = Room::of(User::Nobody).expect("a room");
    let file = configured(&room, config);
    let room = room.with_agent(&["--config", &file]).expect("an agent");
    room.place(Family::V4).must_meet("rping -s -a ADDRESS -p PORT -C 10", "rping -c -a ADDRESS -p PORT -C 10");
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let file = configured(hosts.left.room(), config);
    let hosts = hosts.with_agents(&["--config", &file]).expect("agents");
    hosts.place(Family::V4).must_meet("rping -s -a ADDRESS -p PORT -C 10", "rping -c -a ADDRESS -p PORT -C 10");
    let words = ["ib_write_bw", "--pkey_index=0"];
    lists::expect_figures(&words, &hosts.must_succeed(Family::V4, &words));
}

const TWO: &str = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";

/// Sends a request for ClassPortInfo of performance management to a LID, with a Q_Key.
const GMP: &str = "
import ctypes, struct, sys
u = ctypes.CDLL('libibumad.so.3')
assert u.umad_init() == 0
port = u.umad_open_port(None, 0)
agent = u.umad_register(port, 4, 1, 0, None)
assert port >= 0 and agent >= 0, (port, agent)
size = u.umad_size()
umad = ctypes.create_string_buffer(size + 256)
mad = struct.pack('>BBBBHHQHHI', 1, 4, 1, 1, 0, 0, 7, 1, 0, 0)
ctypes.memmove(ctypes.addressof(umad) + size, mad, len(mad))
u.umad_set_addr(umad, int(sys.argv[1]), 1, 0, int(sys.argv[2], 0))
assert u.umad_send(port, agent, umad, 256, 100, 0) == 0
length = ctypes.c_int(256)
assert u.umad_recv(port, umad, ctypes.byref(length), -1) == agent
print('status', u.umad_status(umad))
";

#[test]
fn a_port_counts_wrong_keys_and_tells_its_manager() {
    let room = Room::of(User::Nobody).expect("a room").with_topology(TWO, &["--no-subnet-manager"]).expect("an agent");
    let file = room.folder().join("partitions.conf");
    std::fs::write(&file, "Default=0x7fff : ALL=full ;\nblue=0x0005 : ALL=full ;\n").expect("written");
    let words = ["sm", "--node", "H1", "--partitions", &file.display().to_string()];
    let mut manager = room.start(room.softhca(&words)).expect("it starts");
    manager.wait_for_words("subnet up", HANG).expect("it comes up");
    let said = |node, words: &[&str]| room.finish(room.on(node, words)).expect("it ends").expect_success().output;
    // A field of PortInfo of H2.
    let info = |field: &str| {
        let told = said("H2", &["smpquery", "-D", "portinfo", "0"]);
        let line = told.lines().find(|line| line.starts_with(field)).unwrap_or_else(|| panic!("no {field} in {told}"));
        line.rsplit('.').next().unwrap_or_default().parse::<u32>().expect("a number")
    };
    assert_eq!((info("PkeyViolations:"), info("QkeyViolations:")), (0, 0));
    let port = harness::port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let server = room.start(room.on("H2", &["ib_send_lat", "-p", &number, "--pkey_index=1"])).expect("it starts");
    harness::port::wait_for_listener(server.id(), port.number(), HANG, || false).expect("it listens");
    let words = ["ib_send_lat", "-p", &number, "--pkey_index=0", "-u", "8", "127.0.0.1"];
    let client = room.finish(room.on("H1", &words)).expect("it ends");
    assert!(!client.succeeded(), "{}", client.told());
    manager.wait_for_words("has dropped a packet for its P_Key; its source LID is", HANG).expect("it prints the trap");
    assert!(info("PkeyViolations:") > 0);
    let lid = info("Lid:").to_string();
    let (right, wrong) = ("0x80010000", "0x1234");
    assert!(said("H1", &["python3", "-c", GMP, &lid, right]).contains("status 0"));
    assert_eq!(info("QkeyViolations:"), 0);
    assert!(said("H1", &["python3", "-c", GMP, &lid, wrong]).contains("status 110"));
    manager.wait_for_words("has dropped a packet for its Q_Key; its source LID is", HANG).expect("it prints the trap");
    assert_eq!(info("QkeyViolations:"), 1);
}
