//! Tests a port with an interface of its own: the events that programs get when the interface is
//! switched off, loses its carrier, or gets another address.

use harness::namespace::Namespace;
use harness::{HANG, Program, Room, User, wait};

/// A host whose device has one interface, `near`, with a veth pair to `far`. The folder contains
/// the configuration.
struct Host {
    room: Room,
    namespace: Namespace,
    _folder: tempfile::TempDir,
}

impl Host {
    fn new() -> Option<Self> {
        let namespace = Namespace::new().expect("a namespace")?;
        namespace
            .script(
                "ip link add near type veth peer name far; ip address add 10.9.0.1/24 dev near; ip link set near up; \
                 ip link set far up",
            )
            .expect("a link");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("agent.toml");
        let config = "[[devices]]\nname = \"softhca0\"\n[[devices.ports]]\ninterfaces = [\"near\"]\n";
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
    for (down, up) in [("ip link set near down", "ip link set near up"), ("ip link set far down", "ip link set far up")]
    {
        let Some(host) = Host::new() else { return };
        host.wait_for_state("PORT_ACTIVE");
        let mut watch = host.watch();
        host.namespace.script(down).expect("done");
        watch.wait_for_words("EVENT_PORT_ERR", HANG).expect("PORT_ERR");
        host.wait_for_state("PORT_DOWN");
        host.namespace.script(up).expect("done");
        watch.wait_for_words("EVENT_PORT_ACTIVE", HANG).expect("PORT_ACTIVE");
        host.wait_for_state("PORT_ACTIVE");
    }
}

#[test]
fn event_gid_change_when_the_interface_gets_an_address() {
    let Some(host) = Host::new() else { return };
    let mut watch = host.watch();
    host.namespace.script("ip address add 10.9.0.2/24 dev near").expect("done");
    watch.wait_for_words("EVENT_GID_CHANGE", HANG).expect("GID_CHANGE");
}
