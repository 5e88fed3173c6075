//! `cargo xtask planted`: plants bugs, one at a time, in a copy of the sources, and runs the tests
//! that should find them.
//!
//! xtask/planted.toml lists the bugs. Each replaces one text that occurs once. If no test finds a
//! bug, a test is missing. `cargo xtask test` only checks that each bug can still be planted. The
//! principal function is [`run`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::workspace::Workspace;

#[derive(Deserialize)]
struct PlantedFile {
    bug: Vec<Bug>,
}

/// One bug.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bug {
    /// The effect of the bug.
    says: String,
    /// The file to change.
    file: PathBuf,
    /// The text to replace.
    find: String,
    /// The replacement.
    replace: String,
    /// The arguments of `cargo test`, which must fail.
    #[serde(default = "conformance")]
    tests: Vec<String>,
    /// Instead of tests: the number of simulation seeds, at least one of which must find the bug.
    seeds: Option<u64>,
}

/// The result of a bug.
enum Fate {
    /// Found, with details for the output.
    Found(String),
    Survived,
}

fn conformance() -> Vec<String> {
    ["--package", "softhca-fabric", "--test", "conformance"].map(str::to_owned).to_vec()
}

impl Bug {
    fn does_not_compile(&self) -> String {
        format!("{} ({}): it does not compile", self.says, self.file.display())
    }
}

/// Plants all bugs, or those whose description contains `only`, and prints which bugs were found.
pub(crate) fn run(workspace: &Workspace, only: Option<&str>) -> Result<(), String> {
    check(workspace)?;
    let bugs = bugs(workspace)?;
    let copy = workspace.target().join("planted/tree");
    let chosen: Vec<_> = bugs.iter().filter(|bug| only.is_none_or(|only| bug.says.contains(only))).collect();
    let mut survived = Vec::new();
    for (number, bug) in chosen.iter().enumerate() {
        copy_sources(workspace, &copy)?;
        let path = copy.join(&bug.file);
        let text = read(&path)?;
        write(&path, &text.replacen(&bug.find, &bug.replace, 1))?;
        let fate = match bug.seeds {
            Some(seeds) => simulate(workspace, &copy, bug, seeds)?,
            None if !test(workspace, &copy, bug, true)? => return Err(bug.does_not_compile()),
            None if test(workspace, &copy, bug, false)? => Fate::Survived,
            None => Fate::Found(String::new()),
        };
        let number = number + 1;
        match fate {
            Fate::Found(how) => println!("{number}/{}  found     {}{how}", chosen.len(), bug.says),
            Fate::Survived => {
                println!("{number}/{}  SURVIVED  {}", chosen.len(), bug.says);
                survived.push(bug.says.clone());
            }
        }
    }
    if survived.is_empty() {
        println!("{} bugs planted, all found", chosen.len());
        Ok(())
    } else {
        Err(format!("{} of {} bugs were not found:\n  {}", survived.len(), chosen.len(), survived.join("\n  ")))
    }
}

/// Whether each bug can still be planted.
pub(crate) fn check(workspace: &Workspace) -> Result<(), String> {
    let mut wrong = Vec::new();
    for bug in bugs(workspace)? {
        let count = read(&workspace.root().join(&bug.file))?.matches(&bug.find).count();
        if count != 1 {
            wrong.push(format!(
                "xtask/planted.toml: {:?} is {count} times in {}, not once",
                bug.find,
                bug.file.display()
            ));
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

fn bugs(workspace: &Workspace) -> Result<Vec<Bug>, String> {
    let text = read(&workspace.root().join("xtask/planted.toml"))?;
    let PlantedFile { bug } = toml::from_str(&text).map_err(|error| format!("xtask/planted.toml: {error}"))?;
    Ok(bug)
}

/// Runs a bug's tests in the copy, or only builds them. Returns whether that succeeded.
fn test(workspace: &Workspace, copy: &Path, bug: &Bug, only_build: bool) -> Result<bool, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", workspace.target().join("planted/target"))
        .arg("test")
        .arg("--quiet");
    command.args(&bug.tests);
    if only_build {
        command.arg("--no-run");
    }
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.map(|status| status.success()).map_err(|error| format!("cargo: {error}"))
}

/// Runs seeds of the simulation in the copy until one fails.
fn simulate(workspace: &Workspace, copy: &Path, bug: &Bug, seeds: u64) -> Result<Fate, String> {
    let target = workspace.target().join("planted/target");
    let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    build.current_dir(copy).env("CARGO_TARGET_DIR", &target);
    build.args(["build", "--quiet", "--package", "softhca-fabric", "--example", "simulate"]);
    let built = build.stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !built.map_err(|error| format!("cargo: {error}"))?.success() {
        return Err(bug.does_not_compile());
    }
    let mut run = Command::new(target.join("debug/examples/simulate"));
    let output = run.args(["0", &seeds.to_string()]).stderr(Stdio::null()).output();
    let output = output.map_err(|error| format!("simulate: {error}"))?;
    if output.status.success() {
        return Ok(Fate::Survived);
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let first = text.lines().find(|line| line.starts_with("seed ")).unwrap_or("the simulation does not end");
    Ok(Fate::Found(format!("  by {first}")))
}

/// Copies the sources that git lists, with uncommitted changes. Unchanged files in the copy are
/// left alone.
fn copy_sources(workspace: &Workspace, copy: &Path) -> Result<(), String> {
    let list = Command::new("git")
        .current_dir(workspace.root())
        .args(["ls-files", "-z", "-co", "--exclude-standard"])
        .output();
    let list = list.map_err(|error| format!("git: {error}"))?;
    for name in list.stdout.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = String::from_utf8_lossy(name).into_owned();
        let from = workspace.root().join(&name);
        let Ok(bytes) = fs::read(&from) else { continue };
        let to = copy.join(&name);
        if fs::read(&to).is_ok_and(|old| old == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        fs::write(&to, bytes).map_err(|error| format!("{}: {error}", to.display()))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
