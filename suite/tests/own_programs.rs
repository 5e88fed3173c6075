//! Cases that no Debian program covers, with small C programs of the suite: threads, one-sided
//! operations on a passive target, vanishing memory, fork, wrong arguments. The programs are in
//! `programs/`.

use harness::{HANG, Pair, Room, User, cprogram, program, wait};
use rustix::process::Signal;

fn built(room: &Room, name: &str) -> String {
    cprogram::build(room, name).expect("it compiles").to_str().expect("a plain path").to_owned()
}

#[track_caller]
fn alone(name: &str, more: &[&str]) {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let path = built(&room, name);
        let mut words = vec![path.as_str()];
        words.extend(more);
        room.finish_run(&words).expect("it ends").expect_success();
    }
}

#[test]
fn threads_are_cancelled_where_they_wait_and_nowhere_else() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let path = cprogram::build_with(&room, "cancelled", &["-lrdmacm"]).expect("it compiles");
        for part in ["waits", "calls"] {
            let outcome = room.finish_run(&[path.to_str().expect("a plain path"), part]).expect("it ends");
            assert!(outcome.expect_success().output.contains("well"));
        }
    }
}

#[test]
fn threads_post_on_their_own_queue_pairs() {
    let room = Room::new().expect("a room");
    let path = built(&room, "threads");
    Pair::must_succeed(&room, &[&path]);
}

#[test]
fn one_sided_operations_on_a_target_that_is_blocked() {
    let room = Room::new().expect("a room");
    let path = built(&room, "onesided");
    Pair::must_succeed(&room, &[&path, "-m", "read"]);
}

#[test]
fn one_sided_operations_on_a_target_that_computes() {
    let room = Room::new().expect("a room");
    let path = built(&room, "onesided");
    Pair::must_succeed(&room, &[&path, "-m", "compute"]);
}

#[test]
fn memory_that_goes_away_is_an_error_and_no_signal() {
    alone("badmemory", &[]);
}

#[test]
fn wrong_arguments_are_answered_as_the_manual_says() {
    alone("badinput", &[]);
}

#[test]
fn windows_take_any_key_that_adapters_take() {
    alone("windows", &[]);
}

#[test]
fn datagrams_and_multicast() {
    alone("datagrams", &[]);
}

#[test]
fn events_of_channels_srqs_and_queue_pairs() {
    alone("events", &[]);
}

#[test]
fn a_child_may_exit() {
    alone("forks", &["-m", "exit"]);
}

#[test]
fn a_child_may_exec() {
    alone("forks", &["-m", "exec"]);
}

#[test]
fn system_during_traffic_is_harmless() {
    alone("forks", &["-m", "system"]);
}

#[test]
fn the_death_of_a_parent_cleans_up_while_its_child_lives() {
    let room = Room::new().expect("a room");
    let path = built(&room, "forks");
    room.start_agent().expect("an agent");
    let mut running = room.start(room.run(&[&path, "-m", "live"])).expect("it starts");
    let parent = running.inner("forks", HANG).expect("a parent");
    running.wait_for_words("lives", HANG).expect("a child");
    let said = running.output();
    let child: u32 = said.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("the child's number");
    assert_eq!(contexts_of(&room, parent), 1);
    program::send(parent, Signal::KILL);
    wait::until(HANG, "the agent to forget the parent", || (contexts_of(&room, parent) == 0).then_some(()))
        .expect("cleaned up");
    assert_eq!(contexts_of(&room, child), 1, "the child's own context is gone too");
    wait::until(HANG, "the child's traffic", || running.everything().contains("outlived").then_some(()))
        .unwrap_or_else(|late| panic!("{late}: {}", running.everything()));
    program::send(child, Signal::KILL);
    room.wait_until_empty(HANG).expect("nothing is left over");
}

/// The number of contexts that the agent shows for a process.
fn contexts_of(room: &Room, pid: u32) -> usize {
    let rows = room.show("contexts").expect("shown");
    rows.as_array().expect("rows").iter().filter(|row| row["pid"] == pid).count()
}
