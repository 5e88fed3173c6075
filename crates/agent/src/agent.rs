//! Starts, reaches and stops an agent from the process in which it runs.
//!
//! [`Agent::start`] puts a [`crate::world::World`] behind the sockets of a run directory, or behind
//! none, and runs it on its own thread. The [`AgentHandle`] stops it when dropped. `server.rs` is
//! that thread.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use abi::Refusal;
use serde_json::{Value, json};
use shm::denied::named;
use shm::notifier::Notifier;
use shm::socket::Socket;

use crate::addresses::{HostAddresses, chosen};
use crate::config::{Config, ConfigError, WireMode};
use crate::host::System;
use crate::inbox::{Inbox, Message};
use crate::local::{LocalChannel, LocalControl};
use crate::port_change::{BadChange, PortChange};
use crate::rundir::{RunDir, RunDirError};
use crate::server::Server;
use crate::wire::Forwarder;
use crate::world::World;

/// Namespace for the operations. A running agent is its [`AgentHandle`].
#[derive(Debug)]
pub struct Agent;

/// Why an agent did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The run directory cannot be used.
    #[error(transparent)]
    RunDir(#[from] RunDirError),
    /// The system refused something.
    #[error("the agent cannot start: {0}")]
    System(#[from] io::Error),
}

/// A running agent. Dropping it stops the agent; its clients see the device vanish.
#[derive(Debug)]
pub struct AgentHandle {
    inbox: Inbox,
    forwarder: Arc<Forwarder>,
    run_dir: Option<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

/// How long engines may take to learn of fault rules.
const TAKES: Duration = Duration::from_secs(2);

impl Agent {
    /// Starts an agent that serves `run_dir`, or only this process if there is none.
    pub fn start(config: &Config, run_dir: Option<&Path>) -> Result<AgentHandle, StartError> {
        config.check()?;
        let config = &crate::topology::with_address(config)?;
        if config.wire != WireMode::External {
            require_addresses(&config.addresses)?;
        }
        let prepared = run_dir.map(|path| RunDir::prepare(path, config.system)).transpose()?;
        let place = match run_dir {
            Some(path) => path.display().to_string(),
            None => nowhere(),
        };
        let host = if config.in_order { System::default() } else { System::random()? };
        let world = World::on(Arc::new(host), config, &place)?;
        let (sender, messages) = channel();
        let inbox = Inbox::new(sender, Notifier::new()?);
        // Every thread of this process that puts something on a lane may wake engines.
        shm::register_barrier();
        let forwarder = Arc::clone(world.wire.forwarder());
        let server = Server::new(config, world, prepared, messages, inbox.clone())?;
        let thread = std::thread::Builder::new().name("softhca-agent".into()).spawn(move || server.run());
        let thread = thread.map_err(named("pthread_create"))?;
        Ok(AgentHandle { inbox, forwarder, run_dir: run_dir.map(Path::to_owned), thread: Some(thread) })
    }
}

impl AgentHandle {
    /// Opens a device as a client in this process, without a socket.
    pub fn connect(&self, device: usize, profile: u16) -> Result<LocalControl, Refusal> {
        LocalControl::open(self.inbox.clone(), device, profile)
    }

    /// Opens an event channel of the connection manager in this process, without a socket. Returns
    /// it with the client's end of its event socket.
    pub fn connect_manager(&self) -> Result<(LocalChannel, OwnedFd), Refusal> {
        LocalChannel::open(self.inbox.clone())
    }

    /// Sends management datagrams through `network`, if the caller carries packets in place of UDP.
    pub fn set_network(&self, network: Arc<dyn engine::Network>) {
        self.inbox.send(Message::Network(network));
    }

    /// Takes a port down, as if its cable were pulled, or makes it active again: for tests of
    /// programs that must survive this. If the port has named interfaces, its state follows them
    /// again at their next change.
    pub fn set_port(&self, device: usize, port: u32, up: bool) {
        self.inbox.send(Message::Port { device, port, up });
    }

    /// Changes a port, as a subnet manager does. All engines have been notified when this returns.
    ///
    /// # Errors
    /// A value is not possible.
    pub fn change_port(&self, device: usize, port: u32, change: PortChange) -> Result<(), BadChange> {
        let (answer, answered) = sync_channel(1);
        self.inbox.send(Message::ChangePort { device, port, change, answer });
        // Without an answer the agent is ending.
        answered.recv().unwrap_or(Ok(()))
    }

    /// A connection to the agent like one at its admin node, for callers in the same process.
    pub fn admin(&self) -> io::Result<Socket> {
        let (ours, theirs) = Socket::pair()?;
        self.inbox.send(Message::Admin(theirs));
        Ok(ours)
    }

    /// Adds faults on demand, as `softhca fault add` does, and waits until all engines know them.
    /// Returns the rules' numbers.
    ///
    /// # Errors
    /// The text is not a rule, or names objects that do not exist.
    pub fn add_faults(&self, rules: &str) -> Result<Vec<u32>, String> {
        let answer = self.ask_faults(json!({"do": "add", "rules": rules}))?;
        self.await_faults();
        let ids = answer["added"].as_array().into_iter().flatten();
        Ok(ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()).collect())
    }

    /// Clears all faults, except those that programs brought for themselves. Waits until all
    /// engines know it.
    pub fn clear_faults(&self) {
        let _ = self.ask_faults(json!({"do": "clear"}));
        self.await_faults();
    }

    /// The rules with their counts, as `softhca fault list --json` shows them.
    ///
    /// # Errors
    /// The agent has ended.
    pub fn faults(&self) -> Result<Value, String> {
        self.ask_faults(json!({"do": "list"}))
    }

    fn ask_faults(&self, question: Value) -> Result<Value, String> {
        let (answer, answered) = sync_channel(1);
        self.inbox.send(Message::Fault { question, answer });
        let answer = answered.recv().map_err(|_| "the agent has ended".to_owned())?;
        match answer["error"].as_str() {
            Some(error) => Err(error.to_owned()),
            None => Ok(answer),
        }
    }

    /// Waits until the engines have read the rules, which a push announces. A stopped engine is not
    /// waited for.
    fn await_faults(&self) {
        let end = Instant::now() + TAKES;
        while Instant::now() < end && self.faults().is_ok_and(|list| list["pending"].as_u64() != Some(0)) {
            std::thread::yield_now();
        }
    }

    /// Forwards datagrams of other hosts to this agent's engines, if the caller carries packets in
    /// place of UDP.
    pub fn forwarder(&self) -> Arc<Forwarder> {
        Arc::clone(&self.forwarder)
    }

    /// A function that ends the agent from another thread, while this handle waits.
    pub fn stopper(&self) -> impl Fn() + Send + use<> {
        let inbox = self.inbox.clone();
        move || {
            let _ = inbox.send(Message::Stop);
        }
    }

    /// The run directory, if there is one.
    pub fn run_dir(&self) -> Option<&Path> {
        self.run_dir.as_deref()
    }

    /// Waits until the agent has ended by itself: it was told to over its admin node, or it was
    /// idle.
    pub fn wait(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }

    /// Stops the agent and waits for its end.
    pub fn stop(self) {}
}

impl Drop for AgentHandle {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.inbox.send(Message::Stop);
            let _ = thread.join();
        }
    }
}

/// Refuses configured addresses that this host does not have.
///
/// # Errors
/// One of them is not an address of this host.
pub fn require_addresses(addresses: &[IpAddr]) -> Result<(), ConfigError> {
    if addresses.is_empty() {
        return Ok(());
    }
    // If the host's addresses cannot be read, all addresses are accepted.
    let Ok(host) = HostAddresses::read() else { return Ok(()) };
    match chosen(&host.usable, addresses).1.as_slice() {
        [] => Ok(()),
        [missing, ..] => Err(ConfigError::Value(format!(
            "{missing} is not an address of this host; `ip address` lists those that are, and where loopback is up, every \
             address from 127.0.0.1 to 127.255.255.254 is one"
        ))),
    }
}

/// A name for an agent without a run directory, so that two such agents have different GUIDs.
fn nowhere() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("embedded in {} as {}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}
