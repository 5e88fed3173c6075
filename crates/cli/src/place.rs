//! The paths of softhca: the run directory with its files, and the folder with libibverbs.so.1.
//!
//! This module creates nothing, except for a folder for reasons if the run directory belongs to
//! another user. The principal type is [`Host`].

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent::config::MAX_DEVICES;

/// The file name under which programs ask for the verbs library.
pub(crate) const LIBRARY: &str = "libibverbs.so.1";

/// What to do if a file of softhca is missing: for users of a package, and for developers.
pub(crate) const REINSTALL: &str = "reinstall softhca; keep its folders bin and lib together (in a clone: run `cargo xtask dist`, \
    use target/dist/bin/softhca)";

/// The variable that tells the dynamic linker where libraries are.
pub(crate) const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";

/// The folders in which Debian's dynamic linker looks by default, in its order.
pub(crate) const SYSTEM_FOLDERS: &[&str] = &[
    "/usr/local/lib/x86_64-linux-gnu",
    "/usr/local/lib",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// The host that is meant: the whole machine, or a virtual host with its own addresses.
#[derive(Debug, Default)]
pub(crate) struct Host {
    /// The host's only addresses. If empty, the host has every address of the machine.
    pub(crate) addresses: Vec<IpAddr>,
}

impl Host {
    /// The run directory in which programs of this host find their agent.
    pub(crate) fn run_dir(&self) -> PathBuf {
        if self.addresses.is_empty() { engine::rundir::default() } else { self.own_run_dir() }
    }

    /// The run directory of this user's own agent of this host.
    pub(crate) fn own_run_dir(&self) -> PathBuf {
        engine::rundir::chosen().unwrap_or_else(|| engine::rundir::private(&self.addresses))
    }
}

/// The run directory of the agent that serves every user.
pub(crate) fn system_run_dir() -> PathBuf {
    engine::rundir::chosen().unwrap_or_else(engine::rundir::system)
}

/// The run directory for a program on the host, or on a node of its agent's topology.
pub(crate) fn run_dir_of(host: &Host, node: Option<&str>) -> Result<PathBuf, String> {
    node.map_or_else(|| Ok(host.run_dir()), |node| node_dir(&host.run_dir(), node))
}

fn node_dir(run_dir: &Path, node: &str) -> Result<PathBuf, String> {
    let nodes = run_dir.join(agent::rundir::NODES);
    let known = fs::read_dir(&nodes).into_iter().flatten().flatten();
    let mut known: Vec<String> = known.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    known.sort();
    if known.iter().any(|known| known == node) {
        return Ok(nodes.join(node));
    }
    Err(match known.as_slice() {
        [] => format!(
            "--node {node}: no agent with a topology runs in {}; start it with `softhca agent --topology FILE`",
            run_dir.display()
        ),
        known => no_node(node, known),
    })
}

/// The run directory of the agent whose node has this run directory, if it is one of a node.
pub(crate) fn dir_of_topology(run_dir: &Path) -> Option<&Path> {
    let nodes = run_dir.parent()?;
    (nodes.file_name()? == agent::rundir::NODES).then(|| nodes.parent())?
}

/// Names a few nodes of an agent that has another one than these.
fn no_node(node: &str, known: &[String]) -> String {
    const SHOWN: usize = 16;
    let mut names = known.get(..SHOWN).unwrap_or(known).join(", ");
    if known.len() > SHOWN {
        names += &format!(" … ({} in all; `softhca subnet` lists them)", known.len());
    }
    let limit = if known.len() < MAX_DEVICES {
        String::new()
    } else {
        format!("; only the first {MAX_DEVICES} adapters of a topology run programs: move this one up in the file")
    };
    format!("--node {node}: the agent's topology has no such node for programs; it has {names}{limit}")
}

/// The agent's log.
pub(crate) fn agent_log(run_dir: &Path) -> PathBuf {
    run_dir.join("agent.log")
}

/// The folder for the reasons of programs that `softhca run` starts. It is in the run directory if
/// this user may write there, else in the user's own run directory.
pub(crate) fn reasons_folder(run_dir: &Path) -> PathBuf {
    let others = |meta: fs::Metadata| meta.uid() != rustix::process::geteuid().as_raw();
    let dir = if fs::metadata(run_dir).is_ok_and(others) { engine::rundir::private(&[]) } else { run_dir.to_owned() };
    dir.join("reasons")
}

/// The folder for reasons. The directory around it is created.
pub(crate) fn reasons(run_dir: &Path) -> io::Result<PathBuf> {
    let folder = reasons_folder(run_dir);
    if let Some(own) = folder.parent().filter(|dir| *dir != run_dir) {
        engine::rundir::prepare(own)?;
    }
    Ok(folder)
}

/// The lock that is held while an agent is being started.
pub(crate) fn start_lock(run_dir: &Path) -> PathBuf {
    run_dir.join("start.lock")
}

/// The path of this program. Without /proc, the path with which it was called.
pub(crate) fn program() -> Result<PathBuf, String> {
    let called = || Path::new(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes())).canonicalize();
    std::env::current_exe().and_then(|path| path.canonicalize()).or_else(|error| {
        called().map_err(|_| format!("cannot find the softhca executable: {error}; is /proc mounted?"))
    })
}

/// The folder with the verbs library: `../lib/softhca` beside this program's `bin`, or the build
/// tree's folder.
pub(crate) fn library_folder() -> Result<PathBuf, String> {
    let program = program()?;
    let bin = program.parent().unwrap_or(Path::new("/"));
    let candidates = [bin.join("../lib/softhca"), bin.join("rdma")];
    for folder in &candidates {
        if folder.join(LIBRARY).exists() {
            return folder.canonicalize().map_err(|error| format!("{}: {error}", folder.display()));
        }
    }
    Err(format!("{LIBRARY} is not in {}", candidates[0].display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_directory_of_a_node_names_that_of_its_agent() {
        let dir = node_dir(Path::new("/run/x"), "H1").expect_err("nothing is there");
        assert!(dir.contains("no agent with a topology runs in /run/x"), "{dir}");
        assert_eq!(dir_of_topology(Path::new("/run/x/nodes/H1")), Some(Path::new("/run/x")));
        assert_eq!(dir_of_topology(Path::new("/run/x")), None);
    }

    #[test]
    fn a_node_that_has_no_programs_is_refused_with_what_there_is() {
        let names = |count: usize| (1..=count).map(|number| format!("H{number}")).collect::<Vec<_>>();
        let told = no_node("H3", &names(2));
        assert!(told.ends_with("it has H1, H2"), "{told}");
        let told = no_node("X", &names(480));
        assert!(told.contains("H16 … (480 in all") && !told.contains("H17") && !told.contains("move"), "{told}");
        let told = no_node("H513", &names(MAX_DEVICES));
        assert!(told.contains("only the first 512 adapters") && told.contains("move this one up"), "{told}");
    }
}
