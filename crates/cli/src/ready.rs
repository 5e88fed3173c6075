//! What `softhca run` needs before it can start a program. `softhca run` refuses with the first
//! check that fails. `softhca doctor` prints the same checks, so it never reports "ok" where
//! `softhca run` refuses.
//!
//! The checks leave nothing behind: they create no run directory and start no agent. The principal
//! type is [`Surroundings`].

use std::env;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use agent::FILES_MIN;
use engine::rundir::at;
use rustix::event::epoll;
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate, open, statvfs};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use shm::denied::{Denied, denied, named};
use shm::{Notifier, Region, Socket};

use crate::admin::Connection;
use crate::finding::Finding;
use crate::place::{self, Host};
use crate::{agent_command, fault, program};

/// The room that a folder must have.
#[derive(Debug, Clone, Copy)]
struct Need {
    bytes: u64,
    files: u64,
}

/// The room that an agent and the first programs need in a run directory.
const AGENT: Need = Need { bytes: 1 << 20, files: 256 };

/// The room for the file with the reasons of one program, and its folder. A program can run on a
/// full disk: reasons that do not fit are lost.
const REASONS: Need = Need { bytes: 0, files: 2 };

/// The longest path of a unix socket. [`LAST_DEVICE`] gives the longest name of a socket in a run
/// directory.
const SOCKET_PATH: usize = 107;
const LAST_DEVICE: u32 = 15;

/// The place in which a program would run.
pub(crate) struct Surroundings<'a> {
    pub(crate) host: &'a Host,
    pub(crate) run_dir: PathBuf,
    /// The agent that already serves the run directory.
    pub(crate) agent: Option<Connection>,
    /// Why that agent does not answer.
    silent: Option<String>,
}

impl<'a> Surroundings<'a> {
    /// The surroundings of programs of `host`.
    pub(crate) fn of(host: &'a Host) -> Self {
        let run_dir = host.run_dir();
        let answers = |connection: Connection| match connection.answers() {
            Ok(true) => (Some(connection), None),
            // An agent that was killed may accept connections for a short time.
            Ok(false) => (None, None),
            Err(why) => (Some(connection), Some(why)),
        };
        let (agent, silent) = Connection::open(&run_dir).map_or((None, None), answers);
        Self { host, run_dir, agent, silent }
    }
}

/// A check.
type Check = fn(&Surroundings<'_>) -> Finding;

/// All checks, in the order in which a person would ask.
const NEEDED: [Check; 8] = [run_directory, settings, system_calls, open_files, addresses, agent, reasons, library];

/// The results of all checks.
pub(crate) fn checks(surroundings: &Surroundings<'_>) -> impl Iterator<Item = Finding> {
    NEEDED.iter().map(|check| check(surroundings))
}

/// The first check that fails, as a sentence.
pub(crate) fn check(surroundings: &Surroundings<'_>) -> Result<(), String> {
    checks(surroundings).find(Finding::is_failure).map_or(Ok(()), |finding| Err(finding.sentence()))
}

fn run_directory(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "run directory";
    let dir = &surroundings.run_dir;
    let named = engine::rundir::chosen().is_some();
    let shown = format!("{}{}", dir.display(), if named { " (SOFTHCA_DIR)" } else { "" });
    if engine::rundir::node(dir, LAST_DEVICE).as_os_str().len() > SOCKET_PATH {
        let found = format!("{shown}: the path is too long for sockets");
        return Finding::fail(WHAT, found, "set SOFTHCA_DIR to a shorter path");
    }
    let meta = match fs::symlink_metadata(dir) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return match room(dir, AGENT) {
                Ok(()) => Finding::ok(WHAT, format!("{shown} does not exist yet; the first `softhca run` creates it")),
                Err(why) => Finding::refused(WHAT, why.to_string()),
            };
        }
        Err(error) => return Finding::refused(WHAT, at("access", dir)(error).to_string()),
    };
    if !meta.is_dir() {
        return Finding::fail(WHAT, format!("{shown} is not a directory"), "remove it, or set SOFTHCA_DIR");
    }
    let others = meta.uid() != rustix::process::geteuid().as_raw();
    if others && (named || meta.uid() == 0) && engine::rundir::is_served(&engine::rundir::admin(dir)) {
        return Finding::ok(WHAT, format!("{shown}: the agent of user {} serves all users", meta.uid()));
    }
    if others {
        let found = format!("{shown} belongs to user {}", meta.uid());
        return Finding::fail(WHAT, found, "set SOFTHCA_DIR to a directory that you own");
    }
    if meta.mode() & 0o022 != 0 {
        let found = format!("{shown} is writable by other users");
        return Finding::fail(WHAT, found, format!("chmod 0700 {}", dir.display()));
    }
    match (&surroundings.agent, room(dir, AGENT)) {
        (None, Err(why)) => Finding::refused(WHAT, why.to_string()),
        _ => Finding::ok(WHAT, shown),
    }
}

/// Whether `dir` has the room. If `dir` does not exist, the folder in which it would be created
/// must have it.
fn room(dir: &Path, need: Need) -> io::Result<()> {
    // The nearest folder that exists, and the first folder that would be created in it.
    let (mut folder, mut first) = (dir, None);
    while let (Err(error), Some(parent)) = (fs::metadata(folder), folder.parent()) {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(at("access", folder)(error));
        }
        (folder, first) = (parent, Some(folder));
    }
    let cannot = |errno: Errno| at(if first.is_some() { "create" } else { "write to" }, dir)(errno.into());
    match take(folder, need) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOSYS) => make(folder, first),
        taken => taken,
    }
    .map_err(cannot)?;
    match statvfs(folder) {
        Ok(of) if of.f_blocks > 0 && of.f_bavail.saturating_mul(of.f_frsize) < need.bytes => Err(cannot(Errno::NOSPC)),
        // Some file systems create any number of files and count none.
        Ok(of) if of.f_files > 0 && of.f_favail < need.files => Err(cannot(Errno::NOSPC)),
        _ => Ok(()),
    }
}

/// Allocates the room for a moment, in a file without a name.
fn take(folder: &Path, need: Need) -> Result<(), Errno> {
    let file = open(folder, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
    if need.bytes == 0 { Ok(()) } else { fallocate(file, FallocateFlags::empty(), 0, need.bytes) }
}

/// Tests a file system that has no files without a name or cannot allocate room: creates and
/// removes the folder `first`, or a file.
fn make(folder: &Path, first: Option<&Path>) -> Result<(), Errno> {
    let probe = folder.join(format!(".probe-{}", std::process::id()));
    let made = match first {
        Some(first) => fs::create_dir(first).and_then(|()| fs::remove_dir(first)),
        None => fs::File::create_new(&probe).and_then(|_| fs::remove_file(&probe)),
    };
    made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

fn agent(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "agent";
    let Some(connection) = &surroundings.agent else {
        return Finding::ok(WHAT, "not running; `softhca run` starts one when needed");
    };
    let pid = connection.agent_pid().map_or_else(|| "in another container".to_owned(), |pid| format!("process {pid}"));
    let own = env!("CARGO_PKG_VERSION");
    let answer = match surroundings.silent.clone().map_or_else(|| connection.ask("status"), Err) {
        Ok(answer) => answer,
        Err(why) => {
            let found = format!("{pid} does not answer: {why}");
            return Finding::fail(WHAT, found, "kill it (kill -9) and run your program again");
        }
    };
    let wanted = &surroundings.host.addresses;
    if !wanted.is_empty() && answer["addresses"] != serde_json::json!(wanted) {
        let dir = surroundings.run_dir.display();
        let found = format!("the agent of {dir} was started with different addresses: {}", answer["addresses"]);
        return Finding::fail(WHAT, found, "stop it with `softhca agent --stop`");
    }
    match answer.get("version").and_then(serde_json::Value::as_str) {
        Some(version) if version == own => Finding::ok(WHAT, format!("{pid}, version {version}")),
        Some(version) => Finding::warn(
            WHAT,
            format!("{pid}, version {version}; this softhca is version {own}"),
            "stop it with `softhca agent --stop`",
        ),
        None => Finding::warn(WHAT, format!("{pid}, unknown version"), "stop it with `softhca agent --stop`"),
    }
}

/// Whether the requested addresses are those of this host.
fn addresses(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "addresses";
    let wanted = &surroundings.host.addresses;
    match (wanted.as_slice(), agent::require_addresses(wanted)) {
        (_, Err(why)) => Finding::refused(WHAT, why.to_string()),
        ([], _) => Finding::ok(WHAT, "every address of this host"),
        (some, _) => Finding::ok(WHAT, some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Whether there is a place for the files with the reasons of programs.
fn reasons(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "reasons";
    let folder = place::reasons_folder(&surroundings.run_dir);
    match room(&folder, REASONS) {
        Ok(()) => Finding::ok(WHAT, format!("programs write reasons for failures to {}", folder.display())),
        Err(why) => Finding::refused(WHAT, format!("cannot store reasons for failures: {why}")),
    }
}

fn library(_: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "verbs library";
    let folder = match place::library_folder() {
        Ok(folder) => folder,
        Err(why) => return Finding::fail(WHAT, why, place::REINSTALL),
    };
    let path = folder.join(place::LIBRARY);
    match program::library(&path, &folder).into_iter().find(Finding::is_failure) {
        Some(finding) => Finding { what: WHAT, ..finding },
        None => Finding::ok(WHAT, format!("`softhca run` loads {}", path.display())),
    }
}

/// Whether the environment variables that `softhca run` reads are valid.
fn settings(_: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "settings";
    let faults = || fault::of_run(&[], env::var_os(abi::fault::VARIABLE).as_deref());
    match agent_command::log_filter().map(drop).and_then(|()| faults().map(drop)) {
        Ok(()) => Finding::ok(WHAT, "SOFTHCA_LOG and SOFTHCA_FAULTS are valid"),
        Err(why) => Finding::refused(WHAT, why),
    }
}

/// System calls that softhca needs and that some seccomp profiles forbid. Each is tried. The first
/// refused call is reported.
fn system_calls(_: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "system calls";
    let epoll = || epoll::create(epoll::CreateFlags::CLOEXEC).map(drop);
    let timer = || timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map(drop);
    let thread = || std::thread::Builder::new().spawn(|| ()).map(|thread| thread.join().is_ok());
    let tried = Region::create("softhca-doctor", 4096)
        .map(drop)
        .and_then(|()| Region::create_published("softhca-doctor", 4096).map(drop))
        .and_then(|()| Notifier::new().map(drop))
        .and_then(|()| epoll().map_err(denied("epoll_create1")))
        .and_then(|()| timer().map_err(denied("timerfd_create")))
        .and_then(|()| thread().map(drop).map_err(named("pthread_create")))
        .and_then(|()| Socket::check());
    match tried {
        Ok(()) => Finding::ok(WHAT, "all that softhca needs are allowed; shared memory can be sealed"),
        Err(error) => match error.get_ref().and_then(|error| error.downcast_ref::<Denied>()) {
            Some(denied) => Finding::fail(
                WHAT,
                format!("{}: {}", denied.call, denied.errno),
                denied.advice().unwrap_or_else(|| "programs cannot run here".to_owned()),
            ),
            None => Finding::fail(WHAT, error.to_string(), "programs cannot run here"),
        },
    }
}

/// How many files a process may have open. An agent needs some for each program, and a program
/// needs some for each device.
fn open_files(surroundings: &Surroundings<'_>) -> Finding {
    const WHAT: &str = "open files";
    match (getrlimit(Resource::Nofile).maximum, &surroundings.agent) {
        (Some(limit), None) if limit < FILES_MIN => Finding::fail(
            WHAT,
            format!("the limit is {limit} per process; an agent needs {FILES_MIN} or more"),
            format!("ulimit -Hn {FILES_MIN}"),
        ),
        (Some(limit), _) => Finding::ok(WHAT, format!("the limit is {limit} per process")),
        (None, _) => Finding::ok(WHAT, "no limit per process"),
    }
}
