//! `softhca agent`: starts the agent in the background or in the foreground, or stops it.
//!
//! This module is not the agent: the crate `agent` is. This module gives the agent its
//! configuration and its log, and ends it. The principal function is [`run`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use engine::log::{VARIABLE, checked, refused};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

use crate::admin::Connection;
use crate::agent_device::{self, AgentCommand};
use crate::failure::Failure;
use crate::link_layer::LinkLayer;
use crate::log::Log;
use crate::manager_options::{ManagerOptions, absolute};
use crate::place::{self, Host};
use crate::start;
use crate::transport::Transport;

/// The kernel's score for an agent that serves every user. When memory runs out, the kernel ends
/// such an agent last, except for processes that it never ends.
const OOM_SCORE: &str = "-900";

/// How long an agent may take to end its programs' connections.
const GOODBYE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The examples below the help.
const AGENT: &str = "\
Examples:
  softhca agent                            Start it in the background.
  softhca agent --config devices.toml      Devices, ports and limits of your own
                                           (docs/configuration.md).
  softhca agent --address 127.0.0.2        A second virtual host.
  softhca agent --link-layer infiniband    Ports with LIDs.
  softhca agent --transport iwarp          RDMA over TCP (docs/iwarp.md).
  softhca agent --topology FILE            An InfiniBand subnet with switches
                                           (docs/subnets.md).
  softhca agent --topology FILE --lmc 2 --routing up-down
                                           Settings of its subnet manager.
  softhca agent --system                   For every user, as root.
  softhca agent --foreground               Log in this terminal; ^C ends it.
  softhca agent --stop                     End it. Programs get
                                           IBV_EVENT_DEVICE_FATAL.
  softhca agent device add softhca1        Another device, while programs run.";

#[derive(Debug, Args)]
#[command(after_help = AGENT, args_conflicts_with_subcommands = true)]
pub(crate) struct Agent {
    #[command(subcommand)]
    pub(crate) command: Option<AgentCommand>,
    /// A TOML file with devices, ports, GUIDs and limits
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A file that describes an InfiniBand subnet: its adapters, switches and links. The adapters
    /// are the agent's devices. The agent's own subnet manager brings the subnet up
    #[arg(long, value_name = "FILE", conflicts_with = "link_layer")]
    pub(crate) topology: Option<PathBuf>,
    /// Leave the subnet of the topology to other subnet managers, such as opensm on a node
    #[arg(long, requires = "topology", conflicts_with = "ManagerOptions")]
    pub(crate) no_subnet_manager: bool,
    /// Where links of the topology to other agents arrive. Without a port, it is UDP port 4792.
    /// Without this option, it is the agent's address, or every address of this machine
    #[arg(long, value_name = "ADDRESS[:PORT]", requires = "topology", value_parser = tunnel)]
    pub(crate) tunnel: Option<SocketAddr>,
    /// Link layer of all ports: ethernet (RoCE), or infiniband, with LIDs
    #[arg(long, value_name = "LAYER")]
    pub(crate) link_layer: Option<LinkLayer>,
    /// Transport of all devices: infiniband, which includes RoCE, or iwarp, RDMA over TCP
    #[arg(long, alias = "device", value_name = "TRANSPORT", conflicts_with = "topology")]
    pub(crate) transport: Option<Transport>,
    /// Serve every user of this machine, in /run/softhca-… unless SOFTHCA_DIR names another place
    #[arg(long)]
    pub(crate) system: bool,
    /// Stay in the foreground and log on standard error
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Exit after this time without a program
    #[arg(long, value_name = "SECONDS")]
    pub(crate) idle_exit: Option<u64>,
    /// End the agent: the user's own, with --system the system's, with --address that of the
    /// address
    #[arg(long, conflicts_with_all = ["config", "foreground", "idle_exit", "link_layer", "topology",
        "ManagerOptions"])]
    pub(crate) stop: bool,
    /// The background process itself, started by this program
    #[arg(long, hide = true)]
    pub(crate) detached: bool,
    /// Those of the subnet manager of the topology
    #[command(flatten)]
    pub(crate) manager: ManagerOptions,
}

/// Starts or stops the agent as the options say, or changes its devices.
pub(crate) fn run(agent: &Agent, host: &Host) -> Result<String, Failure> {
    if let Some(AgentCommand::Device(command)) = &agent.command {
        return agent_device::run(command, host);
    }
    let run_dir = if agent.system { place::system_run_dir() } else { host.own_run_dir() };
    if agent.stop {
        return stop(&run_dir);
    }
    log_filter()?;
    if agent.foreground || agent.detached {
        return serve(agent, host, &run_dir);
    }
    if let Some(connection) = start::answering(&run_dir)? {
        return Err(format!(
            "an agent is already running in {}{}; stop it with `softhca agent --stop`",
            run_dir.display(),
            connection.agent_pid().map(|pid| format!(" (process {pid})")).unwrap_or_default()
        )
        .into());
    }
    // Parse the configuration here too, so that this terminal shows an error in it.
    configuration(agent, host)?;
    let connection = start::launch(&run_dir, &passed_on(agent, host)?)?;
    let pid = connection.agent_pid().map(|pid| format!(", process {pid}")).unwrap_or_default();
    Ok(format!("the agent is running in {}{pid}\n", run_dir.display()))
}

/// An address, with or without a port.
fn tunnel(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().map(|address| SocketAddr::new(address, agent::config::TUNNEL_PORT));
    address.or_else(|_| text.parse()).map_err(|_| "write 10.0.0.1, 10.0.0.1:5000 or [fd00::1]:5000".to_owned())
}

/// The options for the background process, whose current directory is `/`.
fn passed_on(agent: &Agent, host: &Host) -> Result<Vec<String>, Failure> {
    let mut words: Vec<String> = host.addresses.iter().map(|address| format!("--address={address}")).collect();
    if agent.system {
        words.push("--system".to_owned());
    }
    words.extend(agent.link_layer.map(LinkLayer::option));
    words.extend(agent.transport.map(Transport::option));
    for (name, path) in [("config", &agent.config), ("topology", &agent.topology)] {
        if let Some(path) = path {
            words.push(format!("--{name}={}", absolute(path)?.display()));
        }
    }
    words.extend(agent.manager.words()?);
    if agent.no_subnet_manager {
        words.push("--no-subnet-manager".to_owned());
    }
    words.extend(agent.tunnel.map(|address| format!("--tunnel={address}")));
    if let Some(seconds) = agent.idle_exit {
        words.extend(["--idle-exit".to_owned(), seconds.to_string()]);
    }
    Ok(words)
}

fn configuration(agent: &Agent, host: &Host) -> Result<agent::Config, Failure> {
    let of = |path: &Path, loaded: Result<_, _>| loaded.map_err(|error| format!("{}: {error}", path.display()));
    let mut config = match (&agent.config, &agent.topology) {
        (Some(path), None) => of(path, agent::Config::load(path))?,
        (Some(path), Some(_)) => of(path, agent::topology::without_devices(path))?,
        (None, _) => agent::Config::default(),
    };
    if let Some(path) = &agent.topology {
        config = of(path, agent::topology::load(path, config))?;
    }
    config.subnet_manager = agent.manager.over(&config.subnet_manager);
    if let Some(seconds) = agent.idle_exit {
        config.idle_exit = Some(Duration::from_secs(seconds));
    }
    if !host.addresses.is_empty() {
        config.addresses.clone_from(&host.addresses);
    }
    config.system = agent.system;
    config.has_subnet_manager = !agent.no_subnet_manager;
    config.tunnel = agent.tunnel;
    if let Some(transport) = agent.transport {
        config = config.with_transport(transport.of_agent());
    }
    let config = match agent.link_layer {
        Some(LinkLayer::Ethernet) => config.with_link_layer(agent::config::LinkLayer::Ethernet),
        Some(LinkLayer::Infiniband) => config.with_link_layer(agent::config::LinkLayer::Infiniband),
        None => config,
    };
    config.check().map_err(|error| error.to_string())?;
    // The agent in the background reads these files, too.
    agent::topology::manager(&config, sm::Config::default()).map_err(|error| error.to_string())?;
    Ok(config)
}

/// Runs the agent until a signal ends it or it exits when idle.
fn serve(agent: &Agent, host: &Host, run_dir: &Path) -> Result<String, Failure> {
    if agent.detached {
        // This fails only if the process leads its group, as when a user types the hidden option.
        let _ = rustix::process::setsid();
    }
    log(agent, run_dir, log_filter()?);
    let config = configuration(agent, host)?;
    if agent.system {
        // Pages in a user's memory regions count for the agent while the agent maps them. When
        // memory runs out, the kernel should end that user's program, which frees the pages, and
        // not the agent of all users. Without the right to write this file nothing changes.
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
    }
    // Every user may read the nodes and the mirror of an agent that serves every user. Only the
    // owner may read those of another agent.
    rustix::process::umask(Mode::from_raw_mode(if agent.system { 0o022 } else { 0o077 }));
    let signals = Signals::new([SIGHUP, SIGINT, SIGTERM]);
    let mut signals = signals.map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let handle = agent::Agent::start(&config, Some(run_dir))?;
    let stop = handle.stopper();
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            for signal in signals.forever() {
                tracing::info!(signal, "the agent got a signal and stops");
                stop();
            }
        })
        .map_err(shm::denied::named("pthread_create"))?;
    handle.wait();
    Ok(String::new())
}

/// The filter in SOFTHCA_LOG, if the variable is set.
pub(crate) fn log_filter() -> Result<Option<EnvFilter>, String> {
    let Some(wanted) = std::env::var_os(VARIABLE).filter(|wanted| !wanted.is_empty()) else { return Ok(None) };
    EnvFilter::try_new(checked(&wanted)?).map(Some).map_err(|why| refused(&wanted, &why))
}

/// Starts logging with the filter in SOFTHCA_LOG. By default a terminal shows more than a file.
fn log(agent: &Agent, run_dir: &Path, wanted: Option<EnvFilter>) {
    let filter = wanted.unwrap_or_else(|| EnvFilter::new(if agent.detached { "warn" } else { "info" }));
    let log = Log::new(agent.detached.then(|| place::agent_log(run_dir)), agent.system);
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(!agent.detached);
    subscriber.with_writer(move || log.clone()).init();
}

/// Ends the agent and waits until it has exited.
fn stop(run_dir: &Path) -> Result<String, Failure> {
    let Ok(connection) = Connection::open(run_dir) else {
        return Ok(format!("no agent is running in {}\n", run_dir.display()));
    };
    let pid = connection.agent_pid().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    let pid = pid.ok_or("the agent runs in another container; stop it there")?;
    let refused = |errno| match errno {
        Errno::PERM => {
            format!("the agent of {} belongs to another user; only that user and root may stop it", run_dir.display())
        }
        errno => format!("cannot stop process {}: {errno}", pid.as_raw_nonzero()),
    };
    let process = pidfd_open(pid, PidfdFlags::empty());
    // While the connection exists, the process id belongs to the agent.
    kill_process(pid, Signal::TERM).map_err(refused)?;
    let has_ended = match process {
        Ok(process) => {
            drop(connection);
            ends(process.as_fd(), PollFlags::IN)?
        }
        // A sandbox may forbid pidfds. Then the end of the connection shows that the agent ends,
        // and the unlocked run directory shows that it has ended.
        Err(_) => ends(connection.as_fd(), PollFlags::HUP)? && start::await_vacancy(run_dir).map(|_| true)?,
    };
    if !has_ended {
        return Err(format!("process {} does not exit; end it with `kill -9 {0}`", pid.as_raw_nonzero()).into());
    }
    Ok(format!("stopped the agent of {}\n", run_dir.display()))
}

/// Whether `fd` reports within [`GOODBYE`] that its other side has ended.
fn ends(fd: BorrowedFd<'_>, sign: PollFlags) -> Result<bool, String> {
    let mut fds = [PollFd::new(&fd, sign)];
    match poll(&mut fds, Some(&GOODBYE)) {
        Ok(count) => Ok(count > 0),
        Err(errno) => Err(format!("cannot wait until the agent exits: {errno}")),
    }
}
