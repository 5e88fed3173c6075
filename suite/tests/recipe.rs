//! Runs the README's recipe for other projects' CI word for word, as an ordinary user on a small
//! CMake project.
//!
//! The only difference is the address of the package: it names a file, which is made from the
//! folder under test.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use harness::package::{PROJECT, Packages, block, project};
use harness::{Outcome, Room, User};

/// Runs the recipe in a project, with the address of a package.
fn follow(room: &Room, folder: &Path, address: &str) -> Outcome {
    let recipe = block("README.md", "```sh\n").expect("a shell block");
    assert_eq!(recipe.lines().count(), 6, "six lines are promised:\n{recipe}");
    let mut command = room.command("sh", ["-euc", &recipe]);
    command.current_dir(folder).env("SOFTHCA", address);
    room.finish(command).expect("it ends")
}

#[test]
fn six_lines_install_a_package_and_run_somebody_elses_tests_without_root() {
    let room = Room::of(User::Nobody).expect("a room");
    let folder = project(&room).expect("a project");
    let packages = Packages::make(&folder, "022").expect("packages");
    let outcome = follow(&room, &folder, &format!("file://{}", packages.tarball("").display())).expect_success();
    assert!(outcome.output.contains("100% tests passed, 0 tests failed out of 1"), "{}", outcome.told());
    // The recipe ran the doctor of the package.
    let library = fs::canonicalize(folder.join("softhca/lib/softhca/libibverbs.so.1")).expect("unpacked");
    let library = library.parent().expect("a folder").join("libibverbs.so.1");
    assert!(outcome.output.contains(&library.display().to_string()), "{}", outcome.told());
}

#[test]
fn a_test_that_fails_fails_the_job() {
    let room = Room::of(User::Nobody).expect("a room");
    let folder = project(&room).expect("a project");
    // As from a cache: nothing is downloaded.
    symlink(room.dist().folder(), folder.join("softhca")).expect("linked");
    let wrong = format!(
        "{PROJECT}add_test(NAME wrong COMMAND datagrams)\nset_tests_properties(wrong PROPERTIES WILL_FAIL ON)\n"
    );
    fs::write(folder.join("CMakeLists.txt"), wrong).expect("written");
    let outcome = follow(&room, &folder, "file:///nowhere");
    assert!(!outcome.succeeded() && outcome.output.contains("1 tests failed out of 2"), "{}", outcome.told());
}
