//! Hosts in simulated time: agents, engines and the network between them. One seed decides
//! everything that happens.
//!
//! A [`Simulation`] is one thread without a clock. Packets, timers, the turns of engines and the
//! [alarms](Simulation::alarm) of the caller are events in a queue. The seed decides when each
//! event comes, and time jumps from one event to the next. The engines are the real ones, with
//! their lanes, notifiers and state machines. Only their helper threads are missing: each turn of
//! such a thread is an event. A seed always gives the same events, to the last byte of the last
//! packet ([`Simulation::digest`] shows it). So a failure can be repeated as often as necessary,
//! with more and more details ([`Simulation::watch`]).
//!
//! Between two calls of [`Simulation::step`] programs call verbs as usual. They must not wait,
//! because nothing happens while they wait. So they poll completions, ask for events where the
//! descriptor does not block, and leave `wait` to real time.
//!
//! This example tests a program's own protocol: two programs, a network that harms a twentieth of
//! the packets in each way, a hundred seeds.
//!
//! ```
//! use std::time::Duration;
//! use fabric::simulation::{Conditions, Simulation};
//!
//! fn greets(seed: u64) -> Result<u64, Box<dyn std::error::Error>> {
//!     let mut simulation = Simulation::new(seed);
//!     simulation.set_conditions(Conditions::all(0.05));
//!     let (one, two) = (simulation.host("10.0.0.1")?, simulation.host("10.0.0.2")?);
//!     let (here, there) = (simulation.open(one)?, simulation.open(two)?);
//!
//!     let (a, b) = (here.cq(16)?, there.cq(16)?);
//!     let (pd_a, pd_b) = (here.pd()?, there.pd()?);
//!     let (left, right) = (pd_a.reliable(&a).build()?, pd_b.reliable(&b).build()?);
//!     right.receive(1, pd_b.buffer(64)?)?;
//!     let (to_left, to_right) = (left.endpoint(), right.endpoint());
//!     let (left, _right) = (left.connect(&to_right)?, right.connect(&to_left)?);
//!
//!     left.send_inline(2, b"across", None)?;
//!     let mut come = None;
//!     let in_time = simulation.run_until(Duration::from_secs(2), || {
//!         come = b.poll().expect("a device");
//!         come.is_some()
//!     });
//!     assert!(in_time, "seed {seed}: nothing came");
//!     assert_eq!(come.expect("a completion").ok()?.data(), b"across", "seed {seed}");
//!     Ok(simulation.digest())
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! for seed in 0..100 {
//!     greets(seed)?;
//! }
//! assert_eq!(greets(7)?, greets(7)?, "a seed is a whole story");
//! # Ok(()) }
//! ```

mod attention;
mod core;
mod dice;
mod link_packet;
mod memory;
mod network;
mod on_subnet;
mod streams;
mod subnet;
mod trace;
mod turns;

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use agent::config::WireMode;
use agent::{Config, Stepped};
use engine::{Engine, Error, Simulated, by_system};
use softhca::{Context, Gid};

use crate::StartError;
use crate::simulation::dice::Dice;
use attention::Attention;
pub use core::Conditions;
use core::{Core, Event, Managed};
pub use memory::Memory;
use network::EnginePlug;
use streams::JoinedStream;
pub use streams::{StreamHarm, StreamId};
pub use trace::{Fate, Seen};

/// A host of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(usize);

/// The event of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Packets arrived at a host.
    Packets(HostId),
    /// An engine ran; the number is its position in the order of opening.
    Turn(usize),
    /// A host's connection manager ran.
    Managed(HostId),
    /// Bytes of a TCP connection, or its end, arrived at a host.
    Bytes(HostId),
    /// Something happened in the InfiniBand subnet.
    Subnet,
    /// An alarm's time has come.
    Alarm(u64),
}

/// Hosts, the network between them, and their time.
pub struct Simulation {
    core: Arc<Core>,
    seed: u64,
    hosts: Vec<SimulatedHost>,
    programs: Vec<Program>,
    /// Decides when engines run.
    turns: Dice,
    /// Random numbers for the caller.
    chance: Dice,
    /// Time and random numbers of the connection managers.
    managed: Arc<Managed>,
    /// Which engines and hosts were woken.
    attention: Attention,
    /// The TCP connections of iWARP.
    streams: Vec<JoinedStream>,
}

/// An agent, its addresses, and the next turn of its connection manager.
struct SimulatedHost {
    agent: Arc<Stepped>,
    gids: Vec<Gid>,
    turn: Turn,
}

/// An engine and its next turn.
struct Program {
    host: usize,
    engine: Weak<Engine>,
    turn: Turn,
}

/// The time of the next turn, and whether there is work for it.
#[derive(Default)]
struct Turn {
    at: Option<u64>,
    soon: bool,
}

impl Simulation {
    /// A simulation without hosts, and with a network that loses nothing.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Each kind of decision has its own sequence, so that one more decision of one kind does
        // not change the others.
        let mut dice = Dice::new(seed);
        let core = Arc::new(Core::new(Dice::new(dice.next()), Dice::new(dice.next())));
        let (turns, chance) = (Dice::new(dice.next()), Dice::new(dice.next()));
        let managed = Arc::new(Managed::new(&core, Dice::new(dice.next())));
        let (hosts, programs, attention, streams) = Default::default();
        Self { core, seed, hosts, programs, turns, chance, managed, attention, streams }
    }

    /// The seed of the simulation.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a host with this address and one device.
    ///
    /// # Errors
    /// The address is invalid or belongs to another host, or the system has no memory or
    /// descriptors left.
    pub fn host(&mut self, address: &str) -> Result<HostId, StartError> {
        self.host_with(&[address], &Config::default())
    }

    /// Adds a host with these addresses; `config` sets its devices and limits.
    ///
    /// # Errors
    /// The errors of [`Simulation::host`], or the configuration is invalid.
    pub fn host_with(&mut self, addresses: &[&str], config: &Config) -> Result<HostId, StartError> {
        let parse = |text: &&str| text.parse().map_err(|_| StartError::Address((*text).to_owned()));
        let addresses = addresses.iter().map(parse).collect::<Result<Vec<IpAddr>, _>>()?;
        let gids: Vec<Gid> = addresses.iter().copied().map(Gid::from).collect();
        for (address, gid) in addresses.iter().zip(&gids) {
            if self.core.place(gid).is_some() {
                return Err(StartError::Twice(*address));
            }
        }
        let number = self.hosts.len();
        let config = Config { addresses, wire: WireMode::External, ..config.clone() };
        let plug = Arc::new(EnginePlug::new(&self.core, number, &gids));
        let managed = Arc::clone(&self.managed) as Arc<dyn Simulated>;
        let agent = Stepped::new(&config, &format!("host {number} of a simulation"), plug, managed)?;
        let (epoll, token) = self.attention.of_host(number).map_err(agent::StartError::from)?;
        agent.watch(epoll, token).map_err(agent::StartError::from)?;
        self.core.add_places(&gids, number);
        self.hosts.push(SimulatedHost { agent: Arc::new(agent), gids, turn: Turn::default() });
        self.attention.look_at_host(number);
        Ok(HostId(number))
    }

    /// Opens a host's device.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn open(&mut self, host: HostId) -> Result<Context, softhca::Error> {
        Context::over(self.connect(host)?)
    }

    /// A new engine on a host's device, for callers that pass raw addresses.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn connect(&mut self, host: HostId) -> Result<Arc<Engine>, Error> {
        let SimulatedHost { agent, gids, .. } = &self.hosts[host.0];
        let plug = Arc::new(EnginePlug::new(&self.core, host.0, gids));
        let control = agent.connect(0, plug, Arc::clone(&self.core) as Arc<dyn Simulated>)?;
        let engine = Engine::open(Box::new(control))?;
        let (epoll, token) = self.attention.of_engine(self.programs.len()).map_err(by_system)?;
        engine.watch(epoll, token).map_err(by_system)?;
        self.programs.push(Program { host: host.0, engine: Arc::downgrade(&engine), turn: Turn::default() });
        // Peers notify only a sleeper that has slept once.
        self.turn_soon(self.programs.len() - 1);
        Ok(engine)
    }

    /// A new event channel of a host's connection manager. Ask for its events with
    /// [`cm::Channel::try_event`], because the caller of a simulation must not wait.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn manager(&mut self, host: HostId) -> Result<cm::Channel, Error> {
        let (control, event_socket) = self.hosts[host.0].agent.connect_manager()?;
        Ok(cm::Channel::over(Box::new(control), event_socket))
    }

    /// Sets what the network and the hosts' processors do to programs from now on.
    pub fn set_conditions(&mut self, conditions: Conditions) {
        self.core.state.lock().conditions = conditions;
    }

    /// Cuts a host's cable, or repairs it. While it is cut, packets from and to the host are lost,
    /// also those in flight. On a subnet, cut the cables of the model instead.
    pub fn cut(&mut self, host: HostId, cut: bool) {
        let mut state = self.core.state.lock();
        if cut {
            state.cut.insert(host.0);
        } else {
            state.cut.remove(&host.0);
        }
    }

    /// Cuts one address off, or repairs it. While it is cut, packets from and to it are lost;
    /// packets of the host's other addresses are not.
    pub fn cut_path(&mut self, address: IpAddr, cut: bool) {
        let mut state = self.core.state.lock();
        if cut {
            state.cut_paths.insert(Gid::from(address));
        } else {
            state.cut_paths.remove(&Gid::from(address));
        }
    }

    /// Takes the port of a host's device down, or makes it active.
    pub fn set_port(&mut self, host: HostId, up: bool) {
        self.hosts[host.0].agent.set_port(0, 1, up);
    }

    /// Simulated time since the beginning.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.core.now())
    }

    /// Makes [`Simulation::step`] return [`Happened::Alarm`] with this token after a time.
    pub fn alarm(&mut self, after: Duration, token: u64) {
        let at = self.core.now().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        self.core.state.lock().push(at, Event::Alarm(token));
    }

    /// A random number below `bound` (0 if `bound` is 0) that the seed decides: for decisions of
    /// the programs.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    /// Whether an event with this probability (0 to 1) happens now.
    pub fn happens(&mut self, part: f64) -> bool {
        self.chance.happens(part)
    }

    /// Adds something that the programs have seen, such as a completion, to the digest.
    pub fn note(&mut self, words: &[u64]) {
        self.core.see(&Seen::Noted(words));
    }

    /// A number computed from everything that has happened so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.core.state.lock().trace.digest()
    }

    /// Calls `watcher` with every event from now on, with its time.
    pub fn watch(&mut self, watcher: impl FnMut(Duration, &Seen<'_>) + Send + 'static) {
        self.core.state.lock().trace.watch(Box::new(watcher));
    }

    /// Number of packets to and from a QP of a host's address that were lost, damaged, repeated or
    /// late so far.
    #[must_use]
    pub fn harmed(&self, host: HostId, qpn: u32) -> u64 {
        self.core.state.lock().harmed.get(&(host.0, qpn)).copied().unwrap_or(0)
    }

    /// Executes the next event; `None` if there are no more events until a program does something.
    pub fn step(&mut self) -> Option<Happened> {
        self.step_until(u64::MAX)
    }

    /// Executes the next event, if it is not after `end`.
    fn step_until(&mut self, end: u64) -> Option<Happened> {
        self.carry_streams();
        self.wake();
        loop {
            if self.advance_subnet(end) {
                return Some(Happened::Subnet);
            }
            if self.core.next_at()? > end {
                return None;
            }
            let (at, event) = self.core.next()?;
            match event {
                Event::Packets { to, packets } => {
                    self.core.advance(at);
                    if self.core.arrives(to, &packets) {
                        self.hosts[to].agent.forwarder().take(&packets.incoming());
                    }
                    return Some(Happened::Packets(HostId(to)));
                }
                Event::Bytes { stream, from, bytes } => {
                    self.core.advance(at);
                    return Some(Happened::Bytes(self.arrive(stream, from, &bytes)));
                }
                Event::Reset { stream, from } => {
                    self.core.advance(at);
                    return Some(Happened::Bytes(self.arrive_reset(stream, from)));
                }
                Event::Alarm(token) => {
                    self.core.advance(at);
                    self.core.see(&Seen::Alarm(token));
                    return Some(Happened::Alarm(token));
                }
                // A turn that was moved to an earlier time is void.
                Event::Turn(number) if self.programs[number].turn.at == Some(at) => {
                    self.core.advance(at);
                    self.take_turn(number);
                    return Some(Happened::Turn(number));
                }
                Event::Managed(host) if self.hosts[host].turn.at == Some(at) => {
                    self.core.advance(at);
                    self.manage(host);
                    return Some(Happened::Managed(HostId(host)));
                }
                Event::Turn(_) | Event::Managed(_) => {}
            }
        }
    }

    /// Executes events until `done` returns true; it is called after each. Returns whether that was
    /// before `limit` was over and before the events ended.
    pub fn run_until(&mut self, limit: Duration, mut done: impl FnMut() -> bool) -> bool {
        let end = self.now() + limit;
        loop {
            if done() {
                return true;
            }
            if self.now() > end || self.step().is_none() {
                return false;
            }
        }
    }

    /// Executes all events within a time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.core.now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        while self.step_until(end).is_some() {}
        self.core.advance(end);
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        for engine in self.programs.iter().filter_map(|program| program.engine.upgrade()) {
            engine.close();
        }
    }
}

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Simulation(seed {}, {} hosts, {:?})", self.seed, self.hosts.len(), self.now())
    }
}
