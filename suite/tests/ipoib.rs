//! Tests `softhca ipoib`: network interfaces on RoCE ports, on InfiniBand ports, and on the nodes
//! of a topology that opensm manages. Programs that know only sockets talk over them.

use std::process::Command;

use harness::namespace::Namespace;
use harness::program::send;
use harness::{HANG, Hosts, Outcome, Program, Room, User, wait};
use rustix::process::Signal;

/// The addresses of the two interfaces.
const IPV4: [&str; 2] = ["10.1.0.1", "10.1.0.2"];
const IPV6: [&str; 2] = ["fd01::1", "fd01::2"];

/// Accepts one client, and sends back what it sends.
const SERVER: &str = "\
import socket, sys
family = socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 7000), family=family)
print('ready', flush=True)
peer, _ = server.accept()
while data := peer.recv(65536):
    peer.sendall(data)
";
/// Sends a megabyte, and expects it back.
const CLIENT: &str = "\
import socket, sys, threading
peer = socket.create_connection((sys.argv[1], 7000))
sent = bytes(range(256)) * 4096
def send():
    peer.sendall(sent)
    peer.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
back = b''.join(iter(lambda: peer.recv(65536), b''))
print('all came back' if back == sent else f'{len(back)} bytes came back')
";
/// Joins a group, and prints the first datagram to it.
const MEMBER: &str = "\
import socket, sys
member = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
member.bind(('239.1.2.3', 7001))
group = socket.inet_aton('239.1.2.3') + socket.inet_aton(sys.argv[1])
member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
print('ready', flush=True)
print(member.recv(100).decode())
";
/// Sends datagrams to the group until it is ended: the first ones may come before the member.
const SENDER: &str = "\
import socket, sys, time
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(sys.argv[1]))
while True:
    sender.sendto(b'to the group', ('239.1.2.3', 7001))
    time.sleep(0.05)
";
/// Receives 20 different datagrams of a group, and says whether one of them came twice.
const COUNTING: &str = "\
import socket, struct, sys
group = sys.argv[1]
family = socket.AF_INET6 if ':' in group else socket.AF_INET
member = socket.socket(family, socket.SOCK_DGRAM)
member.bind((group if family == socket.AF_INET else '', 7002))
index = socket.if_nametoindex('ib0')
if family == socket.AF_INET:
    joined = struct.pack('=4s4si', socket.inet_aton(group), bytes(4), index)
    member.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, joined)
else:
    joined = socket.inet_pton(family, group) + struct.pack('=I', index)
    member.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, joined)
print('ready', flush=True)
seen = set()
while len(seen) < 20:
    number = member.recv(100)
    if number in seen:
        print('twice')
    seen.add(number)
print('all seen', flush=True)
";
/// Sends numbered datagrams to a group until it is ended.
const NUMBERED: &str = "\
import itertools, socket, struct, sys, time
group = sys.argv[1]
family = socket.AF_INET6 if ':' in group else socket.AF_INET
sender = socket.socket(family, socket.SOCK_DGRAM)
index = socket.if_nametoindex('ib0')
if family == socket.AF_INET:
    sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, struct.pack('=4s4si', bytes(4), bytes(4), index))
else:
    sender.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
for number in itertools.count():
    sender.sendto(str(number).encode(), (group, 7002))
    time.sleep(0.02)
";
/// Connects to a host that does not exist.
const STRANGER: &str = "\
import errno, socket, sys
try:
    socket.create_connection((sys.argv[1], 7000))
except OSError as error:
    print(errno.errorcode[error.errno])
";

/// A side: the room of its agent, and its namespace.
#[derive(Clone, Copy)]
struct Side<'a> {
    room: &'a Room,
    namespace: &'a Namespace,
}

impl Side<'_> {
    /// The command, in the namespace.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", self.namespace.name()]).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }

    /// An interface that is up.
    fn interface(&self, number: usize, options: &[&str]) -> Program {
        let ips = [format!("{}/24", IPV4[number]), format!("{}/64", IPV6[number])];
        let words = [&["ipoib", "--ip", &ips[0], "--ip", &ips[1]], options].concat();
        let mut program = self.room.start(self.inside(&self.room.softhca(&words))).expect("it starts");
        program.wait_for_words("ib0 is up", HANG).expect("the interface is up");
        program
    }

    fn python(&self, program: &str, address: &str) -> Command {
        let mut python = Command::new("python3");
        python.args(["-c", program, address]);
        self.inside(&python)
    }

    #[track_caller]
    fn says(&self, program: &str, address: &str) -> String {
        let outcome = self.room.finish(self.python(program, address)).expect("it ends");
        outcome.expect_success().everything().trim().to_owned()
    }

    fn ready(&self, program: &str, address: &str) -> Program {
        let mut program = self.room.start(self.python(program, address)).expect("it starts");
        program.wait_for_words("ready", HANG).expect("it is ready");
        program
    }

    /// The command fails, with these words.
    #[track_caller]
    fn refuses(&self, options: &[&str], words: &str) {
        let command = self.inside(&self.room.softhca(&[&["ipoib"], options].concat()));
        let outcome: Outcome = self.room.finish(command).expect("it ends");
        assert!(!outcome.succeeded() && outcome.everything().contains(words), "{}", outcome.told());
    }
}

/// curl on the right side downloads a file from python's web server on the left side.
#[track_caller]
fn download(left: Side<'_>, right: Side<'_>) {
    let (folder, got) = (left.room.folder().join("web"), right.room.folder().join("got"));
    let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::create_dir_all(&folder).expect("made");
    std::fs::write(folder.join("file"), &content).expect("written");
    let mut server = Command::new("python3");
    server.args(["-u", "-m", "http.server", "8000", "--bind", IPV4[0], "--directory"]).arg(&folder);
    let mut server = left.room.start(left.inside(&server)).expect("it starts");
    server.wait_for_words("Serving HTTP", HANG).expect("it serves");
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--fail", "-o"]).arg(&got).arg(format!("http://{}:8000/file", IPV4[0]));
    right.room.finish(right.inside(&curl)).expect("it ends").expect_success();
    assert!(std::fs::read(&got).expect("the file") == content, "the file is not what the server has");
}

/// Packets of the interface's MTU pass, and longer ones in fragments.
#[track_caller]
fn ping(left: Side<'_>, right: Side<'_>, mtu: usize) {
    for side in [left, right] {
        let known = side.namespace.script("cat /sys/class/net/ib0/mtu").expect("the MTU");
        assert_eq!(known.trim(), mtu.to_string());
    }
    // The headers of IP and ICMP.
    for (addresses, headers) in [(IPV4, 20 + 8), (IPV6, 40 + 8)] {
        let longer = (3 * mtu).min(65_000);
        for (size, fragments) in [(56, "do"), (mtu - headers, "do"), (longer, "want")] {
            let mut ping = Command::new("ping");
            ping.args([
                "-n",
                "-c",
                "3",
                "-i",
                "0.2",
                "-W",
                "10",
                "-M",
                fragments,
                "-s",
                &size.to_string(),
                addresses[0],
            ]);
            let told = right.room.finish(right.inside(&ping)).expect("it ends").expect_success();
            assert!(told.output.contains(" 3 received, 0% packet loss"), "{}", told.told());
        }
    }
}

/// Programs on both sides reach each other: streams, groups, and nobody at an unused address.
fn talk(left: Side<'_>, right: Side<'_>) {
    download(left, right);
    for addresses in [IPV4, IPV6] {
        let _server = left.ready(SERVER, addresses[0]);
        assert_eq!(right.says(CLIENT, addresses[0]), "all came back");
    }
    let mut member = right.ready(MEMBER, IPV4[1]);
    let _sender = left.room.start(left.python(SENDER, IPV4[0])).expect("it starts");
    member.wait_for_words("to the group", HANG).expect("the datagram arrives");
    assert_eq!(left.says(STRANGER, "10.1.0.99"), "EHOSTUNREACH");
}

fn end(mut program: Program) {
    program.signal(Signal::INT);
    assert!(program.wait(HANG).expect("it ends").succeeded());
}

#[test]
fn hosts_talk_over_interfaces_on_roce_and_infiniband_ports() {
    for (layer, options, kind) in [
        ("ethernet", &[][..], None),
        ("ethernet", &["--connected"], Some("\"RC\"")),
        ("ethernet", &["--connected=uc"], Some("\"UC\"")),
        ("infiniband", &[], None),
    ] {
        let Some(hosts) = Hosts::joined(2300, User::Me).expect("two namespaces") else { return };
        let hosts = hosts.with_agents(&["--link-layer", layer]).expect("agents");
        let (room, namespace) = (hosts.left.room(), hosts.left.namespace());
        let (left, right) =
            (Side { room, namespace }, Side { room: hosts.right.room(), namespace: hosts.right.namespace() });
        let interfaces = [left.interface(0, options), right.interface(1, options)];
        talk(left, right);
        let queue_pairs = room.show("qp").expect("the queue pairs").to_string();
        let found: Vec<&str> = ["\"RC\"", "\"UC\""].into_iter().filter(|kind| queue_pairs.contains(kind)).collect();
        assert_eq!(found, kind.into_iter().collect::<Vec<_>>(), "{queue_pairs}");
        left.refuses(&[], "the network interface ib0 exists already");
        left.refuses(&["--interface", "ib1", "--pkey", "0x8001"], "its partitions are 0xffff");
        // The addresses of the interface are no GIDs, and its MTU is not that of the port.
        assert_eq!(room.gid_index("10.1.0.1".parse().expect("an address")).expect("the table"), None);
        interfaces.into_iter().for_each(end);
        assert!(!namespace.script("ip link").expect("the interfaces").contains("ib0"));
    }
}

#[test]
fn nodes_of_a_managed_subnet_talk_in_connected_mode() {
    nodes_talk(false, &["--connected"], 65_520);
    nodes_talk(true, &["--connected"], 65_520);
}

#[test]
fn nodes_of_a_subnet_that_opensm_manages_talk_over_interfaces() {
    nodes_talk(true, &[], 2044);
}

#[test]
fn nodes_of_a_subnet_that_the_agent_manages_talk_over_interfaces() {
    nodes_talk(false, &[], 2044);
}

/// The manager has the groups while they are joined.
fn nodes_talk(opensm: bool, options: &[&str], mtu: usize) {
    let (Some(here), Some(there)) = (Namespace::new().expect("one"), Namespace::new().expect("two")) else { return };
    let room = Room::of(User::Me).expect("a room");
    let file = room.folder().join("subnet.topo");
    let text = "Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nHca 1 \"H1\"\n\nHca 1 \"H2\"\n";
    std::fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let words = ["--topology", &file, "--no-subnet-manager"];
    let room = room.with_agent(&words[..if opensm { 3 } else { 2 }]).expect("an agent");
    let (left, right) = (Side { room: &room, namespace: &here }, Side { room: &room, namespace: &there });
    if opensm {
        left.refuses(&["--node", "H1"], "no subnet manager has brought it up");
    }
    let _manager = opensm.then(|| room.opensm("H1", &[]).expect("the subnet comes up"));
    let is_up = || {
        let outcome = room.finish(room.softhca(&["subnet", "path", "H1", "H2"])).expect("it ends");
        outcome.succeeded().then_some(())
    };
    wait::until(HANG, "the subnet to come up", is_up).expect("it does");
    let interface = |side: Side<'_>, number, node| side.interface(number, &[&["--node", node], options].concat());
    let interfaces = [interface(left, 0, "H1"), interface(right, 1, "H2")];
    talk(left, right);
    ping(left, right, mtu);
    let groups = || room.finish(room.on("H2", &["saquery", "-g"])).expect("it ends").expect_success().everything();
    let solicited = "ff12:601b:ffff::1:ff00:2";
    let known = groups();
    assert!(known.contains("ff12:401b:ffff::ffff:ffff") && known.contains(solicited), "{known}");
    interfaces.into_iter().for_each(end);
    wait::until(HANG, "the groups to be left", || (!groups().contains(solicited)).then_some(())).expect("they are");
}

/// Three nodes at two switches. The third one is not in the partition 0x8001.
const THREE: &str = "\
Switch 8 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n[3] \"S2\"[3]\n\nSwitch 8 \"S2\"\n[1] \"H3\"[1]\n[3] \"S1\"[3]\n\n\
Hca 1 \"H1\"\n\nHca 1 \"H2\"\n\nHca 1 \"H3\"\n";

#[test]
fn three_nodes_get_one_copy_of_a_group_and_a_partition_is_for_its_members() {
    let namespaces: Vec<Namespace> = (0..3).map_while(|_| Namespace::new().expect("a namespace")).collect();
    let [here, there, outside] = namespaces.as_slice() else { return };
    let room = Room::of(User::Me).expect("a room");
    let (topology, partitions) = (room.folder().join("subnet.topo"), room.folder().join("partitions.conf"));
    std::fs::write(&topology, THREE).expect("written");
    let blue = "Default=0x7fff, ipoib : ALL=full;\nblue=0x0001, ipoib : 0x100001=full, 0x100003=full;\n";
    std::fs::write(&partitions, blue).expect("written");
    let room = room.with_agent(&["--topology", &topology.display().to_string(), "--no-subnet-manager"]).expect("agent");
    let sides = [here, there, outside].map(|namespace| Side { room: &room, namespace });
    let words = ["sm", "--node", "H1", "--partitions", &partitions.display().to_string()];
    let _manager = room.start(room.softhca(&words)).expect("it starts");
    let is_up = |node: &str| {
        room.finish(room.softhca(&["subnet", "path", "H1", node])).expect("it ends").succeeded().then_some(())
    };
    ["H2", "H3"].iter().for_each(|node| wait::until(HANG, "the subnet", || is_up(node)).expect("it comes up"));
    let interface = |at: usize, words: &[&str]| {
        let node = ["H1", "H2", "H3"][at];
        let words = [&["ipoib", "--node", node][..], words].concat();
        let mut program = room.start(sides[at].inside(&room.softhca(&words))).expect("it starts");
        program.wait_for_words(" is up", HANG).expect("the interface is up");
        program
    };
    let child = ["--interface", "ib0.8001", "--pkey", "0x8001", "--ip"];
    let mut all = Vec::new();
    for (at, last) in ["1", "2", "3"].iter().enumerate() {
        all.push(interface(at, &["--ip", &format!("10.3.0.{last}/24"), "--ip", &format!("fd03::{last}/64")]));
    }
    for (at, address) in IPV4.iter().enumerate().take(2) {
        all.push(interface(at, &[&child[..], &[&format!("{address}/24")]].concat()));
    }
    let _server = sides[0].ready(SERVER, IPV4[0]);
    assert_eq!(sides[1].says(CLIENT, IPV4[0]), "all came back");
    sides[2].refuses(&["--node", "H3", "--interface", "ib0.8001", "--pkey", "0x8001"], "has no P_Key 0x8001");
    for group in ["239.4.5.6", "ff02::4:5:6"] {
        let members = [1, 2].map(|at: usize| sides[at].ready(COUNTING, group));
        let _sender = room.start(sides[0].python(NUMBERED, group)).expect("it starts");
        for mut member in members {
            member.wait_for_words("all seen", HANG).expect("the datagrams arrive");
            assert!(!member.output().contains("twice"), "{group}: one copy each");
        }
    }
    all.into_iter().for_each(end);
}

/// Sends a number each 20 ms on a stream, and expects it back. Prints how many have come.
const TICKING: &str = "\
import itertools, socket, sys, time
peer = socket.create_connection((sys.argv[1], 7000))
peer.settimeout(60)
for number in itertools.count():
    sent = number.to_bytes(8)
    peer.sendall(sent)
    assert peer.recv(8, socket.MSG_WAITALL) == sent
    print(f'{number} have come', flush=True)
    time.sleep(0.02)
";

/// The master of two managers is killed while a stream goes on. The second one takes over, and a
/// new interface joins the groups there.
#[test]
fn streams_go_on_and_interfaces_are_made_when_another_manager_takes_over() {
    let namespaces: Vec<Namespace> = (0..3).map_while(|_| Namespace::new().expect("a namespace")).collect();
    let [here, there, late] = namespaces.as_slice() else { return };
    let room = Room::of(User::Me).expect("a room").with_topology(THREE, &["--no-subnet-manager"]).expect("an agent");
    let sides = [here, there, late].map(|namespace| Side { room: &room, namespace });
    let manager = |node: &str, priority: &str, words: &str| {
        let options = ["sm", "--node", node, "--priority", priority, "--poll", "1"];
        let mut program = room.start(room.softhca(&options)).expect("it starts");
        program.wait_for_words(words, HANG).expect("it says so");
        program
    };
    let master = manager("H3", "5", "subnet up");
    let mut second = manager("H2", "4", "standby");
    let interfaces = [sides[0].interface(0, &["--node", "H1"]), sides[1].interface(1, &["--node", "H2"])];
    let _server = sides[0].ready(SERVER, IPV4[0]);
    let mut stream = room.start(sides[1].python(TICKING, IPV4[0])).expect("it starts");
    stream.wait_for_words("20 have come", HANG).expect("it goes");
    send(master.id(), Signal::KILL);
    second.wait_for_words("subnet up", HANG).expect("it takes over");
    let words = ["ipoib", "--node", "H3", "--ip", "10.1.0.3/24"];
    let mut new = room.start(sides[2].inside(&room.softhca(&words))).expect("it starts");
    new.wait_for_words(" is up", HANG).expect("the interface is up");
    let _server = sides[2].ready(SERVER, "10.1.0.3");
    assert_eq!(sides[0].says(CLIENT, "10.1.0.3"), "all came back");
    let count = stream.output().lines().count();
    stream.wait_for_words(&format!("{} have come", count + 20), HANG).expect("it goes on");
    interfaces.into_iter().chain([new]).for_each(end);
}

/// A user without rights has a network of its own, in which it is root, with a second host in it.
#[test]
fn an_ordinary_user_has_interfaces_in_a_namespace_of_its_own() {
    let room = Room::of(User::Nobody).expect("a room");
    let script = "\
        softhca=$0 agent= left= right= server=; ip link set lo up\n\
        unshare -n sleep infinity & other=$!\n\
        trap 'kill $other $left $right $agent $server 2>/dev/null || true' EXIT\n\
        $softhca agent --address 127.0.0.1 & agent=$!\n\
        until test \"$(readlink /proc/$other/ns/net)\" != \"$(readlink /proc/self/ns/net)\"; do sleep 0.05; done\n\
        until $softhca devices >/dev/null 2>&1; do sleep 0.05; done\n\
        up() { until grep -q 'is up' \"$1\"; do kill -0 $2; sleep 0.05; done; }\n\
        cd \"$SOFTHCA_DIR\"; mkfifo ready\n\
        $softhca ipoib --ip 10.1.0.1/24 >left & left=$!; up left $left\n\
        nsenter -t $other -n $softhca ipoib --ip 10.1.0.2/24 >right & right=$!; up right $right\n\
        python3 -c \"$1\" 10.1.0.1 >ready & server=$!\n\
        read -r _ <ready\n\
        nsenter -t $other -n python3 -c \"$2\" 10.1.0.1\n";
    let softhca = room.dist().softhca().display().to_string();
    let unshare = |words: &[&str]| room.command("unshare", [&["-rn"], words].concat());
    let allowed = room.finish(unshare(&["test", "-w", "/dev/net/tun"])).expect("it ends");
    if !allowed.succeeded() {
        eprintln!("skipped: an ordinary user has no namespaces or no TUN devices here: {}", allowed.told());
        return;
    }
    let outcome = room.finish(unshare(&["sh", "-euc", script, &softhca, SERVER, CLIENT])).expect("it ends");
    assert!(outcome.expect_success().everything().contains("all came back"));
}
