//! The table of all ids: it finds them by index, by our number, by the peer's numbers and by time,
//! without a search. Each change of state is one call here, so no key and no timer outlives its
//! state. The protocol's rules are not here. Principal type: [`Table`].

use super::entry::{CmEntry, Key};
use super::error::Error;
use super::number::{INDEX_BITS, Numbers};
use super::state::CmState;
use super::{Config, Counts, Id};
use crate::time::Time;
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};

/// A freed index is reused only after this many others were freed, so that our numbers do not
/// return soon.
const FREE_AT_LEAST: usize = 256;
/// Below this size, no memory is given back to the system.
const SMALL: usize = 1024;

#[derive(Debug)]
struct Slot {
    generation: u32,
    entry: Option<Box<CmEntry>>,
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
    /// An empty table.
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

    /// The number of ids, timers and keys.
    pub(super) fn counts(&self) -> Counts {
        Counts {
            ids: self.used,
            undecided: self.undecided,
            resting: self.resting,
            timers: self.timers.len(),
            keys: self.keys.len(),
        }
    }

    /// Whether the table is full.
    pub(super) fn is_full(&self) -> bool {
        self.used >= self.limit
    }

    /// Inserts an entry and gives it our number. The entry has no counted state yet: call
    /// [`Table::enter`] next. `None`: there is no room, or no memory.
    pub(super) fn insert(&mut self, mut entry: CmEntry) -> Option<u32> {
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
        // In a REJ, the number 0 means "none".
        if self.numbers.number(index, slot.generation) == 0 {
            slot.generation = slot.generation.wrapping_add(1);
        }
        entry.facts.local_comm_id = self.numbers.number(index, slot.generation);
        entry.facts.state = CmState::Idle;
        slot.entry = Some(Box::new(entry));
        self.used += 1;
        Some(index)
    }

    /// Reserves memory for one more entry: its slot, its place in the free list, and its two keys.
    /// These three grow nowhere else.
    fn reserve(&mut self) -> bool {
        let keys = 2 * (self.used + 1);
        self.slots.try_reserve(1).is_ok()
            && self.free.try_reserve(self.slots.len() + 1 - self.free.len()).is_ok()
            && self.keys.try_reserve(keys.saturating_sub(self.keys.len())).is_ok()
    }

    /// Removes an entry and all its keys.
    pub(super) fn remove(&mut self, index: u32) {
        self.enter(index, CmState::Idle, None);
        let slot = &mut self.slots[index as usize];
        slot.entry = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push_back(index);
        self.used -= 1;
        self.give_back();
    }

    /// The index of our number, as a message claims it.
    pub(super) fn find(&self, comm_id: u32) -> Option<u32> {
        let index = self.numbers.index(comm_id);
        let entry = self.slots.get(index as usize)?.entry.as_ref()?;
        (entry.facts.local_comm_id == comm_id).then_some(index)
    }

    /// The index for a peer's key.
    pub(super) fn find_key(&self, key: &Key) -> Option<u32> {
        self.keys.get(key).copied()
    }

    /// The index for a user's id.
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
    pub(super) fn entry(&self, index: u32) -> &CmEntry {
        self.slots[index as usize].entry.as_ref().expect("an index is found only while its entry is there")
    }

    /// Like [`Table::entry`], mutable.
    pub(super) fn entry_mut(&mut self, index: u32) -> &mut CmEntry {
        self.slots[index as usize].entry.as_mut().expect("an index is found only while its entry is there")
    }

    /// Changes the state and sets the timer. Keys are removed with the states that they belong to.
    pub(super) fn enter(&mut self, index: u32, state: CmState, deadline: Option<Time>) {
        self.arm(index, deadline);
        let entry = self.entry(index);
        let known = entry.known;
        let (number_key, qpn_key) = (entry.number_key(), entry.qpn_key());
        let old = entry.facts.state;
        if known.qpn && !state.holds_qpn() {
            self.unlink(qpn_key, index);
        }
        if known.number && state == CmState::Idle {
            self.unlink(number_key, index);
        }
        self.undecided = self.undecided + usize::from(state.is_undecided()) - usize::from(old.is_undecided());
        self.resting = self.resting + usize::from(state.is_resting()) - usize::from(old.is_resting());
        let entry = self.entry_mut(index);
        entry.known.qpn &= state.holds_qpn();
        entry.known.number &= state != CmState::Idle;
        entry.facts.state = state;
    }

    /// Sets or stops the entry's timer.
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

    /// Adds the key of the peer's number.
    pub(super) fn link_number(&mut self, index: u32) {
        let key = self.entry(index).number_key();
        self.entry_mut(index).known.number = true;
        self.keys.insert(key, index);
    }

    /// Adds the key of the peer's queue pair. A peer that names queue pair 0 has no queue pair.
    pub(super) fn link_qpn(&mut self, index: u32) {
        let entry = self.entry(index);
        if entry.facts.remote_qpn.value() != 0 {
            let key = entry.qpn_key();
            self.entry_mut(index).known.qpn = true;
            self.keys.insert(key, index);
        }
    }

    /// When the next timer ends.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.timers.first().map(|(time, _)| *time)
    }

    /// The next entry whose timer has ended. Its timer stops.
    pub(super) fn pop_due(&mut self, now: Time) -> Option<u32> {
        let (time, index) = *self.timers.first()?;
        (time <= now).then(|| {
            self.arm(index, None);
            index
        })
    }

    /// Removes a key, unless it leads to a newer entry by now.
    fn unlink(&mut self, key: Key, index: u32) {
        if self.keys.get(&key) == Some(&index) {
            self.keys.remove(&key);
        }
    }

    /// Gives memory back after a large number of ids has gone, in steps that cost no more than
    /// those ids did.
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

/// A hash that begins with the secret. Peers choose their numbers, and must not choose the
/// positions in the map.
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
