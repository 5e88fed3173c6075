//! Agents and engines wired together in one process: for tests, and for programs that want verbs without a daemon.
//!
//! A [`Fabric`] is one agent, embedded; [`Fabric::connect`] opens a device of it and gives an engine, like a process that
//! opens a device node. Engines of one fabric reach each other by lanes as processes do, with the same state machines and
//! the same checks; engines of two fabrics do not. With a run directory, programs outside can join by its sockets.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::open::profile;
use agent::{Agent, AgentHandle, Config, LocalControl, StartError};
use engine::{Engine, Error};
use softhca::Context;

/// One embedded agent. Dropping it stops the agent: the engines see their device vanish.
#[derive(Debug)]
pub struct Fabric {
    agent: AgentHandle,
}

impl Fabric {
    /// One agent with the default device, reachable from this process only.
    ///
    /// # Errors
    /// The system has no memory or descriptors left.
    pub fn start() -> Result<Self, StartError> {
        Self::start_with(&Config::default())
    }

    /// The same with devices of one's own.
    ///
    /// # Errors
    /// The configuration makes no sense, or as [`Fabric::start`].
    pub fn start_with(config: &Config) -> Result<Self, StartError> {
        Ok(Self { agent: Agent::start(config, None)? })
    }

    /// An agent that serves `run_dir` as well, as `softhca agent` does.
    ///
    /// # Errors
    /// The directory cannot be used or is served already, or as [`Fabric::start_with`].
    pub fn start_at(config: &Config, run_dir: &Path) -> Result<Self, StartError> {
        Ok(Self { agent: Agent::start(config, Some(run_dir))? })
    }

    /// Opens device 0.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn open(&self) -> Result<Context, softhca::Error> {
        Context::with_control(Box::new(self.control(0)?))
    }

    /// A new engine on device 0.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn connect(&self) -> Result<Arc<Engine>, Error> {
        self.connect_to(0)
    }

    /// A new engine on a device, by index.
    ///
    /// # Errors
    /// ENODEV when there is no such device, or the agent's refusal.
    pub fn connect_to(&self, device: usize) -> Result<Arc<Engine>, Error> {
        Engine::open(Box::new(self.control(device)?))
    }

    /// A connection without an engine, to send commands byte by byte.
    ///
    /// # Errors
    /// ENODEV when there is no such device.
    pub fn control(&self, device: usize) -> Result<LocalControl, Error> {
        self.agent
            .connect(device, profile::MAINLINE)
            .map_err(|refusal| Error { errno: refusal.errno, reason: refusal.reason })
    }

    /// The agent itself.
    #[must_use]
    pub fn agent(&self) -> &AgentHandle {
        &self.agent
    }

    /// The node of a device, when there is a run directory.
    #[must_use]
    pub fn node(&self, device: usize) -> Option<PathBuf> {
        Some(self.agent.run_dir()?.join(agent::rundir::node(device)))
    }
}
