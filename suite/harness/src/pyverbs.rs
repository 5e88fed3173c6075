//! Debian's copy of the pyverbs tests, which are part of rdma-core. They are unpacked into a room
//! and run there, module by module.
//!
//! Only the tests for every device run, not the tests for one vendor's devices or for GPUs. A test
//! that a device does not support skips itself and says why. The principal type is [`Pyverbs`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::room::Room;

const TESTS: &str = "/usr/share/doc/rdma-core/tests";

/// Tests of one vendor's adapters, or of memory of GPUs.
const FOREIGN: &[&str] = &["test_mlx5", "test_efa", "test_cuda"];

/// The unpacked tests in a room.
#[derive(Debug)]
pub struct Pyverbs<'a> {
    room: &'a Room,
    folder: PathBuf,
}

/// One test and its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    /// The module, such as `test_qp`.
    pub module: String,
    /// Class and function.
    pub name: String,
    /// The result.
    pub verdict: Verdict,
}

/// The result of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It did not run, for this reason.
    Skipped(String),
    /// It failed, or ended with an error.
    Failed,
}

impl<'a> Pyverbs<'a> {
    /// Unpacks the tests, which Debian ships compressed, into the room. A machine that omits
    /// documentation when it installs packages does not have these files. Then this function takes
    /// them from the package itself.
    pub fn unpack(room: &'a Room) -> Result<Self, String> {
        let folder = room.folder().join("pyverbs");
        let script = format!(
            "set -e; mkdir -p {0}/tests; cd {0}; from={TESTS}; \
             if ! [ -e $from/run_tests.py ]; then apt-get -qq download python3-pyverbs && dpkg-deb -x python3-pyverbs_*.deb deb; from=deb{TESTS}; fi; \
             cp $from/* {0}/tests/; gunzip -f {0}/tests/*.gz 2>/dev/null || true; chmod -R a+rX {0}",
            folder.display()
        );
        let status = Command::new("sh").args(["-c", &script]).status().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(Self { room, folder })
        } else {
            Err("the pyverbs tests cannot be unpacked".to_owned())
        }
    }

    /// The modules whose tests are for every device.
    pub fn modules(&self) -> Result<Vec<String>, String> {
        let entries = fs::read_dir(self.folder.join("tests")).map_err(|error| error.to_string())?;
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut modules: Vec<String> = names
            .filter_map(|name| name.strip_suffix(".py").map(str::to_owned))
            .filter(|name| name.starts_with("test_") && !FOREIGN.iter().any(|foreign| name.starts_with(foreign)))
            .collect();
        modules.sort_unstable();
        if modules.is_empty() { Err("there are no pyverbs tests".to_owned()) } else { Ok(modules) }
    }

    /// The command that runs a module.
    #[must_use]
    pub fn words(&self, module: &str) -> Vec<String> {
        let runner = self.folder.join("tests/run_tests.py").display().to_string();
        ["/usr/bin/python3", &runner, "-v", &format!("tests.{module}")].map(str::to_owned).into()
    }

    /// The line of a [`crate::Place`] that runs the server's side of a test of `test_rdmacm`. The
    /// client's line has the word `client` behind it.
    #[must_use]
    pub fn side(&self, test: &str) -> String {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/cm_side.py");
        format!("/usr/bin/python3 {} {} {test} PORT ADDRESS", script.display(), self.folder.display())
    }

    /// Runs a module with `softhca run`. The result is an error if no test reported a result, or if
    /// the exit code contradicts the results.
    pub fn run(&self, module: &str) -> Result<Vec<Case>, String> {
        let words = self.words(module);
        let outcome = self.room.finish_run(&words.iter().map(String::as_str).collect::<Vec<_>>())?;
        let cases = cases(module, &outcome.errors);
        let failed = cases.iter().any(|case| case.verdict == Verdict::Failed);
        if cases.is_empty() || outcome.succeeded() == failed {
            return Err(outcome.told());
        }
        Ok(cases)
    }
}

/// Parses the output of `unittest -v`: "name (place)", an optional line about the test, " ... ",
/// and the verdict. Output of other programs may be in between.
pub fn cases(module: &str, text: &str) -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    let mut name = None;
    for line in text.lines() {
        if let Some((test, rest)) = line.split_once(" (tests.")
            && let Some((place, _)) = rest.split_once(')')
            && !test.contains(' ')
        {
            let class = place.split('.').nth(1).unwrap_or_default();
            name = Some(format!("{class}.{test}"));
        }
        let said = line.rsplit_once(" ... ").map_or(line, |(_, said)| said);
        let verdict = match said {
            "ok" => Verdict::Passed,
            "FAIL" | "ERROR" => Verdict::Failed,
            _ => match said.strip_prefix("skipped ") {
                Some(why) => Verdict::Skipped(why.trim_matches(['\'', '"']).to_owned()),
                None => continue,
            },
        };
        if let Some(name) = name.take() {
            cases.push(Case { module: module.to_owned(), name, verdict });
        }
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_are_found_behind_descriptions_and_noise() {
        let text = "test_one (tests.test_qp.QPTest.test_one) ... ok\n\
                    test_two (tests.test_qp.QPTest.test_two)\nWhat it is about. ... skipped 'No caps (=1)'\n\
                    test_three (tests.test_qp.QPTest.test_three) ... some program's words\nFAIL\n\
                    test_four (tests.test_qp.QPTest.test_four)\nMore ... ERROR\n\nRan 4 tests in 0.1s\n";
        let expected = [
            ("QPTest.test_one", Verdict::Passed),
            ("QPTest.test_two", Verdict::Skipped("No caps (=1)".to_owned())),
            ("QPTest.test_three", Verdict::Failed),
            ("QPTest.test_four", Verdict::Failed),
        ];
        let found: Vec<_> = cases("test_qp", text).into_iter().map(|case| (case.name, case.verdict)).collect();
        assert_eq!(found, expected.map(|(name, verdict)| (name.to_owned(), verdict)));
    }
}
