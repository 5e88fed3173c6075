//! Requests that are under way, with the memory that they use: who posts puts one in, whoever polls its completion takes it out.
//!
//! A request's name at the adapter says where it waits: its place, whether it is a receive, and a count that no two requests of a
//! process share for a long time: a completion that comes late finds nothing, and the reason of a failure is found by it.
//! Principal type: [`Slots`].

use std::sync::Arc;

use parking_lot::Mutex;

use crate::completion::Operation;
use crate::message::Parts;
use crate::scope::Tally;

/// Set in the names of receives.
const RECEIVE: u64 = 1 << 63;
/// The low bits of a name are the place; no queue is longer.
const PLACE_BITS: u32 = 20;
/// Then comes the request's number in its queue, then the queue's.
const COUNT_BITS: u32 = 23;

/// A request under way.
pub(crate) struct Pending {
    /// The name that the program gave.
    pub(crate) id: u64,
    /// What is known of the operation even where the completion does not say.
    pub(crate) operation: Operation,
    pub(crate) held: Held,
}

/// What keeps the memory that the request uses.
pub(crate) enum Held {
    /// The request itself.
    Parts(Parts),
    /// A scope, which waits for it.
    Scope(Arc<Tally>),
}

impl Held {
    pub(crate) fn into_parts(self) -> Parts {
        match self {
            Self::Parts(parts) => parts,
            Self::Scope(_) => Parts::None,
        }
    }
}

/// The requests of one queue.
pub(crate) struct Slots {
    /// In every name.
    queue: u64,
    slab: Mutex<Slab>,
}

#[derive(Default)]
struct Slab {
    entries: Vec<Option<(u64, Pending)>>,
    free: Vec<u32>,
    count: u64,
}

impl Slots {
    /// `cookie` tells it from other queues of the context.
    pub(crate) fn new(cookie: u64) -> Self {
        Self { queue: cookie << (PLACE_BITS + COUNT_BITS) & !RECEIVE, slab: Mutex::default() }
    }

    /// Keeps a request; answers its name at the adapter.
    pub(crate) fn put(&self, pending: Pending) -> u64 {
        let receive = if pending.operation.is_receive() { RECEIVE } else { 0 };
        let mut slab = self.slab.lock();
        slab.count = (slab.count + 1) % (1 << COUNT_BITS);
        let place = match slab.free.pop() {
            Some(place) => place,
            None => {
                slab.entries.push(None);
                (slab.entries.len() - 1) as u32
            }
        };
        assert!(place < 1 << PLACE_BITS, "no queue holds so many requests");
        let name = receive | self.queue | slab.count << PLACE_BITS | u64::from(place);
        slab.entries[place as usize] = Some((name, pending));
        name
    }

    /// Takes the request of this name out.
    pub(crate) fn take(&self, name: u64) -> Option<Pending> {
        let place = name as u32 % (1 << PLACE_BITS);
        let mut slab = self.slab.lock();
        let (_, pending) = slab.entries.get_mut(place as usize)?.take_if(|(known, _)| *known == name)?;
        slab.free.push(place);
        Some(pending)
    }

    /// Takes all of them out.
    pub(crate) fn drain(&self) -> Vec<Pending> {
        let mut slab = self.slab.lock();
        slab.free.clear();
        std::mem::take(&mut slab.entries).into_iter().flatten().map(|(_, pending)| pending).collect()
    }
}

/// The two queues of a queue pair, as its CQs know them.
pub(crate) struct Queues {
    pub(crate) sends: Slots,
    /// Shared with the SRQ where the QP has one.
    pub(crate) receives: Arc<Slots>,
    /// Receives come from an SRQ, and were not counted against the CQ.
    pub(crate) shared: bool,
    /// Completions of receives begin with 40 bytes of network header.
    pub(crate) datagrams: bool,
}

impl Queues {
    pub(crate) fn take(&self, name: u64) -> Option<Pending> {
        if is_receive(name) { self.receives.take(name) } else { self.sends.take(name) }
    }
}

pub(crate) fn is_receive(name: u64) -> bool {
    name & RECEIVE != 0
}
