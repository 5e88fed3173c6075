//! Tests surroundings in which something is missing: system calls that a sandbox forbids, a full
//! disk, no `/proc`, few descriptors, a relative run directory. Each case ends with a sentence that
//! names the call or the path and says what to do next, and with the documented exit code. Nothing
//! panics. If softhca can work without the missing part, it does.

use std::process::Command;

use harness::{HANG, Outcome, Pair, Room, cprogram, wait};
use rustix::process::Signal;

/// System calls that softhca needs.
const NEEDED: [&str; 5] = ["memfd_create", "eventfd2", "epoll_create1", "timerfd_create", "recvmsg"];

/// Of these, the system calls that an agent needs.
const NEEDED_BY_AGENTS: [&str; 4] = ["memfd_create", "eventfd2", "epoll_create1", "recvmsg"];

const ERRORS: [(&str, &str); 2] =
    [("EPERM", "Operation not permitted (os error 1)"), ("ENOSYS", "Function not implemented (os error 38)")];

/// The words that start a program in a sandbox that forbids these calls.
fn sandbox(room: &Room, errno: &str, calls: &[&str]) -> Vec<String> {
    let deny = cprogram::build(room, "deny").expect("it compiles").to_str().expect("a plain path").to_owned();
    let mut words = vec![deny, errno.to_owned()];
    words.extend(calls.iter().map(|call| (*call).to_owned()));
    words.push("--".to_owned());
    words
}

/// Runs `softhca` in a sandbox.
fn inside(room: &Room, sandbox: &[String], arguments: &[&str]) -> Outcome {
    let softhca = room.dist().softhca().to_str().expect("a plain path").to_owned();
    let words = sandbox[1..].iter().map(String::as_str).chain([softhca.as_str()]).chain(arguments.iter().copied());
    room.finish(room.command(&sandbox[0], words)).expect("it ends")
}

/// Checks for a sentence of softhca that names the call, its error and what to do next.
#[track_caller]
fn names(outcome: &Outcome, call: &str, error: &str) {
    let sentence = outcome.errors.lines().find(|line| line.starts_with("softhca: ")).unwrap_or_default();
    for word in [call, error, "seccomp profile"] {
        assert!(sentence.contains(word), "{word:?}: {}", outcome.told());
    }
    assert!(!outcome.everything().contains("panicked"), "{}", outcome.told());
}

#[test]
fn an_agent_that_may_not_make_a_call_names_it() {
    for (errno, error) in ERRORS {
        for call in NEEDED_BY_AGENTS {
            let room = Room::new().expect("a room");
            let sandbox = sandbox(&room, errno, &[call]);
            let run = inside(&room, &sandbox, &["run", "--", "ibv_devinfo"]);
            assert_eq!(run.code, 125, "{}", run.told());
            names(&run, call, error);
            for command in [&["agent"][..], &["agent", "--foreground"]] {
                let agent = inside(&room, &sandbox, command);
                assert_eq!(agent.code, 1, "{}", agent.told());
                names(&agent, call, error);
            }
        }
    }
}

#[test]
fn a_program_that_may_not_make_a_call_is_told_its_name() {
    let room = Room::new().expect("a room");
    for (errno, error) in ERRORS {
        for call in NEEDED {
            let sandbox = sandbox(&room, errno, &[call]);
            let words: Vec<&str> = sandbox.iter().map(String::as_str).collect();
            let opens = room.finish_run(&[&words[..], &["ibv_rc_pingpong", "-g", "0"]].concat()).expect("it ends");
            assert_eq!(opens.code, 1, "{}", opens.told());
            names(&opens, call, error);
        }
    }
    let words = sandbox(&room, "EPERM", &["clone", "clone3"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let threads = room.finish_run(&[&words[..], &["ibv_devinfo", "-d", "softhca0"]].concat()).expect("it ends");
    assert!(!threads.succeeded(), "{}", threads.told());
    names(&threads, "pthread_create", "Operation not permitted");
    // Clients of the connection manager, and rsockets over it.
    let words = sandbox(&room, "EPERM", &["recvmsg"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let connects = ["rping", "-c", "-a", "127.0.0.1", "-p", "7", "-C", "1"];
    let outcome = room.finish_run(&[&words[..], &connects].concat()).expect("it ends");
    assert!(!outcome.succeeded(), "{}", outcome.told());
    names(&outcome, "recvmsg", "Operation not permitted");
}

#[test]
fn the_doctor_names_a_call_that_is_forbidden() {
    let room = Room::new().expect("a room");
    for (errno, error) in ERRORS {
        for call in NEEDED {
            let doctor = inside(&room, &sandbox(&room, errno, &[call]), &["doctor"]);
            assert_eq!(doctor.code, 1, "{}", doctor.told());
            let finding = format!("FAIL  system calls     {call}: {error}");
            assert!(doctor.output.contains(&finding) && doctor.output.contains("seccomp"), "{}", doctor.told());
        }
        let doctor = inside(&room, &sandbox(&room, errno, &["pidfd_open"]), &["doctor"]);
        assert!(doctor.succeeded() && doctor.output.contains("warn  pidfd"), "{}", doctor.told());
    }
}

/// An agent outside the sandbox answers, but the command inside the sandbox cannot receive the
/// answer.
#[test]
fn a_command_that_may_not_receive_does_not_take_the_agent_for_dead() {
    let room = Room::new().expect("a room");
    let agent = room.start_agent().expect("an agent");
    let sandbox = sandbox(&room, "EPERM", &["recvmsg"]);
    for (arguments, code) in [(&["run", "--", "true"][..], 125), (&["devices"], 1)] {
        let outcome = inside(&room, &sandbox, arguments);
        assert_eq!(outcome.code, code, "{}", outcome.told());
        names(&outcome, "recvmsg", "Operation not permitted");
    }
    assert_eq!(room.agent(), Some(agent));
}

#[test]
fn without_pidfds_everything_works() {
    for (errno, _) in ERRORS {
        let room = Room::new().expect("a room");
        let sandbox = sandbox(&room, errno, &["pidfd_open", "pidfd_send_signal"]);
        let room = room.entered_by(&sandbox.iter().map(String::as_str).collect::<Vec<_>>());
        Pair::must_succeed(&room, &["ibv_rc_pingpong", "-g", "0"]);
        // The agent notices that a program is killed, and removes its context.
        let mut killed = room.start(room.run(&["ib_write_bw"])).expect("it starts");
        let pid = killed.inner("ib_write_bw", HANG).expect("it runs");
        let has_context = || (!room.show("contexts").ok()?.as_array()?.is_empty()).then_some(());
        wait::until(HANG, "a context", has_context).expect("a context");
        harness::program::send(pid, Signal::KILL);
        assert_eq!(killed.wait(HANG).expect("it ends").code, 137);
        room.wait_until_empty(HANG).expect("the agent forgets it");
        // `softhca run` forwards signals, and ends when its program ends.
        let waits = room.run(&["sh", "-c", "echo waits; exec sleep 600"]);
        let mut program = room.start(waits).expect("it starts");
        program.wait_for_words("waits", HANG).expect("it runs");
        program.signal(Signal::TERM);
        assert_eq!(program.wait(HANG).expect("it ends").code, 143);
        let stopped = room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
        assert!(stopped.output.contains("stopped the agent") && room.agent().is_none(), "{}", stopped.told());
    }
}

/// Runs `words` with a limit of open files.
fn with_files(room: &Room, limit: u32, words: &[&str]) -> Outcome {
    let script = format!("ulimit -n {limit}; exec \"$@\"");
    let words = ["-c", &script, "sh"].into_iter().chain(words.iter().copied());
    room.finish(room.command("sh", words)).expect("it ends")
}

#[test]
fn too_few_descriptors_are_told() {
    let room = Room::new().expect("a room");
    let softhca = room.dist().softhca().to_str().expect("a plain path").to_owned();
    for limit in [10, 16, 24, 63] {
        let run = with_files(&room, limit, &[&softhca, "run", "--", "true"]);
        assert!(run.code == 125 && run.errors.contains("ulimit -"), "{limit}: {}", run.told());
        let doctor = with_files(&room, limit, &[&softhca, "doctor"]);
        assert!(doctor.code == 1 && doctor.output.contains("FAIL  open files"), "{limit}: {}", doctor.told());
    }
    let run = with_files(&room, 64, &[&softhca, "run", "--", "ibv_devinfo", "-d", "softhca0"]);
    assert!(run.succeeded(), "{}", run.told());
    // A program whose agent has enough descriptors. With any limit, the program opens the device or
    // says why not.
    room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    room.start_agent().expect("an agent");
    let mut opened = 0;
    for limit in 6..40 {
        let run = ["run", "--", "sh", "-c", &format!("ulimit -n {limit}; exec ibv_devinfo -d softhca0")];
        let outcome = room.finish(room.softhca(&run)).expect("it ends");
        let text = outcome.everything();
        assert!(!text.contains("panicked") && outcome.code < 128, "{limit}: {}", outcome.told());
        match outcome.code {
            0 => opened += 1,
            // The loader itself has too few descriptors.
            127 => assert!(text.contains("cannot open shared object file"), "{limit}: {}", outcome.told()),
            _ => assert!(text.contains("ulimit -n"), "{limit}: {}", outcome.told()),
        }
    }
    assert!(opened > 0 && opened < 34, "{opened} of 34 limits were enough");
}

#[test]
fn a_relative_run_directory_is_where_the_user_stands() {
    let room = Room::new().expect("a room");
    let relative = |arguments: &[&str]| {
        let mut command = room.softhca(arguments);
        command.env("SOFTHCA_DIR", "here/run").current_dir(room.folder());
        room.finish(command).expect("it ends")
    };
    let run = relative(&["run", "--", "sh", "-c", "cd /; ibv_devinfo -d softhca0; echo $SOFTHCA_DIR"]);
    let place = room.folder().join("here/run");
    assert!(run.succeeded() && run.output.contains(place.to_str().expect("a plain path")), "{}", run.told());
    assert!(place.join("agent.pid").exists(), "the agent is elsewhere");
    assert!(relative(&["devices"]).succeeded());
    let stopped = relative(&["agent", "--stop"]);
    assert!(stopped.succeeded() && stopped.output.contains("stopped the agent"), "{}", stopped.told());
    for command in [&["agent"][..], &["agent", "--stop"]] {
        let outcome = relative(command);
        assert!(outcome.output.contains(place.to_str().expect("a plain path")), "{}", outcome.told());
    }
}

/// The number of files and directories that a small file system can have.
const INODES: usize = 2000;

/// A tmpfs of a few pages, mounted for as long as the value lives.
struct Small(std::path::PathBuf);

impl Small {
    fn new(room: &Room, pages: u32) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: a file system of its own needs root");
            return None;
        }
        let place = room.folder().join("small");
        std::fs::create_dir(&place).expect("made");
        let size = format!("size={},nr_inodes={INODES},mode=700", pages * 4096);
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&place).status();
        assert!(mounted.expect("mount runs").success());
        Some(Self(place))
    }

    /// Fills the file system, so that no byte is free.
    fn fill(&self) {
        use std::io::Write;
        let mut file = std::fs::File::create(self.0.join("filler")).expect("made");
        let end = (0..100_000).find_map(|_| file.write_all(&[1; 4096]).err());
        assert_eq!(end.expect("it is full").kind(), std::io::ErrorKind::StorageFull);
    }

    /// Uses up all inodes, so that no file can be created.
    fn crowd(&self) {
        let end = (0..=INODES).find_map(|number| std::fs::File::create(self.0.join(format!("one-{number}"))).err());
        assert_eq!(end.expect("it is full").kind(), std::io::ErrorKind::StorageFull);
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_and_nothing_panics() {
    let room = Room::new().expect("a room");
    // The number of free pages grows from zero to what an agent needs, so the disk is full at each
    // step of the start once.
    let Some(small) = Small::new(&room, 1) else { return };
    drop(small);
    let mut succeeded = false;
    for pages in [1, 2, 4, 8, 16, 32, 64, 512] {
        std::fs::remove_dir(room.folder().join("small")).expect("removed");
        let small = Small::new(&room, pages).expect("root has one");
        let mut command = room.softhca(&["run", "--", "true"]);
        command.env("SOFTHCA_DIR", small.0.join("run"));
        let outcome = room.finish(command).expect("it ends");
        assert!(!outcome.everything().contains("panicked"), "{pages}: {}", outcome.told());
        succeeded = outcome.succeeded();
        if succeeded {
            let mut stop = room.softhca(&["agent", "--stop"]);
            stop.env("SOFTHCA_DIR", small.0.join("run"));
            room.finish(stop).expect("it ends").expect_success();
        } else {
            assert_eq!(outcome.code, 125, "{pages}: {}", outcome.told());
            let place = small.0.join("run").display().to_string();
            for word in [place.as_str(), "No space left on device", "free some space"] {
                assert!(outcome.errors.contains(word), "{pages} pages, {word:?}: {}", outcome.told());
            }
        }
    }
    assert!(succeeded, "512 pages are enough");
}

/// The agent logs to a full disk, and a program writes its messages there. Both continue.
#[test]
fn a_disk_that_becomes_full_ends_nobody() {
    let room = Room::new().expect("a room");
    let Some(small) = Small::new(&room, 512) else { return };
    let run_dir = small.0.join("run");
    let softhca = |arguments: &[&str]| {
        let mut command = room.softhca(arguments);
        command.env("SOFTHCA_DIR", &run_dir).env("SOFTHCA_LOG", "trace");
        command
    };
    room.finish(softhca(&["agent"])).expect("it ends").expect_success();
    small.fill();
    let why = cprogram::build(&room, "why").expect("it compiles").to_str().expect("a plain path").to_owned();
    let log = small.0.join("filler").display().to_string();
    // All messages of the library go to a file on the full disk.
    let script = format!("{why} -m rkey 2>>{log}; test $? = 1 && {why} -m none 2>>{log}");
    let outcome = room.finish(softhca(&["run", "--", "sh", "-c", &script])).expect("it ends");
    // An empty file can still be created, but its content is lost. So reasons are lost, but
    // operations work.
    assert!(outcome.succeeded() && !outcome.everything().contains("panicked"), "{}", outcome.told());
    small.crowd();
    let outcome = room.finish(softhca(&["run", "--", "sh", "-c", &script])).expect("it ends");
    assert_eq!(outcome.code, 125, "{}", outcome.told());
    let place = run_dir.display().to_string();
    for word in
        ["cannot store reasons for failures: cannot write to", &place, "No space left on device", "free some space"]
    {
        assert!(outcome.errors.contains(word), "{word:?}: {}", outcome.told());
    }
    assert!(!outcome.everything().contains("panicked"), "{}", outcome.told());
    std::fs::remove_file(small.0.join("filler")).expect("removed");
    let stopped = room.finish(softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    assert!(stopped.output.contains("stopped the agent"), "the agent had ended before: {}", stopped.told());
}

#[test]
fn without_proc_programs_run() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a mount namespace needs root");
        return;
    }
    let room = Room::new().expect("a room");
    let room = room.entered_by(&["unshare", "-m", "sh", "-c", "umount -l /proc && exec \"$@\"", "sh"]);
    let run = room.finish_run(&["ibv_devinfo", "-d", "softhca0"]).expect("it ends");
    assert!(run.succeeded(), "{}", run.told());
    // perftest itself needs /proc to measure the processor's clock.
    for program in ["ibv_rc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong"] {
        Pair::must_succeed(&room, &[program, "-g", "0"]);
    }
    let doctor = room.finish(room.softhca(&["doctor"])).expect("it ends");
    assert!(doctor.succeeded() && doctor.output.contains("warn  /proc"), "{}", doctor.told());
    let stopped = room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    assert!(stopped.output.contains("stopped the agent"), "{}", stopped.told());
}

/// The maximal file length in the test below. It is enough for an agent's shared memory. It is
/// below the length at which a log is rotated.
const LONGEST: u64 = 14 << 20;

/// The logs of the agent and of the program reach the limit of file lengths (`ulimit -f`). The next
/// log lines are lost, and both continue.
#[test]
fn logs_at_the_limit_of_file_lengths_end_nobody() {
    let limit = format!("--fsize={LONGEST}:{LONGEST}");
    let room = Room::new().expect("a room").entered_by(&["prlimit", &limit]);
    let (said, log) = (room.folder().join("said"), room.run_dir().join("agent.log"));
    for file in [&said, &log] {
        std::fs::File::create(file).and_then(|file| file.set_len(LONGEST)).expect("made");
    }
    let softhca = |arguments: &[&str]| {
        let mut command = room.softhca(arguments);
        command.env("SOFTHCA_LOG", "trace");
        command
    };
    let why = cprogram::build(&room, "why").expect("it compiles").to_str().expect("a plain path").to_owned();
    let said = said.display().to_string();
    let script = format!("{why} -m rkey 2>>{said}; test $? = 1 && {why} -m none 2>>{said}");
    room.finish(softhca(&["run", "--quiet", "--", "sh", "-c", &script])).expect("it ends").expect_success();
    let stopped = room.finish(softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    assert!(stopped.output.contains("stopped the agent"), "the agent had ended before: {}", stopped.told());
    for file in [said.as_ref(), log.as_path()] {
        assert_eq!(std::fs::metadata(file).expect("there").len(), LONGEST, "{}", file.display());
    }
}

/// If a file must grow beyond the limit, the error is a sentence with the documented exit code.
#[test]
fn files_that_may_not_get_long_enough_are_told() {
    let room = Room::new().expect("a room");
    let softhca = room.dist().softhca().to_str().expect("a plain path").to_owned();
    let limited = |limit: u64, arguments: &[&str]| {
        let limit = format!("--fsize={limit}:{limit}");
        room.command("prlimit", [&[limit.as_str(), softhca.as_str()], arguments].concat())
    };
    let must_tell = |outcome: &Outcome, code: u8, words: &[&str]| {
        assert_eq!(outcome.code, i32::from(code), "{}", outcome.told());
        for word in [&["File too large", "ulimit -f"], words].concat() {
            assert!(outcome.errors.contains(word), "{word:?}: {}", outcome.told());
        }
        assert!(!outcome.everything().contains("panicked"), "{}", outcome.told());
    };
    // No agent can start.
    let outcome = room.finish(limited(4096, &["run", "--", "true"])).expect("it ends");
    must_tell(&outcome, 125, &["cannot write to"]);
    room.start_agent().expect("an agent");
    // If the limit leaves no room for shared memory, the error comes before the program starts.
    must_tell(&room.finish(limited(1024, &["run", "--", "true"])).expect("it ends"), 125, &["ftruncate"]);
    // A program that lowers its own limit cannot share memory. It gets the errno.
    let why = cprogram::build(&room, "why").expect("it compiles").to_str().expect("a plain path").to_owned();
    let own_limit = ["run", "--", "prlimit", "--fsize=1024:1024", &why, "-m", "none"];
    let outcome = room.finish(room.softhca(&own_limit)).expect("it ends");
    must_tell(&outcome, 1, &["ftruncate", "errno 27"]);
    // A capture.
    let file = room.folder().join("packets.pcapng");
    let mut capture = room.start(limited(1024, &["capture", "-w", &file.display().to_string()])).expect("it starts");
    capture.wait_for_words("listening on", HANG).expect("it listens");
    let datagrams =
        cprogram::build(&room, "datagrams").expect("it compiles").to_str().expect("a plain path").to_owned();
    room.finish_run(&[&datagrams]).expect("it ends").expect_success();
    must_tell(&capture.wait(HANG).expect("it ends"), 1, &["cannot write", "packets.pcapng"]);
    // Standard output.
    let shown = room.folder().join("shown");
    std::fs::File::create(&shown).and_then(|file| file.set_len(4096)).expect("made");
    let show = format!("exec prlimit --fsize=4096:4096 {softhca} show >>{}", shown.display());
    let outcome = room.finish(room.command("sh", ["-c", &show])).expect("it ends");
    must_tell(&outcome, 1, &["cannot write standard output"]);
}
