//! `cargo xtask conformance`: writes docs/conformance.md. The page says which behaviours of the
//! verbs are tested by which tests, and which of Debian's pyverbs tests pass.
//!
//! docs/behaviours.toml lists the behaviours. A test belongs to the behaviour whose id begins the
//! test's name. The part about behaviours follows from the sources alone, and `cargo xtask test`
//! checks it. The part about pyverbs is the result of a run.

mod behaviours;

use std::fmt::Write;
use std::fs;

use harness::Room;
use harness::pyverbs::{Case, Pyverbs, Verdict};

use crate::hugepages::HugePages;
use crate::workspace::Workspace;
use crate::{debian, dist};

/// Separates the result of a run from the part that follows from the sources.
const BEHAVIOURS: &str = "## Behaviours\n";

const INTRODUCTION: &str = "# Conformance\n\n\
    What of the verbs is shown to work, by which test. `cargo xtask conformance` writes this page.\n\n";

/// Writes the page: runs the pyverbs tests, and finds the tests of behaviours.
pub(crate) fn run(workspace: &Workspace) -> Result<(), String> {
    let behaviours = behaviours::table(workspace)?;
    debian::require(debian::SUITE)?;
    let room = Room::with(dist::run(workspace)?)?;
    let _pages = HugePages::reserve();
    let pyverbs = Pyverbs::unpack(&room)?;
    let mut cases = Vec::new();
    for module in pyverbs.modules()? {
        println!("pyverbs: {module}");
        cases.extend(pyverbs.run(&module)?);
    }
    let page = format!("{INTRODUCTION}{}{BEHAVIOURS}\n{behaviours}", of_pyverbs(&cases));
    fs::write(page_of(workspace), page).map_err(|error| error.to_string())
}

/// Writes the part about behaviours, and leaves the rest of the page as it is.
pub(crate) fn write_behaviours(workspace: &Workspace) -> Result<(), String> {
    let (rest, _) = parts(workspace)?;
    let page = format!("{rest}{BEHAVIOURS}\n{}", behaviours::table(workspace)?);
    fs::write(page_of(workspace), page).map_err(|error| error.to_string())
}

/// Compares the page's part about behaviours with the sources.
pub(crate) fn check(workspace: &Workspace) -> Result<(), String> {
    let (_, page) = parts(workspace)?;
    if page.trim() == behaviours::table(workspace)?.trim() {
        Ok(())
    } else {
        Err("docs/conformance.md differs from the tests: run `cargo xtask conformance --sources`".to_owned())
    }
}

/// The page as it is: what comes before the part about behaviours, and that part.
fn parts(workspace: &Workspace) -> Result<(String, String), String> {
    let page = fs::read_to_string(page_of(workspace)).map_err(|error| format!("docs/conformance.md: {error}"))?;
    let (rest, behaviours) = page
        .split_once(BEHAVIOURS)
        .ok_or("docs/conformance.md has no part about behaviours: run `cargo xtask conformance`")?;
    Ok((rest.to_owned(), behaviours.to_owned()))
}

fn page_of(workspace: &Workspace) -> std::path::PathBuf {
    workspace.root().join("docs/conformance.md")
}

/// The part about pyverbs.
fn of_pyverbs(cases: &[Case]) -> String {
    let count = |wanted: fn(&Verdict) -> bool| cases.iter().filter(|case| wanted(&case.verdict)).count();
    let passed = count(|verdict| *verdict == Verdict::Passed);
    let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
    let failed = count(|verdict| *verdict == Verdict::Failed);
    let mut text = format!(
        "## pyverbs\n\nThe tests of Debian's package python3-pyverbs that apply to every device, unmodified, with `softhca run`: \
         {passed} of {} pass, {failed} fail, {skipped} are skipped, for these reasons:\n\n| test | why it is skipped |\n|---|---|\n",
        cases.len()
    );
    for case in cases {
        match &case.verdict {
            Verdict::Passed => {}
            Verdict::Failed => {
                let _ = writeln!(text, "| {} {} | **fails** |", case.module, case.name);
            }
            Verdict::Skipped(why) => {
                let _ = writeln!(text, "| {} {} | {} |", case.module, case.name, why.replace('|', "/"));
            }
        }
    }
    text.push('\n');
    text
}
