//! Tests that the doctor and `softhca run` agree: if one refuses, the other fails with the same
//! sentence and path.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A softhca whose library is a stand-in, which nothing here loads.
fn laid_out() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    fs::create_dir_all(folder.path().join("bin")).expect("made");
    fs::create_dir_all(folder.path().join("lib/softhca")).expect("made");
    fs::hard_link(env!("CARGO_BIN_EXE_softhca"), folder.path().join("bin/softhca")).expect("linked");
    let (source, library) = (folder.path().join("source.c"), folder.path().join("lib/softhca/libibverbs.so.1"));
    fs::write(&source, "int nothing;\n").expect("written");
    let built = Command::new("gcc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(built.expect("gcc runs").success());
    folder
}

fn softhca(folder: &TempDir, dir: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(folder.path().join("bin/softhca"));
    command.args(words).env("SOFTHCA_DIR", dir).env("XDG_RUNTIME_DIR", folder.path());
    for name in ["SOFTHCA_LOG", "SOFTHCA_FAULTS", "LD_LIBRARY_PATH", "LD_PRELOAD"] {
        command.env_remove(name);
    }
    command.output().expect("it starts")
}

/// Both refuse, and both print `words`.
#[track_caller]
fn refused(folder: &TempDir, dir: &Path, words: &[&str]) {
    let (run, doctor) = (softhca(folder, dir, &["run", "--", "true"]), softhca(folder, dir, &["doctor"]));
    let _ = softhca(folder, dir, &["agent", "--stop"]);
    assert_eq!((run.status.code(), doctor.status.code()), (Some(125), Some(1)), "{run:?} {doctor:?}");
    let (run, doctor) = (String::from_utf8_lossy(&run.stderr), String::from_utf8_lossy(&doctor.stdout));
    let failed: String = doctor.split("\nok ").filter(|part| part.contains("FAIL")).collect();
    for word in words {
        assert!(run.contains(word) && failed.contains(word), "{word:?} is not in {run} and in {failed}");
    }
}

#[test]
fn a_run_directory_that_cannot_be_made_is_refused_by_both() {
    let folder = laid_out();
    let file = folder.path().join("file");
    fs::write(&file, "").expect("written");
    let below = file.join("run");
    refused(&folder, &below, &[below.to_str().expect("plain"), "Not a directory"]);
    refused(&folder, &file, &[file.to_str().expect("plain"), "is not a directory"]);
    // No user can create files there, not even root.
    refused(&folder, Path::new("/proc/softhca/run"), &["/proc/softhca/run", "cannot create"]);
    let open = folder.path().join("open");
    fs::create_dir(&open).expect("made");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("changed");
    refused(&folder, &open, &[open.to_str().expect("plain"), "chmod 0700"]);
    let long = folder.path().join("x".repeat(120));
    refused(&folder, &long, &["too long for sockets"]);
}

/// A file system of a few pages that is mounted while the value lives.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

fn mount<'a>(at: &'a Path, options: &str) -> Option<Mounted<'a>> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a file system of its own needs root");
        return None;
    }
    fs::create_dir_all(at).expect("made");
    let status = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).status();
    status.expect("mount runs").success().then_some(Mounted(at))
}

#[test]
fn a_full_or_read_only_disk_is_refused_by_both() {
    let folder = laid_out();
    let small = folder.path().join("small");
    for (options, words) in [
        ("size=64k,mode=700", ["No space left on device", "free some space"]),
        ("size=16m,nr_inodes=8,mode=700", ["No space left on device", "free some space"]),
        ("ro,mode=700", ["Read-only file system", "a directory that you can write to"]),
    ] {
        let Some(_mounted) = mount(&small, options) else { return };
        for dir in [small.join("run"), small.clone()] {
            refused(&folder, &dir, &[&[dir.to_str().expect("plain")][..], &words].concat());
        }
    }
    // A size that the doctor accepts is sufficient.
    for pages in [256, 300, 400, 512, 1024] {
        let Some(_mounted) = mount(&small, &format!("size={},mode=700", pages * 4096)) else { return };
        let dir = small.join("run");
        let doctor = softhca(&folder, &dir, &["doctor"]);
        if doctor.status.success() {
            let run = softhca(&folder, &dir, &["run", "--", "true"]);
            let _ = softhca(&folder, &dir, &["agent", "--stop"]);
            assert!(run.status.success(), "{pages} pages: {run:?}");
        }
    }
}

#[test]
fn settings_that_are_not_understood_are_refused_by_both() {
    let folder = laid_out();
    let dir = folder.path().join("run");
    for (name, value, word) in [("SOFTHCA_LOG", "nonsense==", "is no filter"), ("SOFTHCA_FAULTS", "loose", "loose")] {
        for (words, code) in [(&["doctor"][..], 1), (&["run", "--", "true"], 125)] {
            let mut command = Command::new(folder.path().join("bin/softhca"));
            let output = command.args(words).env("SOFTHCA_DIR", &dir).env(name, value).output().expect("it starts");
            let said = [output.stdout, output.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            assert!(output.status.code() == Some(code) && said.contains(word), "{words:?}: {said}");
        }
    }
}

#[test]
fn an_address_of_somebody_else_is_refused_by_both() {
    let folder = laid_out();
    for (words, code) in
        [(&["doctor", "--address", "203.0.113.7"][..], 1), (&["run", "--address", "203.0.113.7", "--", "true"], 125)]
    {
        let output = softhca(&folder, &folder.path().join("run"), words);
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains("203.0.113.7 is not an address"), "{said}");
    }
}

#[test]
fn a_port_that_is_taken_is_told_before_an_agent_runs() {
    let folder = laid_out();
    let address = format!("127.0.{}.77", std::process::id() % 200 + 20);
    let dir = folder.path().join("run");
    let words = ["doctor", "--address", &address];
    let before = softhca(&folder, &dir, &words);
    assert!(String::from_utf8_lossy(&before.stdout).contains("reach us at"), "{before:?}");
    let _taken = UdpSocket::bind((address.as_str(), 4791)).expect("nobody else has it");
    let after = softhca(&folder, &dir, &words);
    let said = String::from_utf8_lossy(&after.stdout);
    assert!(said.contains("cannot reach us") && said.contains("another program uses UDP port 4791"), "{said}");
}

/// A later step of a CI job asks why a program failed, after the agent has ended.
#[test]
fn reasons_are_told_when_the_agent_has_gone() {
    let folder = laid_out();
    let dir = folder.path().join("run");
    let none = softhca(&folder, &dir, &["show", "--errors"]);
    assert_eq!(none.status.code(), Some(1), "{none:?}");
    assert!(String::from_utf8_lossy(&none.stderr).contains("no agent is running"), "{none:?}");
    let script = "echo 'failed 5000077: QP 0x11, wr_id 0x3: bad' >> $SOFTHCA_REASONS; exit 3";
    let run = softhca(&folder, &dir, &["run", "--", "sh", "-c", script]);
    assert_eq!(run.status.code(), Some(3), "{run:?}");
    let _ = softhca(&folder, &dir, &["agent", "--stop"]);
    let text = softhca(&folder, &dir, &["show", "--errors"]);
    let said = String::from_utf8_lossy(&text.stdout);
    for word in [
        "no agent is running",
        dir.to_str().expect("plain"),
        "process 5000077, ended",
        "failed  QP 0x11, wr_id 0x3: bad",
    ] {
        assert!(said.contains(word), "{word}: {said}");
    }
    let json = softhca(&folder, &dir, &["show", "--errors", "--json"]);
    let answer: serde_json::Value = serde_json::from_slice(&json.stdout).expect("JSON");
    assert_eq!(
        (&answer["schema"], &answer["programs"][0]["errors"][0]["kind"]),
        (&2.into(), &"failed".into()),
        "{answer}"
    );
    assert!(answer["programs"][0]["errors"][0]["time"].is_string(), "{answer}");
}

#[test]
fn users_of_a_package_whose_library_is_gone_are_told_what_to_do() {
    let folder = laid_out();
    fs::remove_file(folder.path().join("lib/softhca/libibverbs.so.1")).expect("removed");
    let dir = folder.path().join("run");
    refused(&folder, &dir, &["libibverbs.so.1 is not in", "reinstall softhca; keep its folders bin and lib together"]);
}

#[test]
fn users_of_a_package_whose_library_for_sockets_is_gone_are_told_what_to_do() {
    let folder = laid_out();
    let run = softhca(&folder, &folder.path().join("run"), &["run", "--sockets", "--", "true"]);
    let _ = softhca(&folder, &folder.path().join("run"), &["agent", "--stop"]);
    let said = String::from_utf8_lossy(&run.stderr);
    assert_eq!(run.status.code(), Some(125), "{said}");
    assert!(said.contains("no rsocket/librspreload.so; reinstall softhca"), "{said}");
}
