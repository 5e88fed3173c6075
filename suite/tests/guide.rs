//! Runs the commands of the guide for newcomers, docs/guide/first-ten-minutes.md, one after the
//! other in one shell of an ordinary user. Checks that their output is what the guide says, except
//! for numbers.
//!
//! The test adds two things that a reader does too. After it starts a program in the background, it
//! waits until the program is ready. For perftest, it chooses a free TCP port.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use harness::port::Port;
use harness::{Room, User};

/// A command, and the lines that it prints according to the guide.
struct Step {
    command: String,
    lines: Vec<String>,
}

fn steps() -> Vec<Step> {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/guide/first-ten-minutes.md");
    let guide = fs::read_to_string(guide).expect("the guide");
    let mut steps: Vec<Step> = Vec::new();
    for block in guide.split("```console\n").skip(1) {
        for line in block.split("```").next().expect("a block").lines() {
            match line.strip_prefix("$ ") {
                Some(command) => steps.push(Step { command: command.to_owned(), lines: Vec::new() }),
                None => steps.last_mut().expect("a command first").lines.push(line.to_owned()),
            }
        }
    }
    steps
}

/// Whether a line matches an expected line. Words with a digit (numbers, addresses, times) may be
/// any other word.
fn is_such_a_line(said: &str, expected: &str) -> bool {
    let plain = |word: &&str| !word.contains(|letter: char| letter.is_ascii_digit());
    let (said, mut at): (Vec<&str>, usize) = (said.split_whitespace().collect(), 0);
    for part in expected.split('…') {
        let words: Vec<&str> = part.split_whitespace().collect();
        let found = (at..=said.len().saturating_sub(words.len())).find(|&from| {
            words.iter().zip(said.get(from..).unwrap_or_default()).all(|(word, there)| !plain(word) || word == there)
                && from + words.len() <= said.len()
        });
        match found {
            Some(from) => at = from + words.len(),
            None => return false,
        }
    }
    true
}

#[test]
fn a_line_is_such_a_line_but_for_numbers() {
    assert!(is_such_a_line("1     352  7044  all programs  loss 5% seed 7", "1 379 7659 all programs loss 5% seed 7"));
    assert!(is_such_a_line("  QP 0x1: 3 are flushed, for this", "QP 0x400: 127 are flushed, …"));
    assert!(!is_such_a_line("  QP 0x1: 3 are flushed", "QP 0x400: 127 were flushed"));
    assert!(!is_such_a_line("4 packets", "4 packets captured"));
}

#[test]
fn every_command_of_the_guide_prints_what_the_guide_says() {
    let room = Room::of(User::Nobody).expect("a room");
    let folder = room.folder().join("guide");
    fs::create_dir(&folder).expect("made");
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).expect("changed");
    let _ = chown(&folder, Some(65_534), Some(65_534));
    let steps = steps();
    assert!(steps.len() > 12, "{} commands", steps.len());
    let reserved = Port::reserve().expect("a port");
    let free = reserved.number();
    let bin = room.dist().folder().join("bin");
    let mut script = format!("cd {}\nexport PATH={}:$PATH\n", folder.display(), bin.display());
    let wait = |condition: &str| format!("for n in $(seq 600); do {condition} && break; sleep 0.1; done\n");
    for (number, step) in steps.iter().enumerate() {
        let command = step.command.replace("-- ib_write_bw", &format!("-- ib_write_bw -p {free}"));
        script += &format!("echo '@@ {number}'\n{command}\n");
        script += &match command.as_str() {
            command if !command.ends_with('&') => String::new(),
            command if command.contains("rping") => wait("[ $(softhca show qp 2>/dev/null | grep -c RTS) = 2 ]"),
            _ => wait(&format!("ss -Hltn sport = :{free} | grep -q .")),
        };
    }
    script += "wait\n";
    let outcome = room.finish(room.command("bash", ["-uc", &format!("exec 2>&1\n{script}")])).expect("it ends");
    let told = outcome.told();
    let mut parts: Vec<&str> = outcome.output.split("@@ ").collect();
    parts.remove(0);
    assert_eq!(parts.len(), steps.len(), "{told}");
    for (step, part) in steps.iter().zip(parts) {
        for expected in step.lines.iter().filter(|line| line.trim() != "…") {
            let found = part.lines().any(|line| is_such_a_line(line, expected));
            assert!(found, "$ {}\nprints no line like\n{expected}\nbut\n{part}", step.command);
        }
    }
}
