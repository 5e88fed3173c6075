//! The README's recipe for other people's CI, word for word, by an ordinary user on a small CMake project.
//!
//! Only where softhca comes from is another: not from a clone that is built, but from the folder under test.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use softhca_suite::{Room, User};

const PROJECT: &str = "\
cmake_minimum_required(VERSION 3.20)
project(example C)
enable_testing()
add_executable(datagrams datagrams.c)
target_link_libraries(datagrams ibverbs)
add_test(NAME datagrams COMMAND datagrams)
";

/// The lines of the recipe that come after the two that install.
fn recipe() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(readme).expect("the README");
    let block = readme.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a shell block");
    let lines: Vec<&str> = block.lines().collect();
    assert_eq!(lines.len(), 6, "six lines are promised:\n{block}");
    let (install, rest) = lines.split_at(2);
    assert!(install[0].starts_with("git clone") && install[1].contains("cargo xtask dist"), "{block}");
    assert!(rest.iter().any(|line| line.contains("softhca run -- ctest")), "{block}");
    rest.join("\n")
}

/// A project of somebody else, with the softhca under test where the recipe's first two lines put one.
fn project(room: &Room) -> String {
    let folder = room.folder().join("project");
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs");
    fs::create_dir_all(folder.join("softhca/target")).expect("made");
    symlink(room.dist().folder(), folder.join("softhca/target/dist")).expect("linked");
    fs::write(folder.join("CMakeLists.txt"), PROJECT).expect("written");
    for file in ["datagrams.c", "common.h"] {
        fs::copy(programs.join(file), folder.join(file)).expect("copied");
    }
    // The job's user writes here.
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("changed");
    folder.display().to_string()
}

#[test]
fn six_lines_run_somebody_elses_tests_without_root() {
    let room = Room::of(User::Nobody).expect("a room");
    let script = format!("cd {}\n{}", project(&room), recipe());
    let outcome = room.finish(room.command("sh", ["-euc", &script])).expect("it ends").expect_success();
    assert!(outcome.output.contains("100% tests passed, 0 tests failed out of 1"), "{}", outcome.told());
}

#[test]
fn a_test_that_fails_fails_the_job() {
    let room = Room::of(User::Nobody).expect("a room");
    let folder = project(&room);
    let wrong = format!(
        "{PROJECT}add_test(NAME wrong COMMAND datagrams)\nset_tests_properties(wrong PROPERTIES WILL_FAIL ON)\n"
    );
    fs::write(format!("{folder}/CMakeLists.txt"), wrong).expect("written");
    let outcome = room.finish(room.command("sh", ["-euc", &format!("cd {folder}\n{}", recipe())])).expect("it ends");
    assert!(!outcome.succeeded() && outcome.output.contains("1 tests failed out of 2"), "{}", outcome.told());
}
