//! Runs the commands of examples/README.md word for word in one shell, and checks that they print
//! the lines on the page.
//!
//! There are two differences. Cargo has already built the Rust programs, together with this suite.
//! The TCP ports are free ports. Another test checks that the links in the contents of the front
//! page lead to existing places.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use harness::Room;
use harness::port::Port;

const PROGRAMS: [(&str, &str); 3] = [
    ("pingpong", env!("CARGO_BIN_EXE_rust-pingpong")),
    ("echo", env!("CARGO_BIN_EXE_rust-echo")),
    ("kv", env!("CARGO_BIN_EXE_rust-kv")),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the suite lies in the workspace").to_owned()
}

#[test]
fn every_example_is_built_and_runs_as_its_page_says() {
    let room = Room::new().expect("a room");
    let built = room.folder().join("target/release/examples");
    fs::create_dir_all(&built).expect("made");
    symlink(root().join("examples"), room.folder().join("examples")).expect("linked");
    for (name, program) in PROGRAMS {
        symlink(program, built.join(name)).expect("linked");
    }
    let page = fs::read_to_string(root().join("examples/README.md")).expect("the page");
    let blocks = page.split("```console\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
    let ports: Vec<Port> = (0..4).map(|_| Port::reserve().expect("a port")).collect();
    let mut script = String::from("set -e\n");
    for command in lines.iter().filter_map(|line| line.strip_prefix("$ ")) {
        if !command.starts_with("cargo build ") {
            script += command;
            script += "\n";
        }
    }
    for (said, free) in ["7471", "7472", "7473", "7474"].iter().zip(&ports) {
        assert!(script.contains(said), "{script}");
        script = script.replace(said, &free.number().to_string());
    }
    let bin = room.dist().folder().join("bin");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = room.command("bash", ["-c", &script]);
    command.env("PATH", path).current_dir(room.folder());
    let outcome = room.finish(command).expect("it ends").expect_success();
    let expected: Vec<&str> = lines.iter().filter(|line| !line.starts_with("$ ")).copied().collect();
    assert_eq!(expected.len(), 5, "{page}");
    for line in expected {
        assert!(outcome.output.lines().any(|said| said == line), "{line}: {}", outcome.told());
    }
}

/// The anchor that GitHub makes from a heading.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|letter| letter.is_alphanumeric() || " -".contains(*letter))
        .collect::<String>();
    kept.replace(' ', "-")
}

#[test]
fn the_contents_of_the_front_page_are_its_headings() {
    let page = fs::read_to_string(root().join("README.md")).expect("the front page");
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let contents = page.split("Contents: ").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("contents");
    let entries: Vec<&str> = contents.split('·').map(str::trim).collect();
    let expected: Vec<String> = headings.iter().map(|heading| format!("[{heading}](#{})", anchor(heading))).collect();
    assert_eq!(entries, expected);
}
