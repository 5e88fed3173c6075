//! Starts an agent in the background if none answers. If many programs start at the same time, only
//! one agent is started.
//!
//! Three processes take part: a program that needs an agent, a launcher (`softhca agent`) for which
//! this program waits, and the agent itself (`softhca agent --detached`), for which no process
//! waits. The agent has its own session, keeps no descriptor of the process that started it, has
//! `/` as its current directory, and exits when it has been idle for some time. The principal
//! function is [`ensure`].

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use engine::rundir::at;
use rustix::fs::{FlockOperation, flock};
use serde_json::Value;

use crate::admin::Connection;
use crate::agent_command;
use crate::link_layer::LinkLayer;
use crate::log;
use crate::place::{self, Host};
use crate::transport::Transport;

/// An agent that `softhca run` started exits after this time without a program.
pub(crate) const IDLE_EXIT: Duration = Duration::from_secs(60);

/// How long an agent may take until it answers.
const READY: Duration = Duration::from_secs(15);
/// The same for an agent with a topology, which makes about 600 files for each adapter.
const READY_WITH_TOPOLOGY: Duration = Duration::from_secs(120);

const GLANCE: Duration = Duration::from_millis(2);

/// What the devices of an agent must be.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// The link layer of all ports.
    pub(crate) link_layer: Option<LinkLayer>,
    /// The transport of all devices.
    pub(crate) transport: Option<Transport>,
}

/// Connects to the agent of `host` in `run_dir`. If none answers, one is started. All devices of
/// the agent must be as `wanted`.
pub(crate) fn ensure(host: &Host, run_dir: &Path, wanted: Wanted) -> Result<Connection, String> {
    // Check SOFTHCA_LOG before anything is started that would log differently.
    agent_command::log_filter()?;
    let connection = answering_or_started(host, run_dir, wanted)?;
    if let Some(layer) = wanted.link_layer {
        check_link_layer(&connection.ask("devices")?["devices"], layer, run_dir)?;
    }
    if let Some(transport) = wanted.transport {
        check_transport(&connection.ask("devices")?["devices"], transport, run_dir)?;
    }
    if !host.addresses.is_empty() {
        let has = connection.ask("status")?["addresses"].clone();
        if has != serde_json::json!(host.addresses) {
            let dir = run_dir.display();
            return Err(format!(
                "the agent of {dir} was started with different addresses: {has}; stop it with `softhca agent --stop`, or \
                 name another folder in SOFTHCA_DIR for these addresses"
            ));
        }
    }
    Ok(connection)
}

/// Checks that the agent's ports have the requested link layer. An agent that already runs keeps
/// its own.
fn check_link_layer(devices: &Value, layer: LinkLayer, run_dir: &Path) -> Result<(), String> {
    let ports = devices.as_array().into_iter().flatten().flat_map(|device| device["ports"].as_array()).flatten();
    match ports.into_iter().find(|port| port["link_layer"] != layer.name()) {
        Some(other) => Err(format!(
            "the agent of {} was started with another link layer: {}; stop it with `softhca agent --stop`",
            run_dir.display(),
            other["link_layer"].as_str().unwrap_or("none")
        )),
        None => Ok(()),
    }
}

/// As [`check_link_layer`], for the transport of the devices.
fn check_transport(devices: &Value, transport: Transport, run_dir: &Path) -> Result<(), String> {
    match devices.as_array().into_iter().flatten().find(|device| device["transport"] != transport.name()) {
        Some(other) => Err(format!(
            "the agent of {} was started with another transport: {}; stop it with `softhca agent --stop`",
            run_dir.display(),
            other["transport"].as_str().unwrap_or("none")
        )),
        None => Ok(()),
    }
}

fn answering_or_started(host: &Host, run_dir: &Path, wanted: Wanted) -> Result<Connection, String> {
    if let Some(connection) = answering(run_dir)? {
        return Ok(connection);
    }
    if let Some(dir) = place::dir_of_topology(run_dir) {
        return Err(format!(
            "the agent with the topology does not answer in {}; start it with `softhca agent --topology FILE`",
            dir.display()
        ));
    }
    let cannot = |error: io::Error| format!("cannot start the agent: {error}; run `softhca doctor`");
    engine::rundir::prepare(run_dir).map_err(cannot)?;
    let start_lock = place::start_lock(run_dir);
    let lock = lock_file(&start_lock).map_err(cannot)?;
    flock(&lock, FlockOperation::LockExclusive).map_err(|errno| cannot(at("lock", &start_lock)(errno.into())))?;
    // The process that held the lock before may have started an agent. An agent that ends holds the
    // directory a little longer.
    if let Some(connection) = await_vacancy(run_dir)? {
        return Ok(connection);
    }
    let program = place::program()?;
    let idle = IDLE_EXIT.as_secs().to_string();
    let output = Command::new(&program)
        .args(["agent", "--idle-exit", &idle])
        .args(host.addresses.iter().map(|address| format!("--address={address}")))
        .args(wanted.link_layer.map(LinkLayer::option))
        .args(wanted.transport.map(Transport::option))
        .env(engine::rundir::VARIABLE, run_dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| cannot(at("start", &program)(error)))?;
    Connection::open(run_dir).map_err(|error| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.trim().trim_start_matches("softhca: ");
        if said.is_empty() { format!("the agent does not answer: {error}") } else { said.to_owned() }
    })
}

/// Connects to an agent that answers; `None` if there is none. An agent that was killed may accept
/// connections for a short time, but it does not answer.
pub(crate) fn answering(run_dir: &Path) -> Result<Option<Connection>, String> {
    let Ok(connection) = Connection::open(run_dir) else { return Ok(None) };
    Ok(connection.answers()?.then_some(connection))
}

/// Waits until no agent holds the run directory, or an agent answers.
pub(crate) fn await_vacancy(run_dir: &Path) -> Result<Option<Connection>, String> {
    let started = Instant::now();
    loop {
        if let Some(connection) = answering(run_dir)? {
            return Ok(Some(connection));
        }
        let lock = lock_file(&run_dir.join(agent::rundir::LOCK)).map_err(|error| error.to_string())?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
            return Ok(None);
        }
        if started.elapsed() > READY {
            return Err(format!(
                "an agent holds the lock of {} but does not answer; run `softhca doctor`",
                run_dir.display()
            ));
        }
        std::thread::sleep(GLANCE);
    }
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path).map_err(at("open", path))
}

/// Starts the agent of `run_dir` with `arguments` in the background, and waits until it answers.
pub(crate) fn launch(run_dir: &Path, arguments: &[String]) -> Result<Connection, String> {
    let cannot = |error: io::Error| format!("cannot start the agent: {error}");
    engine::rundir::prepare(run_dir).map_err(cannot)?;
    let log_path = place::agent_log(run_dir);
    let log = log::open(&log_path).map_err(|error| cannot(at("open", &log_path)(error)))?;
    let program = place::program()?;
    let log_start = log.metadata().map_or(0, |meta| meta.len());
    // If the kernel does not support this, the agent runs with the inherited descriptors.
    let _ = shm::inherit::nothing_but_standard_descriptors();
    let mut child = Command::new(&program)
        .args(["agent", "--detached"])
        .args(arguments)
        .env(engine::rundir::VARIABLE, run_dir)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(log.try_clone().map_err(|error| cannot(at("open", &log_path)(error)))?)
        .stderr(log)
        .spawn()
        .map_err(|error| cannot(at("start", &program)(error)))?;
    let has_topology = arguments.iter().any(|argument| argument.starts_with("--topology"));
    let ready = if has_topology { READY_WITH_TOPOLOGY } else { READY };
    await_answer(run_dir, &mut child, log_start, ready)
}

fn await_answer(run_dir: &Path, child: &mut Child, log_start: u64, ready: Duration) -> Result<Connection, String> {
    let log = place::agent_log(run_dir);
    let started = Instant::now();
    loop {
        let error = match Connection::open(run_dir) {
            Ok(connection) => return Ok(connection),
            Err(error) => error,
        };
        if let Ok(Some(status)) = child.try_wait() {
            return Err(match last_words(&log, log_start) {
                Some(words) => format!("the agent exited: {words}"),
                None => format!("the agent exited ({status}); its log is {}", log.display()),
            });
        }
        if started.elapsed() > ready {
            let wait = ready.as_secs();
            return Err(format!("the agent does not answer within {wait} s ({error}); its log is {}", log.display()));
        }
        std::thread::sleep(GLANCE);
    }
}

/// The last line that was logged after offset `start`.
fn last_words(log: &Path, start: u64) -> Option<String> {
    let text = fs::read(log).ok()?;
    let new = text.get(usize::try_from(start).ok()?..)?;
    let text = String::from_utf8_lossy(new);
    text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim_start_matches("softhca: ").to_owned())
}
