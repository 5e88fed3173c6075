//! A host of a fabric: one agent in this process, and the methods that use its devices. Principal
//! type: [`Host`].

use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use abi::errno::Errno;
use abi::open::profile;
use agent::config::WireMode;
use agent::port_change::{BadChange, PortChange};
use agent::{Agent, AgentHandle, Config, LocalControl};
use engine::{Answer, Control, Engine, Error, Network};
use softhca::Context;

use crate::switch::{Plug, Switch};

/// One embedded agent.
#[derive(Debug)]
pub struct Host {
    agent: Arc<AgentHandle>,
    addresses: Vec<IpAddr>,
    /// `None`: packets go through the network of the machine.
    plug: Option<Arc<Plug>>,
}

impl Host {
    pub(crate) fn start(
        config: &Config,
        run_dir: Option<&Path>,
        switch: &Arc<Switch>,
    ) -> Result<Self, agent::StartError> {
        let agent = Agent::start(config, run_dir)?;
        let addresses = config.addresses.clone();
        let plug = (config.wire == WireMode::External).then(|| switch.plug(&addresses, agent.forwarder()));
        if let Some(plug) = &plug {
            agent.set_network(Arc::clone(plug) as Arc<dyn Network>);
        }
        Ok(Self { agent: Arc::new(agent), addresses, plug })
    }

    /// Opens the host's device.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn open(&self) -> Result<Context, softhca::Error> {
        self.open_device(0)
    }

    /// Opens one of several devices, by index.
    ///
    /// # Errors
    /// ENODEV when there is no such device, or the agent's refusal.
    pub fn open_device(&self, device: usize) -> Result<Context, softhca::Error> {
        // A program does not keep its agent alive.
        let agent = Arc::downgrade(&self.agent);
        Context::with_manager(Box::new(self.wired(device)?), move || match agent.upgrade() {
            Some(agent) => manager(&agent),
            None => Err(Error::new(Errno::EIO, "the host has been stopped")),
        })
    }

    /// The configured addresses of the host.
    #[must_use]
    pub fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Disconnects the host's cable: packets from and to the host are lost.
    pub fn disconnect(&self) {
        if let Some(plug) = &self.plug {
            plug.set(false);
        }
    }

    /// Connects the host's cable again.
    pub fn reconnect(&self) {
        if let Some(plug) = &self.plug {
            plug.set(true);
        }
    }

    /// Takes a port of the host's device down, or makes it active. Programs get PORT_ERR and
    /// PORT_ACTIVE. While the port is down no packet passes, not even within the host.
    pub fn set_port(&self, port: u32, up: bool) {
        self.agent.set_port(0, port, up);
    }

    /// Changes a port of the host's device, as a subnet manager does, and raises the events. If it
    /// gets other P_Keys, queue pairs move to the partitions that are now at their P_Key indexes.
    ///
    /// # Errors
    /// A value is not possible.
    pub fn change_port(&self, port: u32, change: PortChange) -> Result<(), BadChange> {
        self.agent.change_port(0, port, change)
    }

    /// Adds faults on demand (`softhca fault add --help` describes the rules), which act on lanes
    /// and on the wire. All engines know the rules when this returns. Returns the rules' numbers.
    ///
    /// # Errors
    /// The text is not a rule, or names an object that does not exist.
    pub fn add_faults(&self, rules: &str) -> Result<Vec<u32>, String> {
        self.agent.add_faults(rules)
    }

    /// Removes all rules of faults on demand.
    pub fn clear_faults(&self) {
        self.agent.clear_faults();
    }

    /// Cuts the path to one of the host's addresses, where it has several: packets from and to the
    /// address are lost.
    pub fn cut(&self, address: IpAddr) {
        self.cut_or_mend(address, true);
    }

    /// Undoes [`Host::cut`].
    pub fn mend(&self, address: IpAddr) {
        self.cut_or_mend(address, false);
    }

    fn cut_or_mend(&self, address: IpAddr, cut: bool) {
        if let Some(switch) = self.plug.as_ref().and_then(|plug| plug.switch()) {
            switch.cut(address.into(), cut);
        }
    }

    /// A new engine on device 0, for tests of the engine itself: the caller passes raw addresses.
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
        Engine::open(Box::new(self.wired(device)?))
    }

    /// A connection without an engine, to send commands byte by byte.
    ///
    /// # Errors
    /// ENODEV when there is no such device.
    pub fn control(&self, device: usize) -> Result<LocalControl, Error> {
        self.agent.connect(device, profile::MAINLINE)
    }

    /// Opens an event channel of the connection manager, for tests of the channel itself.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn manager(&self) -> Result<cm::Channel, Error> {
        manager(&self.agent)
    }

    fn wired(&self, device: usize) -> Result<Wired, Error> {
        let network = self.plug.clone().map(|plug| plug as Arc<dyn Network>);
        Ok(Wired { control: self.control(device)?, network })
    }

    /// The agent itself.
    #[must_use]
    pub fn agent(&self) -> &AgentHandle {
        &self.agent
    }

    /// The node of a device, if there is a run directory.
    #[must_use]
    pub fn node(&self, device: usize) -> Option<PathBuf> {
        Some(self.agent.run_dir()?.join(agent::rundir::node(device)))
    }
}

fn manager(agent: &AgentHandle) -> Result<cm::Channel, Error> {
    let (control, event_socket) = agent.connect_manager()?;
    Ok(cm::Channel::over(Box::new(control), event_socket))
}

impl Drop for Host {
    fn drop(&mut self) {
        self.disconnect();
    }
}

/// A connection to an agent whose packets go through the switch.
struct Wired {
    control: LocalControl,
    network: Option<Arc<dyn Network>>,
}

impl Control for Wired {
    fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer, Error> {
        self.control.call(request, fds)
    }

    fn network(&self) -> Option<Arc<dyn Network>> {
        self.network.clone()
    }

    fn close(&self) {
        self.control.close();
    }
}
