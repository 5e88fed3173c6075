//! `softhca run --pair`: runs a server and a client, started in this order, with one output and one
//! exit code.
//!
//! Each side is its own `softhca run`, so it gets everything that a single program gets: signals,
//! reasons, faults. This module starts and ends the sides. [`listens`] finds out when the server is
//! ready, and [`prefix`] prints the output of the sides. The principal type is [`Side`].

mod descendants;
mod listens;
mod prefix;

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use engine::reason::say;
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};

use crate::arguments::Run;
use crate::link_layer::LinkLayer;
use crate::place::{self, Host};
use crate::ready::{self, Surroundings};
use crate::signals::{Caught, Passing};
use crate::start;
use descendants::Descendants;
use prefix::Prefixed;

/// How long the server may take until it listens. After this time the client is started anyway.
const LISTENS: Duration = Duration::from_secs(10);

/// How long one side may continue after the other has ended.
const GRACE: Duration = Duration::from_secs(5);

/// How long a side may take to end after SIGTERM.
const ASKED: Duration = Duration::from_secs(3);

const GLANCE: Duration = Duration::from_millis(5);

/// Separates the server's words from the client's.
const SEPARATOR: &str = "--";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Server,
    Client,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Server => Self::Client,
            Self::Client => Self::Server,
        }
    }
}

/// A running side.
#[derive(Debug, Clone, Copy)]
struct Side {
    role: Role,
    pid: Pid,
}

/// How a side has ended.
type Ended = (Role, ExitStatus);

/// Runs both sides and returns the exit code. This is the client's code. If the client ended with 0
/// or had to be ended, it is the server's code.
pub(crate) fn run(run: &Run, host: &Host) -> Result<u8, String> {
    let (server, client) = sides(&run.command)?;
    ready::check(&Surroundings::of(host))?;
    let run_dir = host.run_dir();
    // The connection is kept until both sides have ended. The agent is started here, because
    // descendants of the sides are killed at the end.
    let agent = start::ensure(host, &run_dir, start::Wanted { link_layer: run.link_layer, transport: run.transport })?;
    // Processes that a side leaves behind become children of this process. If the kernel does not
    // support this, they are left behind.
    let _ = set_child_subreaper(Some(rustix::process::getpid()));
    let caught = Caught::new().map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let passing = Arc::new(caught.pass_on().map_err(|error| format!("cannot forward signals: {error}"))?);
    let (ends, ended) = channel();
    let both = Both { run, host, passing, ends, output: Prefixed::new() };
    let server = both.start(Role::Server, server)?;
    let spare = agent.agent_pid();
    let result = both.after_server(server, client, &ended, &run_dir);
    Descendants::of_this_process(spare).kill();
    both.output.finish();
    drop(agent);
    result
}

/// The words of the server and those of the client.
fn sides(words: &[OsString]) -> Result<(&[OsString], &[OsString]), String> {
    let at = words.iter().position(|word| word == SEPARATOR);
    match at.map(|at| (&words[..at], &words[at + 1..])) {
        Some((server, client)) if !server.is_empty() && !client.is_empty() => Ok((server, client)),
        _ => {
            Err("--pair needs two programs, separated by --: softhca run --pair -- SERVER ARGS -- CLIENT ARGS"
                .to_owned())
        }
    }
}

/// What both sides share.
struct Both<'a> {
    run: &'a Run,
    host: &'a Host,
    passing: Arc<Passing>,
    ends: Sender<Ended>,
    output: Prefixed,
}

impl Both<'_> {
    fn start(&self, role: Role, words: &[OsString]) -> Result<Side, String> {
        let program = place::program()?;
        let mut command = Command::new(&program);
        command.arg("run").args(options(self.run, self.host)).arg(SEPARATOR).args(words);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if role == Role::Server {
            // Input from the terminal goes to the client.
            command.stdin(Stdio::null());
        }
        let mut child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        self.output.read(role, &mut child)?;
        let pid = Pid::from_child(&child);
        self.passing.add(pid);
        let (passing, ends) = (Arc::clone(&self.passing), self.ends.clone());
        let wait = move |mut child: Child| {
            if let Ok(status) = passing.wait(&mut child) {
                // The receiver is gone if this process is ending.
                let _ = ends.send((role, status));
            }
        };
        std::thread::Builder::new()
            .name(role.name().to_owned())
            .spawn(move || wait(child))
            .map_err(|error| format!("pthread_create: {error}"))?;
        Ok(Side { role, pid })
    }

    /// Starts the client when the server listens, and waits for both.
    fn after_server(
        &self,
        server: Side,
        client: &[OsString],
        ended: &Receiver<Ended>,
        run_dir: &Path,
    ) -> Result<u8, String> {
        let started = Instant::now();
        loop {
            match ended.recv_timeout(GLANCE) {
                Ok((_, status)) => {
                    say(format_args!(
                        "the server ended before it listened ({}); the client was not started",
                        told(status)
                    ));
                    return Ok(code(status).max(1));
                }
                Err(_) if self.passing.asked() => {
                    // A signal has asked the pair to end, so the client is not started.
                    let last = ended.recv_timeout(ASKED).map(|(_, status)| code(status));
                    return Ok(last.unwrap_or(crate::run::NOT_READY));
                }
                Err(RecvTimeoutError::Timeout) if listens::any(server.pid, run_dir) => break,
                Err(_) if started.elapsed() > LISTENS => {
                    say(format_args!(
                        "the server did not listen within {} s, neither with TCP nor with rdma_cm; starting the \
                        client anyway",
                        LISTENS.as_secs()
                    ));
                    break;
                }
                Err(_) => {}
            }
        }
        let client = self.start(Role::Client, client)?;
        let (first, status) = ended.recv().map_err(|error| error.to_string())?;
        let other = if first.other() == Role::Server { server } else { client };
        let (last, asked) = self.end(other, status, ended)?;
        // The exit status of a side that had to be ended has no meaning.
        let mut ends = [(first, Some(status)), (other.role, last.filter(|_| !asked))];
        ends.sort_by_key(|(role, _)| *role != Role::Client);
        let failed = ends.into_iter().filter_map(|(_, status)| status.map(code)).find(|code| *code != 0);
        Ok(failed.unwrap_or(0))
    }

    /// Waits for the other side for some time, then ends it. Returns its exit status, and whether
    /// it was asked to end.
    fn end(
        &self,
        other: Side,
        first: ExitStatus,
        ended: &Receiver<Ended>,
    ) -> Result<(Option<ExitStatus>, bool), String> {
        let within = |time: Duration| ended.recv_timeout(time).ok().map(|(_, status)| status);
        // If a signal has asked both sides to end, the other side needs less time.
        let grace = if self.passing.asked() { ASKED } else { GRACE };
        if let Some(status) = within(grace) {
            return Ok((Some(status), self.passing.asked()));
        }
        let (name, ended_one) = (other.role.name(), other.role.other().name());
        say(format_args!(
            "the {name} still runs {} s after the {ended_one} ended ({}); sending SIGTERM",
            grace.as_secs(),
            told(first)
        ));
        // A side that has just ended needs no signal. Its process id is not reused before its
        // thread has waited for it.
        let _ = kill_process(other.pid, Signal::TERM);
        Ok((within(ASKED), true))
    }
}

/// The options of the pair that each side gets.
fn options(run: &Run, host: &Host) -> Vec<OsString> {
    let mut words: Vec<OsString> = host.addresses.iter().map(|address| format!("--address={address}").into()).collect();
    words.push(format!("--parent={}", std::process::id()).into());
    words.extend(
        [
            (run.quiet, "--quiet"),
            (run.strict, "--strict"),
            (run.sockets, "--sockets"),
            (run.shared_memory, "--shared-memory"),
            (run.private_memory, "--private-memory"),
        ]
        .iter()
        .filter(|(set, _)| *set)
        .map(|(_, word)| OsString::from(word)),
    );
    words.extend(run.fault.iter().map(|rule| OsString::from(format!("--fault={rule}"))));
    words.extend(run.link_layer.map(LinkLayer::option).map(OsString::from));
    words
}

fn code(status: ExitStatus) -> u8 {
    crate::run::exit_code(status)
}

fn told(status: ExitStatus) -> String {
    match status.signal() {
        Some(signal) => format!("signal {signal}"),
        None => format!("exit code {}", code(status)),
    }
}

#[cfg(test)]
mod tests {
    use super::sides;
    use crate::arguments::{Arguments, Command};
    use clap::Parser;

    #[test]
    fn the_first_separator_parts_the_server_from_the_client() {
        for line in
            ["run --pair -- s -g 0 -- c -- -x", "run --pair s -g 0 -- c -- -x", "run -q --pair -- s -g 0 -- c -- -x"]
        {
            let parsed = Arguments::parse_from(["softhca"].into_iter().chain(line.split(' ')));
            let Command::Run(run) = parsed.command else { panic!("parsed as something else") };
            assert!(run.pair);
            let (server, client) = sides(&run.command).expect("two sides");
            assert_eq!(
                (server, client),
                (&["s".into(), "-g".into(), "0".into()][..], &["c".into(), "--".into(), "-x".into()][..]),
                "{line}"
            );
        }
        for line in ["s c", "s --", "-- c", "--"] {
            let words: Vec<_> = line.split(' ').map(Into::into).collect();
            assert!(sides(&words).expect_err(line).contains("SERVER ARGS -- CLIENT ARGS"));
        }
    }
}
