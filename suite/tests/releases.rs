//! Tests that programs of every release of rdma-core start. For each release, the test makes a
//! program that imports every symbol that the release's libraries export, each with its version.
//! Programs that are linked with a vendor's library do so. The loader must find all symbols before
//! `main`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use harness::Room;

#[allow(dead_code, reason = "build scripts use more of it")]
#[path = "../../capi/libibverbs/releases.rs"]
mod exported;

use exported::Releases;

/// Runs the compiler, which must succeed.
#[track_caller]
fn gcc(words: &[&str], more: &[&Path]) {
    let output = Command::new("gcc").args(words).args(more).output().expect("gcc runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A program with one word for each symbol of `release`. The loader fills these words. The program
/// is linked with a stub library, which has only labels with these names.
fn imports(room: &Room, library: &str, release: u32, table: &Releases<'_>) -> PathBuf {
    let (mut labels, mut words) = (String::from(".text\n"), String::from(".data\n"));
    for (number, (name, node)) in table.symbols(release).iter().enumerate() {
        let _ = write!(
            labels,
            ".globl d{number}\n.type d{number},@function\nd{number}: .byte 0\n.symver d{number},{name}@{node}\n"
        );
        let _ = write!(words, ".symver r{number},{name}@{node}\n.quad r{number}\n");
    }
    let nodes: String = table.nodes(release).map(|node| format!("{node} {{ }};\n")).collect();
    let end = ".section .note.GNU-stack,\"\",@progbits\n";
    let main = ".text\n.globl main\nmain: xor %eax,%eax\nret\n";
    let file = |suffix: &str| room.folder().join(format!("{library}-{release}{suffix}"));
    let (stub, script, object, program) = (file(".s"), file(".map"), file(".so"), file(""));
    std::fs::write(&stub, labels + end).expect("written");
    std::fs::write(&script, nodes).expect("written");
    let options = format!("-Wl,-soname,{library}.so.1,--version-script={}", script.display());
    gcc(&["-shared", "-nostdlib", &options, "-o"], &[&object, &stub]);
    let source = file("-main.s");
    std::fs::write(&source, words + main + end).expect("written");
    gcc(&["-Wl,-z,now", "-Wl,--allow-shlib-undefined", "-o"], &[&program, &source, &object]);
    program
}

#[track_caller]
fn start_every_release(library: &str, table: &str) {
    let table = Releases::parse(table).expect("a table of releases");
    let room = Room::new().expect("a room");
    assert!(table.releases().count() > 20);
    for release in table.releases() {
        let program = imports(&room, library, release, &table);
        let outcome = room.finish_run(&[program.to_str().expect("a plain path")]).expect("it ends");
        assert!(outcome.expect_success().errors.is_empty(), "rdma-core {release}");
    }
}

#[test]
fn programs_that_import_all_of_libibverbs_start() {
    start_every_release("libibverbs", include_str!("../../capi/libibverbs/releases.txt"));
}

#[test]
fn programs_that_import_all_of_librdmacm_start() {
    start_every_release("librdmacm", include_str!("../../capi/librdmacm/releases.txt"));
}
