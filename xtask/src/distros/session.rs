//! Runs one program in one release, in its own namespaces and with a time limit, and judges how it
//! ended.
//!
//! The principal type is [`TestResult`].

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use harness::program::{Outcome, Program as Process};
use harness::pyverbs::{self, Case, Verdict as Tested};

use super::programs::{Program, RunMode};
use harness::Dist;

/// The script that enters a release.
const ENTER: &str = include_str!("enter.sh");
/// The script that runs a server and its client.
const MEET: &str = include_str!("meet.sh");
/// The script that runs the Python tests.
const PYVERBS: &str = include_str!("pyverbs.sh");

/// The user id of `nobody`.
pub(crate) const NOBODY: &str = "65534";
/// The folder of the dist inside a release.
const PLACE: &str = "/opt/softhca";
/// The time limit of a program. It is generous, because a slow machine is not a failure.
const LIMIT: Duration = Duration::from_secs(120);
/// The time limit of all Python tests.
const PYVERBS_LIMIT: Duration = Duration::from_secs(1200);
/// The most characters that are shown of a failure.
const LONGEST: usize = 240;

/// The result of a program.
#[derive(Debug, Clone)]
pub(crate) enum TestResult {
    /// It works, with a note if needed.
    Works(String),
    /// It fails: a summary, the part that does not fail, and its complete output.
    Fails { why: String, beside: String, said: String },
}

impl TestResult {
    fn fails(why: impl Into<String>, said: impl Into<String>) -> Self {
        Self::Fails { why: why.into(), beside: String::new(), said: said.into() }
    }
}

/// Runs a program of a release.
pub(crate) fn run(program: &Program, root: &Path, dist: &Dist) -> TestResult {
    let entry = Entry { root, bound: Some((dist.folder(), PLACE)), user: NOBODY };
    match program.way {
        RunMode::Alone(words, says) => {
            judged(entry.run(LIMIT, &format!("cd /tmp; exec softhca run -- {words}"), &[]), &[says])
        }
        RunMode::Meet(ready, server, client) => judged(entry.run(LIMIT, MEET, &[ready, server, client]), &[]),
        RunMode::Pyverbs => entry
            .run(PYVERBS_LIMIT, PYVERBS, &[])
            .map_or_else(|why| TestResult::fails(first_words(&why), why), |outcome| tested(&outcome.everything())),
    }
}

/// How to enter a release.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry<'a> {
    /// The release.
    pub(crate) root: &'a Path,
    /// A folder of this machine, and its place inside the release.
    pub(crate) bound: Option<(&'a Path, &'a str)>,
    /// The user id.
    pub(crate) user: &'a str,
}

impl Entry<'_> {
    /// Runs a shell script in the release.
    pub(crate) fn run(&self, limit: Duration, script: &str, words: &[&str]) -> Result<Outcome, String> {
        let output = tempfile::tempdir().map_err(|error| error.to_string())?;
        let (folder, place) = self.bound.unwrap_or((Path::new(""), ""));
        let mut command = Command::new("unshare");
        command.args(["--mount", "--pid", "--net", "--ipc", "--uts", "--fork", "--kill-child"]);
        command.args(["sh", "-c", ENTER, "enter"]).args([self.root, folder]);
        command.args([place, self.user, "sh", "-c", script, "sh"]).args(words);
        Process::start(command, &output.path().join("program"))?.wait(limit)
    }
}

/// A program works if it exits with 0 and prints the expected text.
pub(crate) fn judged(outcome: Result<Outcome, String>, says: &[&str]) -> TestResult {
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(why) => return TestResult::fails(first_words(&why), why),
    };
    match says.iter().find(|says| !outcome.output.contains(**says)) {
        None if outcome.succeeded() => TestResult::Works(String::new()),
        unsaid => TestResult::fails(in_words(&outcome, unsaid.unwrap_or(&"")), outcome.everything()),
    }
}

/// Summarizes a failure: the symbols that the dynamic linker does not find, or the program's last
/// line.
fn in_words(outcome: &Outcome, says: &str) -> String {
    let said = outcome.everything();
    if let Some(missing) = missing(&said) {
        return missing;
    }
    if outcome.succeeded() {
        return format!("it says nothing of \"{says}\"");
    }
    format!("ends with {}: {}", outcome.code, last_words(&said))
}

/// The program's last line, before the server's output and before reasons. A prefix in brackets
/// (times and process ids) is removed.
fn last_words(said: &str) -> String {
    let own = said.split("--- the server").next().unwrap_or_default();
    let own: Vec<&str> = own.lines().take_while(|line| !line.starts_with("softhca:")).collect();
    let mut line = own.iter().rev().map(|line| line.trim()).find(|line| !line.is_empty()).unwrap_or("it says nothing");
    while let Some((_, rest)) = line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        line = rest.trim_start();
    }
    first_words(line)
}

/// The symbols that the dynamic linker does not find.
fn missing(said: &str) -> Option<String> {
    let mut found: Vec<String> = Vec::new();
    for line in said.lines() {
        let (library, rest) = match (line.split_once(": version `"), line.split_once("undefined symbol: ")) {
            (Some((before, rest)), _) => {
                let library = before.rsplit('/').next().unwrap_or_default();
                (library, format!("version `{}'", rest.split('\'').next().unwrap_or_default()))
            }
            (None, Some((before, rest))) => {
                let library = before.trim_end_matches([':', ' ']).rsplit('/').next().unwrap_or_default();
                (library, format!("symbol {rest}"))
            }
            (None, None) => continue,
        };
        let words = if rest.starts_with("symbol") {
            format!("{library} misses {rest}")
        } else {
            format!("{library} has no {rest}")
        };
        if !found.contains(&words) {
            found.push(words);
        }
    }
    found.sort();
    (!found.is_empty()).then(|| found.join(", "))
}

/// The Python tests work if no test fails.
fn tested(said: &str) -> TestResult {
    let mut cases: Vec<Case> = Vec::new();
    let mut broken = Vec::new();
    for part in said.split("module ").skip(1) {
        let (module, text) = part.split_once('\n').unwrap_or((part, ""));
        let found = pyverbs::cases(module, text);
        // A module that ends with an error prints another part after its tests.
        if module.contains(" ended with ") {
            if broken_without_a_test(&cases, module) {
                broken.push(module.to_owned());
            }
            continue;
        }
        cases.extend(found);
    }
    let count = |wanted: fn(&Tested) -> bool| cases.iter().filter(|case| wanted(&case.verdict)).count();
    let passed = count(|verdict| *verdict == Tested::Passed);
    let skipped = count(|verdict| matches!(verdict, Tested::Skipped(_)));
    let failed: Vec<String> = cases
        .iter()
        .filter(|case| case.verdict == Tested::Failed)
        .map(|case| format!("{} {}", case.module, case.name))
        .chain(broken)
        .collect();
    let counts = format!("{passed} pass, {skipped} skip themselves");
    match (missing(said), failed.is_empty() && passed > 0) {
        (_, true) => TestResult::Works(counts),
        (Some(missing), false) => TestResult::fails(missing, said),
        (None, false) => TestResult::Fails {
            why: format!("{} fail: {}", failed.len(), failed.join(", ")),
            beside: counts,
            said: said.to_owned(),
        },
    }
}

/// A module that ends with an error although none of its tests failed.
fn broken_without_a_test(cases: &[Case], ended: &str) -> bool {
    let module = ended.split(' ').next().unwrap_or_default();
    !cases.iter().any(|case| case.module == module && case.verdict == Tested::Failed)
}

fn first_words(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    line.chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_symbol_is_reported_once() {
        let said = "ibv_devinfo: /opt/lib/libibverbs.so.1: version `IBVERBS_1.18' not found (required by ibv_devinfo)\n\
                    ibv_devinfo: /opt/lib/libibverbs.so.1: version `IBVERBS_1.16' not found (required by ibv_devinfo)\n\
                    ibv_devinfo: /opt/lib/libibverbs.so.1: version `IBVERBS_1.18' not found (required by /lib/libmlx5.so.1)\n";
        let told = "libibverbs.so.1 has no version `IBVERBS_1.16', libibverbs.so.1 has no version `IBVERBS_1.18'";
        assert_eq!(missing(said).as_deref(), Some(told));
        let said = "x: symbol lookup error: /lib/libmlx5.so.1: undefined symbol: f, version IBVERBS_PRIVATE_34\n";
        assert_eq!(missing(said).as_deref(), Some("libmlx5.so.1 misses symbol f, version IBVERBS_PRIVATE_34"));
        assert_eq!(missing("all is well"), None);
    }

    #[test]
    fn the_last_words_are_the_programs_own() {
        let said = "Hello\n[12.5] [vm:57   :0] run.c:3 ERROR no luck\n\nsofthca: why something failed:\n  because\n--- the server\nbye\n";
        assert_eq!(last_words(said), "run.c:3 ERROR no luck");
        assert_eq!(last_words(""), "it says nothing");
    }

    #[test]
    fn python_tests_work_if_none_fails() {
        let good = "module test_a\ntest_one (tests.test_a.A.test_one) ... ok\ntest_two (tests.test_a.A.test_two) ... skipped 'no'\n";
        assert!(matches!(tested(good), TestResult::Works(words) if words == "1 pass, 1 skip themselves"));
        let bad =
            format!("{good}module test_b\ntest_one (tests.test_b.B.test_one) ... FAIL\nmodule test_b ended with 1\n");
        let TestResult::Fails { why, beside, .. } = tested(&bad) else { panic!("a test fails") };
        assert_eq!((why.as_str(), beside.as_str()), ("1 fail: test_b B.test_one", "1 pass, 1 skip themselves"));
        let hung = format!("{good}module test_c\nmodule test_c ended with 124\n");
        let TestResult::Fails { why, .. } = tested(&hung) else { panic!("a module does not end") };
        assert_eq!(why, "1 fail: test_c ended with 124");
        assert!(matches!(tested(""), TestResult::Fails { .. }), "no test at all");
    }
}
