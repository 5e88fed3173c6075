//! Tests ports that belong to several partitions, with unmodified programs on one host and between
//! hosts.

use harness::program::send;
use harness::{Family, HANG, Hosts, Outcome, Pair, Program, Room, Sides, User, cprogram, lists, port, process, wait};
use rustix::process::Signal;

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

/// Two switches with two adapters each. The first three are in the partition 1: as a full and a
/// limited member, as a full one, and as a limited one. All are in the partition 2.
const FOUR: &str = "\
Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[8] \"S2\"[8]\n\n\
Switch 8 \"S2\"\n[1] \"H3\"[1]\n[2] \"H4\"[1]\n\n\
Hca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n\nHca 1 \"H4\"\n";
const PARTITIONS: &str = "\
Default=0x7fff : ALL=full ;
one=0x0001, ipoib : 0x100001=both, 0x100003=full, 0x100005=limited ;
two=0x0002, ipoib : ALL=full ;
";

/// Sets a block of a P_Key table by LID: the LID, the port of the switch, and the first key. The
/// other keys are 0.
const SET_KEYS: &str = "
import ctypes, struct, sys
u = ctypes.CDLL('libibumad.so.3')
assert u.umad_init() == 0
port = u.umad_open_port(None, 0)
agent = u.umad_register(port, 1, 1, 0, None)
assert port >= 0 and agent >= 0, (port, agent)
size = u.umad_size()
umad = ctypes.create_string_buffer(size + 256)
mad = bytearray(struct.pack('>BBBBHHQHHI', 1, 1, 1, 2, 0, 0, 7, 0x16, 0, int(sys.argv[2]) << 16)) + bytes(232)
for at, key in enumerate(sys.argv[3:]):
    struct.pack_into('>H', mad, 64 + 2 * at, int(key, 0))
ctypes.memmove(ctypes.addressof(umad) + size, bytes(mad), len(mad))
u.umad_set_addr(umad, int(sys.argv[1]), 0, 0, 0)
assert u.umad_send(port, agent, umad, 256, 1000, 3) == 0
length = ctypes.c_int(256)
assert u.umad_recv(port, umad, ctypes.byref(length), -1) == agent
print('status', u.umad_status(umad), umad.raw[size + 4:size + 6].hex())
";

/// A room whose agent has this topology, and a manager that enforces the partitions at switches.
fn four() -> (Room, Program) {
    let room = Room::of(User::Nobody).expect("a room").with_topology(FOUR, &["--no-subnet-manager"]).expect("an agent");
    let file = room.folder().join("partitions.conf");
    std::fs::write(&file, PARTITIONS).expect("written");
    let words = ["sm", "--node", "H1", "--partitions", &file.display().to_string()];
    let mut manager = room.start(room.softhca(&words)).expect("it starts");
    manager.wait_for_words("subnet up", HANG).expect("it comes up");
    (room, manager)
}

fn lid(room: &Room, name: &str) -> String {
    let subnet = room.json(&["subnet", "--json"]).expect("JSON");
    let mut nodes = subnet["subnet"].as_array().into_iter().flatten();
    nodes.find(|node| node["name"] == name).expect("the node")["ports"][0]["lid"].to_string()
}

/// A counter of constraint errors, as perfquery of H2 reads it: `Xmit` or `Rcv`, of a port of a
/// switch.
#[track_caller]
fn constraints(room: &Room, way: &str, switch: &str, port: &str) -> u64 {
    let words = ["perfquery", &lid(room, switch), port];
    let told = room.finish(room.on("H2", &words)).expect("it ends").expect_success().output;
    let name = format!("Port{way}ConstraintErrors:");
    let line = told.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_else(|| panic!("no {name} in {told}"));
    line.trim_matches('.').parse().expect("a number")
}

/// ib_send_lat of a transport, from H1 with an index of its P_Keys to another node with one. Both
/// sides are ended when `is_enough`.
#[track_caller]
fn sent(room: &Room, kind: &str, from: &str, (node, to): (&str, &str), is_enough: impl Fn() -> bool) -> Outcome {
    let [to, from] = [to, from].map(|index| format!("--pkey_index={index}"));
    let words = ["ib_send_lat", "-c", kind, "-n", "10", "-u", "8"];
    let (server, client) = ([&words[..], &[&to]].concat(), [&words[..], &[&from]].concat());
    let mut pair = Pair::on_nodes(room, (node, &server), ("H1", &client)).expect("they start");
    let ended = || (pair.client.ended() || is_enough()).then_some(());
    wait::until(HANG, "the client", ended).expect("it ends");
    for program in [&pair.client, &pair.server] {
        process::descendants(program.id()).into_iter().for_each(|pid| send(pid, Signal::TERM));
    }
    pair.client.wait(HANG).expect("it ends")
}

/// IBA 10.9.4 and 14.2.5.6: where the port's PortInfo says so, a switch compares the P_Keys of
/// packets that leave by the port, and of those that come in, with the table of this port.
#[test]
fn a_switch_drops_other_partitions_counts_them_and_tells_its_manager() {
    let (room, mut manager) = four();
    let never = || false;
    // H3 is a member, and H4 is not: the port to it does not let the key pass.
    let (member, stranger) = (("H3", "1"), ("H4", "0"));
    assert!(sent(&room, "RC", "1", member, never).succeeded());
    let at_exit = || constraints(&room, "Xmit", "S2", "2");
    assert_eq!(at_exit(), 0);
    let refused = sent(&room, "RC", "1", stranger, never);
    let lost = "the switches let no packet with service level 0 and this P_Key pass";
    assert!(!refused.succeeded() && refused.errors.contains(lost), "{}", refused.told());
    let source = lid(&room, "H1");
    let trap = |guid: &str| {
        format!(
            "port GUID {guid} has dropped a packet for its P_Key; its source LID is {source} (trap 259, number 1 of"
        )
    };
    manager.wait_for_words(&trap("0x200001"), HANG).expect("the switch tells its manager");
    wait::until(HANG, "the counter", || (at_exit() >= 8).then_some(())).expect("all tries count");
    let before = at_exit();
    sent(&room, "UD", "1", stranger, || at_exit() > before);
    assert!(at_exit() > before, "a datagram counts as well");
    // The same with the table of the port by which the packets of H1 come in.
    let at_entry = || constraints(&room, "Rcv", "S1", "1");
    let set = |keys: &[&str]| {
        let switch = lid(&room, "S1");
        let words = [&["python3", "-c", SET_KEYS, &switch, "1"], keys].concat();
        assert!(room.finish(room.on("H1", &words)).expect("it ends").expect_success().output.contains("status 0 0000"));
    };
    assert_eq!(at_entry(), 0);
    set(&["0xffff", "0x8002"]);
    assert!(!sent(&room, "RC", "1", member, never).succeeded());
    manager.wait_for_words(&trap("0x200000"), HANG).expect("the switch tells its manager");
    wait::until(HANG, "the counter", || (at_entry() >= 8).then_some(())).expect("all tries count");
    set(&["0xffff", "0x8001", "0x8002"]);
    assert!(sent(&room, "RC", "1", member, never).succeeded());
}

/// A member of the group of the first of these keys, and where it listens.
#[track_caller]
fn member(room: &Room, program: &str, node: &str, keys: &[&str]) -> (Program, String) {
    let port = port::Port::reserve().expect("a port");
    let number = port.number().to_string();
    let keys = keys.iter().flat_map(|key| ["-k", key]);
    let words: Vec<&str> = [program, "-p", &number].into_iter().chain(keys).collect();
    let mut member = room.start(room.on(node, &words)).expect("it starts");
    port::wait_for_listener(member.id(), port.number(), HANG, || member.ended()).expect("it has joined");
    (member, format!("127.0.0.1:{number}"))
}

/// The sender has the keys of a full and of a limited member of the group's partition, and that of
/// another partition.
#[test]
fn a_group_is_for_its_partition_and_full_members_get_one_copy() {
    let (room, _manager) = four();
    let program = cprogram::build_with(&room, "memberships", &["-libumad"]).expect("it compiles").display().to_string();
    let mut members =
        [("H2", "0x8001"), ("H3", "0x0001")].map(|(node, own)| member(&room, &program, node, &[own, "0x8002"]));
    let words = [&program, "-k", "0x8001", "-k", "0x0001", "-k", "0x8002", &members[0].1, &members[1].1];
    room.finish(room.on("H1", &words)).expect("it ends").expect_success();
    let got = |keys: &[&str]| -> String {
        keys.iter().flat_map(|key| (0..5).map(move |number| format!(" {key}/{number}"))).collect()
    };
    let others = format!("0x8002:{}\n", got(&["0x8002"]));
    let expected =
        [format!("0x8001:{}\n{others}", got(&["0x8001", "0x0001"])), format!("0x0001:{}\n{others}", got(&["0x8001"]))];
    for ((member, _), expected) in members.iter_mut().zip(expected) {
        assert_eq!(member.wait(HANG).expect("it ends").expect_success().output, expected);
    }
    let keyless = room.finish(room.on("H4", &[&program, "-p", "1", "-k", "0x8001"])).expect("it ends");
    assert!(keyless.errors.contains("the join is refused with status 0x0200"), "{}", keyless.told());
}

/// Datagrams with another partition's key go to a group that everybody has joined.
#[test]
fn a_switch_drops_copies_of_other_partitions_and_tells_its_manager() {
    let (room, mut manager) = four();
    let program = cprogram::build_with(&room, "memberships", &["-libumad"]).expect("it compiles").display().to_string();
    let mut members = ["H3", "H4"].map(|node| member(&room, &program, node, &["0x8002"]));
    let words = [&program, "-k", "0x8002", "-k", "0x8001", &members[0].1, &members[1].1];
    room.finish(room.on("H1", &words)).expect("it ends").expect_success();
    for (member, _) in &mut members {
        let told = member.wait(HANG).expect("it ends").expect_success().output;
        assert_eq!(told, "0x8002: 0x8002/0 0x8002/1 0x8002/2 0x8002/3 0x8002/4\n");
    }
    // The port of H4 lets no packet of partition 1 pass, so H4 itself has dropped nothing.
    let trap = "port GUID 0x200001 has dropped a packet for its P_Key";
    manager.wait_for_words(trap, HANG).expect("the switch tells its manager");
    assert_eq!(constraints(&room, "Xmit", "S2", "2"), 6);
    let info = room.finish(room.on("H4", &["smpquery", "-D", "portinfo", "0"])).expect("it ends").expect_success();
    assert!(info.output.contains("PkeyViolations:..................0\n"), "{}", info.told());
}
