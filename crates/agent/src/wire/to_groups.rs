//! Multicast datagrams of engines that leave the agent's part of the subnet. The wire thread takes
//! them from the engines' lanes; the agent's thread sends them over the links of the fabric
//! ([`crate::mads`]). The principal type is [`ToGroups`].

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use abi::wire::Arrival;
use parking_lot::Mutex;
use shm::Notifier;

/// Maximum number of datagrams of one engine that wait. Further ones are lost.
const WAITING_MAX: usize = 256;
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
    waiting: Mutex<BTreeMap<u32, VecDeque<GroupDatagram>>>,
    notifier: Notifier,
}

impl ToGroups {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { waiting: Mutex::default(), notifier: Notifier::new()? })
    }

    /// Adds the datagrams of a record.
    pub(crate) fn push(&self, engine: u32, head: &Arrival, bytes: &[u8]) {
        let mut waiting = self.waiting.lock();
        let queue = waiting.entry(engine).or_default();
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
            waiting.remove(&engine);
        }
    }

    /// Takes up to `most` datagrams, one of each engine after the other. If more wait, the notifier
    /// stays readable.
    pub(crate) fn take_some(&self, most: usize) -> Vec<GroupDatagram> {
        self.notifier.drain();
        let (mut waiting, mut taken) = (self.waiting.lock(), Vec::new());
        while taken.len() < most && !waiting.is_empty() {
            let left = most - taken.len();
            taken.extend(waiting.values_mut().take(left).filter_map(VecDeque::pop_front));
            waiting.retain(|_, queue| !queue.is_empty());
        }
        if !waiting.is_empty() {
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
        groups.push(1, &head, &[1; 20 * (WAITING_MAX + 5)]);
        groups.push(2, &head, &[2; 50]);
        let first = groups.take_some(4);
        assert_eq!(
            first.iter().map(|one| (one.engine, one.bytes.len())).collect::<Vec<_>>(),
            [(1, 20), (2, 20), (1, 20), (2, 20)]
        );
        let rest = groups.take_some(usize::MAX);
        assert_eq!(rest.iter().filter(|one| one.engine == 1).count(), WAITING_MAX - 2);
        assert_eq!(rest.iter().filter(|one| one.engine == 2).map(|one| one.bytes.len()).collect::<Vec<_>>(), [10]);
        groups.push(3, &Arrival::default(), &[]);
        groups.push(3, &Arrival { segment: u16::MAX, ..head }, &[0; LONGEST + 1]);
        assert!(groups.take_some(1).is_empty());
    }
}
