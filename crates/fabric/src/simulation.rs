//! Hosts in simulated time: agents, engines and the network between them, where one seed decides everything that happens.
//!
//! A [`Simulation`] is one thread without a clock. Packets, timers, the turns of engines and the [alarms](Simulation::alarm) of the one who
//! simulates are events in a queue; when each comes is decided by the seed, and time jumps from one to the next. The engines are those of real
//! time, with their lanes, notifiers and state machines: only their helper threads are missing, whose turns are events. What happens once with
//! a seed happens with it again, to the last byte of the last packet ([`Simulation::digest`] tells), so that a failure can be looked at as
//! often as one likes, with more and more said about it ([`Simulation::watch`]).
//!
//! Between two calls of [`Simulation::step`] programs call verbs as ever. They must not wait: nothing happens while they do. So
//! completions are polled, events are asked for where the descriptor does not block, and `wait` is for real time.
//!
//! A protocol of one's own is tested like this: two programs, a network that harms a twentieth of the packets in each way, a hundred seeds.
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

mod core;
mod dice;
mod memory;
mod network;
mod trace;

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use agent::config::Wire;
use agent::{Config, Stepped};
use engine::{Engine, Error, Simulated, Step};
use softhca::{Context, Gid};

use crate::StartError;
use crate::simulation::dice::Dice;
pub use core::Conditions;
use core::{Core, Event, Managed};
pub use memory::Memory;
use network::Plug;
pub use trace::{Fate, Seen};

/// The longest that an engine with something to do lets others go first, in nanoseconds, when it is not paused.
const TURN: u64 = 2_000;

/// A host of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(usize);

/// What happened in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// Packets came to a host.
    Packets(HostId),
    /// An engine, by its number in the order of opening, had its turn.
    Turn(usize),
    /// A host's connection manager had its turn.
    Managed(HostId),
    /// The time of an alarm has come.
    Alarm(u64),
}

/// Hosts, what is between them, and their time.
pub struct Simulation {
    core: Arc<Core>,
    seed: u64,
    hosts: Vec<Host>,
    programs: Vec<Program>,
    /// Decides when engines have their turns.
    turns: Dice,
    /// For the one who simulates.
    chance: Dice,
    /// What connection managers draw.
    managed: Arc<Managed>,
}

/// An agent, its addresses, and its connection manager's next turn.
struct Host {
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

/// When the next turn is, and whether that is because there is something to do.
#[derive(Default)]
struct Turn {
    at: Option<u64>,
    soon: bool,
}

impl Simulation {
    /// A simulation without hosts, between which nothing is lost.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Each kind of decision has a sequence of its own, so that one more of one kind does not change all others.
        let mut dice = Dice::new(seed);
        let core = Arc::new(Core::new(Dice::new(dice.next()), Dice::new(dice.next())));
        let (turns, chance) = (Dice::new(dice.next()), Dice::new(dice.next()));
        let managed = Arc::new(Managed::new(&core, Dice::new(dice.next())));
        Self { core, seed, hosts: Vec::new(), programs: Vec::new(), turns, chance, managed }
    }

    /// The seed that it was made with.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// One more host, with this address and one device.
    ///
    /// # Errors
    /// The address is none or another host's, or the system has no memory or descriptors left.
    pub fn host(&mut self, address: &str) -> Result<HostId, StartError> {
        self.host_with(&[address], &Config::default())
    }

    /// One more host, with these addresses; `config` says which devices and limits it has.
    ///
    /// # Errors
    /// As [`Simulation::host`], or the configuration makes no sense.
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
        let config = Config { addresses, wire: Wire::External, ..config.clone() };
        let plug = Arc::new(Plug::new(&self.core, number, &gids));
        let managed = Arc::clone(&self.managed) as Arc<dyn Simulated>;
        let agent = Stepped::new(&config, &format!("host {number} of a simulation"), plug, managed)?;
        self.core.add_places(&gids, number);
        self.hosts.push(Host { agent: Arc::new(agent), gids, turn: Turn::default() });
        Ok(HostId(number))
    }

    /// Opens a host's device.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn open(&mut self, host: HostId) -> Result<Context, softhca::Error> {
        Context::over(self.connect(host)?)
    }

    /// A new engine on a host's device, for who trusts himself with addresses.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn connect(&mut self, host: HostId) -> Result<Arc<Engine>, Error> {
        let Host { agent, gids, .. } = &self.hosts[host.0];
        let plug = Arc::new(Plug::new(&self.core, host.0, gids));
        let control = agent
            .connect(0, plug, Arc::clone(&self.core) as Arc<dyn Simulated>)
            .map_err(|refusal| Error { errno: refusal.errno, reason: refusal.reason })?;
        let engine = Engine::open(Box::new(control))?;
        self.programs.push(Program { host: host.0, engine: Arc::downgrade(&engine), turn: Turn::default() });
        // Peers ring who has gone to sleep once.
        self.turn_soon(self.programs.len() - 1);
        Ok(engine)
    }

    /// A new event channel of a host's connection manager. Its events are asked for by [`cm::Channel::try_event`], for who simulates must not
    /// wait.
    ///
    /// # Errors
    /// The agent's refusal.
    pub fn manager(&mut self, host: HostId) -> Result<cm::Channel, Error> {
        let (control, bell) = self.hosts[host.0]
            .agent
            .connect_manager()
            .map_err(|refusal| Error { errno: refusal.errno, reason: refusal.reason })?;
        Ok(cm::Channel::over(Box::new(control), bell))
    }

    /// What the network and the hosts' processors do to programs, from now on.
    pub fn set_conditions(&mut self, conditions: Conditions) {
        self.core.state.lock().conditions = conditions;
    }

    /// Cuts a host's cable, or mends it: packets from it and to it are lost meanwhile, those under way too.
    pub fn cut(&mut self, host: HostId, cut: bool) {
        let mut state = self.core.state.lock();
        if cut {
            state.cut.insert(host.0);
        } else {
            state.cut.remove(&host.0);
        }
    }

    /// Cuts one address off, or mends it: packets from it and to it are lost meanwhile, those of the host's other addresses are not.
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

    /// How long it has been going on, in simulated time.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.core.now())
    }

    /// Has [`Simulation::step`] say [`Happened::Alarm`] with this token after a time.
    pub fn alarm(&mut self, after: Duration, token: u64) {
        let at = self.core.now().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX));
        self.core.state.lock().push(at, Event::Alarm(token));
    }

    /// A number below `bound` (0 if that is 0), by the seed: for what the programs do.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.chance.below(bound)
    }

    /// Whether something that happens so often (parts of 1) happens now.
    pub fn happens(&mut self, part: f64) -> bool {
        self.chance.happens(part)
    }

    /// Makes something that the programs have seen part of the story, as a completion.
    pub fn note(&mut self, words: &[u64]) {
        self.core.see(&Seen::Noted(words));
    }

    /// A number that is made of everything that has happened so far.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.core.state.lock().trace.digest()
    }

    /// Has somebody look on: `watcher` gets everything from now on, with its time.
    pub fn watch(&mut self, watcher: impl FnMut(Duration, &Seen<'_>) + Send + 'static) {
        self.core.state.lock().trace.watch(Box::new(watcher));
    }

    /// How many packets to and from a QP of a host's address came to harm so far: lost, damaged, repeated or late.
    #[must_use]
    pub fn harmed(&self, host: HostId, qpn: u32) -> u64 {
        self.core.state.lock().harmed.get(&(host.0, qpn)).copied().unwrap_or(0)
    }

    /// The next thing happens; None if nothing will ever happen again unless a program does something.
    pub fn step(&mut self) -> Option<Happened> {
        self.wake();
        loop {
            let (at, event) = self.core.next()?;
            match event {
                Event::Packets { to, packets } => {
                    self.core.advance(at);
                    if self.core.arrives(to, &packets) {
                        self.hosts[to].agent.forwarder().take(&packets.incoming());
                    }
                    return Some(Happened::Packets(HostId(to)));
                }
                Event::Alarm(token) => {
                    self.core.advance(at);
                    self.core.see(&Seen::Alarm(token));
                    return Some(Happened::Alarm(token));
                }
                // A turn that has been put forward since is no turn any more.
                Event::Turn(number) if self.programs[number].turn.at == Some(at) => {
                    self.core.advance(at);
                    self.take_turn(number);
                    return Some(Happened::Turn(number));
                }
                Event::Managed(host) if self.hosts[host].turn.at == Some(at) => {
                    self.core.advance(at);
                    self.hosts[host].turn = Turn::default();
                    self.hosts[host].agent.step();
                    self.core.see(&Seen::Managed { host });
                    return Some(Happened::Managed(HostId(host)));
                }
                Event::Turn(_) | Event::Managed(_) => {}
            }
        }
    }

    /// Lets things happen until `done`, which is asked after each; says whether that was before `limit` was over, and before nothing was left
    /// to happen.
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

    /// Lets everything happen that happens within a time.
    pub fn run_for(&mut self, time: Duration) {
        let end = self.core.now().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        loop {
            self.wake();
            if self.core.next_at().is_none_or(|at| at > end) {
                break;
            }
            self.step();
        }
        self.core.advance(end);
    }

    fn take_turn(&mut self, number: usize) {
        let program = &mut self.programs[number];
        program.turn = Turn::default();
        let Some(engine) = program.engine.upgrade() else { return };
        let step = engine.step();
        self.core.see(&Seen::Turn { program: number, worked: step == Step::Worked });
        let now = self.core.now();
        match step {
            Step::Worked => self.turn_soon(number),
            Step::Sleeps(Some(at)) => self.turn_at(number, at.max(now + 1)),
            Step::Sleeps(None) => {}
        }
    }

    /// Engines that were rung have their turns, and connection managers to whom something has come, or whose time has.
    fn wake(&mut self) {
        for number in 0..self.programs.len() {
            let program = &self.programs[number];
            if !program.turn.soon && program.engine.upgrade().is_some_and(|engine| engine.is_rung()) {
                self.turn_soon(number);
            }
        }
        for number in 0..self.hosts.len() {
            let Host { agent, turn, .. } = &self.hosts[number];
            agent.bring_events();
            if turn.soon {
                continue;
            }
            let due = agent.due().map(|at| at.max(self.core.now() + 1));
            if agent.has_datagrams() {
                let at = self.soon();
                self.hosts[number].turn = Turn { at: Some(at), soon: true };
                self.core.state.lock().push(at, Event::Managed(number));
            } else if let Some(due) = due.filter(|due| turn.at.is_none_or(|at| *due < at)) {
                self.hosts[number].turn.at = Some(due);
                self.core.state.lock().push(due, Event::Managed(number));
            }
        }
    }

    /// When somebody who has something to do gets the processor.
    fn soon(&mut self) -> u64 {
        let (pauses, pause) = {
            let conditions = &self.core.state.lock().conditions;
            (conditions.pauses, u64::try_from(conditions.pause.as_nanos()).unwrap_or(u64::MAX))
        };
        let longest = if self.turns.happens(pauses) { pause } else { TURN };
        self.core.now() + 1 + self.turns.below(longest)
    }

    fn turn_soon(&mut self, number: usize) {
        let at = self.soon();
        self.programs[number].turn.soon = true;
        self.turn_at(number, at);
    }

    fn turn_at(&mut self, number: usize, at: u64) {
        self.programs[number].turn.at = Some(at);
        self.core.state.lock().push(at, Event::Turn(number));
    }

    /// The host on which an engine, by its number in the order of opening, runs.
    #[must_use]
    pub fn host_of(&self, program: usize) -> HostId {
        HostId(self.programs[program].host)
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
