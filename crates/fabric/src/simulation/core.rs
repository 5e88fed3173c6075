//! The shared parts of a simulation: its time, its queue of events, and its conditions. Principal
//! types: [`Core`], [`Conditions`].

use std::cmp::Ordering as Order;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::Simulated;
use parking_lot::Mutex;
use softhca::Gid;

use super::network::Packets;
use super::subnet::Links;
use super::trace::{Seen, Trace};
use crate::simulation::dice::Dice;

/// The time at which a simulation begins. It is not 0, because some code treats 0 as never.
const DAWN: u64 = 1_000_000;

/// What the network and the hosts' processors do to programs. Probabilities are from 0 to 1. An
/// InfiniBand subnet has faults of its own, so only the pauses concern hosts on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Conditions {
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet comes twice, the second time late.
    pub duplication: f64,
    /// Probability that a packet is late: later packets arrive first.
    pub reordering: f64,
    /// Probability that one bit of a packet is flipped.
    pub corruption: f64,
    /// Shortest and longest transfer time of a packet that is not late. Such packets keep their
    /// order.
    pub delay: (Duration, Duration),
    /// Maximum additional delay of late packets.
    pub extra_delay: Duration,
    /// Probability that a burst does not stay together: its packets arrive one by one.
    pub scattering: f64,
    /// Probability that an engine with work does not get the processor for a while.
    pub pauses: f64,
    /// Maximum length of such a pause.
    pub pause: Duration,
}

impl Default for Conditions {
    /// No faults; a packet takes two to three microseconds.
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplication: 0.0,
            reordering: 0.0,
            corruption: 0.0,
            delay: (Duration::from_micros(2), Duration::from_micros(3)),
            extra_delay: Duration::from_micros(500),
            scattering: 0.25,
            pauses: 0.01,
            pause: Duration::from_micros(300),
        }
    }
}

impl Conditions {
    /// Loss, duplication, reordering and corruption with the same probability.
    #[must_use]
    pub fn all(part: f64) -> Self {
        Self { loss: part, duplication: part, reordering: part, corruption: part, ..Self::default() }
    }
}

/// An event in the queue.
pub(super) enum Event {
    /// Packets arrive at a host.
    Packets { to: usize, packets: Packets },
    /// Bytes of a TCP connection arrive, or its end, if there are no bytes.
    Bytes { stream: usize, from: usize, bytes: Vec<u8> },
    /// One end of a TCP connection has reset it.
    Reset { stream: usize, from: usize },
    /// An engine may run.
    Turn(usize),
    /// A host's connection manager may run.
    Managed(usize),
    /// An alarm of the caller.
    Alarm(u64),
}

struct Entry {
    at: u64,
    number: u64,
    event: Event,
}

impl Ord for Entry {
    /// The nearest event is the greatest; at equal times the one that was queued first.
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

/// The state that events change.
pub(super) struct State {
    queue: BinaryHeap<Entry>,
    entries: u64,
    pub(super) conditions: Conditions,
    /// Decides the fates of packets.
    pub(super) dice: Dice,
    /// Hosts whose cable is cut.
    pub(super) cut: BTreeSet<usize>,
    /// Addresses that are cut off.
    pub(super) cut_paths: BTreeSet<Gid>,
    pub(super) places: BTreeMap<Gid, usize>,
    /// Arrival time of the last packet that is not late, by sending and receiving host.
    pub(super) last: BTreeMap<(usize, usize), u64>,
    pub(super) ports: u16,
    /// Number of harmed packets, by host and destination QP.
    pub(super) harmed: BTreeMap<(usize, u32), u64>,
    /// The TCP connections that engines have reset, by the inode of their socket.
    pub(super) resets: Vec<u64>,
    /// The InfiniBand subnet, if there is one.
    pub(super) links: Option<Links>,
    pub(super) trace: Trace,
}

impl State {
    pub(super) fn push(&mut self, at: u64, event: Event) {
        self.entries += 1;
        self.queue.push(Entry { at, number: self.entries, event });
    }
}

/// The state that all parts of a simulation share.
pub(super) struct Core {
    now: AtomicU64,
    /// Random numbers for the engines.
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
            resets: Vec::new(),
            links: None,
            trace: Trace::new(),
        };
        Self { now: AtomicU64::new(DAWN), chance: Mutex::new(chance), state: Mutex::new(state) }
    }

    pub(super) fn now(&self) -> u64 {
        self.now.load(Ordering::Relaxed)
    }

    /// Advances the time, which never goes back.
    pub(super) fn advance(&self, to: u64) {
        self.now.fetch_max(to, Ordering::Relaxed);
    }

    /// Removes the next event.
    pub(super) fn next(&self) -> Option<(u64, Event)> {
        self.state.lock().queue.pop().map(|entry| (entry.at, entry.event))
    }

    /// The time of the next event, here or in the subnet.
    pub(super) fn next_at(&self) -> Option<u64> {
        let queued = self.state.lock().queue.peek().map(|entry| entry.at);
        self.links_due().or(queued)
    }

    /// When something happens in the subnet, if that is before everything else.
    pub(super) fn links_due(&self) -> Option<u64> {
        let state = self.state.lock();
        let at = state.links.as_ref()?.next(self.now())?;
        state.queue.peek().is_none_or(|entry| at <= entry.at).then_some(at)
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

/// Time and random numbers of the connection managers, which have their own sequence.
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
