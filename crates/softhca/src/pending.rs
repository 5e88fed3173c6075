//! Requests that are under way, with the memory that they use: who posts puts one in, whoever polls its completion takes it out.
//!
//! A request's name at the adapter says where it waits: its place, whether it is a receive, and a count that no two requests of a
//! process share for a long time: a completion that comes late finds nothing, and the reason of a failure is found by it. No user
//! sees it: sentences about a request show the id that the program gave ([`Queues::id`]).
//! The requests of a batch before its last share one name; they have no completion unless one fails.
//! Principal type: [`Slots`].

use std::sync::Arc;
#[cfg(feature = "tokio")]
use std::sync::OnceLock;

use abi::cq::Wc;
use parking_lot::Mutex;

#[cfg(feature = "tokio")]
use crate::aio::Inbox;
use crate::completion::Operation;
use crate::message::Parts;
use crate::scope::Tally;

/// Set in the names of receives.
const RECEIVE: u64 = 1 << 63;
/// The low bits of a name are the place; no queue is longer.
const PLACE_BITS: u32 = 20;
/// Then comes the request's number in its queue, then the queue's.
const COUNT_BITS: u32 = 23;

/// A request under way, or a batch of them.
pub(crate) struct Pending {
    /// The name that the program gave.
    pub(crate) id: u64,
    /// What is known of the operation even where the completion does not say.
    pub(crate) operation: Operation,
    /// The memory that is used, unless a scope keeps it.
    pub(crate) parts: Parts,
    pub(crate) owner: Owner,
    /// How many completions its CQ keeps room for.
    pub(crate) weight: u32,
    /// Of the last request of a batch: the name of those before it.
    pub(crate) earlier: Option<u64>,
}

/// Who hears of a request's end.
pub(crate) enum Owner {
    /// Whoever polls the CQ.
    Poller,
    /// A scope, which waits for it.
    Scope(Arc<Tally>),
    /// A task, unless it has given up.
    #[cfg(feature = "tokio")]
    Task(tokio::sync::oneshot::Sender<crate::Completion>),
}

impl Pending {
    pub(crate) fn new(id: u64, operation: Operation, parts: Parts, owner: Owner) -> Self {
        Self { id, operation, parts, owner, weight: 1, earlier: None }
    }
}

/// What waits under one name.
enum Entry {
    Request(Pending),
    /// Requests of a batch before the last one: the batch's id, and how the first of them failed.
    Earlier(u64, Option<Wc>),
}

/// The requests of one queue.
pub(crate) struct Slots {
    /// In every name.
    queue: u64,
    slab: Mutex<Slab>,
}

#[derive(Default)]
struct Slab {
    entries: Vec<Option<(u64, Entry)>>,
    free: Vec<u32>,
    count: u64,
}

impl Slab {
    fn put(&mut self, bits: u64, entry: Entry) -> u64 {
        self.count = (self.count + 1) % (1 << COUNT_BITS);
        let place = match self.free.pop() {
            Some(place) => place,
            None => {
                self.entries.push(None);
                (self.entries.len() - 1) as u32
            }
        };
        assert!(place < 1 << PLACE_BITS, "no queue holds so many requests");
        let name = bits | self.count << PLACE_BITS | u64::from(place);
        self.entries[place as usize] = Some((name, entry));
        name
    }

    fn find(&mut self, name: u64) -> Option<&mut Entry> {
        let (known, entry) = self.entries.get_mut(place(name))?.as_mut()?;
        (*known == name).then_some(entry)
    }

    fn take(&mut self, name: u64) -> Option<Entry> {
        let (_, entry) = self.entries.get_mut(place(name))?.take_if(|(known, _)| *known == name)?;
        self.free.push(place(name) as u32);
        Some(entry)
    }

    fn take_request(&mut self, name: u64) -> Option<(Pending, Option<Wc>)> {
        let Some(Entry::Request(pending)) = self.take(name) else { return None };
        let failed = match pending.earlier.and_then(|earlier| self.take(earlier)) {
            Some(Entry::Earlier(_, failed)) => failed,
            _ => None,
        };
        Some((pending, failed))
    }
}

fn place(name: u64) -> usize {
    (name % (1 << PLACE_BITS)) as usize
}

impl Slots {
    /// `cookie` tells it from other queues of the context.
    pub(crate) fn new(cookie: u64) -> Self {
        Self { queue: cookie << (PLACE_BITS + COUNT_BITS) & !RECEIVE, slab: Mutex::default() }
    }

    /// Keeps a request; answers its name at the adapter.
    pub(crate) fn put(&self, pending: Pending) -> u64 {
        let receive = if pending.operation.is_receive() { RECEIVE } else { 0 };
        self.slab.lock().put(receive | self.queue, Entry::Request(pending))
    }

    /// Keeps a batch: answers the name of the requests before the last one, and the last one's.
    pub(crate) fn put_batch(&self, pending: Pending) -> (u64, u64) {
        let mut slab = self.slab.lock();
        let earlier = slab.put(self.queue, Entry::Earlier(pending.id, None));
        (earlier, slab.put(self.queue, Entry::Request(Pending { earlier: Some(earlier), ..pending })))
    }

    /// Takes the request of this name out, which was not posted after all.
    pub(crate) fn take(&self, name: u64) -> Option<Pending> {
        Some(self.slab.lock().take_request(name)?.0)
    }

    /// The request that a completion ends, and the completion: of a batch the first bad one. `None` while others of its batch are
    /// under way.
    pub(crate) fn end(&self, wc: &Wc) -> Option<(Pending, Wc)> {
        let mut slab = self.slab.lock();
        if let Entry::Earlier(_, failed) = slab.find(wc.wr_id)? {
            failed.get_or_insert(*wc);
            return None;
        }
        let (pending, failed) = slab.take_request(wc.wr_id)?;
        Some((pending, failed.unwrap_or(*wc)))
    }

    /// The id that the program gave to the request of this name.
    fn id(&self, name: u64) -> Option<u64> {
        match self.slab.lock().find(name)? {
            Entry::Request(pending) => Some(pending.id),
            Entry::Earlier(id, _) => Some(*id),
        }
    }

    /// Takes all of them out.
    pub(crate) fn drain(&self) -> Vec<Pending> {
        let mut slab = self.slab.lock();
        slab.free.clear();
        let request = |entry| match entry {
            (_, Entry::Request(pending)) => Some(pending),
            (_, Entry::Earlier(..)) => None,
        };
        std::mem::take(&mut slab.entries).into_iter().flatten().filter_map(request).collect()
    }
}

#[cfg(feature = "tokio")]
impl Slots {
    pub(crate) fn is_empty(&self) -> bool {
        let slab = self.slab.lock();
        slab.entries.len() == slab.free.len()
    }

    /// Tasks shall wait no more: answers what they wait by, and keeps the memory.
    pub(crate) fn disown(&self) -> Vec<Owner> {
        let mut slab = self.slab.lock();
        let pending = slab.entries.iter_mut().flatten().filter_map(|(_, entry)| match entry {
            Entry::Request(pending) if matches!(pending.owner, Owner::Task(_)) => Some(pending),
            _ => None,
        });
        pending.map(|pending| std::mem::replace(&mut pending.owner, Owner::Poller)).collect()
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
    /// Where messages wait for tasks.
    #[cfg(feature = "tokio")]
    pub(crate) inbox: OnceLock<Arc<Inbox>>,
}

impl Queues {
    pub(crate) fn end(&self, wc: &Wc) -> Option<(Pending, Wc)> {
        self.of(wc.wr_id).end(wc)
    }

    /// The id that the program gave to the request of this name.
    pub(crate) fn id(&self, name: u64) -> Option<u64> {
        self.of(name).id(name)
    }

    fn of(&self, name: u64) -> &Slots {
        if is_receive(name) { &self.receives } else { &self.sends }
    }
}

pub(crate) fn is_receive(name: u64) -> bool {
    name & RECEIVE != 0
}
