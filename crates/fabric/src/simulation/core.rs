//! What all parts of a simulation share: its time, its queue of events, and its conditions. Principal types: [`Core`], [`Conditions`].

use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::Simulated;
use parking_lot::Mutex;
use softhca::Gid;

use super::network::Packets;
use super::trace::{Seen, Trace};
use crate::simulation::dice::Dice;

/// When a simulation begins: some code takes 0 for never.
const DAWN: u64 = 1_000_000;

/// What the network and the hosts' processors do to programs. Parts are parts of 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// Packets that vanish.
    pub loss: f64,
    /// Packets that come twice, the second time late.
    pub duplication: f64,
    /// Packets that come late: others overtake them.
    pub reordering: f64,
    /// Packets of which one bit is another.
    pub corruption: f64,
    /// How long a packet is under way: at least, and at most if it is not late. Packets that are not late do not overtake each other.
    pub delay: (Duration, Duration),
    /// How late packets can be, beyond that.
    pub lateness: Duration,
    /// Bursts that do not stay together: their packets come one by one.
    pub scattering: f64,
    /// How often an engine that has something to do does not get the processor for a while.
    pub pauses: f64,
    /// How long that can be.
    pub pause: Duration,
}

impl Default for Conditions {
    /// Nothing goes wrong, and a packet takes two microseconds or three.
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            corruption: 0.0,
            delay: (Duration::from_micros(2), Duration::from_micros(3)),
            lateness: Duration::from_micros(500),
            scattering: 0.25,
            pauses: 0.01,
            pause: Duration::from_micros(300),
        }
    }
}

impl Conditions {
    /// Packets are lost, repeated, late and damaged, each as often.
    #[must_use]
    pub fn all(part: f64) -> Self {
        Self { loss: part, duplication: part, reordering: part, corruption: part, ..Self::default() }
    }
}

/// What is to happen.
pub(super) enum Event {
    /// Packets come to a host.
    Packets { to: usize, packets: Packets },
    /// An engine may have its turn.
    Turn(usize),
    /// A host's connection manager may have its turn.
    Managed(usize),
    /// The one who simulates is told.
    Alarm(u64),
}

struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    /// The nearest is the greatest; of those at once the one that was put in first.
    fn cmp(&self, other: &Self) -> Order {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Order::Equal
    }
}

impl Eq for Entry {}

/// What may change with each event.
pub(super) struct State {
    queue: BinaryHeap<Entry>,
    entries: u64,
    pub(super) conditions: Conditions,
    /// Decides what becomes of packets.
    pub(super) dice: Dice,
    /// Hosts whose cable is cut.
    pub(super) cut: BTreeSet<usize>,
    /// Addresses that nothing reaches or leaves.
    pub(super) cut_paths: BTreeSet<Gid>,
    pub(super) places: BTreeMap<Gid, usize>,
    /// When the last packet that is not late comes from one host to another.
    pub(super) last: BTreeMap<(usize, usize), u64>,
    pub(super) ports: u16,
    /// Packets that came to harm, by host and QP to which they went.
    pub(super) harmed: BTreeMap<(usize, u32), u64>,
    pub(super) trace: Trace,
}

impl State {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.entries += 1;
        self.queue.push(Entry { at, number: self.entries, event });
    }
}

/// The middle of a simulation.
pub(super) struct Core {
    now: AtomicU64,
    /// What engines ask for.
    chance: Mutex<Dice>,
    pub(super) state: Mutex<State>,
}

impl Core {
    pub(super) fn new(packets: Dice, chance: Dice) -> Self {
        let state = State {
            queue: BinaryHeap::new(),
            entries: 0,
            conditions: Conditions::default(),
            dice: packets,
            cut: BTreeSet::new(),
            cut_paths: BTreeSet::new(),
            places: BTreeMap::new(),
            last: BTreeMap::new(),
            ports: 0,
            harmed: BTreeMap::new(),
            trace: Trace::new(),
        };
        Self { now: AtomicU64::new(DAWN), chance: Mutex::new(chance), state: Mutex::new(state) }
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Time never goes back.
    pub(super) fn advance(&self, to: u64) {
        self.now.fetch_max(to, Ordering::Relaxed);
    }

    /// Takes the next event out.
    pub(super) fn next(&self) -> Option<(u64, Event)> {
        self.state.lock().queue.pop().map(|entry| (entry.at, entry.event))
    }

    /// When that is.
    pub(super) fn next_at(&self) -> Option<u64> {
        self.state.lock().queue.peek().map(|entry| entry.at)
    }

    pub(super) fn see(&self, seen: &Seen<'_>) {
        let now = self.now();
        self.state.lock().trace.add(now, seen);
    }

    /// The host that has an address.
    pub(super) fn place(&self, gid: &Gid) -> Option<usize> {
        self.state.lock().places.get(gid).copied()
    }

    pub(super) fn add_places(&self, gids: &[Gid], host: usize) {
        self.state.lock().places.extend(gids.iter().map(|gid| (*gid, host)));
    }
}

impl Simulated for Core {
    fn now(&self) -> u64 {
        self.now()
    }

    fn chance(&self) -> u64 {
        self.chance.lock().next()
    }
}

/// Time and chance of the connection managers. What they draw is a sequence of its own.
pub(super) struct Managed {
    core: Arc<Core>,
    chance: Mutex<Dice>,
}

impl Managed {
    pub(super) fn new(core: &Arc<Core>, chance: Dice) -> Self {
        Self { core: Arc::clone(core), chance: Mutex::new(chance) }
    }
}

impl Simulated for Managed {
    fn now(&self) -> u64 {
        self.core.now()
    }

    fn chance(&self) -> u64 {
        self.chance.lock().next()
    }
}
