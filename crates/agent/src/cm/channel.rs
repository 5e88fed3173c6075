//! An event channel: what one open of the node `rdma_cm` has. Events wait here until GET_EVENT takes them.
//!
//! The client is told by its *bell*: a byte for every event. The bell is a stream socket that only holds so much; bytes that it
//! has no room for are owed. The bell of a client that wants to be *told* is a socket of messages, and brings the events themselves.
//! Nothing here waits for the client. The principal type is [`Channel`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::ucma::bell;
use abi::ucma::connection::EventAnswer;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::ids::Peer;

/// Events that wait in one channel before commands that would cause more are refused.
pub(crate) const EVENTS_MAX: usize = 1 << 14;
/// Bytes that are put into the bell at once.
const RING: [u8; 64] = [1; 64];

/// Names a channel for as long as the agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChannelId(pub(crate) u32);

/// An event that waits.
#[derive(Debug)]
pub(crate) struct Event {
    /// What the client gets.
    pub(crate) answer: EventAnswer,
    /// Whose it is: an id.
    pub(crate) id: u32,
    /// The membership that it is about.
    pub(crate) member: Option<u32>,
    /// The new id that asks for a connection: whoever drops the event, ends it.
    pub(crate) request: Option<u32>,
    /// Why, if there is more to say than the event does.
    pub(crate) sentence: String,
}

/// An event with what it is found by: one look at all that wait is short.
#[derive(Debug)]
struct Held {
    id: u32,
    member: Option<u32>,
    event: Box<Event>,
}

/// One channel.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Who it is.
    pub(crate) peer: Peer,
    /// By what MIGRATE_ID names it.
    pub(crate) token: u32,
    /// Its events come with the bell.
    pub(crate) told: bool,
    events: VecDeque<Held>,
    /// How many wait in all channels of the user.
    of_user: Arc<AtomicUsize>,
    bell: OwnedFd,
    /// How many of the last events the bell has not been rung for.
    owed: u32,
    /// How many rings are owed that the client has asked for.
    rings: u32,
}

/// What became of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rung {
    /// The client has it, or nobody is there.
    Done,
    /// There was no room.
    Full,
}

impl Channel {
    /// A channel and the client's end of its bell.
    pub(crate) fn new(peer: Peer, token: u32, told: bool, of_user: Arc<AtomicUsize>) -> io::Result<(Self, OwnedFd)> {
        // Whether its end waits is the client's choice; ours never does.
        let kind = if told { SocketType::SEQPACKET } else { SocketType::STREAM };
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (bell, theirs) = pair.map_err(shm::denied::denied("socketpair"))?;
        // Nothing comes back by it: a descriptor that a client sent us could block who closes the bell.
        shutdown(&bell, Shutdown::Read)?;
        Ok((Self { peer, token, told, events: VecDeque::new(), of_user, bell, owed: 0, rings: 0 }, theirs))
    }

    /// Our end of the bell, to see when there is room.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell is to ring so many times without an event.
    pub(crate) fn owe_rings(&mut self, count: u32) {
        self.rings = self.rings.saturating_add(count);
    }

    /// Puts the rings that were asked for into the bell of who is told.
    pub(crate) fn ring_as_asked(&mut self) -> Rung {
        while self.rings > 0 {
            if self.say(&[bell::RUNG]) == Rung::Full {
                return Rung::Full;
            }
            self.rings -= 1;
        }
        Rung::Done
    }

    /// The oldest event that the bell has not been rung for.
    pub(crate) fn unsaid(&self) -> Option<&Event> {
        self.events.get(self.events.len().checked_sub(self.owed as usize)?).map(|held| &*held.event)
    }

    /// Puts one message about that event into the bell of who is told. With `whole` the message is the event, which leaves the channel.
    pub(crate) fn say_next(&mut self, message: &[u8], whole: bool) -> Rung {
        if self.say(message) == Rung::Full {
            return Rung::Full;
        }
        if whole {
            let said = self.events.remove(self.events.len().saturating_sub(self.owed as usize));
            self.count_out(usize::from(said.is_some()));
        }
        self.owed = self.owed.saturating_sub(1);
        Rung::Done
    }

    fn say(&self, message: &[u8]) -> Rung {
        loop {
            match rustix::net::send(&self.bell, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => return Rung::Full,
                _ => return Rung::Done,
            }
        }
    }

    /// Whether commands may cause one more event.
    pub(crate) fn has_room(&mut self) -> bool {
        self.events.len() < EVENTS_MAX && self.reserve(1)
    }

    /// Has memory for so many more events. False: there is none.
    pub(crate) fn reserve(&mut self, more: usize) -> bool {
        self.events.try_reserve(more).is_ok()
    }

    /// How many events wait.
    pub(crate) fn waiting(&self) -> usize {
        self.events.len()
    }

    /// Queues an event; the bell is rung by [`Channel::ring`]. False: there is no memory, and the event
    /// is lost.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        if !self.reserve(1) {
            return false;
        }
        self.events.push_back(Held { id: event.id, member: event.member, event: Box::new(event) });
        self.of_user.fetch_add(1, Ordering::Relaxed);
        self.owed += 1;
        true
    }

    /// So many events have left.
    fn count_out(&self, count: usize) {
        self.of_user.fetch_sub(count, Ordering::Relaxed);
    }

    /// The oldest event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.count_out(usize::from(event.is_some()));
        event.map(|held| *held.event)
    }

    /// Puts the bytes that are owed into the bell, as far as there is room.
    pub(crate) fn ring(&mut self) {
        while self.owed > 0 {
            let count = self.owed.min(RING.len() as u32);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.bell, &RING[..count as usize], flags) {
                Ok(sent) => self.owed -= (sent as u32).min(count),
                Err(rustix::io::Errno::INTR) => {}
                // Full, or nobody there: what follows is not heard either way until somebody reads.
                Err(_) => return,
            }
        }
    }

    /// Takes out the events of which `which` says so by their id and membership, and gives them to `each`. How many they
    /// were, and for how many of them the bell has been rung already.
    pub(crate) fn take_out(
        &mut self,
        which: impl Fn(u32, Option<u32>) -> bool,
        mut each: impl FnMut(Event),
    ) -> (u32, u32) {
        let before = self.events.len();
        // The others go round once: nothing is allocated.
        for _ in 0..before {
            match self.events.pop_front() {
                Some(held) if which(held.id, held.member) => each(*held.event),
                Some(held) => self.events.push_back(held),
                None => break,
            }
        }
        let taken = before - self.events.len();
        self.count_out(taken);
        let count = taken as u32;
        let not_rung = self.owed.min(count);
        self.owed -= not_rung;
        (count, count - not_rung)
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.count_out(self.events.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> (Channel, OwnedFd) {
        Channel::new(Peer { pid: 0, uid: 0, comm: String::new() }, 1, false, Arc::default()).expect("a channel")
    }

    fn event(id: u32) -> Event {
        Event { answer: EventAnswer::default(), id, member: None, request: None, sentence: String::new() }
    }

    fn bytes(bell: &OwnedFd) -> usize {
        let mut bytes = vec![0; 1 << 20];
        rustix::net::recv(bell, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT).map_or(0, |(_, len)| len)
    }

    #[test]
    fn every_event_has_its_byte() {
        let (mut channel, bell) = channel();
        for id in 0..1000 {
            channel.push(event(id));
        }
        channel.ring();
        assert_eq!(bytes(&bell), 1000);
        channel.ring();
        assert_eq!(bytes(&bell), 0);
        for id in 0..1000 {
            assert_eq!(channel.pop().map(|event| event.id), Some(id));
        }
        assert!(channel.pop().is_none());
    }

    #[test]
    fn a_client_that_reads_nothing_costs_memory_and_no_time() {
        let (mut channel, bell) = channel();
        let mut count = 0;
        while channel.owed == 0 {
            channel.push(event(7));
            channel.ring();
            count += 1;
        }
        channel.push(event(7));
        channel.ring();
        assert_eq!(channel.owed, 2);
        assert_eq!(bytes(&bell), count - 1);
        channel.ring();
        assert_eq!((channel.owed, bytes(&bell)), (0, 2));
    }

    #[test]
    fn who_takes_events_out_is_told_what_to_take_from_the_bell() {
        let (mut channel, bell) = channel();
        for id in [1, 2, 1] {
            channel.push(event(id));
        }
        channel.ring();
        channel.push(event(1));
        let mut gone = Vec::new();
        let (taken, rung) = channel.take_out(|id, _| id == 1, |event| gone.push(event.id));
        assert_eq!((taken, rung, channel.waiting(), gone), (3, 2, 1, vec![1, 1, 1]));
        channel.ring();
        assert_eq!(bytes(&bell), 3, "one for the event that is left, two to be taken");
    }
}
