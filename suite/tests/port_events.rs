//! Tests a port with an interface of its own, of RoCE and of iWARP: the events that programs get
//! when the interface is switched off, loses its carrier, or gets another address. Connections of
//! iWARP go on afterwards.

use harness::namespace::Namespace;
use harness::{Family, HANG, Hosts, Program, Room, User, wait};

/// A host whose device has one interface, `near`, with a veth pair to `far`. The folder contains
/// the configuration.
struct Host {
    room: Room,
    namespace: Namespace,
    _folder: tempfile::TempDir,
}

/// The transport that a configuration sets by default, and the other one.
const ROCE: &str = "";
const IWARP: &str = "transport = \"iwarp\"\n";

impl Host {
    fn new(transport: &str) -> Option<Self> {
        let namespace = Namespace::new().expect("a namespace")?;
        namespace
            .script(
                "ip link add near type veth peer name far; ip address add 10.9.0.1/24 dev near; ip link set near up; \
                 ip link set far up",
            )
            .expect("a link");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("agent.toml");
        let config =
            format!("[[devices]]\nname = \"softhca0\"\n{transport}[[devices.ports]]\ninterfaces = [\"near\"]\n");
        std::fs::write(&file, config).expect("a configuration");
        let room = Room::of(User::Me).expect("a room").entered_by(&namespace.entrance());
        let room = room.with_agent(&["--config", &file.display().to_string()]).expect("an agent");
        Some(Self { room, namespace, _folder: folder })
    }

    fn watch(&self) -> Program {
        let mut watch = self.room.start(self.room.run(&["stdbuf", "-oL", "ibv_asyncwatch"])).expect("it starts");
        watch.wait_for_words("async event FD", HANG).expect("it watches");
        watch
    }

    fn wait_for_state(&self, state: &str) {
        wait::until(HANG, state, || {
            let told = self.room.finish_run(&["ibv_devinfo"]).expect("it ends").expect_success().output;
            told.contains(state).then_some(())
        })
        .expect("the state of the port");
    }
}

#[test]
fn event_port_err_when_the_interface_is_off_or_has_no_carrier() {
    for transport in [ROCE, IWARP] {
        for end in ["near", "far"] {
            let Some(host) = Host::new(transport) else { return };
            host.wait_for_state("PORT_ACTIVE");
            let mut watch = host.watch();
            host.namespace.script(&format!("ip link set {end} down")).expect("done");
            watch.wait_for_words("EVENT_PORT_ERR", HANG).expect("PORT_ERR");
            host.wait_for_state("PORT_DOWN");
            host.namespace.script(&format!("ip link set {end} up")).expect("done");
            watch.wait_for_words("EVENT_PORT_ACTIVE", HANG).expect("PORT_ACTIVE");
            host.wait_for_state("PORT_ACTIVE");
        }
    }
}

#[test]
fn event_gid_change_when_the_interface_gets_an_address() {
    let Some(host) = Host::new(ROCE) else { return };
    let mut watch = host.watch();
    host.namespace.script("ip address add 10.9.0.2/24 dev near").expect("done");
    watch.wait_for_words("EVENT_GID_CHANGE", HANG).expect("GID_CHANGE");
}

#[test]
fn event_gid_change_when_the_interface_of_iwarp_gets_another_mac_address() {
    let Some(host) = Host::new(IWARP) else { return };
    let node_guid = || host.room.json(&["devices", "--json"]).expect("shown")["devices"][0]["node_guid"].clone();
    let before = node_guid();
    let mut watch = host.watch();
    host.namespace.script("ip link set near address 02:00:00:00:47:11").expect("done");
    watch.wait_for_words("EVENT_GID_CHANGE", HANG).expect("GID_CHANGE");
    let file = host.room.run_dir().join("sys/class/infiniband/softhca0/ports/1/gids/0");
    let gid = std::fs::read_to_string(file).expect("sysfs");
    assert_eq!(gid.trim(), "0200:0000:4711:0000:0000:0000:0000:0000");
    assert_eq!(node_guid(), before, "it is the same device");
}

/// The interface of one host is off for a while, and gets another MAC address. TCP sends again what
/// is lost meanwhile.
#[test]
fn a_connection_of_iwarp_goes_on_when_its_port_does() {
    let Some(hosts) = Hosts::joined(1500, User::Me).expect("two namespaces") else { return };
    let file = hosts.left.room().folder().join("agent.toml");
    let config = format!("[[devices]]\nname = \"softhca0\"\n{IWARP}[[devices.ports]]\ninterfaces = [\"eth0\"]\n");
    std::fs::write(&file, config).expect("a configuration");
    let hosts = hosts.with_agents(&["--config", &file.display().to_string()]).expect("agents");
    let place = hosts.place(Family::V4);
    let server = place.serve("rping -s -a ADDRESS -p PORT").expect("it listens");
    let mut client = place.call(&server, "rping -c -a ADDRESS -p PORT").expect("it starts");
    let room = hosts.right.room();
    let received = || room.show("qp").ok()?[0]["stream"]["received_bytes"].as_u64();
    let goes_on = || {
        let before = received().expect("a connection");
        wait::until(HANG, "more messages", || received().filter(|now| *now > before)).expect("the connection goes on");
    };
    let state = |state: &str| {
        wait::until(HANG, state, || {
            let shown = room.json(&["devices", "--json"]).ok()?;
            shown["devices"][0]["ports"][0]["state"].as_str()?.contains(state).then_some(())
        })
        .expect("the state of the port");
    };
    wait::until(HANG, "a connection", || received().filter(|now| *now > 0)).expect("they are connected");
    goes_on();
    let script = |script: &str| hosts.right.namespace().script(script).expect("done");
    script("ip link set eth0 down");
    state("DOWN");
    script("ip link set eth0 up");
    state("ACTIVE");
    goes_on();
    // The neighbours hear of the new address at once.
    script("echo 1 >/proc/sys/net/ipv4/conf/eth0/arp_notify; ip link set eth0 address 02:00:00:00:47:11");
    goes_on();
    assert!(!client.ended(), "{}", client.everything());
}
