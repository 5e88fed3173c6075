//! Multicast datagrams of engines that leave the agent's part of the subnet. The wire thread takes
//! them from the engines' lanes; the agent's thread sends them over the links of the fabric
//! ([`crate::mads`]). The principal type is [`ToGroups`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use abi::wire::Arrival;
use parking_lot::Mutex;
use shm::Notifier;

/// Maximum number of datagrams of one engine that wait. Further ones are lost.
const WAITING_MAX: usize = 64;
/// The longest datagram: 4096 bytes, its headers and its ICRC.
const LONGEST: usize = 4096 + 64;

/// A datagram for a group.
#[derive(Debug, Clone)]
pub(crate) struct GroupDatagram {
    /// The engine that has sent it.
    pub(crate) engine: u32,
    /// Its addresses, as the engine says them.
    pub(crate) head: Arrival,
    /// From the BTH to the ICRC.
    pub(crate) bytes: Box<[u8]>,
}

/// The datagrams that wait, by engine. Any thread adds to them; one thread takes them, from each
/// engine in turn.
#[derive(Debug)]
pub(crate) struct ToGroups {
    waiting: Mutex<GroupQueues>,
    notifier: Notifier,
    /// Somebody takes the datagrams: there are links to other agents.
    is_open: AtomicBool,
}

#[derive(Debug, Default)]
struct GroupQueues {
    /// By engine. No queue is empty.
    queues: BTreeMap<u32, VecDeque<GroupDatagram>>,
    /// The engine that was served last.
    last: u32,
}

impl ToGroups {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { waiting: Mutex::default(), notifier: Notifier::new()?, is_open: AtomicBool::new(false) })
    }

    /// From now on, somebody takes the datagrams. Before, they are lost.
    pub(crate) fn open(&self) {
        self.is_open.store(true, Ordering::Relaxed);
    }

    /// An engine has ended.
    pub(crate) fn forget(&self, engine: u32) {
        self.waiting.lock().queues.remove(&engine);
    }

    /// Adds the datagrams of a record.
    pub(crate) fn push(&self, engine: u32, head: &Arrival, bytes: &[u8]) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        let queues = &mut self.waiting.lock().queues;
        let queue = queues.entry(engine).or_default();
        let was_empty = queue.is_empty();
        for bytes in bytes.chunks(usize::from(head.segment).max(1)).filter(|bytes| bytes.len() <= LONGEST) {
            if queue.len() >= WAITING_MAX {
                break;
            }
            queue.push_back(GroupDatagram { engine, head: *head, bytes: bytes.into() });
        }
        if was_empty && !queue.is_empty() {
            self.notifier.notify();
        }
        if queue.is_empty() {
            queues.remove(&engine);
        }
    }

    /// Takes all datagrams of one engine.
    pub(crate) fn take_of(&self, engine: u32) -> VecDeque<GroupDatagram> {
        self.waiting.lock().queues.remove(&engine).unwrap_or_default()
    }

    /// Takes up to `most` datagrams, one of each engine after the other. If more wait, the notifier
    /// stays readable.
    pub(crate) fn take_some(&self, most: usize) -> Vec<GroupDatagram> {
        self.notifier.drain();
        let (mut waiting, mut taken) = (self.waiting.lock(), Vec::new());
        let GroupQueues { queues, last } = &mut *waiting;
        while taken.len() < most {
            let behind = queues.range(last.saturating_add(1)..).next();
            let Some(engine) = behind.or(queues.first_key_value()).map(|(engine, _)| *engine) else { break };
            if let Entry::Occupied(mut queue) = queues.entry(engine) {
                taken.extend(queue.get_mut().pop_front());
                if queue.get().is_empty() {
                    queue.remove();
                }
            }
            *last = engine;
        }
        if !queues.is_empty() {
            self.notifier.notify();
        }
        taken
    }
}

impl AsFd for ToGroups {
    /// Readable when a datagram waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.notifier.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_floods_delays_no_other_and_loses_only_its_own() {
        let groups = ToGroups::new().expect("a queue");
        let head = Arrival { segment: 20, ..Arrival::default() };
        groups.push(1, &head, &[1; 20]);
        assert!(groups.take_some(1).is_empty(), "nobody takes them yet");
        groups.open();
        groups.push(1, &head, &[1; 20 * (WAITING_MAX + 5)]);
        groups.push(2, &head, &[2; 50]);
        let first = groups.take_some(4);
        assert_eq!(
            first.iter().map(|one| (one.engine, one.bytes.len())).collect::<Vec<_>>(),
            [(1, 20), (2, 20), (1, 20), (2, 20)]
        );
        groups.push(3, &head, &[3; 20]);
        assert_eq!(groups.take_some(1)[0].engine, 3, "its turn is next");
        groups.push(4, &head, &[4; 20]);
        groups.forget(4);
        let rest = groups.take_some(usize::MAX);
        assert!(rest.iter().all(|one| one.engine != 4));
        assert_eq!(rest.iter().filter(|one| one.engine == 1).count(), WAITING_MAX - 2);
        assert_eq!(rest.iter().filter(|one| one.engine == 2).map(|one| one.bytes.len()).collect::<Vec<_>>(), [10]);
        groups.push(3, &Arrival::default(), &[]);
        groups.push(3, &Arrival { segment: u16::MAX, ..head }, &[0; LONGEST + 1]);
        assert!(groups.take_some(1).is_empty());
    }
}
