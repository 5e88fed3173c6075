//! Many users on one machine: with one agent for all, with their own agents, and from containers.
//!
//! Most tests need root, to become other users. Without root they print a message and end.

use std::fs;
use std::path::Path;
use std::process::Command;

use harness::port::{self, Port};
use harness::{HANG, Namespace, Pair, Program, Room, Sides, User, dist, process, program, wait};
use rustix::process::Signal;

const ALICE: User = User::Number(64_001);
const BOB: User = User::Number(64_002);

/// A small device, so that a user's share of it is soon used up.
const SMALL: &str = "addresses = ['127.0.0.1']\n[[devices]]\n[devices.limits]\nmax_qp = 400\n";

fn root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: other users need root");
    }
    root
}

fn is_fine(sides: Result<Sides, String>) {
    let sides = sides.expect("both end");
    assert!(sides.server.succeeded() && sides.client.succeeded(), "{}\n{}", sides.server.told(), sides.client.told());
}

#[track_caller]
fn talk(there: &Room, here: &Room, words: &[&str]) {
    is_fine(Sides::measured(|| Pair::start_different(there, words, here, words)?.wait(HANG)));
}

#[test]
fn two_users_talk_through_one_agent() {
    if !root() {
        return;
    }
    let machine = Room::system(SMALL).expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    for words in [
        &["ib_write_bw"][..],
        &["ib_read_lat", "-n", "200"],
        &["ib_send_bw", "-c", "UD"],
        &["ibv_rc_pingpong", "-g", "0", "-c"],
        &["ibv_rc_pingpong", "-g", "0", "-c", "-e", "-n", "500"],
        &["ibv_ud_pingpong", "-g", "0", "-c", "-s", "1024"],
        &["ibv_ud_pingpong", "-g", "0", "-c", "-e", "-s", "1024", "-n", "300"],
    ] {
        talk(&alice, &bob, words);
    }
    // Every user may query the agent, and only the agent's own user can stop it.
    let agent = machine.agent().expect("an agent");
    bob.finish(bob.softhca(&["devices"])).expect("it ends").expect_success();
    bob.finish(bob.softhca(&["doctor"])).expect("it ends").expect_success();
    let refused = bob.finish(bob.softhca(&["agent", "--stop"])).expect("it ends");
    assert!(!refused.succeeded() && refused.errors.contains("another user"), "{}", refused.told());
    for words in
        [&["agent", "device", "add", "more"][..], &["agent", "device", "remove", "softhca0"], &["port", "--mtu", "256"]]
    {
        let refused = bob.finish(bob.softhca(words)).expect("it ends");
        assert!(!refused.succeeded() && refused.errors.contains("own user and root"), "{}", refused.told());
    }
    let own = bob.finish_run(&["sh", "-c", "echo a reason > $SOFTHCA_REASONS; exit 5"]).expect("it ends");
    assert!(own.code == 5 && own.errors.contains("a reason"), "reasons have a place of their own: {}", own.told());
    assert_eq!(machine.agent(), Some(agent));
    machine.finish(machine.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    assert_eq!(machine.agent(), None);
}

#[test]
fn a_process_that_dies_is_noticed_whoever_it_was() {
    if !root() {
        return;
    }
    let machine = Room::system(SMALL).expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let words = ["ib_write_bw", "-D", "120"];
    let mut pair = Pair::start_different(&alice, &words, &bob, &words).expect("both start");
    let (server, _) = pair.traffic("ib_write_bw", &machine, &machine).expect("traffic");
    program::send(server, Signal::KILL);
    let client = pair.client.wait(HANG).expect("the client ends");
    assert!(!client.succeeded() && client.errors.contains("softhca: why"), "{}", client.told());
    drop(pair);
    machine.wait_until_empty(HANG).expect("nothing is left over");
}

/// A copy of a program of the suite, in a place that the other users can reach.
fn reachable(room: &Room, program: &str) -> String {
    let program = Path::new(program);
    let place = room.folder().join(program.file_name().expect("a program"));
    dist::copy(program, &place).expect("copied");
    place.to_str().expect("a plain path").to_owned()
}

#[test]
fn data_of_another_user_cannot_be_reached() {
    if !root() {
        return;
    }
    let machine = Room::system(SMALL).expect("an agent for everybody");
    let alice = machine.guest(ALICE).expect("a room");
    let bob = machine.guest(BOB).expect("a room");
    // Alice also has a private agent.
    let private = Room::of(ALICE).expect("a room");
    private.start_agent().expect("an agent");
    // One pair that polls, and one that sleeps between its messages.
    let polling = ["ib_write_bw", "-D", "120"];
    let sleeping = ["ibv_rc_pingpong", "-g", "0", "-c", "-e", "-n", "60000"];
    let mut polling = Pair::start(&alice, &polling).expect("both start");
    let (server, client) = polling.traffic("ib_write_bw", &machine, &machine).expect("traffic");
    let mut sleeping = Pair::start(&alice, &sleeping).expect("both start");
    connected(&machine, 4);
    let agent = machine.agent().expect("an agent");
    let path = reachable(&bob, env!("CARGO_BIN_EXE_intruder"));
    let pids = [server, client, agent].map(|pid| pid.to_string());
    let own_dir = private.run_dir().display().to_string();
    let mut words = vec![own_dir.as_str()];
    words.extend(pids.iter().map(String::as_str));
    let told = bob.finish(bob.command(&path, words)).expect("the intruder ends");
    assert!(told.succeeded() && told.output.contains("refused"), "{}", told.told());
    println!("{}", told.output.lines().last().unwrap_or_default());
    // No program was harmed: all are alive, go on, and can start again.
    assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
    assert!(private.agent().is_some());
    let before = process::cpu_time(client).expect("alive");
    wait::until(HANG, "the client to go on", || (process::cpu_time(client)? > before).then_some(())).expect("traffic");
    talk(&alice, &bob, &["ibv_rc_pingpong", "-g", "0", "-c", "-e", "-n", "200"]);
    for pid in [client, server] {
        program::send(pid, Signal::TERM);
    }
    drop(polling);
    is_fine(sleeping.wait(HANG));
    machine.wait_until_empty(HANG).expect("nothing is left over");
}

const FLOODER: &str = env!("CARGO_BIN_EXE_flooder");

/// The private bytes and the descriptors of an agent.
fn held(agent: u32) -> (u64, usize) {
    (process::own_memory(agent).unwrap_or(0), process::open_files(agent).len())
}

/// The duration is printed and not judged. The test judges that the agent survives and continues to
/// serve.
#[test]
fn floods_of_one_user_do_not_hold_up_another() {
    if !root() {
        return;
    }
    let machine = Room::system("addresses = ['127.0.0.1']\n").expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let agent = machine.agent().expect("an agent");
    let (of_alice, of_bob) = (reachable(&alice, FLOODER), reachable(&bob, FLOODER));
    for flood in ["show", "lists", "ends", "connections", "commands", "objects", "imports", "captures"] {
        let before = held(agent);
        let mut hostile = bob.start(bob.command(&of_bob, [flood, "4"])).expect("it starts");
        hostile.wait_for_words("begun", HANG).expect("it begins");
        let victim = alice.finish(alice.command(&of_alice, ["victim", "2"])).expect("it ends").expect_success();
        let during = held(agent);
        let tries = hostile.wait(HANG).expect("it ends").expect_success();
        assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
        machine.wait_until_empty(HANG).expect("nothing is left over");
        let (told, tried) = (victim.output.trim(), tries.output.trim());
        println!(
            "{tried}; victim: {told}; bytes and descriptors of the agent: {before:?}, {during:?}, {:?}",
            held(agent)
        );
    }
    talk(&alice, &bob, &["ibv_rc_pingpong", "-g", "0", "-c", "-n", "200"]);
}

#[test]
fn descriptors_that_block_their_closer_hold_up_nobody_else() {
    if !root() {
        return;
    }
    let machine = Room::system(SMALL).expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let agent = machine.agent().expect("an agent");
    let path = &reachable(&machine, env!("CARGO_BIN_EXE_lingerer"));
    let before = held(agent);
    let mut victim = alice.start(alice.command(path, ["victim", "5"])).expect("it starts");
    let mut attacker = bob.start(bob.command(path, ["attack", "5"])).expect("it starts");
    let (attacked, served) = (attacker.wait(HANG).expect("it ends"), victim.wait(HANG).expect("it ends"));
    println!("{}{}bytes and descriptors of the agent: {before:?}, {:?}", attacked.output, served.output, held(agent));
    assert!(attacked.succeeded() && served.succeeded(), "{}\n{}", attacked.told(), served.told());
    assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
    machine.wait_until_empty(HANG).expect("nothing is left over");
}

#[test]
fn memory_that_one_user_has_mapped_leaves_room_for_another_s() {
    if !root() {
        return;
    }
    let machine = Room::system("addresses = ['127.0.0.1']\n").expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let agent = machine.agent().expect("an agent");
    let path = &reachable(&machine, env!("CARGO_BIN_EXE_mapper"));
    let before = held(agent);
    let mut attacker = bob.start(bob.command(path, ["attack", "4"])).expect("it starts");
    let mut victim = alice.start(alice.command(path, ["victim", "4"])).expect("it starts");
    let (attacked, served) = (attacker.wait(HANG).expect("it ends"), victim.wait(HANG).expect("it ends"));
    assert!(attacked.succeeded() && served.succeeded(), "{}\n{}", attacked.told(), served.told());
    machine.wait_until_empty(HANG).expect("nothing is left over");
    println!(
        "{}; victim: {}; bytes and descriptors of the agent: {before:?}, {:?}",
        attacked.output.trim(),
        served.output.trim(),
        held(agent)
    );
    assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
}

#[test]
fn lanes_of_one_user_do_not_hold_up_another() {
    if !root() {
        return;
    }
    let machine = Room::system("addresses = ['127.0.0.1']\n").expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let agent = machine.agent().expect("an agent");
    let (laner, victim) = (reachable(&machine, env!("CARGO_BIN_EXE_laner")), reachable(&machine, FLOODER));
    let before = held(agent);
    let mut hostile = bob.start(bob.command(&laner, ["5"])).expect("it starts");
    hostile.wait_for_words("begun", HANG).expect("it begins");
    let victim = alice.finish(alice.command(&victim, ["victim", "4"])).expect("it ends").expect_success();
    let during = held(agent);
    let tries = hostile.wait(HANG).expect("it ends").expect_success();
    machine.wait_until_empty(HANG).expect("nothing is left over");
    // The agent closes the memory of lanes shortly after the lanes have ended.
    let has_closed = || (held(agent).1 <= before.1 + 8).then_some(());
    wait::until(HANG, "the agent to close the memory of lanes", has_closed).expect("closed");
    let (told, tried) = (victim.output.trim(), tries.output.trim());
    println!("{tried}; victim: {told}; bytes and descriptors of the agent: {before:?}, {during:?}, {:?}", held(agent));
    assert_eq!(machine.agent(), Some(agent), "{}", machine.log());
    talk(&alice, &bob, &["ibv_rc_pingpong", "-g", "0", "-c", "-n", "200"]);
}

#[test]
fn a_file_that_a_user_may_not_open_gives_no_xrc_domain() {
    if !root() {
        return;
    }
    let machine = Room::system(SMALL).expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let path = &reachable(&machine, env!("CARGO_BIN_EXE_opener"));
    let file = machine.folder().join("domain");
    fs::write(&file, "").expect("written");
    let User::Number(owner) = ALICE else { unreachable!() };
    std::os::unix::fs::chown(&file, Some(owner), Some(owner)).expect("given away");
    fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("closed");
    let file = file.to_str().expect("a plain path");
    alice.finish(alice.command(path, ["own", file])).expect("it ends").expect_success();
    let refused = bob.finish(bob.command(path, ["other", file])).expect("it ends").expect_success();
    println!("{}", refused.output.trim());
}

#[test]
fn refusals_of_one_user_leave_room_in_the_log_for_another_s() {
    const LOG_MAX: u64 = 32 << 20;
    if !root() {
        return;
    }
    let machine = Room::system(SMALL).expect("an agent for everybody");
    let (alice, bob) = (machine.guest(ALICE).expect("a room"), machine.guest(BOB).expect("a room"));
    let path = &reachable(&machine, env!("CARGO_BIN_EXE_logger"));
    let done = |room: &Room, count: &str| {
        let output = room.finish(room.command(path, [count])).expect("it ends").expect_success().output;
        let pid: String = output.chars().skip_while(|c| !c.is_ascii_digit()).take_while(char::is_ascii_digit).collect();
        (pid, output.trim().to_owned())
    };
    let (of_bob, told) = done(&bob, "10000");
    let (of_alice, _) = done(&alice, "1");
    let logs = ["agent.log", "agent.log.old"].map(|name| machine.run_dir().join(name));
    let len: u64 = logs.iter().filter_map(|log| fs::metadata(log).ok()).map(|log| log.len()).sum();
    let text: String = logs.iter().rev().filter_map(|log| fs::read_to_string(log).ok()).collect();
    let lines = |pid: &str| text.lines().filter(|line| line.contains(&format!("pid={pid}"))).count();
    println!("{told}; {} lines of them; both logs: {len} bytes", lines(&of_bob));
    assert!(told.contains("10000 refusals") && lines(&of_bob) < 1_000 && len <= LOG_MAX, "{told}: {len}");
    assert_eq!(lines(&of_alice), 1, "{text}");
}

#[test]
fn eight_agents_of_two_users_do_not_mind_each_other() {
    // A separate network, so that no other test's agents come and go here.
    let Some(namespace) = Namespace::new().expect("a namespace") else { return };
    let room = |user| Room::of(user).expect("a room").entered_by(&namespace.entrance());
    let rooms: Vec<Room> = (0..8).map(|n| room(if n % 2 == 0 { ALICE } else { BOB })).collect();
    let words = ["ibv_rc_pingpong", "-g", "0", "-c", "-n", "2000"];
    let mut pairs: Vec<Pair> = rooms.iter().map(|room| Pair::start(room, &words).expect("both start")).collect();
    for pair in &mut pairs {
        is_fine(pair.wait(HANG));
    }
    // All agents have the same addresses. One has the wire, and the others report that they have no
    // wire.
    let mut without = 0;
    for room in &rooms {
        let devices = room.finish(room.softhca(&["devices"])).expect("it ends").expect_success().output;
        let doctor = room.finish(room.softhca(&["doctor"])).expect("it ends").expect_success().output;
        let here = devices.contains("no wire: ");
        assert_eq!(here, doctor.contains("cannot reach us"), "{devices}\n{doctor}");
        assert_eq!(here, room.log().contains("no wire: "), "{}", room.log());
        without += usize::from(here);
    }
    assert_eq!(without, 7);
}

/// A command in a namespace, without the run directory of a room: as root, or as `user`.
fn plain(namespace: &Namespace, room: &Room, user: Option<u32>, words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace.name()]);
    if let Some(user) = user {
        command.args(["setpriv", "--clear-groups", &format!("--reuid={user}"), &format!("--regid={user}")]);
    }
    command.arg(room.dist().softhca()).args(words).env_remove("SOFTHCA_DIR").env_remove("SOFTHCA_LOG");
    command.env("XDG_RUNTIME_DIR", room.own_dir()).current_dir("/");
    command
}

#[test]
fn the_own_agent_comes_first_and_the_systems_next() {
    let Some(namespace) = Namespace::new().expect("a namespace") else { return };
    let room = Room::of(BOB).expect("a room");
    let User::Number(bob) = BOB else { unreachable!() };
    let done = |user: Option<u32>, words: &[&str]| room.finish(plain(&namespace, &room, user, words)).expect("it ends");
    let path = |room: &Room| {
        let doctor = room.finish(plain(&namespace, room, Some(bob), &["doctor"])).expect("it ends").output;
        doctor.lines().find(|line| line.contains("run directory")).unwrap_or_default().to_owned()
    };
    let mine = room.own_dir().display().to_string();
    assert!(path(&room).contains(&mine), "nobody serves: an own one would be started");
    let started = done(None, &["agent", "--system"]).expect_success().output;
    let system = started
        .split_whitespace()
        .find(|word| word.starts_with("/run/softhca-n"))
        .map(|word| word.trim_end_matches(','));
    let system = system.unwrap_or_else(|| panic!("{started}")).to_owned();
    assert!(path(&room).contains(&system), "the system's serves: {}", path(&room));
    done(Some(bob), &["run", "--", "ibv_devinfo"]).expect_success();
    assert!(path(&room).contains(&system), "no own one was started");
    let refused = done(Some(bob), &["agent", "--stop", "--system"]);
    assert!(refused.errors.contains("another user"), "{}", refused.told());
    let unable = done(Some(bob), &["agent", "--system", "--foreground"]);
    assert!(!unable.succeeded(), "{}", unable.told());
    done(Some(bob), &["agent"]).expect_success();
    assert!(path(&room).contains(&mine), "the own one comes first");
    done(Some(bob), &["agent", "--stop"]).expect_success();
    assert!(path(&room).contains(&system));
    done(None, &["agent", "--stop", "--system"]).expect_success();
    fs::remove_dir_all(&system).expect("removed");
}

#[test]
fn a_directory_that_somebody_else_has_prepared_is_not_believed() {
    let Some(namespace) = Namespace::new().expect("a namespace") else { return };
    let (room, thief) = (Room::of(BOB).expect("a room"), Room::of(ALICE).expect("a room"));
    let User::Number(bob) = BOB else { unreachable!() };
    // Where Bob's programs look first, there is a link to Alice's run directory.
    let inode = namespace.script("stat -Lc %i /proc/self/ns/net").expect("a number");
    let place = room.own_dir().join(format!("softhca-n{}", inode.trim()));
    thief.start_agent().expect("an agent");
    fs::set_permissions(thief.run_dir(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("opened");
    std::os::unix::fs::symlink(thief.run_dir(), &place).expect("linked");
    let refused = room.finish(plain(&namespace, &room, Some(bob), &["run", "--", "true"])).expect("it ends");
    assert!(refused.code == 125 && refused.errors.contains("not a directory"), "{}", refused.told());
}

/// A container without container tools: it has its own users, processes, /tmp and /dev/shm, and can
/// gain no privileges. The room is mounted at /mnt. The container shares only its run directory.
fn contained(room: &Room, words: &[&str]) -> Command {
    let script = "mount --bind \"$0\" /mnt; mount -t tmpfs none /tmp; mount -t tmpfs none /dev/shm; \
                  export SOFTHCA_DIR=/mnt/run XDG_RUNTIME_DIR=/tmp; exec setpriv --no-new-privs \"$@\"";
    let folder = room.folder().display().to_string();
    let mut all = vec!["--user", "--map-root-user", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"];
    all.extend(["sh", "-euc", script, &folder, "/mnt/dist/bin/softhca"]);
    all.extend(words);
    room.command("unshare", all)
}

/// A room for containers; `None` if containers are not allowed.
fn for_containers(user: User) -> Option<Room> {
    let room = Room::of(user).expect("a room");
    if !room.folder().join("dist").exists() {
        room.dist().copy_to(&room.folder().join("dist")).expect("copied");
    }
    let outcome = room.finish(contained(&room, &["--version"])).expect("it ends");
    if !outcome.succeeded() {
        eprintln!("skipped: no containers here: {}", outcome.told());
    }
    outcome.succeeded().then_some(room)
}

/// A pingpong with its server outside. `client` makes the command of the client, from the words
/// with the port number.
fn pingpong(outside: &Room, count: &str, client: impl Fn(&[&str]) -> Command) -> (Program, Program, Port) {
    let port = Port::reserve().expect("a port");
    let number = port.number().to_string();
    let words = ["ibv_rc_pingpong", "-g", "0", "-c", "-n", count, "-p", &number];
    let mut server = outside.start(outside.run(&words)).expect("it starts");
    port::wait_for_listener(server.id(), port.number(), HANG, || server.ended()).expect("it listens");
    let words = [&words[..], &["127.0.0.1"]].concat();
    (server, outside.start(client(&words)).expect("it starts"), port)
}

#[test]
fn a_container_shares_the_agent_of_its_host() {
    for user in [User::Me, BOB] {
        let Some(room) = for_containers(user) else { return };
        let agent = room.start_agent().expect("an agent");
        let inside = |words: &[&str]| contained(&room, &[&["run", "--"], words].concat());
        let (mut server, mut client, _port) = pingpong(&room, "1000", inside);
        client.wait(HANG).expect("it ends").expect_success();
        server.wait(HANG).expect("it ends").expect_success();
        // The agent sees this death itself: the process is visible from outside.
        let (server, mut client, _port) = pingpong(&room, "100000000", inside);
        let victim = client.inner("ibv_rc_pingpong", HANG).expect("it runs");
        connected(&room, 2);
        program::send(victim, Signal::KILL);
        alone(&room);
        drop(server);
        room.wait_until_empty(HANG).expect("nothing is left over");
        assert_eq!(room.agent(), Some(agent));
    }
}

#[test]
fn the_agent_of_a_container_serves_its_host() {
    let Some(room) = for_containers(User::Me) else { return };
    let mut agent = room.start(contained(&room, &["agent", "--foreground"])).expect("it starts");
    agent.wait_for_words("the agent serves", HANG).expect("it serves");
    // The agent's process id inside the container means nothing outside.
    fs::remove_file(room.run_dir().join("agent.pid")).expect("removed");
    let inside = |words: &[&str]| room.run(words);
    let (mut server, mut client, _port) = pingpong(&room, "1000", inside);
    client.wait(HANG).expect("it ends").expect_success();
    server.wait(HANG).expect("it ends").expect_success();
    // The agent does not see this process, so it learns of the death only from the closed
    // connection.
    let (server, mut client, _port) = pingpong(&room, "100000000", inside);
    let victim = client.inner("ibv_rc_pingpong", HANG).expect("it runs");
    connected(&room, 2);
    assert!(room.show("qp").expect("shown").as_array().expect("rows").iter().all(|row| row["pid"] == 0));
    program::send(victim, Signal::KILL);
    alone(&room);
    drop(server);
    room.wait_until_empty(HANG).expect("nothing is left over");
}

/// Waits until the agent has forgotten one of two programs and shows only the other one, which may
/// wait for a message for ever.
fn alone(room: &Room) {
    wait::until(HANG, "the agent to forget the dead program", || {
        (room.show("contexts").ok()?.as_array()?.len() == 1).then_some(())
    })
    .expect("forgotten");
}

fn connected(room: &Room, count: usize) {
    wait::until(HANG, "connected queue pairs", || {
        let rows = room.show("qp").ok()?;
        (rows.as_array()?.iter().filter(|row| row["path"] != "none").count() == count).then_some(())
    })
    .expect("connected");
}
