//! `softhca run --shared-memory`: large memory of a program is shared memory, and the program does
//! not notice. Peers of the same user access it directly. The programs are
//! `programs/sharedmem.c`, whose parts are the tests here, `programs/ownmalloc.c`, and
//! `programs/direct.c`.

use std::path::PathBuf;
use std::process::Command;

use harness::{HANG, Pair, Room, User, cprogram};

fn built(room: &Room, name: &str) -> String {
    cprogram::build(room, name).expect("it compiles").to_str().expect("a plain path").to_owned()
}

/// Runs a part of `sharedmem.c` with shared memory, and without.
#[track_caller]
fn part(name: &str) {
    for user in [User::Me, User::Nobody] {
        let room = Room::of(user).expect("a room");
        let program = built(&room, "sharedmem");
        for words in [
            &["--private-memory", "--", &program, "-p", "-m", name][..],
            &["--shared-memory", "--", &program, "-m", name],
        ] {
            room.finish(room.softhca(&[&["run"], words].concat())).expect("it ends").expect_success();
        }
    }
}

#[test]
fn blocks_grow_shrink_and_go_back_to_the_machine() {
    part("allocating");
}

#[test]
fn freed_blocks_are_used_again_and_only_some_are_kept() {
    part("reusing");
}

#[test]
fn freed_blocks_that_were_granted_or_have_unusual_pages_are_not_used_again() {
    part("not_reused");
}

#[test]
fn more_blocks_than_descriptors_leave_the_program_its_descriptors() {
    part("crowd");
}

#[test]
fn a_program_that_closes_every_descriptor_keeps_its_memory_and_its_files() {
    part("closed");
}

#[test]
fn advice_protection_locks_and_unmapped_parts_are_as_for_private_memory() {
    part("mapping");
}

#[test]
fn mappings_move_and_grow() {
    part("moving");
}

#[test]
fn adjacent_mappings_move_as_one_and_locked_memory_stays_locked() {
    part("moving_together");
}

#[test]
fn a_mapping_has_as_many_parts_as_the_kernel_allows() {
    part("many_mappings");
}

#[test]
fn advice_holds_for_children_and_for_theirs() {
    part("advised");
}

#[test]
fn code_is_private_so_that_a_debugger_writes_into_it() {
    part("code");
}

#[test]
fn protected_mappings_move_and_refused_requests_change_nothing() {
    part("moving_protected");
}

#[test]
fn a_forked_child_has_a_copy_and_neither_sees_the_others_writes() {
    part("forking");
}

#[test]
fn handlers_of_fork_and_other_ways_to_make_a_process_find_the_right_memory() {
    part("other_forks");
}

#[test]
fn a_thread_and_a_process_on_a_stack_from_malloc_work_and_fork() {
    part("stacks");
}

#[test]
fn a_coroutine_on_a_stack_from_malloc_forks() {
    part("coroutines");
}

#[test]
fn a_forked_childs_memory_stands_still_while_threads_of_its_parent_write() {
    part("threads");
}

#[test]
fn limits_hold_and_no_signal_comes() {
    part("limits");
}

/// Whether a target whose memory comes from `malloc` grants it. The initiator's memory is private,
/// so that it can tell the target's from its own.
#[track_caller]
fn grants(target: &Room, initiator: &Room) -> bool {
    let words = [&*built(initiator, "direct"), "-m", "malloc"];
    let sides = Pair::start_different(target, &words, initiator, &words).and_then(|mut pair| pair.wait(HANG));
    let sides = sides.expect("both end");
    assert!(sides.server.succeeded() && sides.client.succeeded(), "{}\n{}", sides.server.told(), sides.client.told());
    !sides.client.everything().contains("not granted")
}

#[test]
fn memory_from_malloc_is_granted_to_a_peer() {
    // Never user 65534, who may be anybody.
    for user in [User::Me, User::Number(64_001)] {
        let room = Room::of(user).expect("a room");
        let target = room.guest(user).expect("a room").with_shared_memory();
        assert!(grants(&target, &room), "{user:?}");
        assert!(!grants(&room, &room), "private memory is not granted");
    }
}

#[test]
fn it_needs_no_dev_shm() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a mount namespace needs root");
        return;
    }
    let hide = "mount -t tmpfs -o ro none /dev/shm && ! touch /dev/shm/x 2>/dev/null && exec \"$@\"";
    let entrance = ["unshare", "--mount", "sh", "-c", hide, "sh"];
    let room = Room::new().expect("a room").entered_by(&entrance);
    let target = room.guest(User::Me).expect("a room").entered_by(&entrance).with_shared_memory();
    assert!(grants(&target, &room));
}

#[test]
fn sanitizers_and_valgrind_get_private_memory() {
    let room = Room::new().expect("a room").with_shared_memory();
    let program = built(&room, "sharedmem");
    let valgrind = ["valgrind", "--quiet", "--error-exitcode=9", &program, "-p", "-m", "forking"];
    room.finish_run(&valgrind).expect("it ends").expect_success();
    let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("programs/sharedmem.c");
    for (compiler, sanitizer) in [("gcc", "address"), ("gcc", "leak"), ("clang", "memory")] {
        let sanitized = room.folder().join(sanitizer);
        let mut build = Command::new(compiler);
        build
            .arg(format!("-fsanitize={sanitizer}"))
            .arg("-o")
            .args([&sanitized, &source])
            .args(["-libverbs", "-lpthread"]);
        match build.status() {
            Err(_) if compiler != "gcc" => {
                eprintln!("skipped: there is no {compiler}");
                continue;
            }
            built => assert!(built.expect("a compiler").success(), "{compiler} {sanitizer}"),
        }
        let sanitized = sanitized.to_str().expect("a plain path");
        room.finish_run(&[sanitized, "-p", "-m", "forking"]).expect("it ends").expect_success();
    }
}

#[test]
fn a_program_with_its_own_allocator_and_threads_forks() {
    let room = Room::new().expect("a room").with_shared_memory();
    let program = built(&room, "ownmalloc");
    room.finish_run(&[&program]).expect("it ends").expect_success();
}

#[test]
fn a_core_dump_has_the_memory() {
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if pattern.trim() != "core" {
        eprintln!("skipped: cores go to {}", pattern.trim());
        return;
    }
    let room = Room::new().expect("a room").with_shared_memory();
    let program = built(&room, "sharedmem");
    let folder = room.folder().to_str().expect("a plain path");
    let words =
        ["sh", "-c", "cd $0; ulimit -c unlimited; $1 -m crash; grep -c 'in the core dump' core*", folder, &program];
    let said = room.finish_run(&words).expect("it ends");
    let count: u32 = said.output.trim().parse().unwrap_or_else(|_| panic!("{}", said.told()));
    assert!(count > 0);
}

#[test]
fn python_forks_with_large_memory() {
    let room = Room::new().expect("a room").with_shared_memory();
    let text = "import os, subprocess\n\
                data = [bytearray(1 << 20) for _ in range(20)] + list(range(300000))\n\
                data[0][:] = b'p' * (1 << 20)\n\
                child = os.fork()\n\
                if child == 0:\n\
                \x20   good = data[0] == b'p' * (1 << 20) and sum(data[20:]) == 44999850000\n\
                \x20   data[0][:] = b'c' * (1 << 20)\n\
                \x20   os._exit(0 if good else 1)\n\
                assert os.waitpid(child, 0)[1] == 0 and data[0][0] == ord('p')\n\
                assert subprocess.run(['true']).returncode == 0\n";
    room.finish_run(&["/usr/bin/python3", "-c", text]).expect("it ends").expect_success();
}

#[test]
fn the_configuration_asks_for_it_and_the_variable_and_the_options_decide() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("agent.toml");
    std::fs::write(&file, "shared_memory = true").expect("a file");
    let room = Room::new().expect("a room").with_agent(&["--config", file.to_str().expect("text")]).expect("an agent");
    let program = built(&room, "sharedmem");
    for (variable, option, is_shared) in [
        (None, None, true),
        (Some("0"), None, false),
        (Some("0"), Some("--shared-memory"), true),
        (Some("1"), None, true),
        (Some("1"), Some("--private-memory"), false),
        (None, Some("--private-memory"), false),
    ] {
        let words: Vec<&str> = ["run"].into_iter().chain(option).chain(["--", &program, "-m", "limits"]).collect();
        let mut command = room.softhca(&words);
        command.args((!is_shared).then_some("-p"));
        command.env_remove("SOFTHCA_SHARED_MEMORY").envs(variable.map(|value| ("SOFTHCA_SHARED_MEMORY", value)));
        let said = room.finish(command).expect("it ends");
        assert!(said.succeeded(), "{variable:?} {option:?}: {}", said.told());
    }
}

#[test]
fn a_wrong_value_of_the_variable_is_refused() {
    let room = Room::new().expect("a room");
    let mut command = room.run(&["true"]);
    command.env("SOFTHCA_SHARED_MEMORY", "yes");
    let said = room.finish(command).expect("it ends");
    assert!(!said.succeeded() && said.errors.contains("SOFTHCA_SHARED_MEMORY=yes must be 0, 1"), "{}", said.told());
}
