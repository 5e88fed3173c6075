//! The run directory: the place of an agent's nodes, lock, log and device mirror.
//!
//! [`engine::rundir`] knows where it is. [`RunDir::prepare`] prepares it for one agent: it takes
//! the lock and removes what an earlier agent left. [`node`] and the constants here are the names
//! inside. The principal type is [`RunDir`].

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use engine::rundir::at;
use rustix::fs::{FlockOperation, flock, inotify};

/// The admin node inside a run directory.
pub const ADMIN: &str = "admin";
/// Held with `flock` by the agent that serves the directory.
pub const LOCK: &str = "agent.lock";
/// The agent's process id, for users.
pub const PID: &str = "agent.pid";
/// The agent's log, if it runs in the background.
pub const LOG: &str = "agent.log";
/// The root of the mirror of `/sys/class/infiniband` and `/sys/class/infiniband_verbs`.
pub const SYS: &str = "sys";
/// With a topology, a folder for each node with a device: a run directory in which programs find
/// this device only.
pub const NODES: &str = "nodes";

/// How long an agent waits for the lock: the kernel takes some time to close the files of a killed
/// agent.
const VACANCY: Duration = Duration::from_secs(2);
/// The pause between two tries.
const GLANCE: Duration = Duration::from_millis(10);

/// The file name of device `index`'s node.
pub fn node(index: usize) -> String {
    format!("uverbs{index}")
}

/// The file name of the node for the datagrams of port `number` of all ports.
pub(crate) fn umad_node(number: u32) -> String {
    format!("umad{number}")
}

/// The file name of the node of this port's subnet manager.
pub(crate) fn manager_node(number: u32) -> String {
    format!("issm{number}")
}

/// Why a run directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunDirError {
    /// It cannot be created, belongs to another user, or is writable by others.
    #[error("the run directory cannot be used: {0}")]
    Unusable(io::Error),
    /// The system refused something; the error names the file.
    #[error(transparent)]
    System(io::Error),
    /// Another agent is alive there.
    #[error(
        "an agent serves {path} already; stop it with `softhca agent --stop` or set SOFTHCA_DIR to another directory"
    )]
    Served {
        /// The directory.
        path: PathBuf,
    },
}

/// A run directory that belongs to this process while the value lives.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    everybody: bool,
    lock: File,
}

impl RunDir {
    /// Creates `path` if necessary, checks that only this user can write it, takes the lock, and
    /// removes what a dead agent left. If `everybody`, other users may enter it.
    pub fn prepare(path: &Path, everybody: bool) -> Result<Self, RunDirError> {
        let system = |action, path: &Path| {
            let named = at(action, path);
            move |error| RunDirError::System(named(error))
        };
        let prepared =
            if everybody { engine::rundir::prepare_for_everybody(path) } else { engine::rundir::prepare(path) };
        prepared.map_err(RunDirError::Unusable)?;
        let lock_path = path.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock_path)
            .map_err(system("open", &lock_path))?;
        match take(&lock) {
            Ok(true) => {}
            Ok(false) => return Err(RunDirError::Served { path: path.to_owned() }),
            Err(error) => return Err(system("lock", &lock_path)(error)),
        }
        let dir = Self { path: path.to_owned(), everybody, lock };
        dir.clear();
        let pid_path = dir.file(PID);
        let mut fresh = OpenOptions::new();
        fresh
            .create_new(true)
            .write(true)
            .mode(0o644)
            .open(&pid_path)
            .and_then(|mut file| writeln!(file, "{}", std::process::id()))
            .map_err(system("write", &pid_path))?;
        Ok(dir)
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the agent serves every user, not only its own.
    pub fn is_for_everybody(&self) -> bool {
        self.everybody
    }

    /// A file inside.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Removes a node.
    pub(crate) fn remove(&self, name: &str) {
        // It is gone already if somebody else removed it.
        let _ = fs::remove_file(self.file(name));
    }

    /// A descriptor that becomes readable when a file in the directory is removed, or the directory
    /// is moved. (The kernel does not report the removal of the directory itself while this process
    /// has a file in it open.)
    pub(crate) fn watch(&self) -> io::Result<OwnedFd> {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, &self.path, inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVE_SELF)?;
        Ok(watch)
    }

    /// Whether the directory is still at its path. Otherwise the path belongs to another agent, or
    /// no longer exists.
    pub(crate) fn is_there(&self) -> bool {
        let ours = self.lock.metadata().map(|meta| (meta.dev(), meta.ino()));
        let found = fs::symlink_metadata(self.file(LOCK)).map(|meta| (meta.dev(), meta.ino()));
        matches!((ours, found), (Ok(ours), Ok(found)) if ours == found)
    }

    /// Removes the nodes, the pid file and the mirror; the lock and the log stay.
    fn clear(&self) {
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let number = name.strip_prefix("uverbs").unwrap_or("x");
            let is_node = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
            if is_node
                || name == abi::ucma::NODE
                || name == abi::netlink::NODE
                || name == abi::umad::NODE
                || name == ADMIN
                || name == PID
            {
                let _ = fs::remove_file(entry.path());
            }
        }
        let _ = fs::remove_dir_all(self.file(SYS));
        let _ = fs::remove_dir_all(self.file(NODES));
    }
}

impl Drop for RunDir {
    /// A stopped agent must leave nothing that looks like a running one.
    fn drop(&mut self) {
        if self.is_there() {
            self.clear();
        }
    }
}

/// Takes the lock of a run directory. Returns `false` if another process keeps it.
fn take(lock: &File) -> io::Result<bool> {
    let started = Instant::now();
    loop {
        match flock(lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(rustix::io::Errno::WOULDBLOCK) if started.elapsed() < VACANCY => thread::sleep(GLANCE),
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn one_agent_per_directory_and_stale_files_go() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("deep/run");
        fs::create_dir_all(&path).expect("made");
        for stale in ["uverbs0", "uverbs12", ADMIN, "keep", "uverbsx"] {
            fs::write(path.join(stale), "").expect("written");
        }
        let dir = RunDir::prepare(&path, false).expect("ready");
        assert!(!path.join("uverbs0").exists() && !path.join("uverbs12").exists() && !path.join(ADMIN).exists());
        assert!(path.join("keep").exists() && path.join("uverbsx").exists());
        assert!(matches!(RunDir::prepare(&path, false), Err(RunDirError::Served { .. })));
        drop(dir);
        assert!(!path.join(PID).exists());
        RunDir::prepare(&path, false).expect("free again");
    }

    #[test]
    fn a_directory_that_replaced_the_run_directory_is_not_removed() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("run");
        let old = RunDir::prepare(&path, false).expect("ready");
        let watch = old.watch().expect("watched");
        assert!(old.is_there());
        fs::remove_dir_all(&path).expect("removed");
        assert!(!old.is_there());
        let mut event = [0; 64];
        assert!(rustix::io::read(&watch, &mut event).expect("it is told") > 0);
        let new = RunDir::prepare(&path, false).expect("ready again");
        drop(old);
        assert!(path.join(PID).exists(), "the new agent's");
        drop(new);
    }

    #[test]
    fn a_directory_open_to_others_is_refused() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("open");
        fs::create_dir(&path).expect("made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("opened");
        let error = RunDir::prepare(&path, false).expect_err("refused").to_string();
        assert!(error.contains("other users"), "{error}");
    }

    #[test]
    fn everybody_may_enter_and_only_we_may_write() {
        let scratch = tempfile::tempdir().expect("a scratch directory");
        let path = scratch.path().join("run");
        let dir = RunDir::prepare(&path, true).expect("ready");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(&dir.file(LOCK)), mode(&dir.file(PID)) & 0o133), (0o755, 0o600, 0));
        drop(dir);
        RunDir::prepare(&path, false).expect("a directory of ours that others may read is no danger");
    }
}
