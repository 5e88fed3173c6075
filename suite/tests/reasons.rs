//! Tests the reasons of failures in each place where users can read them: at the end of `softhca
//! run`, in the log, in `softhca show --errors` while the program runs and after it, and by
//! `softhca_why` in the program itself.

use harness::{HANG, Outcome, Pair, Room, User, cprogram, wait};
use rustix::process::Signal;
use serde_json::Value;

fn built(room: &Room) -> String {
    cprogram::build(room, "why").expect("it compiles").to_str().expect("a plain path").to_owned()
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

/// Every sentence that `softhca show --errors` has about a program with this name, including
/// sentences about dropped packets.
fn shown(room: &Room, comm: &str, ended: bool) -> Vec<String> {
    let answer = room.json(&["show", "--errors", "--json"]).expect("it answers");
    let programs = answer["programs"].as_array().expect("programs").iter();
    let its = programs.filter(|program| program["comm"] == comm && program["ended"] == ended);
    let lists = its.flat_map(|program| [&program["errors"], &program["drops"]]).filter_map(Value::as_array);
    lists.flatten().map(|one| one["sentence"].as_str().expect("a sentence").to_owned()).collect()
}

/// Runs one mode of the program, and checks its reasons in every place.
fn everywhere(mode: &str, at_the_end: &[&str], asked: &[&str]) -> (Room, Outcome) {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let mut command = room.run(&[&path, "-m", mode, "-w"]);
    command.env("SOFTHCA_LOG", "warn");
    let mut program = room.start(command).expect("it starts");
    program.wait_for_words("waits", HANG).expect("it has failed");
    says(&shown(&room, "why", false).join("\n"), at_the_end);
    let pid = program.inner("why", HANG).expect("it runs");
    harness::program::send(pid, Signal::TERM);
    let outcome = program.wait(HANG).expect("it ends");
    assert_eq!(outcome.code, 143, "{}", outcome.told());
    says(&outcome.output, asked);
    // Log lines have the module's name. The summary comes after the log.
    let (log, told) = outcome.errors.split_once("softhca: errors during the run").expect("the reasons follow");
    says(log, at_the_end);
    says(log, &["softhca::reason"]);
    says(told, at_the_end);
    let ended = wait::until(HANG, "the context to end", || {
        Some(shown(&room, "why", true)).filter(|sentences| !sentences.is_empty())
    });
    says(&ended.expect("it is kept").join("\n"), at_the_end);
    says(&room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success().output, at_the_end);
    (room, outcome)
}

#[test]
fn an_attribute_that_is_missing() {
    everywhere(
        "modify",
        &["modify_qp of QP 0x", "RC INIT to RTR needs PATH_MTU too"],
        &["wr_id 1: nothing has failed"],
    );
}

#[test]
fn a_bad_rkey_and_what_is_flushed_behind_it() {
    let refused = "refused a peer's RDMA WRITE";
    let failed = "wr_id 0x3e8: remote access error: QP 0x";
    let (_room, outcome) = everywhere(
        "rkey",
        &[refused, "0x77777777", failed, "NAK", "check rkey"],
        &[
            "wr_id 1000: nothing has failed",
            failed,
            "wr_id 0x3ea: flushed",
            "entered the error state: wr_id 0x3e8 failed",
        ],
    );
    assert!(!outcome.told().contains('\u{fffd}'), "{}", outcome.told());
}

#[test]
fn a_receiver_that_is_never_ready() {
    let sentence = "had no receive request for packet";
    let advice = "the peer has to post receive requests in time";
    everywhere("rnr", &[sentence, "(rnr_retry 1)", advice], &["wr_id 0x3ea: receiver-not-ready", sentence, advice]);
}

#[test]
fn a_peer_that_was_killed() {
    let sentence = "transport retries exhausted: QP 0x";
    everywhere(
        "gone",
        &["has lost its peer: process", sentence, "retry_cnt 7"],
        &["wr_id 0x3ea: transport", "retry_cnt 7"],
    );
}

#[test]
fn datagrams_with_another_key() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let outcome = room.finish_run(&[&path, "-m", "qkey"]).expect("it ends");
    says(
        &outcome.errors,
        &["softhca: why", "a packet was dropped because its Q_Key is 0x7, the QP has 0x6", "set the same Q_Key"],
    );
    let ended = wait::until(HANG, "the context to end", || {
        Some(shown(&room, "why", true)).filter(|sentences| !sentences.is_empty())
    });
    says(&ended.expect("it is kept").join("\n"), &["3 packets were dropped", "its Q_Key is 0x7, the QP has 0x6"]);
}

#[test]
fn a_program_in_which_nothing_fails_is_told_nothing() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let outcome = room.finish_run(&[&path, "-m", "none"]).expect("it ends").expect_success();
    assert_eq!(outcome.errors, "", "{}", outcome.told());
    let told = room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success();
    assert_eq!(told.output, "nothing has failed\n");
}

/// The output of the program in one mode, with softhca's messages. In these modes the program ends
/// by itself.
fn ended(mode: &str) -> Outcome {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let outcome = room.finish_run(&[&path, "-m", mode]).expect("it ends");
    assert_eq!(outcome.code, 1, "{}", outcome.told());
    outcome
}

#[test]
fn a_call_that_a_program_only_tries_does_not_explain_its_end() {
    let outcome = ended("attempt");
    let first = outcome.errors.lines().nth(1).unwrap_or_default();
    assert!(outcome.errors.starts_with("softhca: why something failed:\n"), "{}", outcome.told());
    assert!(first.contains("refused a peer's RDMA WRITE"), "{}", outcome.told());
    assert!(!outcome.errors.contains("max_inline_data"), "{}", outcome.told());
    let outcome = ended("tries");
    says(&outcome.errors, &["softhca: why something may have failed:", "max_inline_data", "softhca run --strict"]);
}

#[test]
fn a_failure_without_an_adapter_error_points_to_the_strict_mode() {
    let outcome = ended("wrong");
    assert_eq!(outcome.errors.lines().count(), 1, "{}", outcome.told());
    says(&outcome.errors, &["softhca run --strict", "docs/strict.md"]);
    // The refused call explains itself.
    assert!(!ended("modify").errors.contains("--strict"));
    // A program that opens no device fails for reasons of its own.
    let room = Room::new().expect("a room");
    assert_eq!(room.finish_run(&["false"]).expect("it ends").errors, "");
    let path = built(&room);
    let strict = room.finish(room.softhca(&["run", "--strict", "--", &path, "-m", "wrong"])).expect("it ends");
    assert_eq!((strict.code, strict.errors.contains("softhca run --strict")), (1, false), "{}", strict.told());
}

#[test]
fn an_orderly_end_by_sigterm_is_no_failure() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let mut program = room.start(room.run(&[&path, "-m", "stops"])).expect("it starts");
    program.wait_for_words("waits", HANG).expect("it waits");
    program.signal(Signal::TERM);
    let outcome = program.wait(HANG).expect("it ends");
    assert_eq!((outcome.code, outcome.errors.as_str()), (1, ""), "{}", outcome.told());
}

#[test]
fn a_failure_is_told_with_its_children() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    // The shell itself succeeds, but requests of its children have failed.
    let script = format!("{path} -m rkey; {path} -m rnr; exit 0");
    let outcome = room.finish_run(&["sh", "-c", &script]).expect("it ends").expect_success();
    says(&outcome.errors, &["softhca: errors during the run:", "check rkey", "rnr_retry 1"]);
    let quiet = room.softhca(&["run", "--quiet", "--", "sh", "-c", &script]);
    assert_eq!(room.finish(quiet).expect("it ends").expect_success().errors, "");
}

#[test]
fn a_pingpong_whose_sides_have_other_sizes() {
    let room = Room::new().expect("a room");
    let (server, client) = (["ibv_rc_pingpong", "-g", "0", "-s", "64"], ["ibv_rc_pingpong", "-g", "0", "-s", "4096"]);
    let mut pair = Pair::start_different(&room, &server, &room, &client).expect("both start");
    let sides = pair.wait(HANG).expect("both end");
    says(&sides.server.errors, &["local length error", "receive buffer of 64", "as long as the longest message"]);
    says(&sides.client.errors, &["remote invalid request error", "the peer's reasons"]);
}

#[test]
fn a_connection_that_nobody_waits_for() {
    let room = Room::new().expect("a room");
    let outcome = room.finish_run(&["rping", "-c", "-a", "127.0.0.1", "-p", "7997", "-C", "1"]).expect("it ends");
    let words = ["127.0.0.1:7997 rejects the connection", "nobody listens at this service id"];
    says(&outcome.errors, &words);
    let ended = wait::until(HANG, "the context to end", || {
        Some(shown(&room, "rping", true)).filter(|sentences| !sentences.is_empty())
    });
    says(&ended.expect("it is kept").join("\n"), &words);
}

/// Every user sees that something has failed. Only the user whose program failed, and root, see
/// why.
#[test]
fn reasons_are_their_users_own() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: other users need root");
        return;
    }
    let machine = Room::system("addresses = ['127.0.0.1']\n[[devices]]\n").expect("an agent for everybody");
    let (alice, bob) =
        (machine.guest(User::Number(64_001)).expect("a room"), machine.guest(User::Number(64_002)).expect("a room"));
    let path = built(&alice);
    let outcome = alice.finish_run(&[&path, "-m", "rkey"]).expect("it ends");
    says(&outcome.errors, &["check rkey"]);
    let told = |room: &Room| room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success().output;
    wait::until(HANG, "the context to end", || told(&bob).contains("ended").then_some(())).expect("it is kept");
    says(&told(&bob), &["reasons of another user"]);
    assert!(!told(&bob).contains("0x77777777"), "{}", told(&bob));
    for room in [&alice, &machine] {
        says(&told(room), &["0x77777777", "check rkey"]);
    }
    machine.finish(machine.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
}

/// A program chooses the text that the agent shows about it, but the text cannot send control codes
/// to a terminal.
#[test]
fn a_name_that_would_clear_the_screen() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let evil = room.folder().join("\u{1b}[2Jevil");
    std::fs::copy(&path, &evil).expect("copied");
    let outcome = room.finish_run(&[evil.to_str().expect("text"), "-m", "rkey"]).expect("it ends");
    assert_eq!(outcome.code, 1, "{}", outcome.told());
    let told = wait::until(HANG, "the context to end", || {
        let told = room.finish(room.softhca(&["show", "--errors"])).ok()?.output;
        told.contains("ended").then_some(told)
    });
    let told = told.expect("it is kept");
    assert!(told.contains("[2Jevil") && told.chars().all(|letter| letter == '\n' || !letter.is_control()), "{told:?}");
}

/// A program fails, the agent is killed, and a new agent starts. The reasons are still there.
#[test]
fn reasons_outlive_the_agent() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let quiet = room.finish(room.softhca(&["run", "--quiet", "--", &path, "-m", "rkey"])).expect("it ends");
    assert_eq!((quiet.code, quiet.errors.as_str()), (1, ""), "{}", quiet.told());
    let mut running = room.start(room.run(&[&path, "-m", "rkey", "-w"])).expect("it starts");
    running.wait_for_words("waits", HANG).expect("it has failed");
    let pid = running.inner("why", HANG).expect("it runs");
    let agent = room.agent().expect("an agent");
    harness::program::send(agent, Signal::KILL);
    wait::until(HANG, "the agent's end", || (!harness::process::alive(agent)).then_some(())).expect("it ends");
    let told = || room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success().output;
    let programs = || room.json(&["show", "--errors", "--json"]).expect("it answers")["programs"].clone();
    says(&told(), &["no agent is running", ", ended\n", &format!("process {pid}\n"), "check rkey"]);
    let check = |programs: &Value| {
        for program in programs.as_array().expect("programs") {
            assert_eq!(program["ended"] == true, program["pid"] != pid, "{program:#}");
            assert!(program["source"].is_string() && program["errors"][0]["time"].is_string(), "{program:#}");
        }
        assert!(programs.to_string().contains("check rkey"), "{programs:#}");
    };
    check(&programs());
    room.start_agent().expect("a new agent");
    says(&told(), &[", ended, from ", "check rkey"]);
    check(&programs());
    harness::program::send(pid, Signal::KILL);
    running.wait(HANG).expect("it ends");
}

#[test]
fn an_empty_folder_of_reasons_is_told() {
    let room = Room::new().expect("a room");
    room.start_agent().expect("an agent");
    room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    let told = room.finish(room.softhca(&["show", "--errors"])).expect("it ends").expect_success();
    says(&told.output, &["no agent is running, and no reasons are stored in"]);
    assert_eq!(room.json(&["show", "--errors", "--json"]).expect("it answers")["programs"], serde_json::json!([]));
}
