//! One running program. Its output goes to files, every wait for it has a limit, and it never
//! outlives the test.
//!
//! It does not know what the program does. The principal type is [`Program`]. [`Outcome`] holds the
//! results after its end.

use std::fs::{self, File};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::{process, wait};

/// A program in its own process group, with its output in two files.
#[derive(Debug)]
pub struct Program {
    line: String,
    child: Child,
    outcome: Option<Outcome>,
    output: PathBuf,
    errors: PathBuf,
}

/// How a program ended, and what it printed.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command line.
    pub line: String,
    /// The exit code, or 128 + the signal that ended it.
    pub code: i32,
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
}

impl Outcome {
    /// Whether the program ended with 0.
    pub fn succeeded(&self) -> bool {
        self.code == 0
    }

    /// Standard output, followed by standard error.
    pub fn everything(&self) -> String {
        format!("{}{}", self.output, self.errors)
    }

    /// The outcome as a paragraph for a failed assertion.
    pub fn told(&self) -> String {
        format!("`{}` ended with {}\n--- output\n{}--- errors\n{}", self.line, self.code, self.output, self.errors)
    }

    /// Stops the test unless the program ended with 0.
    #[track_caller]
    pub fn expect_success(self) -> Self {
        assert!(self.succeeded(), "{}", self.told());
        self
    }
}

impl Program {
    /// Starts `command` without input. `stem` names the files for its output.
    pub fn start(mut command: Command, stem: &std::path::Path) -> Result<Self, String> {
        let line = spoken(&command);
        let output = stem.with_extension("out");
        let errors = stem.with_extension("err");
        let file = |path: &PathBuf| File::create(path).map_err(|error| format!("{}: {error}", path.display()));
        command.stdin(Stdio::null()).stdout(file(&output)?).stderr(file(&errors)?).process_group(0);
        let child = command.spawn().map_err(|error| format!("`{line}` cannot be started: {error}"))?;
        Ok(Self { line, child, outcome: None, output, errors })
    }

    /// The process id of the started process (often `softhca run`, not the program inside it).
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the descendant process with this name, for example the program that `softhca run`
    /// starts.
    pub fn inner(&mut self, name: &str, limit: Duration) -> Result<u32, String> {
        let short: String = name.chars().take(15).collect();
        let id = self.id();
        wait::until(limit, &format!("{name} to start under `{}`", self.line), || {
            std::iter::once(id).chain(process::descendants(id)).find(|pid| process::name(*pid) == short)
        })
    }

    /// What the program has written to standard output so far.
    pub fn output(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    /// What the program has written to standard output and standard error so far.
    pub fn everything(&self) -> String {
        self.output() + &fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Whether the program has ended.
    pub fn ended(&mut self) -> bool {
        self.look().is_some()
    }

    /// Waits until the output contains these words.
    pub fn wait_for_words(&mut self, words: &str, limit: Duration) -> Result<(), String> {
        let found = wait::until(limit, &format!("`{}` to say \"{words}\"", self.line), || {
            let ended = self.ended();
            if self.everything().contains(words) { Some(true) } else { ended.then_some(false) }
        })
        .map_err(|late| format!("{late}; it said:\n{}", self.everything()))?;
        if found { Ok(()) } else { Err(format!("it ended without saying \"{words}\":\n{}", self.everything())) }
    }

    /// Waits for the program's end. If the program still runs at the limit, it is killed with
    /// SIGKILL, and the result is an error.
    pub fn wait(&mut self, limit: Duration) -> Result<Outcome, String> {
        let line = self.line.clone();
        let ended = wait::until(limit, &format!("`{line}` to end"), || self.look());
        ended.map_err(|late| {
            let threads = self.whereabouts();
            self.end();
            format!("{late}; it said:\n{}{threads}", self.everything())
        })
    }

    /// Sends a signal to the process that was started.
    pub fn signal(&self, signal: Signal) {
        send(self.id(), signal);
    }

    fn look(&mut self) -> Option<Outcome> {
        if self.outcome.is_none() {
            let status = self.child.try_wait().ok()??;
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            self.outcome = Some(Outcome {
                line: self.line.clone(),
                code,
                output: fs::read_to_string(&self.output).unwrap_or_default(),
                errors: fs::read_to_string(&self.errors).unwrap_or_default(),
            });
        }
        self.outcome.clone()
    }

    /// Where each process of a hung program waits in the kernel. This is the first question about a
    /// hang.
    fn whereabouts(&self) -> String {
        let mut told = String::new();
        for pid in std::iter::once(self.id()).chain(process::descendants(self.id())) {
            let wait = fs::read_to_string(format!("/proc/{pid}/wchan")).unwrap_or_default();
            told += &format!("{pid} {} {:?} {wait}\n", process::name(pid), process::state(pid));
        }
        told
    }

    fn end(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            // If the process group is gone already, there is nothing to end.
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            self.end();
        }
    }
}

/// Sends a signal to any process. It is not an error if the process is gone already.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

fn spoken(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}
