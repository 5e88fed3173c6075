//! Management datagrams of the agent's ports: what the kernel's `ib_mad`, `ib_umad` and the
//! firmware's agents are to programs.
//!
//! ```text
//!   umadN files ── write ──▶ client ──▶ travel ──▶ arrive ──▶ subnet management (QP 0)
//!        ▲                  (mad)         │  ▲         │ └───▶ performance management (QP 1)
//!        └──────── read ────────┐         ▼  │         ├─────▶ the connection manager
//!                               │     other hosts      ▼
//!                               └──────────────── the client that is registered
//! ```
//!
//! [`file`] is an open file, [`port`] has the registrations of a port, [`managed`] shows a device
//! as a node of its subnet, and [`travel`] carries datagrams. [`calls`] carries out what programs
//! ask. Crate `mad` has the protocols. With a topology, [`fabric`] carries all datagrams and has
//! the agents of the nodes, also those of the devices. Without one, no link leads from one port to
//! another: a datagram of QP 0 reaches the ports of this agent by their LIDs, and no other host.
//!
//! Time is the time since the agent began. The principal type is [`Mads`].

mod calls;
pub(crate) mod fabric;
mod file;
mod managed;
mod operator;
mod own_manager;
mod paths;
mod port;
mod sysfs;
#[cfg(test)]
mod tests;
mod trace;
mod traffic;
mod travel;
mod way;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::{Duration, Instant};

use wire::mad::Mad;

use crate::config::Config;
use crate::device_clients::{DeviceClient, PerDevice};
use crate::management::{Addressing, Arrived};
use crate::world::World;
pub(crate) use calls::Opened;
use fabric::Fabric;
use file::File;
use managed::ManagedDevice;
use own_manager::OwnManager;
use port::PortServices;
use subnet::managed::Unbuildable;
use traffic::Blocked;
use travel::Datagram;
pub(crate) use way::PortId;

/// Maximum number of datagrams between ports of this agent that are delivered at once.
const TURN: usize = 64;
/// While so many datagrams are on their way, nothing is sent again.
const CROWD: usize = 1024;

/// A datagram for another host.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) addressing: Addressing,
    pub(crate) mad: Mad,
    /// The user whose program sends it, or 0.
    pub(crate) owner: u32,
}

/// The management datagrams of one agent.
#[derive(Debug)]
pub(crate) struct Mads {
    devices: PerDevice<ManagedDevice>,
    /// The links between the ports, if there is a topology.
    fabric: Option<Fabric>,
    /// The connections whose packets its switches drop.
    blocked: Blocked,
    /// The subnet manager of that fabric, if the agent has it.
    manager: Option<OwnManager>,
    ports: BTreeMap<PortId, PortServices>,
    files: BTreeMap<u32, File>,
    keys: HashMap<[u8; 16], u32>,
    /// Datagrams that are on their way inside of this agent.
    travelling: VecDeque<Datagram>,
    results: Results,
    began: Instant,
    /// When the next timer expires.
    next: Option<Duration>,
}

/// What the owner of [`Mads`] does after each call.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Datagrams for other hosts.
    pub(crate) outgoing: Vec<Outgoing>,
    /// Datagrams of ports of this agent for its connection manager.
    pub(crate) for_manager: VecDeque<Arrived>,
    /// Files with messages for their programs.
    pub(crate) readable: Vec<u32>,
    /// Files and waiting connections whose device is gone.
    pub(crate) gone: Vec<u32>,
    /// Connections that have waited for `issmN` and have it now.
    pub(crate) granted: Vec<u32>,
    /// Ports have changed.
    pub(crate) ports_changed: bool,
}

impl Results {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        let Self { outgoing, for_manager, readable, gone, granted, ports_changed } = self;
        let lists = outgoing.is_empty() && for_manager.is_empty() && readable.is_empty();
        lists && gone.is_empty() && granted.is_empty() && !ports_changed
    }
}

impl Mads {
    /// No file is open. With a topology, the devices are attached to its fabric, and the agent's own
    /// subnet manager begins, unless the configuration says otherwise.
    ///
    /// # Errors
    /// The topology cannot be built.
    pub(crate) fn new(world: &World, config: &Config) -> Result<Self, Unbuildable> {
        let mut mads = Self {
            devices: PerDevice::default(),
            fabric: config.topology.as_ref().map(|topology| Fabric::new(topology, world)).transpose()?,
            blocked: Blocked::default(),
            manager: None,
            ports: BTreeMap::new(),
            files: BTreeMap::new(),
            keys: HashMap::new(),
            travelling: VecDeque::new(),
            results: Results::default(),
            began: Instant::now(),
            next: None,
        };
        if config.subnet_manager {
            mads.manager = mads.fabric.as_mut().and_then(|fabric| OwnManager::new(&mut fabric.managed, world));
        }
        world.register(&mut mads);
        mads.find_next();
        Ok(mads)
    }

    /// Takes a datagram that has arrived from another host. Returns it if it is for the connection
    /// manager.
    pub(crate) fn on_arrival(&mut self, world: &mut World, arrived: Arrived) -> Option<Arrived> {
        if wire::mad::Header::of(&arrived.mad).class == wire::mad::CLASS_CM {
            return Some(arrived);
        }
        self.arrive_from_host(world, &arrived);
        self.settle(world);
        None
    }

    /// Handles expired timers, and datagrams that are still on their way.
    pub(crate) fn on_time(&mut self, world: &mut World) {
        let now = self.now();
        let ports: Vec<PortId> = self.ports.keys().copied().collect();
        for at in ports {
            let Some(services) = self.ports.get_mut(&at) else { continue };
            let due = |registered: &port::Registered| registered.client.deadline().is_some_and(|due| due <= now);
            let clients = services.registered.iter().filter(|(_, registered)| due(registered));
            for registration in clients.map(|(registration, _)| *registration).collect::<Vec<_>>() {
                if self.travelling.len() >= CROWD {
                    break;
                }
                if let Some(registered) = self.ports.get_mut(&at).and_then(|it| it.registered.get_mut(&registration)) {
                    registered.client.handle_timeout(now);
                }
                self.follow_client(at, registration);
            }
            self.send_trap(world, at);
        }
        self.settle(world);
    }

    /// The time until the next timer expires.
    pub(crate) fn next_time(&self) -> Option<Duration> {
        if !self.travelling.is_empty() {
            return Some(Duration::ZERO);
        }
        Some(self.next?.saturating_sub(self.now()))
    }

    /// What the last calls have led to.
    pub(crate) fn take_results(&mut self) -> Results {
        std::mem::take(&mut self.results)
    }

    /// Whether files have ended because their device is gone.
    pub(crate) fn has_lost_files(&self) -> bool {
        !self.results.gone.is_empty()
    }

    /// The first message that waits for the program of a file.
    pub(crate) fn first_message(&self, file: u32) -> Option<&[u8]> {
        self.files.get(&file)?.first()
    }

    /// The program has the first message.
    pub(crate) fn pop_message(&mut self, file: u32) {
        if let Some(file) = self.files.get_mut(&file) {
            file.pop();
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Carries some of the datagrams that are on their way, and finds the next timer.
    fn settle(&mut self, world: &mut World) {
        for _ in 0..TURN {
            let Some(datagram) = self.travelling.pop_front() else { break };
            self.travel(world, datagram);
            self.advance_fabric(world);
        }
        self.advance_fabric(world);
        self.show_paths(world);
        self.find_next();
    }

    /// Finds the next timer. It looks at every registration, of which there are few: one program
    /// has up to 32 for each file.
    fn find_next(&mut self) {
        let now = self.now();
        let traps = |at: &PortId, port: &PortServices| {
            let sends = self.devices.get(at.device).and_then(|it| it.node.port(at.port));
            let deadline = port
                .traps
                .deadline()
                .filter(|_| sends.is_some_and(|port| port.info.lid != 0 && port.info.master_sm_lid != 0));
            deadline.map(|deadline| deadline.max(now))
        };
        let clients = |port: &PortServices| port.registered.values().filter_map(|it| it.client.deadline()).min();
        let timers = self.ports.iter().flat_map(|(at, port)| [clients(port), traps(at, port)]).flatten();
        let manager = self.manager.as_ref().and_then(OwnManager::next);
        self.next = timers.chain(self.fabric.as_ref().and_then(Fabric::next)).chain(manager).min();
    }
}

impl DeviceClient for Mads {
    fn add(&mut self, world: &World, device: usize) {
        let Some(present) = world.devices.get(device) else { return };
        self.devices.set(device, ManagedDevice::new(present));
        for port in 1..=present.ports.len() as u8 {
            self.ports.insert(PortId { device, port }, PortServices::new());
        }
    }

    fn remove(&mut self, world: &World, device: usize) {
        self.devices.take(device);
        if let Some(fabric) = &mut self.fabric {
            fabric.remove(device, world);
        }
        let files = self.files.iter().filter(|(_, file)| file.at.device == device);
        let files: Vec<u32> = files.map(|(file, _)| *file).collect();
        for file in files {
            self.keys.retain(|_, known| *known != file);
            self.files.remove(&file);
            self.results.gone.push(file);
        }
        let ports = self.ports.extract_if(PortId { device, port: 0 }..=PortId { device, port: u8::MAX }, |_, _| true);
        for (_, port) in ports {
            self.results.gone.extend(port.manager.into_iter().chain(port.candidates));
        }
    }
}
