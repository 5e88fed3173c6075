//! Requests in progress, with the memory that they use. The poster adds a request; the thread that
//! polls its completion removes it. Principal type: [`Slots`].
//!
//! A request's name at the adapter (`wr_id`) contains its slot, whether it is a receive, and a
//! count. The count keeps the names of a process distinct for a long time: a late completion finds
//! no request, and the reason of a failure is found by the name. Users do not see names: sentences
//! about a request show the id that the program gave ([`Queues::id`]). The requests of a batch
//! before its last one share one name. They have no completion unless one fails.

use std::sync::Arc;

#[cfg(feature = "tokio")]
use std::sync::OnceLock;

use abi::cq::Wc;
use parking_lot::Mutex;

#[cfg(feature = "tokio")]
use crate::aio::inbox::Inbox;
#[cfg(feature = "tokio")]
use crate::completion::Completion;
use crate::completion::Posted;
use crate::message::Parts;
use crate::operation::Operation;
use crate::tally::Tally;

/// Set in the names of receives.
const RECEIVE: u64 = 1 << 63;
/// The low bits of a name are the slot; no queue is longer.
const PLACE_BITS: u32 = 20;
/// The next bits are the request's number in its queue; the rest is the queue.
const COUNT_BITS: u32 = 23;

/// A request in progress, or a batch of them.
pub(crate) struct Pending {
    /// The id that the program gave.
    pub(crate) id: u64,
    /// The operation, because a completion does not always tell it.
    pub(crate) operation: Operation,
    /// The memory of the request, unless a scope keeps it.
    pub(crate) parts: Parts,
    pub(crate) owner: Owner,
    /// Number of completions that the CQ reserves for the request.
    pub(crate) weight: u32,
    /// For the last request of a batch: the name of the requests before it.
    pub(crate) earlier: Option<u64>,
}

/// Who is told of a request's end.
pub(crate) enum Owner {
    /// The caller that polls the CQ.
    Poller,
    /// A scope, which waits for the request.
    Scope(Arc<Tally>),
    /// A task, unless it has dropped its future.
    #[cfg(feature = "tokio")]
    Task(tokio::sync::oneshot::Sender<Completion>),
}

impl Pending {
    pub(crate) fn new(id: u64, operation: Operation, parts: Parts, owner: Owner) -> Self {
        Self { id, operation, parts, owner, weight: 1, earlier: None }
    }

    /// What was posted.
    pub(crate) fn posted(self) -> Posted {
        Posted { id: self.id, operation: self.operation, parts: self.parts }
    }
}

/// The entry of one name.
enum Entry {
    Request(Pending),
    /// Requests of a batch before the last one: the batch's id, and the completion of the first
    /// that failed.
    Earlier(u64, Option<Wc>),
}

/// The requests of one queue.
pub(crate) struct Slots {
    /// Part of every name.
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
    /// `cookie` distinguishes the queue from other queues of the context.
    pub(crate) fn new(cookie: u64) -> Self {
        Self { queue: cookie << (PLACE_BITS + COUNT_BITS) & !RECEIVE, slab: Mutex::default() }
    }

    /// Adds a request and returns its name at the adapter.
    pub(crate) fn put(&self, pending: Pending) -> u64 {
        let receive = if pending.operation.is_receive() { RECEIVE } else { 0 };
        self.slab.lock().put(receive | self.queue, Entry::Request(pending))
    }

    /// Adds a batch. Returns the name of the requests before the last one, and the name of the last
    /// one.
    pub(crate) fn put_batch(&self, pending: Pending) -> (u64, u64) {
        let mut slab = self.slab.lock();
        let earlier = slab.put(self.queue, Entry::Earlier(pending.id, None));
        (earlier, slab.put(self.queue, Entry::Request(Pending { earlier: Some(earlier), ..pending })))
    }

    /// Removes the request with this name, which could not be posted.
    pub(crate) fn take(&self, name: u64) -> Option<Pending> {
        Some(self.slab.lock().take_request(name)?.0)
    }

    /// Returns the request that a completion ends, with the completion; for a batch the first
    /// completion with an error. `None` while other requests of its batch are in progress.
    pub(crate) fn end(&self, wc: &Wc) -> Option<(Pending, Wc)> {
        let mut slab = self.slab.lock();
        if let Entry::Earlier(_, failed) = slab.find(wc.wr_id)? {
            failed.get_or_insert(*wc);
            return None;
        }
        let (pending, failed) = slab.take_request(wc.wr_id)?;
        Some((pending, failed.unwrap_or(*wc)))
    }

    /// The id that the program gave to the request with this name.
    fn id(&self, name: u64) -> Option<u64> {
        match self.slab.lock().find(name)? {
            Entry::Request(pending) => Some(pending.id),
            Entry::Earlier(id, _) => Some(*id),
        }
    }

    /// Removes all requests.
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

    /// Ends the waiting of tasks: returns their owners, and keeps the memory.
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
    /// Shared with the SRQ if the QP has one.
    pub(crate) receives: Arc<Slots>,
    /// Receives come from an SRQ, and are not counted against the CQ.
    pub(crate) shared: bool,
    /// The buffers of received messages begin with 40 bytes of network header.
    pub(crate) datagrams: bool,
    /// Messages that wait for tasks.
    #[cfg(feature = "tokio")]
    pub(crate) inbox: OnceLock<Arc<Inbox>>,
}

impl Queues {
    pub(crate) fn end(&self, wc: &Wc) -> Option<(Pending, Wc)> {
        self.of(wc.wr_id).end(wc)
    }

    /// The id that the program gave to the request with this name.
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
