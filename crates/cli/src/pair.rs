//! `softhca run --pair`: a server and a client, started in order, with one output and one exit code.
//!
//! Each side is a `softhca run` of its own, so what a single program gets each of them gets too: signals, reasons, faults. Here
//! they are started and ended. When the server is ready, [`listens`] says; what the sides print goes through [`prefix`]. The principal type
//! is [`Side`].

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

use crate::arguments::{LinkLayer, Run};
use crate::place::{self, Host};
use crate::ready::{self, Surroundings};
use crate::signals::{Caught, Passing};
use crate::start;
use descendants::Descendants;
use prefix::Prefixed;

/// How long the server may take until it listens. After that the client is started all the same.
const LISTENS: Duration = Duration::from_secs(10);

/// How long one side may go on when the other has ended.
const GRACE: Duration = Duration::from_secs(5);

/// How long a side may take to end when it was asked to.
const ASKED: Duration = Duration::from_secs(3);

const GLANCE: Duration = Duration::from_millis(5);

/// What separates the server's words from the client's.
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

/// One side that runs.
#[derive(Debug, Clone, Copy)]
struct Side {
    role: Role,
    pid: Pid,
}

/// How a side has ended.
type Ended = (Role, ExitStatus);

/// Runs both sides and gives the exit code: the client's, or the server's if the client ended with 0 or had to be ended.
pub(crate) fn run(run: &Run, host: &Host) -> Result<u8, String> {
    let (server, client) = sides(&run.command)?;
    ready::check(&Surroundings::of(host))?;
    let run_dir = host.run_dir();
    // Held until both have ended. It is started here, so that it is none of those that end with the sides.
    let agent = start::ensure(host, &run_dir, run.link_layer)?;
    // What a side leaves behind becomes a child of this process. On a kernel that cannot do it, it is left behind.
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

/// What both sides have in common.
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
            // Who types means the client.
            command.stdin(Stdio::null());
        }
        let mut child = command.spawn().map_err(|error| format!("cannot start {}: {error}", program.display()))?;
        self.output.read(role, &mut child)?;
        let pid = Pid::from_child(&child);
        self.passing.add(pid);
        let (passing, ends) = (Arc::clone(&self.passing), self.ends.clone());
        let wait = move |mut child: Child| {
            if let Ok(status) = passing.wait(&mut child) {
                // Nobody hears it when this process ends already.
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
                    // Nobody wants a client any more.
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
        // What a side says that had to be ended says nothing.
        let mut ends = [(first, Some(status)), (other.role, last.filter(|_| !asked))];
        ends.sort_by_key(|(role, _)| *role != Role::Client);
        let failed = ends.into_iter().filter_map(|(_, status)| status.map(code)).find(|code| *code != 0);
        Ok(failed.unwrap_or(0))
    }

    /// Ends the other side, which has some time of its own; says how it ended, and whether it was asked to.
    fn end(
        &self,
        other: Side,
        first: ExitStatus,
        ended: &Receiver<Ended>,
    ) -> Result<(Option<ExitStatus>, bool), String> {
        let within = |time: Duration| ended.recv_timeout(time).ok().map(|(_, status)| status);
        // Where somebody has asked both, the other has had its word.
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
        // One that has just ended needs no signal; its number is its own until its thread has waited for it.
        let _ = kill_process(other.pid, Signal::TERM);
        Ok((within(ASKED), true))
    }
}

/// The options that a side has of the pair.
fn options(run: &Run, host: &Host) -> Vec<OsString> {
    let mut words: Vec<OsString> = host.addresses.iter().map(|address| format!("--address={address}").into()).collect();
    words.push(format!("--parent={}", std::process::id()).into());
    words.extend(
        [(run.quiet, "--quiet"), (run.strict, "--strict"), (run.sockets, "--sockets")]
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
