//! Tests `softhca run` and `softhca agent` as commands: exit codes, signals, one agent for many
//! programs, no inherited descriptors.

use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::{HANG, Pair, Room, User, process, program, wait};
use rustix::process::Signal;

#[test]
fn the_exit_code_is_the_programs() {
    let room = Room::new().expect("a room");
    for (script, code) in [("exit 0", 0), ("exit 3", 3), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        let outcome = room.finish_run(&["sh", "-c", script]).expect("it ends");
        assert_eq!(outcome.code, code, "{}", outcome.told());
    }
}

#[test]
fn a_program_that_is_not_there_is_127_and_one_that_cannot_run_126() {
    let room = Room::new().expect("a room");
    let missing = room.finish_run(&["/no/such/program"]).expect("it ends");
    assert!(missing.code == 127 && missing.errors.contains("/no/such/program"), "{}", missing.told());
    let directory = room.finish_run(&["/tmp"]).expect("it ends");
    assert_eq!(directory.code, 126, "{}", directory.told());
}

#[test]
fn a_log_filter_that_is_none_is_told_in_one_line_and_ends_no_program() {
    let room = Room::new().expect("a room");
    let words = ["env", "SOFTHCA_LOG=nonsense==", "ibv_devices"];
    let outcome = room.finish_run(&words).expect("it ends").expect_success();
    assert!(outcome.output.contains("softhca0"), "{}", outcome.told());
    assert_eq!(outcome.errors.lines().count(), 1, "{}", outcome.told());
    assert!(outcome.errors.starts_with("softhca: SOFTHCA_LOG=\"nonsense==\" is no filter"), "{}", outcome.told());
}

/// Some programs look for a library by the name that only a development package gives it.
#[test]
fn libraries_that_a_program_loads_itself_are_ours_by_each_name() {
    const PROGRAM: &str = "
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
places = {line.split()[-1] for line in open('/proc/self/maps') if sys.argv[1].split('.')[0] + '.so' in line}
assert all('/lib/softhca/' in place for place in places), places
if 'verbs' in sys.argv[1]:
    count = ctypes.c_int()
    library.ibv_get_device_list(ctypes.byref(count))
    assert count.value == 1, count.value
";
    let room = Room::new().expect("a room");
    for name in ["libibverbs", "librdmacm", "libibumad"] {
        let ours = if name == "libibumad" { "so.3" } else { "so.1" };
        for ending in ["so", ours] {
            let words = ["/usr/bin/python3", "-c", PROGRAM, &format!("{name}.{ending}")];
            room.finish_run(&words).expect("it ends").expect_success();
        }
    }
}

#[test]
fn output_goes_through_untouched() {
    let room = Room::new().expect("a room");
    let outcome = room.finish_run(&["sh", "-c", "echo out; echo err >&2"]).expect("it ends").expect_success();
    assert_eq!((outcome.output.as_str(), outcome.errors.as_str()), ("out\n", "err\n"));
}

#[test]
fn signals_reach_the_program() {
    let room = Room::new().expect("a room");
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::USR1, "USR1"), (Signal::HUP, "HUP")] {
        let script = format!("trap 'echo got {name}; exit 7' {name}; echo ready; while :; do sleep 0.05; done");
        let mut running = room.start(room.run(&["sh", "-c", &script])).expect("it starts");
        running.wait_for_words("ready", HANG).expect("it runs");
        running.signal(signal);
        let outcome = running.wait(HANG).expect("it ends");
        assert!(outcome.code == 7 && outcome.output.contains(name), "{}", outcome.told());
    }
}

#[test]
fn a_signal_that_was_ignored_stays_ignored() {
    let room = Room::new().expect("a room");
    let softhca = room.dist().softhca();
    let softhca = softhca.to_str().expect("a plain path");
    let command = room.command("nohup", [softhca, "run", "--", "grep", "SigIgn", "/proc/self/status"]);
    let outcome = room.finish(command).expect("it ends").expect_success();
    let set = outcome.output.split_whitespace().last().expect("a set");
    assert_eq!(u64::from_str_radix(set, 16).expect("hex") & 1, 1, "SIGHUP is not ignored: {}", outcome.told());
}

#[test]
fn twenty_at_once_start_one_agent() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let mut running: Vec<_> = (0..20).map(|_| room.start(room.run(&["ibv_devices"])).expect("it starts")).collect();
        for program in &mut running {
            let outcome = program.wait(HANG).expect("it ends").expect_success();
            assert!(outcome.output.contains("softhca0"), "{}", outcome.told());
        }
        let agent = room.agent().expect("an agent");
        let agents = agents_of(&room);
        assert_eq!(agents, [agent], "{}", room.log());
    }
}

/// The processes of this room's agents.
fn agents_of(room: &Room) -> Vec<u32> {
    let wanted = format!("SOFTHCA_DIR={}", room.run_dir().display());
    let all = std::fs::read_dir("/proc").expect("/proc").flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| process::alive(*pid))
        .filter(|pid| {
            let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
            let has = |bytes: &[u8], word: &str| bytes.split(|byte| *byte == 0).any(|part| part == word.as_bytes());
            has(&read("cmdline"), "agent") && has(&read("environ"), &wanted)
        })
        .collect()
}

#[test]
fn a_shell_that_captures_the_output_is_not_kept_waiting() {
    let room = Room::new().expect("a room");
    let softhca = room.dist().softhca();
    // Descriptor 9 is also a pipe. The agent must not hold either pipe.
    let script =
        format!("x=$({0} run -- echo yes 9>&1); echo \"[$x]\"; {0} run -- true | cat; echo end", softhca.display());
    let started = Instant::now();
    let outcome = room.finish(room.command("sh", ["-c", &script])).expect("it ends").expect_success();
    assert_eq!(outcome.output, "[yes]\nend\n");
    // An agent that holds a pipe would keep the reader waiting until the agent ends, 30 s after its
    // last program.
    assert!(started.elapsed() < Duration::from_secs(25), "it took {:?}", started.elapsed());
}

#[test]
fn the_agent_has_nothing_of_whoever_started_it() {
    let room = Room::new().expect("a room");
    let marker = room.folder().join("marker");
    std::fs::write(&marker, "").expect("written");
    let softhca = room.dist().softhca();
    let script = format!(
        "exec 7<{} 8<{}; cd {}; {} run -- true",
        marker.display(),
        marker.display(),
        room.folder().display(),
        softhca.display()
    );
    room.finish(room.command("sh", ["-c", &script])).expect("it ends").expect_success();
    let agent = room.agent().expect("an agent");
    let held: Vec<String> = process::open_files(agent);
    let folder = room.folder().display().to_string();
    let run_dir = room.run_dir().display().to_string();
    for file in &held {
        let fine = file.starts_with(&run_dir) || !file.starts_with(&folder);
        assert!(
            fine && !file.starts_with("/dev/pts") && !file.starts_with("pipe:"),
            "the agent holds {file}: {held:?}"
        );
    }
    assert_eq!(std::fs::read_link(format!("/proc/{agent}/cwd")).expect("readable").to_str(), Some("/"));
    assert_eq!(process::session(agent), Some(agent), "not a session of its own");
}

#[test]
fn an_idle_agent_ends_itself_and_a_busy_one_stays() {
    let room = Room::new().expect("a room");
    room.finish(room.softhca(&["agent", "--idle-exit", "1"])).expect("it ends").expect_success();
    let agent = room.agent().expect("an agent");
    let mut busy = room.start(room.run(&["sh", "-c", "sleep 3; ibv_devices"])).expect("it starts");
    let outcome = busy.wait(HANG).expect("it ends").expect_success();
    assert!(outcome.output.contains("softhca0"), "{}", outcome.told());
    wait::until(HANG, "the agent to end", || (!process::alive(agent)).then_some(())).expect("it ends");
    room.finish_run(&["ibv_devices"]).expect("it ends").expect_success();
}

#[test]
fn the_agent_can_be_stopped_and_started_by_hand() {
    let room = Room::new().expect("a room");
    room.finish(room.softhca(&["agent"])).expect("it ends").expect_success();
    let again = room.finish(room.softhca(&["agent"])).expect("it ends");
    assert!(!again.succeeded() && again.errors.contains("--stop"), "{}", again.told());
    room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    assert!(room.agent().is_none());
    room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    let none = room.finish(room.softhca(&["show"])).expect("it ends");
    assert!(!none.succeeded() && none.errors.contains("softhca run"), "{}", none.told());
}

#[test]
fn a_configuration_makes_devices_and_a_mistake_in_it_is_told() {
    let room = Room::new().expect("a room");
    let file = room.folder().join("devices.toml");
    let path = file.to_str().expect("a plain path");
    std::fs::write(&file, "[[devices]]\nname = \"left0\"\n[[devices]]\nname = \"right0\"\n").expect("written");
    room.finish(room.softhca(&["agent", "--config", path])).expect("it ends").expect_success();
    let listed = room.finish_run(&["ibv_devices"]).expect("it ends").expect_success();
    assert!(listed.output.contains("left0") && listed.output.contains("right0"), "{}", listed.told());
    room.finish(room.softhca(&["agent", "--stop"])).expect("it ends").expect_success();
    std::fs::write(&file, "[[devices]]\ncolour = 3\n").expect("written");
    let refused = room.finish(room.softhca(&["agent", "--config", path])).expect("it ends");
    assert!(!refused.succeeded() && refused.errors.contains("colour"), "{}", refused.told());
}

/// A command of `softhca` without a named run directory.
fn unnamed(room: &Room, words: &[&str]) -> std::process::Command {
    let mut command = room.softhca(words);
    command.env_remove("SOFTHCA_DIR").env("XDG_RUNTIME_DIR", room.own_dir());
    command
}

#[test]
fn each_address_is_a_host_of_its_own() {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        for address in ["127.0.61.2", "127.0.61.3"] {
            let words = ["run", "--address", address, "--", "ibv_devinfo", "-v"];
            let outcome = room.finish(unnamed(&room, &words)).expect("it ends").expect_success();
            assert!(outcome.output.contains(&format!("GID[  1]:\t\t::ffff:{address}")), "{}", outcome.told());
            assert!(!outcome.output.contains("GID[  2]"), "{}", outcome.told());
            let doctor = room.finish(unnamed(&room, &["doctor", "--address", address])).expect("it ends");
            assert!(doctor.output.contains(&format!("-{address}")), "{}", doctor.told());
        }
        for address in ["127.0.61.2", "127.0.61.3"] {
            let stopped = room.finish(unnamed(&room, &["agent", "--stop", "--address", address])).expect("it ends");
            assert!(stopped.expect_success().output.contains("stopped the agent"));
        }
    }
}

#[test]
fn an_address_that_is_not_there_is_told() {
    let room = Room::new().expect("a room");
    // This address belongs to no host: it is reserved for documentation.
    let words = ["run", "--address", "203.0.113.7", "--", "true"];
    let outcome = room.finish(room.softhca(&words)).expect("it ends");
    assert!(outcome.code == 125 && outcome.errors.contains("203.0.113.7 is not an address"), "{}", outcome.told());
    room.finish(room.softhca(&["run", "--address", "127.0.0.1", "--", "true"])).expect("it ends").expect_success();
    let other = room.finish(room.softhca(&["run", "--address", "127.0.0.2", "--", "true"])).expect("it ends");
    assert!(other.code == 125 && other.errors.contains("different addresses"), "{}", other.told());
}

#[test]
fn the_last_reasons_follow_a_failure_and_quiet_leaves_them_out() {
    let room = Room::new().expect("a room");
    // Without -g the pingpong makes a request that an Ethernet port refuses.
    let words = ["ibv_rc_pingpong"];
    let told = Pair::start(&room, &words).and_then(|mut pair| pair.wait(HANG)).expect("both end").server;
    assert!(!told.succeeded(), "{}", told.told());
    assert!(told.errors.contains("softhca: why") && told.errors.contains("SOFTHCA_LOG"), "{}", told.told());
    let quiet = room.softhca(&["run", "--quiet", "--", "sh", "-c", "echo a reason > $SOFTHCA_REASONS; exit 5"]);
    let quiet = room.finish(quiet).expect("it ends");
    assert!(quiet.code == 5 && quiet.errors.is_empty(), "{}", quiet.told());
    let loud = room.finish_run(&["sh", "-c", "echo a reason > $SOFTHCA_REASONS; exit 5"]).expect("it ends");
    assert!(loud.code == 5 && loud.errors.contains("a reason"), "{}", loud.told());
}

#[test]
fn without_an_agent_a_program_says_what_to_type() {
    let room = Room::new().expect("a room");
    let mut command = room.command("ibv_devinfo", [] as [&str; 0]);
    command.env("LD_LIBRARY_PATH", room.dist().folder().join("lib/softhca")).stdin(Stdio::null());
    let outcome = room.finish(command).expect("it ends");
    assert!(outcome.everything().contains("softhca run"), "{}", outcome.told());
}

#[test]
fn a_run_directory_of_somebody_else_is_refused() {
    let room = Room::new().expect("a room");
    std::fs::set_permissions(room.run_dir(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("changed");
    let outcome = room.finish_run(&["true"]).expect("it ends");
    assert!(outcome.code == 125 && outcome.errors.contains("0700"), "{}", outcome.told());
}

#[test]
fn a_folder_that_was_copied_works() {
    let room = Room::new().expect("a room");
    let copy = room.dist().copy_to(&room.folder().join("elsewhere")).expect("copied");
    let command = room.command(copy.softhca(), ["run", "--", "ibv_devices"]);
    let outcome = room.finish(command).expect("it ends").expect_success();
    assert!(outcome.output.contains("softhca0"), "{}", outcome.told());
}

#[test]
fn a_program_ends_with_a_softhca_run_that_is_killed() {
    let room = Room::new().expect("a room");
    let run = room.start(room.run(&["sh", "-c", "echo $$; exec sleep 1000"])).expect("it starts");
    let pid = wait::until(HANG, "the program", || run.output().trim().parse().ok()).expect("it runs");
    program::send(run.id(), Signal::KILL);
    wait::until(HANG, "the program to end", || (!process::alive(pid)).then_some(())).expect("it ends");
}

#[test]
fn an_agent_that_was_killed_is_replaced() {
    let room = Room::new().expect("a room");
    let first = room.start_agent().expect("an agent");
    program::send(first, Signal::KILL);
    wait::until(HANG, "the agent to die", || (!process::alive(first)).then_some(())).expect("dead");
    let second = room.start_agent().expect("another agent");
    assert_ne!(first, second);
}

#[test]
fn nothing_but_the_c_library_is_needed() {
    let room = Room::new().expect("a room");
    let softhca = room.dist().softhca();
    for file in [softhca, room.dist().library(), room.dist().redirector()] {
        let words = ["-d", "-V", file.to_str().expect("a plain path")];
        let told = room.finish(room.command("readelf", words)).expect("it ends").expect_success().output;
        for line in told.lines().filter(|line| line.contains("(NEEDED)")) {
            // libm is a part of the C library.
            let fine = ["[libc.so.6]", "[libm.so.6]", "[libgcc_s.so.1]", "[ld-linux-x86-64.so.2]"];
            assert!(fine.iter().any(|name| line.ends_with(name)), "{}: {line}", file.display());
        }
        // The README names the oldest supported glibc. Libraries built on Debian 12 must not need a
        // newer one.
        let minors = told.split("GLIBC_2.").skip(1).filter_map(|rest| {
            rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|minor| minor.parse::<u32>().ok())
        });
        let newest = minors.max().unwrap_or(0);
        assert!(newest <= 36, "{} needs glibc 2.{newest}", file.display());
    }
}
