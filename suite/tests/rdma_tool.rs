//! Tests iproute2's `rdma` on softhca: its output about devices, links, objects and the system is
//! the same as for a kernel's devices. Also tests a program that speaks to NETLINK_RDMA itself.
//! Test suites of other projects run `rdma` first.

use std::path::Path;

use harness::{Family, HANG, Place, Room, User, wait};
use serde_json::Value;

const RDMA: &str = "/usr/bin/rdma";

fn rooms() -> Vec<Room> {
    [User::Me, User::Nobody].map(|user| Room::of(user).expect("a room")).into()
}

/// The output of `rdma` with these words.
#[track_caller]
fn said(room: &Room, words: &str) -> String {
    let line: Vec<&str> = std::iter::once(RDMA).chain(words.split(' ')).collect();
    room.finish_run(&line).expect("it ends").expect_success().output
}

/// The JSON output of `rdma`.
#[track_caller]
fn json(room: &Room, words: &str) -> Value {
    let text = said(room, words);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}: {text}"))
}

#[test]
fn links_and_devices_are_shown_as_of_a_kernel() {
    for room in rooms() {
        let link = said(&room, "link");
        assert!(link.starts_with("link softhca0/1 state ACTIVE physical_state LINK_UP netdev "), "{link}");
        assert_eq!(said(&room, "link show softhca0/1"), link);
        let link = json(&room, "-j link show");
        assert_eq!(link[0]["ifname"], "softhca0", "{link}");
        assert_eq!((&link[0]["port"], &link[0]["state"]), (&1.into(), &"ACTIVE".into()), "{link}");
        let device = said(&room, "dev");
        for words in ["0: softhca0: node_type ca", "fw 0.1.0", "node_guid ", "sys_image_guid "] {
            assert!(device.contains(words), "no {words:?}: {device}");
        }
        let guid = room.json(&["devices", "--json"]).expect("devices")["devices"][0]["node_guid"].clone();
        let device = json(&room, "-j dev show softhca0");
        assert_eq!((&device[0]["ifname"], &device[0]["node_guid"]), (&"softhca0".into(), &guid), "{device}");
    }
}

#[test]
fn infiniband_links_have_lids() {
    let room = Room::new().expect("a room").with_agent(&["--link-layer", "infiniband"]).expect("an agent");
    let link = said(&room, "link");
    for words in ["link softhca0/1 ", "subnet_prefix fe80:0000:0000:0000 ", " lid ", " sm_lid ", " lmc 0 "] {
        assert!(link.contains(words), "no {words:?}: {link}");
    }
    let lid = room.json(&["devices", "--json"]).expect("devices")["devices"][0]["ports"][0]["lid"].clone();
    assert_eq!(json(&room, "-j link show")[0]["lid"], lid);
}

#[test]
fn a_device_may_have_any_name() {
    let room = Room::new().expect("a room");
    let config = room.folder().join("agent.toml");
    std::fs::write(&config, "[[devices]]\nname = \"rxe0\"\n[[devices]]\nname = \"mlx5_1\"\n").expect("written");
    let config = config.display().to_string();
    let room = room.with_agent(&["--config", &config]).expect("an agent");
    let link = said(&room, "link");
    assert!(link.contains("link rxe0/1 state ACTIVE") && link.contains("link mlx5_1/1 state ACTIVE"), "{link}");
    let device = json(&room, "-j dev show mlx5_1");
    assert_eq!((&device[0]["ifname"], &device[0]["ifindex"]), (&"mlx5_1".into(), &1.into()), "{device}");
    // Soft-RoCE also refuses with this error when the name is taken.
    let line = [RDMA, "link", "add", "rxe0", "type", "rxe", "netdev", "lo"];
    let added = room.finish_run(&line).expect("it ends");
    assert!(!added.succeeded() && added.errors.contains("File exists"), "{}", added.told());
}

#[test]
fn the_system_and_what_is_not_there() {
    for room in rooms() {
        assert!(said(&room, "system").starts_with("netns shared"), "{}", said(&room, "system"));
        let none = room.finish_run(&[RDMA, "link", "show", "nosuch0/1"]).expect("it ends");
        assert!(!none.succeeded() || none.output.is_empty(), "{}", none.told());
        let empty = said(&room, "resource show");
        assert!(empty.starts_with("0: softhca0: "), "{empty}");
        for words in [" pd 0", " cq 0", " qp 0", " cm_id 0", " mr 0"] {
            assert!(empty.contains(words), "no {words}: {empty}");
        }
        for kind in ["qp", "cq", "mr", "pd", "cm_id"] {
            assert_eq!(said(&room, &format!("resource show {kind}")), "", "{kind}");
        }
    }
}

/// A pair of rping that has connected, and the output of `rdma` about its objects.
#[test]
fn objects_of_running_programs_are_shown() {
    for room in rooms() {
        let place: Place<'_> = room.place(Family::V4);
        let server = place.serve("rping -s -a ADDRESS -p PORT").expect("it listens");
        let listening = said(&room, "resource show cm_id");
        assert!(listening.contains("state LISTEN ps TCP"), "{listening}");
        let mut client = place.call(&server, "rping -c -a ADDRESS -p PORT").expect("it starts");
        let mut rows = Value::Null;
        wait::until(HANG, "both queue pairs to be RTS", || {
            rows = json(&room, "-j resource show qp");
            let rts = |row: &&Value| row["state"] == "RTS" && row["type"] == "RC";
            (rows.as_array().is_some_and(|rows| rows.iter().filter(rts).count() == 2)).then_some(())
        })
        .unwrap_or_else(|late| panic!("{late}: {rows:#}"));
        let shown = room.show("qp").expect("queue pairs");
        let numbers = |rows: &Value, key: &str| {
            let mut numbers: Vec<u64> =
                rows.as_array().into_iter().flatten().filter_map(|row| row[key].as_u64()).collect();
            numbers.sort_unstable();
            numbers
        };
        assert_eq!(numbers(&rows, "lqpn"), numbers(&shown, "qpn"));
        assert_eq!(numbers(&rows, "rqpn"), numbers(&rows, "lqpn"), "each is the other's peer");
        let client_pid = client.inner("rping", HANG).expect("a client");
        assert!(rows.as_array().expect("rows").iter().any(|row| row["pid"] == client_pid && row["comm"] == "rping"));
        let one = rows[0]["lqpn"].to_string();
        let line = said(&room, &format!("resource show qp link softhca0/1 lqpn {one}"));
        assert!(line.contains(&format!("lqpn {one} ")) && line.lines().count() == 1, "{line}");
        for (kind, words) in [("cq", "cqn "), ("mr", "mrlen "), ("pd", "pdn "), ("cm_id", "state CONNECT ps TCP")] {
            let text = said(&room, &format!("resource show {kind}"));
            assert!(text.contains(words) && text.contains("comm rping"), "{kind}: {text}");
        }
        let summary = said(&room, "resource show");
        // The id that listens, and the two ends of the connection.
        assert!(summary.contains(" qp 2 ") && summary.contains(" cm_id 3 "), "{summary}");
        client.signal(rustix::process::Signal::TERM);
        client.wait(HANG).expect("it ends");
    }
}

/// Without `rdma`: the sockets themselves, also after a descriptor number is reused for another
/// socket.
#[test]
fn a_netlink_socket_of_ones_own() {
    const PROGRAM: &str = r#"
import socket, struct, os
def ask(kind, flags, body=b""):
    s.sendto(struct.pack("=IHHII", 16 + len(body), kind, flags, 42, 0) + body, (0, 0))
    return s.recvfrom(65536)
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 20)
s.bind((0, 0))
assert s.getsockname() == (os.getpid(), 0), s.getsockname()
s.setsockopt(270, 10, 1)
GET, RES_QP, STAT = 5 << 10 | 1, 5 << 10 | 10, 5 << 10 | 17
answer, sender = ask(GET, 0x301)
assert sender == (0, 0), sender
assert struct.unpack_from("=HHII", answer, 4) == (GET, 2, 42, 0) and b"softhca0\0" in answer, answer
done = s.recvmsg(65536)
assert struct.unpack_from("=H", done[0], 4) == (3,) and done[3] == (0, 0), done
def refused(*words):
    answer, _ = ask(*words)
    kind, = struct.unpack_from("=H", answer, 4)
    assert kind == 2, answer
    return -struct.unpack_from("=i", answer, 16)[0]
index = lambda number: struct.pack("=HHI", 8, 1, number)
assert refused(RES_QP, 0x301) == 22, "a device is needed"
assert refused(RES_QP, 0x301, index(7)) == 19, "no such device"
assert refused(RES_QP, 1, index(0) + struct.pack("=HHI", 8, 21, 1)) == 2, "no such queue pair"
assert refused(STAT, 1, index(0)) == 22, "a port is needed"
assert refused(5 << 10 | 19, 1, index(0)) == 95, "not supported"
assert refused(7 << 10 | 1, 1) == 22, "no such client"
assert refused(GET, 1, b"\x05\0\1\0\0\0\0\0") == 22, "an attribute that is cut off"
number = s.fileno()
s.close()
a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
assert number in (a.fileno(), b.fileno())
a.send(b"x")
b.send(b"y")
assert b.recvfrom(9) == (b"x", None) and a.recvfrom(9) == (b"y", None)
assert a.getsockname() == ""
other = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
other.bind((0, 0))
assert other.getsockname()[0] != 0
print("well")
"#;
    for room in rooms() {
        let outcome = room.finish_run(&["/usr/bin/python3", "-c", PROGRAM]).expect("it ends").expect_success();
        assert_eq!(outcome.output, "well\n");
    }
}

#[test]
fn without_an_agent_it_is_a_kernel_without_rdma() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    let script = format!("rm -f {}/rdma_netlink; exec {RDMA} link", room.run_dir().display());
    let outcome = room.finish_run(&["sh", "-c", &script]).expect("it ends");
    assert!(!outcome.succeeded() && outcome.output.is_empty(), "{}", outcome.told());
    assert!(Path::new(RDMA).exists());
}
