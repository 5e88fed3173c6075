//! The subnet manager: what it is told, what it asks, and in which order. Principal type:
//! [`Manager`].
//!
//! ```text
//!   receive(from, datagram, now)   handle_timeout(now)       poll_transmit()   poll_event()
//!          │                              │                        ▲                ▲
//!   asker: answers, retries ── phase over? ── next phase ── requests of the phase ──┘
//!          │
//!   discovery (builds an Inventory), election (SMInfo), configure (what is to be set)
//! ```
//! A heavy sweep goes through the phases of [`Phase`] in order. Each phase makes the requests of
//! one node after the other, from the difference between the inventory and what is wanted. So a
//! sweep in which nothing has changed sets nothing.

mod asker;
mod configure;
mod discovery;
mod election;
mod finish;
mod guids;
mod inherited;
mod lanes;
mod port_settings;
mod store;
mod tables;
mod told;
mod traps;

use crate::address::{Address, Transmit};
use crate::config::{Config, Timing};
use crate::event::{Event, Problem};
use crate::inventory::{Inventory, Member, PortId};
use crate::lids::LidMap;
use asker::Asker;
use configure::Plan;
use election::Role;
use inherited::Inherited;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use told::Told;
use wire::mad::{CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, Header, METHOD_GET, METHOD_SET, METHOD_TRAP, Mad, RESPONSE};
use wire::notice::Notice;
use wire::smp::{SmInfo, SmState, Smp};

/// Events and answers that wait for the caller. More of what peers cause are dropped.
const MOST_WAITING: usize = 4096;
/// One change in the subnet causes several traps. The sweep waits for them.
const TRAP_DELAY: Duration = Duration::from_millis(10);
/// How often discovery begins anew at most, so that a link that changes all the time does not keep
/// it from ending.
const MOST_RESTARTS: u32 = 3;

/// The phases of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// No sweep.
    Idle,
    /// A light sweep: has a switch seen a change?
    Light,
    /// Nodes and links are found.
    Discover,
    /// Another manager is asked to be the master.
    Handover,
    /// The multicast tables of the manager before are read.
    Inherit,
    /// P_Key tables.
    PKeys,
    /// LIDs, and what both ends of a link can do.
    Ports,
    /// SwitchInfo and linear tables.
    Switches,
    /// Service levels and arbitration.
    Qos,
    /// GUID tables of ports.
    Guids,
    /// Multicast tables.
    Multicast,
    /// Links go from INIT to ARMED.
    Arm,
    /// Links go from ARMED to ACTIVE.
    Activate,
    /// The subnet is up. Tables that were not set are read.
    Lanes,
}

/// Where the sweep is.
#[derive(Debug)]
struct Sweep {
    phase: Phase,
    /// The nodes whose requests of this phase were not made yet.
    todo: VecDeque<u64>,
    /// Something has changed since the sweep began.
    again: bool,
    /// The next sweep is a heavy one.
    heavy: bool,
    errors: usize,
    /// How often discovery has begun anew since it was complete.
    restarts: u32,
    /// Something was set that is more than a notice taken.
    changes: bool,
    /// When this sweep began, or the last one.
    began: Duration,
    /// When the next sweep or poll begins.
    next: Option<Duration>,
}

/// What subnet administration wants.
#[derive(Debug, Default)]
struct Wishes {
    /// The members of each multicast LID.
    groups: BTreeMap<u16, Vec<Member>>,
    /// The alias GUIDs of each end port.
    aliases: BTreeMap<PortId, Vec<u64>>,
    /// They are other than at the last sweep.
    changed: bool,
}

/// A subnet manager.
#[derive(Debug)]
pub struct Manager {
    config: Config,
    /// The GUID of its port.
    guid: u64,
    own: Option<PortId>,
    role: Role,
    asker: Asker,
    transmit: VecDeque<Transmit>,
    events: VecDeque<Event>,
    inventory: Inventory,
    /// What the sweep has found so far.
    found: Inventory,
    epoch: u64,
    sweep: Sweep,
    plan: Plan,
    lids: LidMap,
    wishes: Wishes,
    inherited: Inherited,
    told: Told,
    /// The GUIDs of the ports that can be reached.
    in_service: BTreeSet<u64>,
    is_up: bool,
    now: Duration,
}

impl Manager {
    /// A manager at the port with this GUID. `transaction` is its first transaction id: a random
    /// number, so that no peer can guess the ids. The manager begins with
    /// [`Manager::handle_timeout`].
    #[must_use]
    pub fn new(config: Config, guid: u64, transaction: u64) -> Manager {
        let next = Some(Duration::ZERO);
        Manager {
            config,
            guid,
            own: None,
            role: Role::default(),
            asker: Asker::new(transaction),
            transmit: VecDeque::new(),
            events: VecDeque::new(),
            inventory: Inventory::default(),
            found: Inventory::default(),
            epoch: 0,
            sweep: Sweep {
                phase: Phase::Idle,
                todo: VecDeque::new(),
                again: false,
                heavy: true,
                errors: 0,
                restarts: 0,
                changes: false,
                began: Duration::ZERO,
                next,
            },
            plan: Plan::default(),
            lids: LidMap::new(),
            wishes: Wishes::default(),
            inherited: Inherited::default(),
            told: Told::default(),
            in_service: BTreeSet::new(),
            is_up: false,
            now: Duration::ZERO,
        }
    }

    /// Takes the LIDs that an earlier manager has given. Call it before the manager begins.
    pub fn set_lids(&mut self, map: LidMap) {
        self.lids = map;
    }

    /// The multicast groups by their LIDs. If they differ from those before, the trees are computed
    /// and set at the next [`Manager::handle_timeout`].
    pub fn set_groups(&mut self, groups: BTreeMap<u16, Vec<Member>>) {
        if groups != self.wishes.groups {
            self.wishes.groups = groups;
            self.wishes.changed = true;
        }
    }

    /// Whether the switches have the trees of the groups that the manager was given last.
    #[must_use]
    pub fn trees_are_set(&self) -> bool {
        !self.wishes.changed && !matches!(self.sweep.phase, Phase::Guids | Phase::Multicast)
    }

    /// The alias GUIDs of end ports, by their index in the port's GUID table. They are set at the
    /// next [`Manager::handle_timeout`]. The table of a port that is not among them stays as it is.
    pub fn set_aliases(&mut self, aliases: BTreeMap<PortId, Vec<u64>>) {
        if aliases != self.wishes.aliases {
            self.wishes.aliases = aliases;
            self.wishes.changed = true;
        }
    }

    /// Begins a heavy sweep as soon as possible.
    pub fn sweep_now(&mut self) {
        self.want_sweep(self.now);
    }

    /// What the manager knows of the subnet.
    #[must_use]
    pub const fn inventory(&self) -> &Inventory {
        &self.inventory
    }

    /// A number that changes with the inventory.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The operator's choices.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// The manager's port, once it has found it.
    #[must_use]
    pub const fn own_port(&self) -> Option<PortId> {
        self.own
    }

    /// The state among the managers of the subnet.
    #[must_use]
    pub const fn state(&self) -> SmState {
        self.role.state
    }

    /// Whether it is the master and a sweep is complete: then subnet administration can answer.
    #[must_use]
    pub const fn is_up(&self) -> bool {
        self.is_up
    }

    /// Whether no sweep runs.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.sweep.phase == Phase::Idle
    }

    /// Handles a datagram that has arrived for QP 0, and that no agent serves. Others are ignored.
    pub fn receive(&mut self, from: Address, mad: &Mad, now: Duration) {
        self.now = self.now.max(now);
        let header = Header::of(mad);
        let is_gsi = matches!(from, Address::Lid { qp, .. } if qp != 0);
        if is_gsi || !matches!(header.class, CLASS_SUBN_LID | CLASS_SUBN_DIRECTED) {
            return;
        }
        let smp = Smp::parse(mad);
        match (smp.method, smp.attribute) {
            (method, _) if method & RESPONSE != 0 => {
                if let Some(request) = self.asker.answer(&header) {
                    self.answered(&request, &smp);
                }
            }
            (METHOD_GET | METHOD_SET, SmInfo::ATTRIBUTE) => self.asked(from, &smp),
            (METHOD_TRAP, Notice::ATTRIBUTE) => self.trap(from, &smp),
            _ => return,
        }
        self.work();
    }

    /// Does what is due at `now`.
    pub fn handle_timeout(&mut self, now: Duration) {
        self.now = self.now.max(now);
        if self.loses_its_way() {
            self.sweep.restarts += 1;
            self.asker.clear();
            self.begin_heavy();
        }
        // The next sweep, which is already wanted, sets what these requests have not set.
        let give_up = self.sweep.again && self.sweep.phase > Phase::Handover;
        while let Some(request) = self.asker.expire(self.now, give_up, &mut self.transmit) {
            self.unanswered(&request);
        }
        if self.sweep.phase == Phase::Idle && self.sweep.next.is_some_and(|next| next <= self.now) {
            self.sweep.next = None;
            match self.role.state {
                SmState::NotActive => {}
                SmState::Standby => self.poll_master(),
                SmState::Master if !self.sweep.heavy => self.begin_light(),
                SmState::Master | SmState::Discovering => self.begin_heavy(),
            }
        }
        self.tell_what_is_due();
        self.end_inheritance();
        if self.wishes_are_due() {
            self.enter(Phase::Guids);
        }
        self.work();
    }

    /// When [`Manager::handle_timeout`] has something to do.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let next = self.sweep.next.filter(|_| self.sweep.phase == Phase::Idle);
        let wishes = self.wishes_are_due().then_some(self.now);
        [next, wishes, self.told.due(), self.inherited.until, self.asker.deadline()].into_iter().flatten().min()
    }

    /// The next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmit.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    fn wishes_are_due(&self) -> bool {
        self.wishes.changed && self.is_up && self.sweep.phase == Phase::Idle
    }

    /// Makes requests, sends them, and goes on to the next phase when all are answered.
    fn work(&mut self) {
        loop {
            if self.sweep.phase == Phase::Lanes && (self.sweep.again || self.wishes.changed) {
                self.sweep.todo.clear();
            }
            while self.asker.queued() < MOST_QUEUED {
                let Some(guid) = self.sweep.todo.pop_front() else { break };
                for request in self.requests(guid) {
                    self.sweep.changes |= request.is_change();
                    self.asker.push(request);
                }
            }
            self.asker.pump(&self.config.timing, self.config.mkey.key, self.now, &mut self.transmit);
            let done = self.asker.is_idle() && self.sweep.todo.is_empty();
            if !done || self.sweep.phase == Phase::Idle {
                return;
            }
            self.phase_over();
        }
    }

    /// Whether the subnet has changed during discovery, and requests are lost, maybe on a link that
    /// is cut. Then discovery begins anew, instead of repeating these requests.
    fn loses_its_way(&self) -> bool {
        let changed = self.sweep.phase == Phase::Discover && self.sweep.again;
        changed && self.sweep.restarts < MOST_RESTARTS && self.asker.is_late(self.now)
    }

    fn begin_light(&mut self) {
        self.sweep.phase = Phase::Light;
        self.sweep.todo = self.switches();
    }

    fn begin_heavy(&mut self) {
        // Discovery that begins anew belongs to the same sweep.
        if self.sweep.phase != Phase::Discover {
            self.sweep.began = self.now;
        }
        self.sweep.again = false;
        self.sweep.heavy = false;
        self.sweep.errors = 0;
        self.sweep.changes = false;
        self.sweep.todo.clear();
        self.told.forget_problems();
        self.sweep.phase = Phase::Discover;
        self.discover();
    }

    /// A heavy sweep shall begin at a time, or after the one that runs.
    fn want_sweep(&mut self, at: Duration) {
        self.sweep.again = true;
        self.sweep.heavy = true;
        if matches!(self.role.state, SmState::Master | SmState::Discovering) {
            self.sweep.next = Some(self.sweep.next.map_or(at, |next| next.min(at)));
        }
    }

    fn switches(&self) -> VecDeque<u64> {
        let switches = self.inventory.nodes.iter().filter(|(_, node)| node.switch.is_some());
        switches.map(|(guid, _)| *guid).collect()
    }

    /// Ends all that runs.
    fn stop(&mut self) {
        self.asker.clear();
        self.sweep.todo.clear();
        self.sweep.phase = Phase::Idle;
        self.sweep.next = None;
    }

    fn event(&mut self, event: Event) {
        if self.events.len() < MOST_WAITING {
            self.events.push_back(event);
        }
    }

    /// Tells of the last sweep, if the caller did not hear of another one just now.
    fn tell_what_is_due(&mut self) {
        if let Some(up) = self.told.poll(self.now) {
            self.event(Event::Up(up));
        }
    }

    /// Something is wrong.
    fn problem(&mut self, problem: Problem) {
        if self.told.is_new(&problem) {
            self.event(Event::Problem(problem));
        }
    }

    /// A datagram that a peer has caused.
    fn reply(&mut self, to: Address, smp: &Smp) {
        if self.transmit.len() < MOST_WAITING {
            self.transmit.push_back(Transmit { to, mad: smp.to_mad() });
        }
    }

    const fn timing(&self) -> &Timing {
        &self.config.timing
    }
}

/// Requests that are made ahead of being sent.
const MOST_QUEUED: usize = 1024;
