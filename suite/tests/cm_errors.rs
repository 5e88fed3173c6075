//! Tests connections that fail to connect or that end early: which side gets which event with which
//! status, and that no objects remain.

use std::time::Duration;

use harness::manager::Server;
use harness::{Family, HANG, Hosts, Outcome, Place, Program, Room, User, cprogram, process, program, wait};
use rustix::process::Signal;
use serde_json::Value;

/// The name of the program, and of its process.
const NAME: &str = "refusals";

fn built(room: &Room) -> String {
    let path = cprogram::build_with(room, NAME, &["-lrdmacm"]).expect("it compiles");
    path.to_str().expect("a plain path").to_owned()
}

/// The command line of one side of a pair, which goes as far as `state`.
fn line(program: &str, option: &str, state: &str) -> String {
    format!("{program} -a ADDRESS -p PORT {option} {state}")
}

/// A listener and a caller that go as far as these states.
fn pair(place: Place<'_>, program: &str, listens: &str, calls: &str) -> (Server, Program) {
    let server = place.serve(&line(program, "-l", listens)).expect("it listens");
    let client = place.call(&server, &line(program, "-c", calls)).expect("it starts");
    (server, client)
}

#[track_caller]
fn said(program: &mut Program, words: &str) {
    program.wait_for_words(words, HANG).unwrap_or_else(|why| panic!("{why}"));
}

#[track_caller]
fn ended(program: &mut Program) -> Outcome {
    program.wait(HANG).unwrap_or_else(|why| panic!("{why}"))
}

/// Kills the program itself, not `softhca run`.
#[track_caller]
fn kill(program: &mut Program) {
    let pid = program.inner(NAME, HANG).expect("it runs");
    program::send(pid, Signal::KILL);
}

/// Runs the check on one host and between two agents.
fn everywhere(check: impl Fn(Place<'_>, &str)) {
    let room = Room::of(User::Me).expect("a room");
    check(room.place(Family::V4), &built(&room));
    room.place(Family::V4).must_be_empty();
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    check(hosts.place(Family::V4), &built(hosts.left.room()));
    hosts.place(Family::V4).must_be_empty();
}

#[test]
fn without_a_listener_the_reason_is_8() {
    everywhere(|place, program| {
        // Uses the port of a server that has ended.
        let mut server = place.serve(&line(program, "-l", "accept")).expect("it listens");
        kill(&mut server.program);
        ended(&mut server.program);
        let client = ended(&mut place.call(&server, &line(program, "-c", "established")).expect("it starts"));
        assert_eq!(client.code, 2, "{}", client.told());
        assert!(client.output.contains("RDMA_CM_EVENT_REJECTED status 8"), "{}", client.told());
        assert!(client.errors.contains("softhca: why"), "no reason: {}", client.told());
    });
}

#[test]
fn a_listener_rejects_with_words_of_its_own() {
    everywhere(|place, program| {
        let (_server, mut client) = pair(place, program, "reject", "established");
        let client = ended(&mut client);
        assert!(client.output.contains("RDMA_CM_EVENT_REJECTED status 28 private not today"), "{}", client.told());
    });
}

#[test]
fn a_disconnect_reaches_the_other_side() {
    everywhere(|place, program| {
        let (mut server, mut client) = pair(place, program, "accept", "disconnect");
        for side in [ended(&mut client), ended(&mut server.program)] {
            assert!(side.succeeded() && side.output.contains("RDMA_CM_EVENT_DISCONNECTED"), "{}", side.told());
        }
    });
}

#[test]
fn a_full_backlog_makes_callers_wait() {
    everywhere(|place, program| {
        let mut server = place.serve(&line(program, "-l", "deaf")).expect("it listens");
        let call = || place.call(&server, &line(program, "-c", "established")).expect("it starts");
        let mut callers: Vec<Program> = (0..4).map(|_| call()).collect();
        place.wait_for_events(&server, 2).expect("two requests wait");
        for caller in &mut callers {
            said(caller, "ROUTE_RESOLVED");
        }
        kill(&mut server.program);
        // The listener had received two requests. The other callers repeat their requests, and no
        // program listens any more.
        let mut ends: Vec<String> = callers.iter_mut().map(|caller| ended(caller).output).collect();
        ends.sort_by_key(|words| words.contains("REJECTED status 8"));
        let heard = |words: &String| words.contains("REJECTED status 28");
        let too_late = |words: &String| words.contains("REJECTED status 8");
        assert!(ends[..2].iter().all(heard) && ends[2..].iter().all(too_late), "{ends:#?}");
    });
}

#[test]
fn a_caller_is_killed_in_each_state() {
    everywhere(|place, program| {
        for (listens, calls, at, told) in [
            ("request", "address", "ADDR_RESOLVED", None),
            ("request", "route", "ROUTE_RESOLVED", None),
            // As with the kernel, a listener gets no event about a caller that dies before the
            // listener has answered the request. The listener's later answer would fail.
            ("request", "established", "ROUTE_RESOLVED", None),
            ("accept", "response", "CONNECT_RESPONSE", Some("REJECTED")),
            ("accept", "established", "ESTABLISHED", Some("DISCONNECTED")),
        ] {
            let (mut server, mut client) = pair(place, program, listens, calls);
            said(&mut client, at);
            if calls == "established" {
                let of_server = if listens == "request" { "CONNECT_REQUEST" } else { "ESTABLISHED" };
                said(&mut server.program, of_server);
            }
            kill(&mut client);
            ended(&mut client);
            match told {
                Some(event) => said(&mut server.program, event),
                None => kill(&mut server.program),
            }
            ended(&mut server.program);
        }
    });
}

#[test]
fn a_listener_is_killed_in_each_state() {
    everywhere(|place, program| {
        for (listens, calls, at, told) in [
            ("request", "established", "CONNECT_REQUEST", "REJECTED"),
            ("accept", "response", "CONNECT_REQUEST", "REJECTED"),
            ("accept", "established", "ESTABLISHED", "DISCONNECTED"),
        ] {
            let (mut server, mut client) = pair(place, program, listens, calls);
            said(&mut server.program, at);
            if calls == "response" {
                said(&mut client, "CONNECT_RESPONSE");
            }
            kill(&mut server.program);
            said(&mut client, told);
            ended(&mut client);
            ended(&mut server.program);
        }
    });
}

/// Programs see the agent's death as the removal of the device: each id that has the device gets
/// one event. After that the event channel fails.
#[test]
fn the_agent_is_killed_in_each_state() {
    let room = Room::of(User::Nobody).expect("a room");
    let program = built(&room);
    for (listens, calls, at, removals) in [
        ("accept", "address", "ADDR_RESOLVED", (1, 1)),
        ("accept", "route", "ROUTE_RESOLVED", (1, 1)),
        // A request that the listener has not accepted belongs to no program.
        ("request", "established", "ROUTE_RESOLVED", (1, 1)),
        ("accept", "response", "CONNECT_RESPONSE", (2, 1)),
        ("accept", "established", "ESTABLISHED", (2, 1)),
    ] {
        let (mut server, mut client) = pair(room.place(Family::V4), &program, listens, calls);
        said(&mut client, at);
        // Waits until neither program has a call in progress.
        match (listens, calls) {
            ("request", _) => {
                said(&mut client, "has called");
                said(&mut server.program, "CONNECT_REQUEST");
            }
            (_, "response") => said(&mut server.program, "has accepted"),
            (_, "established") => said(&mut server.program, "ESTABLISHED"),
            _ => {}
        }
        program::send(room.agent().expect("an agent"), Signal::KILL);
        for (side, count) in [(&mut server.program, removals.0), (&mut client, removals.1)] {
            let side = ended(side);
            assert_eq!(side.code, 3, "{calls}: {}", side.told());
            assert_eq!(side.output.matches("DEVICE_REMOVAL status 0").count(), count, "{calls}: {}", side.told());
        }
    }
}

/// A fault rule removes the device. Programs see the same as in the test above, but the agent
/// continues and serves new programs.
#[test]
fn a_device_is_taken_away() {
    let room = Room::of(User::Nobody).expect("a room");
    let program = built(&room);
    let (mut server, mut client) = pair(room.place(Family::V4), &program, "accept", "established");
    said(&mut client, "ESTABLISHED");
    said(&mut server.program, "ESTABLISHED");
    room.finish(room.softhca(&["fault", "add", "remove"])).expect("it ends").expect_success();
    for (side, count) in [(&mut server.program, 2), (&mut client, 1)] {
        let side = ended(side);
        assert_eq!(side.code, 3, "{}", side.told());
        assert_eq!(side.output.matches("DEVICE_REMOVAL status 0").count(), count, "{}", side.told());
    }
    let (mut server, mut client) = pair(room.place(Family::V4), &program, "accept", "disconnect");
    assert!(ended(&mut client).succeeded() && ended(&mut server.program).succeeded());
}

/// A host that accepts packets and never answers, because its agent is stopped. The standard's
/// timeouts add up to half a minute.
#[test]
fn a_silent_host_is_unreachable() {
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    let program = built(hosts.left.room());
    let server = hosts.place(Family::V4).serve(&line(&program, "-l", "accept")).expect("it listens");
    let agent = hosts.left.room().agent().expect("an agent");
    program::send(agent, Signal::STOP);
    let stopped = wait::until(HANG, "the agent to stop", || (process::state(agent) == Some('T')).then_some(()));
    let mut client = hosts.place(Family::V4).call(&server, &line(&program, "-c", "established")).expect("it starts");
    let client = client.wait(2 * HANG);
    program::send(agent, Signal::CONT);
    stopped.expect("stopped");
    let client = client.expect("it ends");
    assert!(client.output.contains("RDMA_CM_EVENT_UNREACHABLE status -110"), "{}", client.told());
    assert!(client.errors.contains("softhca: why"), "no reason: {}", client.told());
    hosts.right.room().wait_until_all_is_forgotten(HANG).expect("nothing is left over");
}

/// Resources of an agent: its own memory, and the number of objects of each kind.
fn held(room: &Room) -> (u64, Value) {
    room.wait_until_all_is_forgotten(HANG).expect("nothing is left over");
    let agent = room.agent().expect("an agent");
    (process::own_memory(agent).expect("it runs"), room.json(&["show", "--json"]).expect("it answers"))
}

/// Many connections that come and go leave no objects, no memory and no open files behind. Each
/// pair of programs makes 500 or 2500 connections, two pairs at a time. On a machine where other
/// programs spin, a connection can take 12 ms, because each of its steps waits for a turn of the
/// scheduler.
#[test]
fn thousands_of_connections_come_and_go() {
    const MORE: u64 = 1 << 20;
    let check = |place: Place<'_>, rooms: &[&Room], program: &str, pairs: u32, count: u32| {
        let round = || {
            let line = |mode: &str| format!("{program} -a ADDRESS -p PORT -n {count} -m {mode}");
            for _ in 0..pairs {
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| place.must_meet(&line("serve"), &line("call")));
                    }
                });
            }
            let files = |room: &&Room| process::open_files(room.agent().expect("an agent")).len();
            rooms.iter().map(|room| (held(room), files(room))).collect::<Vec<_>>()
        };
        let (first, second) = (round(), round());
        for (((before, _), files), ((after, objects), then)) in first.into_iter().zip(second) {
            assert!(after < before + MORE, "the agent's memory grew from {before} to {after}; it shows {objects}");
            assert_eq!(files, then, "open files of the agent");
        }
    };
    let build = |room: &Room| {
        let path = cprogram::build_with(room, "cycles", &["-lrdmacm"]).expect("it compiles");
        path.to_str().expect("a plain path").to_owned()
    };
    let room = Room::of(User::Nobody).expect("a room");
    check(room.place(Family::V4), &[&room], &build(&room), 2, 2500);
    let hosts = Hosts::loopback(User::Nobody).expect("two addresses");
    check(hosts.place(Family::V4), &[hosts.left.room(), hosts.right.room()], &build(hosts.left.room()), 1, 500);
}

/// A program that waits for an event uses no processor.
#[test]
fn a_listener_sleeps_while_it_waits() {
    let room = Room::of(User::Me).expect("a room");
    let program = built(&room);
    let mut server = room.place(Family::V4).serve(&line(&program, "-l", "accept")).expect("it listens");
    let pid = server.program.inner(NAME, HANG).expect("it runs");
    let sleeps = |pid: u32| process::state(pid) == Some('S');
    wait::until(HANG, "the listener to sleep", || sleeps(pid).then_some(())).expect("it sleeps");
    let before = process::cpu_time(pid).expect("it runs");
    let started = std::time::Instant::now();
    wait::until(HANG, "half a second", || (started.elapsed() > Duration::from_millis(500)).then_some(()))
        .expect("it passes");
    let used = process::cpu_time(pid).expect("it runs") - before;
    assert!(used < Duration::from_millis(100), "{used:?} of half a second");
}
