//! `cargo xtask fuzz`: AFL++ searches for inputs that break a promise. Interesting inputs are kept
//! in fuzz/corpus.
//!
//! The targets are those of the package `softhca-fuzz`. Each has its folder in the corpus. Of a
//! run's new inputs, the command keeps only those that reach new code. Inputs that break a promise
//! or hang stay in the target folder, and the command prints their paths. The principal function is
//! [`run`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::workspace::Workspace;

/// Longer inputs are slow and not more interesting.
const LONGEST: &str = "2048";
/// The time limit of one input in milliseconds. It is generous, because other programs use the
/// processors too.
const PATIENCE: &str = "10000";

/// Fuzzes one target, or all targets one after the other, for this many minutes each.
pub(crate) fn run(workspace: &Workspace, only: Option<&str>, minutes: u64) -> Result<(), String> {
    let version = afl().arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Err("cargo-afl is not there; `cargo install cargo-afl` installs it".to_owned());
    }
    let corpus = workspace.root().join("fuzz/corpus");
    let all = names(&corpus)?;
    if let Some(only) = only.filter(|only| !all.iter().any(|name| name == only)) {
        return Err(format!("no target is named {only}; there are: {}", all.join(" ")));
    }
    let build = workspace.target().join("fuzz/build");
    let mut command = afl();
    command.args(["build", "--release", "--package", "softhca-fuzz", "--features", "afl", "--target-dir"]).arg(&build);
    // With the checks of test builds, so that overflows and failed assertions are found.
    command
        .envs([("CARGO_PROFILE_RELEASE_DEBUG_ASSERTIONS", "true"), ("CARGO_PROFILE_RELEASE_OVERFLOW_CHECKS", "true")]);
    command.envs([("CARGO_PROFILE_RELEASE_LTO", "off"), ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")]);
    succeed(command.current_dir(workspace.root()), "the build")?;
    let mut found = Vec::new();
    for name in all.iter().filter(|name| only.is_none_or(|only| only == name.as_str())) {
        let program = build.join("release/fuzz");
        found.extend(one(&workspace.target().join("fuzz"), &program, &corpus.join(name), name, minutes)?);
    }
    if found.is_empty() { Ok(()) } else { Err(format!("found:\n  {}", found.join("\n  "))) }
}

/// Fuzzes one target. Returns the files with inputs that broke it.
fn one(folder: &Path, program: &Path, corpus: &Path, name: &str, minutes: u64) -> Result<Vec<String>, String> {
    let (out, kept) = (folder.join("out").join(name), folder.join("kept").join(name));
    for old in [&out, &kept] {
        let _ = fs::remove_dir_all(old);
    }
    fs::create_dir_all(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    let mut command = afl();
    command.args(["fuzz", "-t", PATIENCE, "-G", LONGEST, "-V", &(minutes * 60).to_string(), "-i"]).arg(corpus);
    succeed(command.arg("-o").arg(&out).arg("--").arg(program).arg(name), name)?;
    let mut command = afl();
    command.args(["cmin", "-t", PATIENCE, "-i"]).arg(out.join("default/queue")).arg("-o").arg(&kept);
    succeed(command.arg("--").arg(program).arg(name), name)?;
    let mut new = 0;
    for path in files(&kept)? {
        let bytes = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let place = corpus.join(format!("{:016x}", fnv(&bytes)));
        if !place.exists() {
            fs::write(&place, bytes).map_err(|error| format!("{}: {error}", place.display()))?;
            new += 1;
        }
    }
    let broken = [files(&out.join("default/crashes"))?, files(&out.join("default/hangs"))?].concat();
    let inputs = executed(&out.join("default/fuzzer_stats"));
    println!("{name}: {inputs} inputs in {minutes} min, {new} new in {}, {} broke it", corpus.display(), broken.len());
    Ok(broken.iter().map(|path| path.display().to_string()).collect())
}

fn afl() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg("afl").stdin(Stdio::null());
    // The command also runs on other people's machines: without a screen, without changes to their
    // settings, and without a processor of its own.
    for name in ["AFL_NO_UI", "AFL_SKIP_CPUFREQ", "AFL_I_DONT_CARE_ABOUT_MISSING_CRASHES", "AFL_NO_AFFINITY"] {
        command.env(name, "1");
    }
    command
}

fn succeed(command: &mut Command, what: &str) -> Result<(), String> {
    let status = command.stdout(Stdio::null()).status().map_err(|error| format!("cargo afl: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{what}: cargo afl: {status}")) }
}

fn names(corpus: &Path) -> Result<Vec<String>, String> {
    let names = files(corpus)?.into_iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    Ok(names.collect())
}

/// The files in a folder, sorted by name, without AFL's own notes. Empty if there is no folder.
fn files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(Vec::new()) };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| format!("{}: {error}", folder.display()))?.path();
        if !path.ends_with("README.txt") && !path.ends_with(".state") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// The number of tried inputs, as AFL reports it.
fn executed(stats: &Path) -> String {
    let text = fs::read_to_string(stats).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("execs_done"));
    line.and_then(|line| line.split_once(':')).map_or("?", |(_, count)| count.trim()).to_owned()
}

/// A name for an input (the hash of Fowler, Noll and Vo).
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
