//! Agents and engines connected in one process: for tests, and for programs that want verbs without
//! a daemon.
//!
//! A [`Fabric`] has one or more [`Host`]s. Each host is an embedded agent with the addresses that
//! the caller gave it. Programs on a host are contexts that were [opened](Host::open) there. On one
//! host they communicate over lanes of shared memory, as processes of one machine do. Between hosts
//! they use RoCEv2 packets through a switch in memory, with the same state machines and checks as
//! over UDP. The switch can lose, repeat, reorder and damage packets ([`Faults`]).
//!
//! A fabric uses nothing outside of the process: no files, sockets, network interfaces, root or
//! environment. Any number of fabrics can exist at the same time.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric = fabric::Fabric::two_hosts()?;
//! let (here, there) = (fabric.host(0).open()?, fabric.host(1).open()?);
//!
//! let (a, b) = (here.cq(16)?, there.cq(16)?);
//! let (pd_a, pd_b) = (here.pd()?, there.pd()?);
//! let (left, right) = (pd_a.reliable(&a).build()?, pd_b.reliable(&b).build()?);
//! right.receive(1, pd_b.buffer(64)?)?;
//! let (to_left, to_right) = (left.endpoint(), right.endpoint());
//! let (left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//!
//! left.send_inline(2, b"across", None)?;
//! assert_eq!(b.wait()?.ok()?.data(), b"across");
//! a.wait()?.ok()?;
//! # Ok(()) }
//! ```
//!
//! The same programs can run in simulated time, where one seed decides everything that happens:
//! [`simulation`].
#![forbid(unsafe_code)]

mod faults;
mod head;
mod host;
mod recording;
pub mod simulation;
mod switch;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use agent::Config;
use agent::config::WireMode;
use softhca::Context;

pub use faults::Faults;
pub use host::Host;
pub use recording::Recording;
pub use switch::{Counts, Switch};

/// The default addresses of hosts.
const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

/// Why a fabric did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The text is not an IP address.
    #[error("{0:?} is no IP address")]
    Address(String),
    /// Two hosts have the same address.
    #[error("two hosts have the address {0}")]
    Twice(IpAddr),
    /// A simulated host has no place in the subnet.
    #[error("the subnet has no free adapter {0:?}, or there is no subnet")]
    Node(String),
    /// An agent did not start.
    #[error(transparent)]
    Agent(#[from] agent::StartError),
}

/// Embedded hosts and the switch between them. When the fabric is dropped, the agents end, and
/// programs lose their devices.
#[derive(Debug)]
pub struct Fabric {
    hosts: Vec<Host>,
    switch: Arc<Switch>,
}

impl Fabric {
    /// Starts one host.
    ///
    /// # Errors
    /// The system has no memory or descriptors left.
    pub fn start() -> Result<Self, StartError> {
        Self::builder().host(ADDRESSES[0]).build()
    }

    /// Starts two hosts, 10.0.0.1 and 10.0.0.2.
    ///
    /// # Errors
    /// The errors of [`Fabric::start`].
    pub fn two_hosts() -> Result<Self, StartError> {
        Self::builder().host(ADDRESSES[0]).host(ADDRESSES[1]).build()
    }

    /// A builder, to choose hosts, MTU and faults.
    pub fn builder() -> Builder {
        Builder { hosts: Vec::new(), mtu: None, faults: Faults::default(), config: Config::default() }
    }

    /// Starts one host as an agent's configuration describes it. By default it has its machine's
    /// addresses and network.
    ///
    /// # Errors
    /// The configuration is invalid, or the errors of [`Fabric::start`].
    pub fn start_with(config: &Config) -> Result<Self, StartError> {
        Self::machine(config, None)
    }

    /// As [`Fabric::start_with`], and also serves `run_dir` as `softhca agent` does: programs of
    /// other processes can join through its sockets.
    ///
    /// # Errors
    /// The directory cannot be used or another agent serves it, or the errors of
    /// [`Fabric::start_with`].
    pub fn start_at(config: &Config, run_dir: &Path) -> Result<Self, StartError> {
        Self::machine(config, Some(run_dir))
    }

    fn machine(config: &Config, run_dir: Option<&Path>) -> Result<Self, StartError> {
        let switch = Arc::new(Switch::new(Faults::default()));
        Ok(Self { hosts: vec![Host::start(config, run_dir, &switch)?], switch })
    }

    /// The hosts, in the order of their definition.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// One host, counted from 0.
    ///
    /// # Panics
    /// There is no such host.
    #[must_use]
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// The switch between the hosts.
    #[must_use]
    pub fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Opens the device of the first host.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn open(&self) -> Result<Context, softhca::Error> {
        self.host(0).open()
    }
}

/// Describes a [`Fabric`] before it is built.
#[derive(Clone, Debug)]
#[must_use = "a builder makes nothing until it is told to build"]
pub struct Builder {
    hosts: Vec<Vec<String>>,
    mtu: Option<u32>,
    faults: Faults,
    config: Config,
}

impl Builder {
    /// Adds a host with this address.
    pub fn host(self, address: impl Into<String>) -> Self {
        self.host_with([address])
    }

    /// Adds a host with these addresses: its GIDs from index 1 on, in this order.
    pub fn host_with<A: Into<String>>(mut self, addresses: impl IntoIterator<Item = A>) -> Self {
        self.hosts.push(addresses.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the MTU of all ports in bytes: 256, 512, 1024, 2048 or 4096.
    pub fn mtu(self, bytes: u32) -> Self {
        Self { mtu: Some(bytes), ..self }
    }

    /// Sets the faults of the switch from the beginning; [`Switch::set_faults`] changes them later.
    pub fn faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Sets the rest of the agents' configuration: devices and limits. The fabric sets the
    /// addresses and the wire.
    pub fn config(self, config: Config) -> Self {
        Self { config, ..self }
    }

    /// Starts the hosts.
    ///
    /// # Errors
    /// An address is invalid or used twice, the MTU or the configuration is invalid, or the system
    /// has no memory or descriptors left.
    pub fn build(self) -> Result<Fabric, StartError> {
        let switch = Arc::new(Switch::new(self.faults));
        let mut known: Vec<IpAddr> = Vec::new();
        let mut hosts = Vec::new();
        for names in self.hosts {
            let parse = |text: String| text.parse().map_err(|_| StartError::Address(text));
            let addresses = names.into_iter().map(parse).collect::<Result<Vec<IpAddr>, _>>()?;
            for address in &addresses {
                if known.contains(address) {
                    return Err(StartError::Twice(*address));
                }
                known.push(*address);
            }
            let mut config = Config { addresses, wire: WireMode::External, ..self.config.clone() };
            if let Some(mtu) = self.mtu {
                config.devices.iter_mut().flat_map(|device| &mut device.ports).for_each(|port| port.mtu = mtu);
            }
            hosts.push(Host::start(&config, None, &switch)?);
        }
        Ok(Fabric { hosts, switch })
    }
}
