//! Where things lie: the run directory with its files, and the folder that holds libibverbs.so.1.
//!
//! It finds and never makes anything.

use std::io;
use std::path::{Path, PathBuf};

/// The file name under which programs ask for the verbs library.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// The variable with which the dynamic linker is told where libraries lie.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The run directory of this process.
pub(crate) fn run_dir() -> PathBuf {
    engine::rundir::default()
}

/// The agent's log.
pub(crate) fn agent_log(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.log")
}

/// Where the reasons of the programs started by `softhca run` are kept.
pub(crate) fn reasons(run_dir: &Path) -> PathBuf {
    run_dir.join("reasons")
}

/// Held while an agent is being started.
pub(crate) fn start_lock(run_dir: &Path) -> PathBuf {
    run_dir.join("start.lock")
}

/// The folder that holds the verbs library: `../lib/softhca` beside this program's `bin`, or the build tree's.
pub(crate) fn library_folder() -> Result<PathBuf, String> {
    let program = std::env::current_exe().and_then(|path| path.canonicalize());
    let program = program.map_err(|error: io::Error| format!("cannot find this program's own file: {error}"))?;
    let bin = program.parent().unwrap_or(Path::new("/"));
    let candidates = [bin.join("../lib/softhca"), bin.join("rdma")];
    for folder in &candidates {
        if folder.join(LIBRARY).exists() {
            return folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()));
        }
    }
    Err(format!(
        "{LIBRARY} is not in {}: copy softhca as the whole folder that `cargo xtask dist` lays out, not as one file",
        candidates[0].display()
    ))
}
