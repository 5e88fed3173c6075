//! Tests the Rust crate as users use it: programs under `softhca run`, a separate package, and a
//! process that also loads the C library.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::{Family, HANG, Hosts, Pair, Place, Room, Sides, User, cprogram};
use rustix::process::Signal;

/// The time limit for building all crates once more.
const BUILD: Duration = Duration::from_secs(900);

const PINGPONG: &str = env!("CARGO_BIN_EXE_rust-pingpong");
const ECHO: &str = env!("CARGO_BIN_EXE_rust-echo");
const KV: &str = env!("CARGO_BIN_EXE_rust-kv");
const BOTH: &str = env!("CARGO_BIN_EXE_both-engines");

#[test]
fn the_ping_pong_of_the_examples_between_two_processes() {
    let room = Room::new().expect("a room");
    let sides = Pair::must_succeed(&room, &[PINGPONG]);
    assert!(sides.client.output.contains("no message was lost"), "{}", sides.client.told());
}

#[test]
fn the_ping_pong_of_the_examples_between_two_agents() {
    let hosts = Hosts::loopback(User::Me).expect("two agents");
    let (left, right) = (&hosts.left, &hosts.right);
    let pair = Pair::connect(left.room(), &[PINGPONG], right.room(), &[PINGPONG], &left.rendezvous());
    Sides::must_succeed(&[PINGPONG], pair.and_then(|mut pair| pair.wait(HANG)));
}

/// Several clients of one server. They find the server by its address.
fn echo(place: Place<'_>) {
    let mut server = place.serve(&format!("{ECHO} ADDRESS:PORT")).expect("it listens");
    for word in ["one", "two", "three"] {
        let client = place.call(&server, &format!("{ECHO} ADDRESS:PORT {word}"));
        let outcome = client.and_then(|mut client| client.wait(HANG)).expect("it ends").expect_success();
        assert_eq!(outcome.output.trim(), word, "{}", outcome.told());
    }
    server.program.signal(Signal::TERM);
    server.program.wait(HANG).expect("it ends");
    place.must_be_empty();
}

#[test]
fn the_echo_of_the_examples_on_one_host() {
    echo(Room::new().expect("a room").place(Family::V4));
}

#[test]
fn the_echo_of_the_examples_between_two_agents() {
    echo(Hosts::loopback(User::Me).expect("two agents").place(Family::V4));
}

#[test]
fn without_an_agent_it_says_what_to_do() {
    let room = Room::new().expect("a room");
    let outcome = room.finish(room.command(BOTH, ["nothing"])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.errors.contains("softhca run -- PROGRAM"), "{}", outcome.told());
}

#[test]
fn a_main_that_returns_an_error_prints_its_sentence() {
    let room = Room::new().expect("a room");
    let outcome = room.finish(room.command(KV, ["127.0.0.1:7474", "get", "x"])).expect("it ends");
    assert_eq!(outcome.code, 1, "{}", outcome.told());
    let line = outcome.errors.lines().find(|line| line.starts_with("Error: ")).unwrap_or_default();
    assert!(line.contains("softhca run -- PROGRAM") && !line.contains(['{', '"']), "{}", outcome.told());
}

#[test]
fn a_process_with_the_crate_and_the_c_library_has_two_engines() {
    let room = Room::new().expect("a room");
    let library = cprogram::build_library(&room, "both").expect("it compiles");
    let outcome = room.finish_run(&[BOTH, library.to_str().expect("a plain path")]).expect("it ends").expect_success();
    assert!(outcome.output.contains("two engines"), "{}", outcome.told());
    room.wait_until_empty(HANG).expect("nothing is left over");
}

/// The package is in the repository as an example. The test builds it in another folder, as users
/// do.
#[test]
fn a_package_of_somebody_else_has_two_hosts_in_one_test() {
    let room = Room::new().expect("a room");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the suite lies in the workspace");
    let (from, to) = (root.join("tests/outside"), room.folder().join("outside"));
    fs::create_dir_all(to.join("tests")).expect("a folder");
    let manifest = fs::read_to_string(from.join("Cargo.toml")).expect("a manifest");
    let manifest = manifest.replace("\"../../", &format!("\"{}/", root.display()));
    fs::write(to.join("Cargo.toml"), manifest).expect("written");
    for file in ["lib.rs", "tests/two_hosts.rs"] {
        fs::copy(from.join(file), to.join(file)).expect("copied");
    }
    // The lock file names versions that are already downloaded, so Cargo asks no registry.
    fs::copy(root.join("Cargo.lock"), to.join("Cargo.lock")).expect("copied");
    let target = Path::new(PINGPONG).parent().and_then(Path::parent).expect("it lies in the target folder");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--offline", "--quiet"]).current_dir(&to).env("CARGO_TARGET_DIR", target.join("outside"));
    // The build takes most of the time, and nobody debugs it.
    cargo.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let outcome = room.start(cargo).and_then(|mut cargo| cargo.wait(BUILD)).expect("it ends").expect_success();
    assert!(outcome.output.contains("2 passed"), "{}", outcome.told());
}
