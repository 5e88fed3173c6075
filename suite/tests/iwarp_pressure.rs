//! Back-pressure on iWARP: a receiver whose process is stopped holds back its own queue pair only.
//! The sender's other queue pair goes on, what is in flight is bounded, and everything completes
//! once when the receiver is continued.

use std::path::Path;

use harness::manager::Server;
use harness::{Family, HANG, Program, Room, User, cprogram, process, program, wait};
use rustix::process::Signal;

/// The bytes that the program writes, and a bound of what is in flight. The kernel's buffers of both
/// sockets have 10 MiB (tcp_wmem and tcp_rmem, tcp(7)), and the engine's has 256 KiB.
const WRITTEN: u64 = 32 * (4 << 20);
const HELD: u64 = WRITTEN / 2;

fn pid(program: &mut Program) -> u32 {
    program.inner("pressure", HANG).expect("it runs")
}

fn wait_until_stopped(pid: u32) {
    wait::until(HANG, "a process to stop", || (process::state(pid) == Some('T')).then_some(())).expect("it stops");
}

fn held_back(user: User) {
    let room = Room::of(user).expect("a room").with_agent(&["--transport", "iwarp"]).expect("an agent");
    let path = cprogram::build_with(&room, "pressure", &["-lrdmacm"]).expect("it compiles");
    let line = |path: &Path, rest: &str| format!("{} -a ADDRESS -p PORT {rest}", path.display());
    let place = room.place(Family::V4);
    let mut servers: [Server; 2] = [(); 2].map(|()| place.serve(&line(&path, "-l")).expect("it listens"));
    let other = format!("-o {}", servers[1].port());
    let mut client = place.call(&servers[0], &line(&path, &other)).expect("it starts");
    let sender = pid(&mut client);
    wait_until_stopped(sender);
    let receiver = pid(&mut servers[0].program);
    program::send(receiver, Signal::STOP);
    wait_until_stopped(receiver);
    let before = process::own_memory(sender).expect("it lives");

    program::send(sender, Signal::CONT);
    client.wait_for_words("the other goes on", HANG).unwrap_or_else(|why| panic!("{why}"));
    wait_until_stopped(sender);
    let rows = room.show("qp").expect("shown");
    let rows = rows.as_array().expect("rows").iter().filter(|row| row["pid"] == sender);
    let mut sent: Vec<u64> = rows.map(|row| row["stream"]["sent_bytes"].as_u64().expect("a stream")).collect();
    sent.sort_unstable();
    let [trips, pieces] = sent[..] else { panic!("two queue pairs: {sent:?}") };
    assert!(trips < 1 << 20 && (1 << 16..HELD).contains(&pieces), "{sent:?}");
    let grown = process::own_memory(sender).expect("it lives").saturating_sub(before);
    assert!(grown < HELD, "{grown} bytes more");

    program::send(receiver, Signal::CONT);
    program::send(sender, Signal::CONT);
    for side in [&mut client].into_iter().chain(servers.iter_mut().map(|server| &mut server.program)) {
        let outcome = side.wait(HANG).expect("it ends");
        assert!(outcome.succeeded(), "{}", outcome.told());
    }
    place.must_be_empty();
}

#[test]
fn iw_pressure_a_stopped_receiver_holds_back_its_queue_pair_only() {
    held_back(User::Me);
}

#[test]
fn iw_pressure_a_stopped_receiver_of_an_ordinary_user_holds_back_its_queue_pair_only() {
    held_back(User::Nobody);
}
