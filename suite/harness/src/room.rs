//! A room: a private run directory with its own agent, for one user. Dropping it cleans up.
//!
//! Tests do not share rooms. The principal type is [`Room`].

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::dist::Dist;
use crate::program::{self, Outcome, Program};
use crate::{HANG, process, wait};

/// The user that runs the programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum User {
    /// The user that runs the suite.
    Me,
    /// An ordinary user without any rights. Only root can become this user.
    Nobody,
    /// Another ordinary user, by number.
    Number(u32),
}

const NOBODY: u32 = 65_534;

impl User {
    /// The uid to switch to. `None`: the user of the suite.
    fn number(self) -> Option<u32> {
        match self {
            Self::Me => None,
            Self::Nobody => Some(NOBODY),
            Self::Number(number) => Some(number),
        }
    }
}

/// One run directory, one agent, one user.
#[derive(Debug)]
pub struct Room {
    folder: TempDir,
    dist: Dist,
    user: User,
    /// The run directory of another room whose agent serves this room.
    host: Option<PathBuf>,
    entrance: Vec<String>,
    /// Programs run as with `softhca run --shared-memory`.
    shared_memory: bool,
    programs: AtomicU32,
}

impl Room {
    /// A room for the user that runs the suite.
    pub fn new() -> Result<Self, String> {
        Self::of(User::Me)
    }

    /// A room for the given user. If the suite does not run as root, the room is for the suite's
    /// own user.
    pub fn of(user: User) -> Result<Self, String> {
        Self::for_user(user, Dist::locate()?)
    }

    /// A room for the given user whose run directory is in memory, if that has room for the
    /// hundreds of thousands of files of a large topology.
    pub fn in_memory(user: User) -> Result<Self, String> {
        const MEMORY: &str = "/dev/shm";
        const ENOUGH: u64 = 4 << 30;
        let has_room = rustix::fs::statvfs(MEMORY).is_ok_and(|it| it.f_bavail.saturating_mul(it.f_frsize) >= ENOUGH);
        let place = if has_room { MEMORY.into() } else { std::env::temp_dir() };
        Self::inside(&place, user, Dist::locate()?)
    }

    /// A room that uses the softhca at a known place.
    pub fn with(dist: Dist) -> Result<Self, String> {
        Self::for_user(User::Me, dist)
    }

    /// A room for the given user that uses the softhca at a known place.
    pub fn for_user(user: User, dist: Dist) -> Result<Self, String> {
        Self::inside(&std::env::temp_dir(), user, dist)
    }

    fn inside(place: &Path, user: User, mut dist: Dist) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("a room cannot be made: {error}");
        let folder = tempfile::Builder::new().prefix("softhca-suite-").tempdir_in(place).map_err(told)?;
        fs::create_dir(folder.path().join("run")).map_err(told)?;
        fs::set_permissions(folder.path().join("run"), fs::Permissions::from_mode(0o700)).map_err(told)?;
        let user = if rustix::process::geteuid().is_root() { user } else { User::Me };
        if let Some(number) = user.number() {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).map_err(told)?;
            dist = dist.for_every_user(&folder.path().join("dist")).map_err(told)?;
            chown(folder.path().join("run"), Some(number), Some(number)).map_err(told)?;
        }
        Ok(Self {
            folder,
            dist,
            user,
            host: None,
            entrance: Vec::new(),
            shared_memory: false,
            programs: AtomicU32::new(0),
        })
    }

    /// A room of the suite's user whose agent serves every user, with a configuration.
    pub fn system(config: &str) -> Result<Self, String> {
        let told = |error: std::io::Error| format!("a room cannot be made: {error}");
        let mut room = Self::of(User::Me)?;
        fs::set_permissions(room.folder.path(), fs::Permissions::from_mode(0o755)).map_err(told)?;
        room.dist = room.dist.for_every_user(&room.folder.path().join("dist")).map_err(told)?;
        let file = room.folder.path().join("agent.toml");
        fs::write(&file, config).map_err(told)?;
        let outcome = room.finish(room.softhca(&["agent", "--system", "--config", &file.display().to_string()]))?;
        if outcome.succeeded() { Ok(room) } else { Err(outcome.told()) }
    }

    /// A room of another user that the agent of this room serves.
    pub fn guest(&self, user: User) -> Result<Self, String> {
        let mut guest = Self::for_user(user, self.dist.clone())?;
        guest.host = Some(self.run_dir());
        Ok(guest)
    }

    /// Starts every program in this room through these words, for example `ip netns exec NAME`.
    #[must_use]
    pub fn entered_by(mut self, words: &[&str]) -> Self {
        self.entrance = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Runs every program in this room with large memory that is shared.
    #[must_use]
    pub fn with_shared_memory(mut self) -> Self {
        self.shared_memory = true;
        self
    }

    /// Starts this room's agent with only one address, which must belong to this host.
    pub fn with_address(self, address: &str) -> Result<Self, String> {
        self.with_agent(&["--address", address])
    }

    /// Starts this room's agent with options.
    pub fn with_agent(self, options: &[&str]) -> Result<Self, String> {
        let outcome = self.finish(self.softhca(&[&["agent", "--idle-exit", "60"], options].concat()))?;
        if outcome.succeeded() { Ok(self) } else { Err(outcome.told()) }
    }

    /// The run directory: the value of `SOFTHCA_DIR` for every program in this room.
    pub fn run_dir(&self) -> PathBuf {
        self.host.clone().unwrap_or_else(|| self.own_dir())
    }

    /// This room's own directory, private to its user. It is the run directory, unless another
    /// room's agent serves this room.
    pub fn own_dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// A folder for a test's own files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The softhca under test.
    pub fn dist(&self) -> &Dist {
        &self.dist
    }

    /// A command of this room's user. It gets this room's run directory, `HOME=/`, no
    /// `SOFTHCA_LOG`, and `XDG_RUNTIME_DIR` in the room.
    pub fn command<S: AsRef<OsStr>>(
        &self,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Command {
        let mut words: Vec<std::ffi::OsString> = self.entrance.iter().map(Into::into).collect();
        if let Some(number) = self.user.number() {
            words.extend(["setpriv", "--clear-groups"].map(Into::into));
            words.extend(["--reuid", "--regid"].map(|option| format!("{option}={number}").into()));
        }
        words.push(program.as_ref().to_owned());
        words.extend(arguments.into_iter().map(|word| word.as_ref().to_owned()));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("SOFTHCA_DIR", self.run_dir()).env_remove("SOFTHCA_LOG").env("HOME", "/");
        command.env("XDG_RUNTIME_DIR", self.own_dir()).current_dir("/");
        if self.shared_memory {
            command.env("SOFTHCA_SHARED_MEMORY", "1");
        }
        command
    }

    /// `softhca` with the given arguments.
    pub fn softhca(&self, arguments: &[&str]) -> Command {
        self.command(self.dist.softhca(), arguments)
    }

    /// `softhca run -- words`.
    pub fn run(&self, words: &[&str]) -> Command {
        let mut all = vec!["run", "--"];
        all.extend(words);
        self.softhca(&all)
    }

    /// Starts a command of this room.
    pub fn start(&self, command: Command) -> Result<Program, String> {
        let number = self.programs.fetch_add(1, Ordering::Relaxed);
        Program::start(command, &self.folder.path().join(format!("program-{number}")))
    }

    /// Runs a command of this room to its end.
    pub fn finish(&self, command: Command) -> Result<Outcome, String> {
        self.start(command)?.wait(HANG)
    }

    /// Runs `softhca run -- words` to its end.
    pub fn finish_run(&self, words: &[&str]) -> Result<Outcome, String> {
        self.finish(self.run(words))
    }

    /// The agent's process id, if an agent has written it and is alive.
    pub fn agent(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.run_dir().join("agent.pid")).ok()?.trim().parse().ok()?;
        process::alive(pid).then_some(pid)
    }

    /// Starts the agent by running a first program, and returns the agent's process id.
    pub fn start_agent(&self) -> Result<u32, String> {
        let outcome = self.finish_run(&["true"])?;
        if !outcome.succeeded() {
            return Err(outcome.told());
        }
        self.agent().ok_or_else(|| "softhca run left no agent behind".to_owned())
    }

    /// The rows of `softhca show --json` for one kind of object.
    pub fn show(&self, kind: &str) -> Result<Value, String> {
        let answer = self.json(&["show", "--json", kind])?;
        let rows = answer.as_object().and_then(|members| members.values().find(|member| member.is_array()));
        rows.cloned().ok_or_else(|| format!("no rows in {answer}"))
    }

    /// The JSON that `softhca` prints with these arguments.
    pub fn json(&self, arguments: &[&str]) -> Result<Value, String> {
        let outcome = self.finish(self.softhca(arguments))?;
        if !outcome.succeeded() {
            return Err(outcome.told());
        }
        serde_json::from_str(&outcome.output).map_err(|error| format!("{error}: {}", outcome.told()))
    }

    /// Waits until the agent has no context: the objects of every program are gone.
    pub fn wait_until_empty(&self, limit: Duration) -> Result<(), String> {
        let mut last = Ok(Value::Null);
        wait::until(limit, "the agent to forget all contexts", || {
            last = self.show("contexts");
            matches!(&last, Ok(Value::Array(rows)) if rows.is_empty()).then_some(())
        })
        .map_err(|late| format!("{late}; it still shows {last:?}"))
    }

    /// The agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.run_dir().join("agent.log")).unwrap_or_default()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let Some(agent) = self.agent().filter(|_| self.host.is_none()) else { return };
        program::send(agent, Signal::TERM);
        if wait::until(Duration::from_secs(5), "the agent to end", || (!process::alive(agent)).then_some(())).is_err() {
            program::send(agent, Signal::KILL);
        }
        if std::thread::panicking() {
            eprintln!("--- the agent's log\n{}", self.log());
        }
    }
}
