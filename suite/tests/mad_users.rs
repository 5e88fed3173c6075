//! Tests users who may send management datagrams and misuse it: other users' transactions and
//! programs' traffic go on, and the agent's memory stays bounded.

use std::path::Path;

use harness::{HANG, Pair, Room, Sides, User, dist, process};

const FLOODER: &str = env!("CARGO_BIN_EXE_mad_flooder");
const CONFIG: &str = "addresses = ['127.0.0.1']\nmad_users = [65534]\n[[devices]]\n[[devices.ports]]\n\
                      link_layer = \"infiniband\"\n";
/// The victim gets at least one of so many of the answers that it gets without a flood. Flooder and
/// victim also share the processors.
const PART: u64 = 100;
/// More than the agent may keep for one user, with what its allocator keeps.
const BYTES: u64 = 256 << 20;

#[track_caller]
fn traffic(room: &Room) {
    let words = &["ibv_rc_pingpong", "-n", "200"];
    let sides = Sides::measured(|| Pair::start_different(room, words, room, words)?.wait(HANG));
    let sides = sides.expect("both end");
    assert!(sides.server.succeeded() && sides.client.succeeded(), "{}\n{}", sides.server.told(), sides.client.told());
}

/// How many of its requests the victim got answered, one after the other.
fn victim(machine: &Room, flooder: &str) -> u64 {
    let outcome = machine.finish(machine.command(flooder, ["victim", "2"])).expect("it ends").expect_success();
    println!("  victim: {}", outcome.output.trim());
    let count = outcome.output.split(' ').next().and_then(|word| word.parse().ok());
    count.expect("a number of answers")
}

/// Brings the subnet of the one port up, as any user of the machine may.
#[track_caller]
fn manage(machine: &Room) {
    let managed = machine.finish(machine.softhca(&["sm", "--once"])).expect("it ends").expect_success();
    assert!(managed.output.contains("subnet up: 0 switches, 1 adapters and routers"), "{}", managed.told());
    assert!(managed.errors.contains("this agent has no topology"), "{}", managed.told());
}

/// Durations are printed and not judged. A user with a flood takes turns with the others, so the
/// victim gets a part of what it gets alone.
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
    let alone = victim(&machine, flooder);
    for flood in ["requests", "forgeries", "halves", "registrations", "pieces", "nonsense"] {
        let mut hostile = guest.start(guest.command(flooder, [flood, "4"])).expect("it starts");
        hostile.wait_for_words("begun", HANG).expect("it begins");
        let answers = victim(&machine, flooder);
        traffic(&machine);
        manage(&machine);
        let during = process::own_memory(agent).unwrap_or(0);
        let told = hostile.wait(HANG).expect("it ends").expect_success();
        println!("{}", told.output.trim());
        assert!(answers >= alone / PART, "{flood}: {answers} answers, and {alone} without a flood");
        println!("  bytes of the agent: {before}, {during}, {:?}", process::own_memory(agent));
        assert!(during < before + BYTES, "{flood}: {before} and {during} bytes");
        assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
    }
    // Killed while it sends.
    let mut killed = guest.start(guest.command(flooder, ["halves", "60"])).expect("it starts");
    killed.wait_for_words("begun", HANG).expect("it begins");
    harness::program::send(killed.id(), rustix::process::Signal::KILL);
    killed.wait(HANG).expect("it ends");
    machine.finish(machine.command(flooder, ["victim", "1"])).expect("it ends").expect_success();
    traffic(&machine);
}

#[test]
fn who_serves_what_a_subnet_manager_needs_is_named() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: other users need root");
    }
    let machine = Room::system(CONFIG).expect("an agent for everybody");
    let guest = machine.guest(User::Nobody).expect("a room");
    let flooder = machine.folder().join("mad_flooder");
    dist::copy(Path::new(FLOODER), &flooder).expect("copied");
    let mut server = guest.start(guest.command(flooder, ["serves", "60"])).expect("it starts");
    server.wait_for_words("begun", HANG).expect("it begins");
    let refused = machine.finish(machine.softhca(&["sm", "--once"])).expect("it ends");
    let words = "(mad_flooder) of user 65534 already serves subnet administration (class 0x03) at softhca0/1; end it";
    assert!(!refused.succeeded() && refused.errors.contains(words), "{}", refused.told());
    harness::program::send(server.id(), rustix::process::Signal::KILL);
    server.wait(HANG).expect("it ends");
    manage(&machine);
}
