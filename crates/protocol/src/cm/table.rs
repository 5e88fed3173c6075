//! Where the communication manager keeps its ids: by index, by our number, by the peer's numbers and by time, each without a
//! search. A change of state is one call here, so that no key and no timer outlives what it belongs to.
//! Principal type: [`Table`].

use super::entry::{Entry, Key};
use super::number::{INDEX_BITS, Numbers};
use super::{Config, Counts, Error, Id, State};
use crate::Time;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};

/// An index rests until so many others were given back, so that our numbers do not come again soon.
const FREE_AT_LEAST: usize = 256;
/// Below this nothing is given back to the system.
const SMALL: usize = 1024;

#[derive(Debug)]
struct Slot {
    generation: u32,
    entry: Option<Box<Entry>>,
}

/// All ids.
#[derive(Debug)]
pub(super) struct Table {
    limit: usize,
    numbers: Numbers,
    slots: Vec<Slot>,
    free: VecDeque<u32>,
    first_generation: u32,
    keys: HashMap<Key, u32, Keyed>,
    timers: BTreeSet<(Time, u32)>,
    used: usize,
    undecided: usize,
    resting: usize,
}

impl Table {
    /// An empty one.
    pub(super) fn new(config: &Config) -> Table {
        Table {
            limit: config.ids.min(1 << INDEX_BITS) as usize,
            numbers: Numbers::new(config.secret),
            slots: Vec::new(),
            free: VecDeque::new(),
            first_generation: 0,
            keys: HashMap::with_hasher(Keyed(config.secret)),
            timers: BTreeSet::new(),
            used: 0,
            undecided: 0,
            resting: 0,
        }
    }

    /// How much is in it.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            ids: self.used,
            undecided: self.undecided,
            resting: self.resting,
            timers: self.timers.len(),
            keys: self.keys.len(),
        }
    }

    /// Whether there is no room for another.
    pub(super) fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// Takes an entry in, and gives it our number. It is in no state yet that counts: [`Table::enter`] follows. `None`: there is no
    /// room, or no memory.
    pub(super) fn insert(&mut self, mut entry: Entry) -> Option<u32> {
        if self.is_full() || !self.reserve() {
            return None;
        }
        let grow = self.free.len() <= FREE_AT_LEAST && self.slots.len() < self.limit;
        let index = if grow {
            let index = u32::try_from(self.slots.len()).ok()?;
            self.slots.push(Slot { generation: self.first_generation, entry: None });
            index
        } else {
            self.free.pop_front()?
        };
        let slot = &mut self.slots[index as usize];
        // The number 0 means "none" in a REJ.
        if self.numbers.number(index, slot.generation) == 0 {
            slot.generation = slot.generation.wrapping_add(1);
        }
        entry.facts.local_comm_id = self.numbers.number(index, slot.generation);
        entry.facts.state = State::Idle;
        slot.entry = Some(Box::new(entry));
        self.used += 1;
        Some(index)
    }

    /// Has memory for one more entry: its slot, its place among the free ones and its two keys. Nothing grows elsewhere.
    fn reserve(&mut self) -> bool {
        let keys = 2 * (self.used + 1);
        self.slots.try_reserve(1).is_ok()
            && self.free.try_reserve(self.slots.len() + 1 - self.free.len()).is_ok()
            && self.keys.try_reserve(keys.saturating_sub(self.keys.len())).is_ok()
    }

    /// Takes an entry out, with all that leads to it.
    pub(super) fn remove(&mut self, index: u32) {
        self.enter(index, State::Idle, None);
        let slot = &mut self.slots[index as usize];
        slot.entry = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(index);
        self.used -= 1;
        self.give_back();
    }

    /// The index of a number of ours, as a message claims it.
    pub(super) fn find(&self, comm_id: u32) -> Option<u32> {
        let index = self.numbers.index(comm_id);
        let entry = self.slots.get(index as usize)?.entry.as_ref()?;
        (entry.facts.local_comm_id == comm_id).then_some(index)
    }

    /// The index that a peer's number leads to.
    pub(super) fn find_key(&self, key: &Key) -> Option<u32> {
        self.keys.get(key).copied()
    }

    /// The index of a user's id.
    pub(super) fn resolve(&self, id: Id) -> Result<u32, Error> {
        let slot = self.slots.get(id.index as usize).filter(|slot| slot.generation == id.generation);
        match slot.and_then(|slot| slot.entry.as_ref()) {
            Some(entry) if !entry.orphan => Ok(id.index),
            _ => Err(Error::Stale),
        }
    }

    /// The id for a user.
    pub(super) fn id(&self, index: u32) -> Id {
        Id { index, generation: self.slots[index as usize].generation }
    }

    /// An entry that [`Table::find`], [`Table::find_key`] or [`Table::resolve`] has found.
    pub(super) fn entry(&self, index: u32) -> &Entry {
        self.slots[index as usize].entry.as_ref().expect("an index is found only while its entry is there")
    }

    /// The same, to change it.
    pub(super) fn entry_mut(&mut self, index: u32) -> &mut Entry {
        self.slots[index as usize].entry.as_mut().expect("an index is found only while its entry is there")
    }

    /// A change of state, and when something is to happen next. Keys go with the states that they belong to.
    pub(super) fn enter(&mut self, index: u32, state: State, deadline: Option<Time>) {
        self.arm(index, deadline);
        let entry = self.entry(index);
        let known = entry.known;
        let (number_key, qpn_key) = (entry.number_key(), entry.qpn_key());
        let old = entry.facts.state;
        if known.qpn && !state.holds_qpn() {
            self.unlink(qpn_key, index);
        }
        if known.number && state == State::Idle {
            self.unlink(number_key, index);
        }
        self.undecided = self.undecided + usize::from(state.is_undecided()) - usize::from(old.is_undecided());
        self.resting = self.resting + usize::from(state.is_resting()) - usize::from(old.is_resting());
        let entry = self.entry_mut(index);
        entry.known.qpn &= state.holds_qpn();
        entry.known.number &= state != State::Idle;
        entry.facts.state = state;
    }

    /// When something is to happen next.
    pub(super) fn arm(&mut self, index: u32, deadline: Option<Time>) {
        let entry = self.entry_mut(index);
        let new = deadline.unwrap_or(Time::NEVER);
        let old = std::mem::replace(&mut entry.deadline, new);
        if old != Time::NEVER {
            self.timers.remove(&(old, index));
        }
        if new != Time::NEVER {
            self.timers.insert((new, index));
        }
    }

    /// From now on the peer's number leads to the entry.
    pub(super) fn link_number(&mut self, index: u32) {
        let key = self.entry(index).number_key();
        self.entry_mut(index).known.number = true;
        self.keys.insert(key, index);
    }

    /// From now on the peer's queue pair leads to the entry. Queue pair 0 is nobody's: whoever names it has none.
    pub(super) fn link_qpn(&mut self, index: u32) {
        let entry = self.entry(index);
        if entry.facts.remote_qpn.value() != 0 {
            let key = entry.qpn_key();
            self.entry_mut(index).known.qpn = true;
            self.keys.insert(key, index);
        }
    }

    /// The next moment at which something is to happen.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// The next entry for which the time has come.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let (time, index) = *self.timers.first()?;
        (time <= now).then(|| {
            self.arm(index, None);
            index
        })
    }

    /// A key may lead to a newer entry by now.
    fn unlink(&mut self, key: Key, index: u32) {
        if self.keys.get(&key) == Some(&index) {
            self.keys.remove(&key);
        }
    }

    /// Memory of a crowd that has gone goes back, in steps that cost no more than the crowd did.
    fn give_back(&mut self) {
        let keys = 2 * self.used;
        if self.keys.capacity() > SMALL && keys < self.keys.capacity() / 8 {
            let mut fewer = HashMap::with_hasher(self.keys.hasher().clone());
            if fewer.try_reserve(2 * keys).is_ok() {
                fewer.extend(self.keys.drain());
                self.keys = fewer;
            }
        }
        if self.used == 0 && self.slots.len() > SMALL {
            let last = self.slots.iter().map(|slot| slot.generation).max().unwrap_or_default();
            self.first_generation = last.wrapping_add(1);
            self.slots = Vec::new();
            self.free = VecDeque::new();
        }
    }
}

/// A hash that begins with the secret: peers choose their numbers, and must not choose where they lie in the map.
#[derive(Clone, Debug)]
struct Keyed(u64);

impl BuildHasher for Keyed {
    type Hasher = DefaultHasher;
    fn build_hasher(&self) -> DefaultHasher {
        let mut hasher = DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}

#[cfg(test)]
mod tests;
