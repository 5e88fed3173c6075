//! Runs one command of a list: shows its output as it comes, and counts the tests in it.
//!
//! It understands the summary lines of cargo-nextest and of cargo's own test runner. Any other
//! command counts as one test. The principal function is [`run`].

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::thread;

/// The numbers of passed and failed tests.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

/// Runs the command, shows its output, and counts.
pub(crate) fn run(mut command: Command) -> Count {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("{}: {error}", command.get_program().to_string_lossy());
            return Count { passed: 0, failed: 1 };
        }
    };
    let output = child.stdout.take().map(|stream| thread::spawn(|| show(stream, |line| println!("{line}"))));
    let errors = child.stderr.take().map(|stream| thread::spawn(|| show(stream, |line| eprintln!("{line}"))));
    let succeeded = child.wait().is_ok_and(|status| status.success());
    let counts = [output, errors].map(|reader| reader.and_then(|reader| reader.join().ok()).unwrap_or_default());
    settle(counts[0].passed + counts[1].passed, counts[0].failed + counts[1].failed, succeeded)
}

/// A command without tests counts as one test that passed or failed. A failed command always counts
/// as at least one failure.
fn settle(passed: u64, failed: u64, succeeded: bool) -> Count {
    match (passed + failed, succeeded) {
        (0, true) => Count { passed: 1, failed: 0 },
        (_, true) => Count { passed, failed },
        (_, false) => Count { passed, failed: failed.max(1) },
    }
}

fn show(stream: impl Read, print: impl Fn(&str)) -> Count {
    let mut total = Count::default();
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { continue };
        print(&line);
        let count = counted(&line);
        total.passed += count.passed;
        total.failed += count.failed;
    }
    total
}

/// The numbers in a summary line. Other lines count nothing.
fn counted(line: &str) -> Count {
    let plain = without_colour(line);
    let summary = plain.trim_start();
    // The line must not be indented: nextest indents the output of a failed test, and counts this
    // test in its own summary.
    if !(plain.starts_with("test result:") || summary.starts_with("Summary [")) {
        return Count::default();
    }
    let words: Vec<&str> =
        summary.split(|c: char| c.is_whitespace() || matches!(c, ',' | ';')).filter(|word| !word.is_empty()).collect();
    let before = |name: &str| -> u64 {
        let pairs = words.windows(2).filter(|pair| pair[1] == name);
        pairs.filter_map(|pair| pair[0].parse::<u64>().ok()).sum()
    };
    Count { passed: before("passed"), failed: before("failed") + before("timed") }
}

/// The line without terminal colours. Escape sequences are removed up to their final letter.
fn without_colour(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut letters = line.chars();
    while let Some(letter) = letters.next() {
        if letter == '\u{1b}' {
            for skipped in letters.by_ref() {
                if skipped.is_ascii_alphabetic() {
                    break;
                }
            }
        } else {
            plain.push(letter);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::{Count, counted, settle};

    #[test]
    fn the_summary_of_cargo_test() {
        let line = "test result: FAILED. 5 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!(counted(line), Count { passed: 5, failed: 2 });
    }

    #[test]
    fn the_summary_of_nextest() {
        let line = "\u{1b}[32;1m     Summary\u{1b}[0m [   0.006s] \u{1b}[1m7\u{1b}[0m tests run: \u{1b}[1m3\u{1b}[0m passed (1 slow), 2 failed, 2 timed out, 0 skipped";
        assert_eq!(counted(line), Count { passed: 3, failed: 4 });
    }

    #[test]
    fn output_of_a_failed_test_is_not_counted() {
        assert_eq!(counted("    test result: FAILED. 0 passed; 1 failed; 0 ignored"), Count::default());
    }

    #[test]
    fn a_command_that_fails_before_any_test_is_one_failure() {
        assert_eq!(settle(0, 0, false), Count { passed: 0, failed: 1 });
        assert_eq!(settle(0, 0, true), Count { passed: 1, failed: 0 });
        assert_eq!(settle(9, 1, false), Count { passed: 9, failed: 1 });
    }
}
