//! Tests the strict mode, `softhca run --strict`. It finds each mistake by its name and nothing
//! else. It says nothing about programs without mistakes. Its findings about Debian's programs are
//! those in docs/strict.md.

use std::collections::BTreeSet;
use std::fs;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use engine::lint::Check;
use harness::pyverbs::Pyverbs;
use harness::{HANG, Outcome, Pair, Room, Sides, cprogram};
use rustix::process::Signal;

/// The exit code of `softhca run --strict` if it has found a mistake and the program has ended with
/// 0.
const FOUND: i32 = 123;

/// Runs `softhca run --strict -- words`.
fn strictly(room: &Room, words: &[&str]) -> Outcome {
    room.finish(room.softhca(&[&["run", "--strict", "--"], words].concat())).expect("it ends")
}

fn built(room: &Room) -> String {
    cprogram::build(room, "strict").expect("it compiles").to_str().expect("a plain path").to_owned()
}

/// The names of the findings: the lines "  NAME, once:" and "  NAME, 7 times:".
fn found(said: &str) -> BTreeSet<String> {
    let names: BTreeSet<&str> = Check::ALL.iter().map(|check| check.name()).collect();
    let name = |line: &str| Some(line.strip_prefix("  ")?.split_once(", ")?.0.to_owned());
    said.lines().filter_map(name).filter(|name| names.contains(name.as_str())).collect()
}

#[track_caller]
fn finds_only(name: &str, outcome: &Outcome) {
    assert_eq!(found(&outcome.errors), BTreeSet::from([name.to_owned()]), "{}", outcome.told());
    assert_eq!(outcome.errors.matches("fix: ").count(), 1, "{}", outcome.told());
}

/// Tests every mistake except the one whose program ends only by a signal.
#[test]
fn each_mistake_is_found_by_its_name() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    for check in Check::ALL.into_iter().filter(|check| *check != Check::UnacknowledgedEvent) {
        let outcome = strictly(&room, &[&path, "-m", check.name()]);
        finds_only(check.name(), &outcome);
        assert_eq!(outcome.code, FOUND, "{}", outcome.told());
        assert!(outcome.errors.contains(check.mend()), "{}", outcome.told());
    }
}

#[test]
fn the_same_without_mistakes_is_told_nothing() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let outcome = strictly(&room, &[&path]).expect_success();
    assert!(!outcome.errors.contains("--strict found"), "{}", outcome.told());
    let left = fs::read_dir(room.run_dir().join("findings")).expect("the folder").count();
    assert_eq!(left, 0, "a run without findings leaves no file");
}

#[test]
fn mistakes_are_not_reported_without_strict() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    for check in Check::ALL.into_iter().filter(|check| *check != Check::UnacknowledgedEvent) {
        let outcome = room.finish_run(&[&path, "-m", check.name()]).expect("it ends").expect_success();
        // The error that a mistake causes is reported without the strict mode too.
        assert_eq!((found(&outcome.errors), outcome.errors.contains("--strict found")), (BTreeSet::new(), false));
    }
    assert!(!room.run_dir().join("findings").exists());
}

#[test]
fn a_program_that_waits_for_ever_has_told_why_when_it_is_ended() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let mut command = room.softhca(&["run", "--strict", "--", &path, "-m", "unacknowledged-event"]);
    command.env("SOFTHCA_LOG", "warn");
    let mut running = room.start(command).expect("it starts");
    // The finding is in the log at once.
    running.wait_for_words("unacknowledged-event: ibv_destroy_cq waits", HANG).expect("found");
    running.signal(Signal::TERM);
    let outcome = running.wait(HANG).expect("it ends");
    finds_only("unacknowledged-event", &outcome);
    assert_eq!(outcome.code, 128 + 15, "{}", outcome.told());
}

#[test]
fn the_exit_code_of_a_program_that_fails_is_kept_and_children_are_looked_at() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let outcome = strictly(&room, &["sh", "-c", &format!("{path} -m small-cq; {path} -m no-retry; exit 3")]);
    assert_eq!(outcome.code, 3, "{}", outcome.told());
    let both = ["no-retry", "small-cq"].map(str::to_owned);
    assert_eq!(found(&outcome.errors), BTreeSet::from(both), "{}", outcome.told());
}

#[test]
fn the_place_in_the_program_is_told() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let outcome = strictly(&room, &[&path, "-m", "wrong-state"]);
    // Without debug information, the finding has only the name of the function. Other functions may
    // be inlined into it.
    assert!(outcome.errors.contains(" of strict)"), "{}", outcome.told());
}

/// One busy thread for each processor, until this value is dropped.
struct Load {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |stop: Arc<AtomicBool>| {
            move || {
                while !stop.load(Ordering::Relaxed) {
                    spin_loop();
                }
            }
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let threads = (0..processors).map(|_| thread::spawn(spin(Arc::clone(&stop)))).collect();
        Self { stop, threads }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// If the strict mode does not find a mistake, it must at least say that findings may be missing.
#[test]
fn mistakes_are_found_on_a_busy_machine() {
    const ROUNDS: usize = 10;
    let checks = [
        Check::ChangedBuffer,
        Check::BusyBuffer,
        Check::MissingFence,
        Check::OverwrittenMessage,
        Check::DeregisteredInUse,
        Check::UnmappedMemory,
        Check::SmallCq,
        Check::SlowRnr,
        Check::ReadDepth,
        Check::LeftOpen,
    ];
    let room = Room::new().expect("a room");
    let path = built(&room);
    let _load = Load::start();
    let mut missed = Vec::new();
    for _ in 0..ROUNDS {
        for check in checks {
            let outcome = strictly(&room, &[&path, "-m", check.name()]);
            let found = found(&outcome.errors);
            assert!(found.iter().all(|name| name == check.name()), "{}", outcome.told());
            if found.is_empty() && !outcome.errors.contains("--strict could not watch everything: ") {
                missed.push(outcome.told());
            }
        }
    }
    assert!(missed.len() <= ROUNDS * checks.len() / 100, "{}", missed.join("\n"));
}

#[test]
fn a_findings_file_that_cannot_be_written_is_announced() {
    let room = Room::new().expect("a room");
    let path = built(&room);
    let script = format!("rm $SOFTHCA_STRICT && mkdir $SOFTHCA_STRICT && exec {path} -m small-cq");
    let outcome = strictly(&room, &["sh", "-c", &script]).expect_success();
    let announced = "softhca: --strict could not watch everything: cannot read ";
    assert!(outcome.errors.contains(announced), "{}", outcome.told());
    // A deleted file is created again.
    let outcome = strictly(&room, &["sh", "-c", &format!("rm $SOFTHCA_STRICT; exec {path} -m small-cq")]);
    finds_only("small-cq", &outcome);
}

/// Runs both programs of a pair in the strict mode, and returns the findings of both sides.
fn pair(room: &Room, words: &[&str]) -> BTreeSet<String> {
    let softhca = room.dist().softhca().display().to_string();
    let words = [&[softhca.as_str(), "run", "--strict", "--"], words].concat();
    let sides = Sides::measured(|| Pair::start(room, &words)?.wait(HANG)).expect("both end");
    for side in [&sides.server, &sides.client] {
        let code = if found(&side.errors).is_empty() { 0 } else { FOUND };
        assert_eq!(side.code, code, "{}", side.told());
    }
    [&sides.server, &sides.client].iter().flat_map(|side| found(&side.errors)).collect()
}

#[test]
fn programs_of_debian_that_do_nothing_wrong_are_told_nothing() {
    let room = Room::new().expect("a room");
    for words in [
        &["ibv_rc_pingpong", "-g", "0"][..],
        &["ibv_rc_pingpong", "-g", "0", "-e"],
        &["ibv_uc_pingpong", "-g", "0"],
        &["ibv_ud_pingpong", "-g", "0"],
        &["ibv_xsrq_pingpong", "-g", "0"],
        &["ib_write_bw", "-n", "500"],
        &["ib_write_bw", "-n", "500", "-b", "-q", "4"],
        &["ib_write_bw", "-n", "500", "-c", "UC"],
        &["ib_write_bw", "-n", "400", "-l", "8"],
        &["ib_write_bw", "-n", "200", "-Q", "1", "--inline_size", "128", "-s", "128"],
        &["ib_write_lat", "-n", "500"],
        &["ib_write_lat", "-n", "500", "-c", "UC"],
        &["ib_read_lat", "-n", "500"],
        &["ib_atomic_bw", "-n", "500"],
        &["ib_atomic_bw", "-n", "200", "-q", "4", "-b"],
        &["ib_atomic_lat", "-n", "500"],
        &["ib_send_lat", "-n", "500"],
        &["ib_send_lat", "-n", "500", "-c", "UC"],
        &["ib_send_lat", "-n", "500", "-c", "UD"],
        // These programs run for a fixed time and stop in the middle.
        &["ib_write_bw", "-D", "1", "-b"],
        &["ib_send_lat", "-D", "1"],
        &["ib_atomic_bw", "-D", "1", "-q", "4"],
        // This program goes through all sizes, on the same queues and in the same memory.
        &["ib_write_bw", "-n", "60", "-a"],
    ] {
        assert_eq!(pair(&room, words), BTreeSet::new(), "{words:?}");
    }
}

/// Benchmark programs do not look at received data.
#[test]
fn programs_of_debian_that_throw_data_away_are_told_so() {
    let room = Room::new().expect("a room");
    for (words, name) in [
        (&["ib_send_bw", "-n", "500"][..], "overwritten-message"),
        (&["ib_send_bw", "-n", "500", "-c", "UC"], "overwritten-message"),
        (&["ib_send_bw", "-n", "500", "-c", "UD", "-s", "1024"], "overwritten-message"),
        (&["ib_send_bw", "-n", "200", "--use-srq", "-q", "4", "-b"], "overwritten-message"),
        (&["ib_read_bw", "-n", "500"], "busy-buffer"),
        (&["ib_read_bw", "-n", "200", "-e", "-q", "4", "-b"], "busy-buffer"),
        (&["ib_send_bw", "-D", "1", "-b"], "overwritten-message"),
        (&["ib_send_bw", "-n", "60", "-a"], "overwritten-message"),
        (&["ib_read_bw", "-D", "1"], "busy-buffer"),
    ] {
        // The mistake shows only while two messages are outstanding together (docs/strict.md,
        // "Timing"). A server that polls faster than its client sends makes none, so it gets
        // further runs. A finding of another name fails the test in any of them.
        let names = (0..10).map(|_| pair(&room, words)).find(|names| !names.is_empty()).unwrap_or_default();
        assert_eq!(names, BTreeSet::from([name.to_owned()]), "{words:?}");
    }
}

/// Two modules make mistakes on purpose.
#[test]
fn the_pyverbs_tests_do_nothing_wrong_but_for_what_they_test() {
    let room = Room::new().expect("a room");
    let pyverbs = Pyverbs::unpack(&room).expect("the tests");
    for module in pyverbs.modules().expect("modules") {
        let words = pyverbs.words(&module);
        let outcome = strictly(&room, &words.iter().map(String::as_str).collect::<Vec<_>>());
        let expected = match module.as_str() {
            "test_mr" => BTreeSet::from(["deregistered-in-use".to_owned()]),
            "test_qpex" => BTreeSet::from(["wrong-state".to_owned()]),
            _ => BTreeSet::new(),
        };
        let missing: Vec<_> = found(&outcome.errors).difference(&expected).cloned().collect();
        assert!(missing.is_empty(), "{missing:?} in {module}: {}", outcome.told());
    }
}
