//! What callers do with the InfiniBand subnet of a simulation: hosts at its adapters, its manager,
//! its model. Adds to [`Simulation`]. How packets get there and back is in [`super::subnet`].

use agent::Config;
use agent::config::LinkLayer;
use subnet::Managed;
use subnet::deadlock::Channel;

use super::subnet::Links;
use super::{HostId, Simulation};
use crate::StartError;

/// Events of the subnet that nobody outside learns of, before a step returns all the same.
const SILENT: usize = 1000;

impl Simulation {
    /// A simulation with an InfiniBand subnet, in the time of the simulation: one event of a link
    /// is one event here. Until tables, LIDs and states are set, by [`Simulation::subnet`] or by
    /// [`Simulation::start_subnet_manager`], no packet passes.
    ///
    /// ```
    /// use fabric::simulation::Simulation;
    /// use mad::topology::Topology;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let text = "Switch 4 \"S1\"\n[1] \"H1\"[1]\n[2] \"H2\"[1]\n\nHca 1 \"H1\"\nHca 1 \"H2\"\n";
    /// let subnet = subnet::Managed::new(&Topology::from_text(text)?)?;
    /// let mut simulation = Simulation::with_subnet(7, subnet);
    /// simulation.host_on("H1", "10.0.0.101")?;
    /// simulation.host_on("H2", "10.0.0.102")?;
    /// assert!(simulation.start_subnet_manager(sm::Config::default()));
    /// simulation.run_for(std::time::Duration::from_secs(1));
    /// let info = simulation.subnet(|net| {
    ///     let node = net.id("H2")?;
    ///     net.port_info(subnet::End { node, port: 1 })
    /// });
    /// assert!(info.flatten().is_some_and(|info| info.lid != 0));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_subnet(seed: u64, subnet: Managed) -> Self {
        let simulation = Self::new(seed);
        let links = Links::new(subnet, simulation.core.now());
        simulation.core.state.lock().links = Some(links);
        simulation
    }

    /// Adds a host whose device is port 1 of this adapter. Other hosts reach it by LID, or by
    /// `address`. A LID also stands for an address of its subnet (`agent::lids`), so choose
    /// addresses whose last byte is no LID of another port.
    ///
    /// # Errors
    /// There is no such adapter, or the errors of [`Simulation::host`].
    pub fn host_on(&mut self, node: &str, address: &str) -> Result<HostId, StartError> {
        self.host_on_with(node, address, &Config::default())
    }

    /// The same with a configuration.
    ///
    /// # Errors
    /// The errors of [`Simulation::host_on`], or the configuration is invalid.
    pub fn host_on_with(&mut self, node: &str, address: &str, config: &Config) -> Result<HostId, StartError> {
        let end = self.core.state.lock().links.as_ref().and_then(|links| links.free_end(node));
        let end = end.ok_or_else(|| StartError::Node(node.to_owned()))?;
        let config = config.clone().with_link_layer(LinkLayer::Infiniband);
        let host = self.host_with(&[address], &config)?;
        let gid = self.hosts[host.0].gids.first().copied().unwrap_or_default();
        self.core.state.lock().links.iter_mut().for_each(|links| links.add(host.0, end, gid));
        self.follow_ports();
        Ok(host)
    }

    /// Starts a subnet manager, at a switch if there is one. Returns false if there is no subnet,
    /// or no port for it. A manager sweeps for ever, so events never end then.
    pub fn start_subnet_manager(&mut self, config: sm::Config) -> bool {
        self.core.state.lock().links.as_mut().is_some_and(|links| links.start_manager(config))
    }

    /// The subnet as it is now, to look at it or to change it. `None`: there is no subnet.
    pub fn subnet<T>(&mut self, action: impl FnOnce(&mut Managed) -> T) -> Option<T> {
        let now = self.core.now();
        let done = self.core.state.lock().links.as_mut().map(|links| action(links.model(now)));
        self.follow_ports();
        done
    }

    /// The channels that wait for each other in a circle and will never move, with the names of
    /// their nodes.
    pub fn deadlock(&mut self) -> Option<Vec<String>> {
        self.subnet(|net| {
            let cycle = net.fabric().deadlock()?;
            let name = |Channel { node, port, vl }: &Channel| {
                format!("{}[{port}] VL {vl}", net.name(*node).unwrap_or_default())
            };
            Some(cycle.iter().map(name).collect())
        })?
    }

    /// Lets the next things happen in the subnet, as far as they come before all other events and
    /// not after `end`. Returns true if a step has been taken, and false if there is nothing more.
    pub(super) fn advance_subnet(&mut self, end: u64) -> bool {
        for _ in 0..SILENT {
            let Some(at) = self.core.links_due().filter(|at| *at <= end) else { return false };
            self.core.advance(at);
            if self.follow_ports() {
                return true;
            }
        }
        true
    }

    /// Takes what has come out of the subnet, and changes hosts' ports as it says. Returns whether
    /// anything has come out.
    fn follow_ports(&mut self) -> bool {
        let (changes, tells) = self.core.advance_links();
        let any = tells || !changes.is_empty();
        for (host, change) in changes {
            // A value that the agent refuses is one that no program sees.
            let _ = self.hosts[host].agent.change_port(0, 1, &change);
        }
        any
    }
}
