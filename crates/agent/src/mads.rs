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

mod account;
mod bad_links;
mod calls;
mod conflict;
mod conflicts;
mod copies;
pub(crate) mod fabric;
mod file;
mod link_faults;
mod managed;
mod of_manager;
mod operator;
mod own_manager;
mod packet;
mod paths;
mod port;
mod remote_lids;
mod remotes;
mod routed_groups;
mod shown;
mod sysfs;
#[cfg(test)]
mod tests;
mod trace;
mod traffic;
mod travel;
mod travelling;
mod tunnels;
mod violations;
mod way;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use abi::umad::client::Key;
use mad::transactions::Registration;
use wire::mad::Mad;

use crate::config::{Config, ConfigError};
use crate::device_clients::{DeviceClient, PerDevice};
use crate::kept_lids::KeptLids;
use crate::management::{Addressing, ReceivedMad};
use crate::objects::traffic::Blocked;
use crate::topology;
use crate::world::World;
use account::Accounts;
pub(crate) use calls::IssmOpen;
use fabric::Fabric;
use file::UmadFile;
use managed::ManagedDevice;
pub use managed::{change_of, change_of_link};
pub use own_manager::OwnManager;
use port::PortServices;
use subnet::managed::Unbuildable;
use travelling::Travelling;
pub(crate) use way::PortId;

/// Maximum number of datagrams between ports of this agent that are delivered at once.
const BATCH: usize = 16;
/// Maximum number of clients of one user whose timers are handled at once.
const CLIENTS: usize = 4;

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
    /// The subnet managers of that fabric, one for each subnet, if the agent has them.
    managers: Vec<OwnManager>,
    /// Their file of LIDs.
    kept_lids: Option<KeptLids>,
    ports: BTreeMap<PortId, PortServices>,
    files: BTreeMap<u32, UmadFile>,
    keys: HashMap<Key, u32>,
    accounts: Accounts,
    /// Datagrams that are on their way inside of this agent.
    travelling: Travelling,
    results: Results,
    began: Instant,
    /// When the next timer expires.
    next: Option<Duration>,
}

/// A datagram of a tunnel, and the agent that it is for.
pub(crate) type Tunnelled = (SocketAddr, Vec<u8>);

/// What the owner of [`Mads`] does after each call.
#[derive(Debug, Default)]
pub(crate) struct Results {
    /// Datagrams for other hosts.
    pub(crate) outgoing: Vec<Outgoing>,
    /// Datagrams of tunnels, for other agents.
    pub(crate) tunnelled: Vec<Tunnelled>,
    /// Datagrams of ports of this agent for its connection manager.
    pub(crate) for_manager: VecDeque<ReceivedMad>,
    /// What subnet administration answers to the connection manager of this agent.
    pub(crate) answers: Vec<crate::outward::SaReply>,
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
        let Self { outgoing, tunnelled, for_manager, answers, readable, gone, granted, ports_changed } = self;
        let sent = outgoing.is_empty() && tunnelled.is_empty();
        let lists = sent && for_manager.is_empty() && answers.is_empty() && readable.is_empty();
        lists && gone.is_empty() && granted.is_empty() && !ports_changed
    }
}

impl Mads {
    /// No file is open. With a topology, the devices are attached to its fabric, and the agent's
    /// own subnet manager begins, unless the configuration says otherwise.
    ///
    /// # Errors
    /// The topology cannot be built, or a file of the manager's settings cannot be used.
    pub(crate) fn new(world: &World, config: &Config) -> Result<Self, ConfigError> {
        let fabric = config.topology.as_ref().map(|topology| Fabric::new(topology, world)).transpose();
        let fabric = fabric.map_err(|error: Unbuildable| ConfigError::Value(error.to_string()))?;
        let mut mads = Self {
            devices: PerDevice::default(),
            fabric,
            blocked: Blocked::default(),
            managers: Vec::new(),
            kept_lids: None,
            ports: BTreeMap::new(),
            files: BTreeMap::new(),
            keys: HashMap::new(),
            accounts: Accounts::default(),
            travelling: Travelling::default(),
            results: Results::default(),
            began: Instant::now(),
            next: None,
        };
        if let Some(fabric) = &mads.fabric {
            world.faults.know_cables(fabric.cables());
        }
        if config.has_subnet_manager
            && let Some(fabric) = &mut mads.fabric
        {
            let choices = topology::manager(config, OwnManager::usual())?;
            let kept = KeptLids::of(&config.subnet_manager);
            mads.kept_lids = kept.map_err(|error| ConfigError::Value(format!("`subnet_manager`: {error}")))?;
            mads.managers = OwnManager::of_all(&mut fabric.managed, world, &choices, &mut mads.kept_lids);
        }
        world.register(&mut mads);
        mads.find_next();
        Ok(mads)
    }

    /// Takes a datagram that has arrived from another host. Returns it if it is for the connection
    /// manager.
    pub(crate) fn on_arrival(&mut self, world: &mut World, arrived: ReceivedMad) -> Option<ReceivedMad> {
        if arrived.qkey() == wire::mad::GSI_QKEY && wire::mad::Header::of(&arrived.mad).class == wire::mad::CLASS_CM {
            return Some(arrived);
        }
        self.arrive_from_host(world, &arrived);
        self.settle(world);
        None
    }

    /// Handles expired timers, and datagrams that are still on their way.
    pub(crate) fn on_time(&mut self, world: &mut World) {
        let now = self.now();
        let due = self.ports.iter().flat_map(|(at, port)| {
            let clients = port.registered.iter();
            clients
                .filter_map(|(name, it)| Some((it.client.deadline().filter(|due| *due <= now)?, *at, *name, it.owner)))
        });
        let mut due: Vec<_> = due.collect();
        due.sort_unstable_by_key(|(deadline, at, name, _)| (*deadline, *at, *name));
        let mut turns: HashMap<u32, usize> = HashMap::new();
        for (_, at, registration, owner) in due {
            let user = self.user_of(owner);
            let turn = turns.entry(user).or_default();
            *turn += 1;
            if *turn > CLIENTS || self.travelling.is_crowded(user) {
                continue;
            }
            if let Some(registered) = self.ports.get_mut(&at).and_then(|it| it.registered.get_mut(&registration)) {
                registered.client.handle_timeout(now);
            }
            self.follow_client(at, registration);
        }
        for at in self.ports.keys().copied().collect::<Vec<_>>() {
            self.send_trap(world, at);
        }
        self.sample(world);
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

    /// The next packet for the program of a file: a piece of the first message that waits.
    pub(crate) fn first_piece(&self, file: u32) -> Option<&[u8]> {
        self.files.get(&file)?.first()
    }

    /// The program has this packet.
    pub(crate) fn pop_piece(&mut self, file: u32) {
        if let Some(file) = self.files.get_mut(&file) {
            let before = file.bytes();
            file.pop();
            self.accounts.change(file.uid, before, file.bytes());
        }
    }

    /// A program writes a message in several packets. Returns whether its user may have so many
    /// bytes here, which then count for the user until [`Mads::has_written`].
    pub(crate) fn begins_to_write(&mut self, uid: u32, bytes: usize) -> bool {
        let may = self.accounts.has_room(uid, bytes);
        if may {
            self.accounts.change(uid, 0, bytes);
        }
        may
    }

    /// The message of [`Mads::begins_to_write`] is whole, or will never be.
    pub(crate) fn has_written(&mut self, uid: u32, bytes: usize) {
        self.accounts.change(uid, bytes, 0);
    }

    /// Removes a file with its registrations.
    fn forget(&mut self, name: u32) {
        let Some(file) = self.files.remove(&name) else { return };
        self.keys.remove(&file.key);
        self.accounts.change(file.uid, file.bytes(), 0);
        for agent in file.agents() {
            self.unregister(file.uid, file.at, agent);
        }
    }

    fn unregister(&mut self, uid: u32, at: PortId, agent: Registration) {
        let registered = self.ports.get_mut(&at).and_then(|port| port.unregister(agent));
        self.accounts.change(uid, registered.map_or(0, |it| it.counted), 0);
    }

    /// The user of a registration; 0 if it is the agent's own.
    fn user_of(&self, owner: port::RegistrationOwner) -> u32 {
        match owner {
            port::RegistrationOwner::File(name, _) => self.files.get(&name).map_or(0, |file| file.uid),
            port::RegistrationOwner::Manager | port::RegistrationOwner::Asker => 0,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Carries some of the datagrams that are on their way, and finds the next timer.
    fn settle(&mut self, world: &mut World) {
        for _ in 0..BATCH {
            let Some(datagram) = self.travelling.pop() else { break };
            self.travel(world, datagram);
            self.advance_fabric(world);
        }
        self.advance_fabric(world);
        self.renew_paths(world);
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
        let manager = self.managers.iter().filter_map(OwnManager::next);
        let timers = timers.chain(self.devices.values().filter_map(|device| device.node.samples.deadline()));
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
        if let Some(fabric) = &mut self.fabric {
            fabric.add(present);
        }
        self.find_next();
    }

    fn remove(&mut self, _world: &World, device: usize) {
        self.devices.take(device);
        if let Some(fabric) = &mut self.fabric {
            fabric.remove(device);
        }
        let files = self.files.iter().filter(|(_, file)| file.at.device == device);
        let files: Vec<u32> = files.map(|(file, _)| *file).collect();
        for file in files {
            self.forget(file);
            self.results.gone.push(file);
        }
        let ports = self.ports.extract_if(PortId { device, port: 0 }..=PortId { device, port: u8::MAX }, |_, _| true);
        for (_, port) in ports {
            self.results.gone.extend(port.manager.into_iter().chain(port.candidates));
        }
        self.find_next();
    }
}
