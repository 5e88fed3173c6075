//! Tests users who may send management datagrams and misuse it: other users' transactions and
//! programs' traffic go on, and the agent's memory stays bounded.

use std::path::Path;

use softhca_suite::{HANG, Pair, Room, Sides, User, dist, process};

const FLOODER: &str = env!("CARGO_BIN_EXE_mad_flooder");
const CONFIG: &str = "addresses = ['127.0.0.1']\nmad_users = [65534]\n[[devices]]\n[[devices.ports]]\n\
                      link_layer = \"infiniband\"\n";
/// More than the agent may keep for one user, with what its allocator keeps.
const BYTES: u64 = 256 << 20;

#[track_caller]
fn traffic(room: &Room) {
    let words = &["ibv_rc_pingpong", "-n", "200"];
    let sides = Sides::measured(|| Pair::start_different(room, words, room, words)?.wait(HANG));
    let sides = sides.expect("both end");
    assert!(sides.server.succeeded() && sides.client.succeeded(), "{}\n{}", sides.server.told(), sides.client.told());
}

/// The duration of the victim's requests is printed and not judged.
#[test]
fn floods_of_one_user_do_not_stop_the_others() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: other users need root");
    }
    let machine = Room::system(CONFIG).expect("an agent for everybody");
    let guest = machine.guest(User::Nobody).expect("a room");
    let agent = machine.agent().expect("an agent");
    let flooder = machine.folder().join("mad_flooder");
    dist::copy(Path::new(FLOODER), &flooder).expect("copied");
    let flooder = flooder.to_str().expect("a plain path");
    let before = process::own_memory(agent).unwrap_or(0);
    for flood in ["requests", "forgeries", "halves", "registrations", "pieces", "nonsense"] {
        let mut hostile = guest.start(guest.command(flooder, [flood, "4"])).expect("it starts");
        hostile.wait_for_words("begun", HANG).expect("it begins");
        let victim = machine.finish(machine.command(flooder, ["victim", "2"])).expect("it ends").expect_success();
        traffic(&machine);
        let during = process::own_memory(agent).unwrap_or(0);
        let told = hostile.wait(HANG).expect("it ends").expect_success();
        println!("{}; victim: {}", told.output.trim(), victim.output.trim());
        println!("  bytes of the agent: {before}, {during}, {:?}", process::own_memory(agent));
        assert!(during < before + BYTES, "{flood}: {before} and {during} bytes");
        assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
    }
    // Killed while it sends.
    let mut killed = guest.start(guest.command(flooder, ["halves", "60"])).expect("it starts");
    killed.wait_for_words("begun", HANG).expect("it begins");
    softhca_suite::program::send(killed.id(), rustix::process::Signal::KILL);
    killed.wait(HANG).expect("it ends");
    machine.finish(machine.command(flooder, ["victim", "1"])).expect("it ends").expect_success();
    traffic(&machine);
}
