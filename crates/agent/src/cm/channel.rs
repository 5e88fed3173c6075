//! An event channel: the state of one open of the node `rdma_cm`. Events wait here until GET_EVENT
//! takes them.
//!
//! The *event socket* of a channel is a stream socket, and gets one byte for each event. Bytes that
//! do not fit into the socket are owed, and are sent later. If the client asked to be *told*, the
//! event socket is a message socket and brings whole events. The channel never waits for the
//! client. The principal type is [`EventChannel`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::ucma::connection::EventAnswer;
use abi::ucma::event_message;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

use crate::ids::Peer;

/// Maximum number of events that wait in one channel. At this limit, commands that would cause more
/// events are refused.
pub(crate) const EVENTS_MAX: usize = 1 << 14;
/// Bytes that are written to the event socket at once.
const NOTIFICATIONS: [u8; 64] = [1; 64];

/// Names a channel for as long as the agent runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ChannelId(pub(crate) u32);

/// An event that waits.
#[derive(Debug)]
pub(crate) struct Event {
    /// What the client gets.
    pub(crate) answer: EventAnswer,
    /// The id to which the event belongs.
    pub(crate) id: u32,
    /// The membership to which the event belongs.
    pub(crate) member: Option<u32>,
    /// The new id that asks for a connection. Code that drops the event must end this id.
    pub(crate) request: Option<u32>,
    /// The reason, if there is more to say than the event itself says.
    pub(crate) sentence: String,
}

/// A waiting event with its search keys. The keys are outside the box, so that a search through all
/// events is fast.
#[derive(Debug)]
struct Held {
    id: u32,
    member: Option<u32>,
    event: Box<Event>,
}

/// One channel.
#[derive(Debug)]
pub(crate) struct EventChannel {
    /// The client.
    pub(crate) peer: Peer,
    /// MIGRATE_ID names the channel by this number.
    pub(crate) token: u32,
    /// The node of a topology on which the client runs, by the index of its device.
    pub(crate) node: Option<usize>,
    /// Events are sent through the event socket.
    pub(crate) told: bool,
    events: VecDeque<Held>,
    /// How many events wait in all channels of the user.
    of_user: Arc<AtomicUsize>,
    event_socket: OwnedFd,
    /// How many of the newest events have not been announced through the event socket.
    owed: u32,
    /// How many notifications without an event, requested by the client, are owed.
    notifications: u32,
}

/// The result of a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notified {
    /// The client has it, or the client has gone.
    Done,
    /// The socket has no room.
    Full,
}

impl EventChannel {
    /// Creates a channel. Returns it with the client's end of its event socket.
    pub(crate) fn new(peer: Peer, token: u32, told: bool, of_user: Arc<AtomicUsize>) -> io::Result<(Self, OwnedFd)> {
        // The client chooses whether its end blocks. This end never blocks.
        let kind = if told { SocketType::SEQPACKET } else { SocketType::STREAM };
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (event_socket, theirs) = pair.map_err(shm::denied::denied("socketpair"))?;
        // Nothing must arrive here: a descriptor that a client sent could block the thread that
        // closes the event socket.
        shutdown(&event_socket, Shutdown::Read)?;
        Ok((
            Self {
                peer,
                token,
                node: None,
                told,
                events: VecDeque::new(),
                of_user,
                event_socket,
                owed: 0,
                notifications: 0,
            },
            theirs,
        ))
    }

    /// This end of the event socket, to watch for room.
    pub(crate) fn event_socket(&self) -> BorrowedFd<'_> {
        self.event_socket.as_fd()
    }

    /// Adds `count` notifications without an event.
    pub(crate) fn owe_notifications(&mut self, count: u32) {
        self.notifications = self.notifications.saturating_add(count);
    }

    /// Sends the requested notifications through the event socket of a told client.
    pub(crate) fn notify_as_asked(&mut self) -> Notified {
        while self.notifications > 0 {
            if self.say(&[event_message::WOKEN]) == Notified::Full {
                return Notified::Full;
            }
            self.notifications -= 1;
        }
        Notified::Done
    }

    /// The oldest event that has not been announced.
    pub(crate) fn unsaid(&self) -> Option<&Event> {
        self.events.get(self.events.len().checked_sub(self.owed as usize)?).map(|held| &*held.event)
    }

    /// Sends one message about the [`EventChannel::unsaid`] event through the event socket of a
    /// told client. If `whole`, the message is the event itself, and the event leaves the channel.
    pub(crate) fn say_next(&mut self, message: &[u8], whole: bool) -> Notified {
        if self.say(message) == Notified::Full {
            return Notified::Full;
        }
        if whole {
            let said = self.events.remove(self.events.len().saturating_sub(self.owed as usize));
            self.count_out(usize::from(said.is_some()));
        }
        self.owed = self.owed.saturating_sub(1);
        Notified::Done
    }

    fn say(&self, message: &[u8]) -> Notified {
        loop {
            match rustix::net::send(&self.event_socket, message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::NOBUFS) => return Notified::Full,
                _ => return Notified::Done,
            }
        }
    }

    /// Whether commands may cause one more event.
    pub(crate) fn has_room(&mut self) -> bool {
        self.events.len() < EVENTS_MAX && self.reserve(1)
    }

    /// Reserves memory for `more` events. Returns false if there is none.
    pub(crate) fn reserve(&mut self, more: usize) -> bool {
        self.events.try_reserve(more).is_ok()
    }

    /// How many events wait.
    pub(crate) fn waiting(&self) -> usize {
        self.events.len()
    }

    /// Queues an event; [`EventChannel::notify`] announces it. Returns false if there is no memory,
    /// and the event is then lost.
    pub(crate) fn push(&mut self, event: Event) -> bool {
        if !self.reserve(1) {
            return false;
        }
        self.events.push_back(Held { id: event.id, member: event.member, event: Box::new(event) });
        self.of_user.fetch_add(1, Ordering::Relaxed);
        self.owed += 1;
        true
    }

    /// Counts events that have left.
    fn count_out(&self, count: usize) {
        self.of_user.fetch_sub(count, Ordering::Relaxed);
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        let event = self.events.pop_front();
        self.count_out(usize::from(event.is_some()));
        event.map(|held| *held.event)
    }

    /// Writes the owed bytes to the event socket, as far as there is room.
    pub(crate) fn notify(&mut self) {
        while self.owed > 0 {
            let count = self.owed.min(NOTIFICATIONS.len() as u32);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            match rustix::net::send(&self.event_socket, &NOTIFICATIONS[..count as usize], flags) {
                Ok(sent) => self.owed -= (sent as u32).min(count),
                Err(rustix::io::Errno::INTR) => {}
                // The socket is full or the client has gone. In both cases the rest must wait.
                Err(_) => return,
            }
        }
    }

    /// Removes the events that `which` selects by id and membership, and gives them to `each`.
    /// Returns how many they were, and how many of them had already been announced.
    pub(crate) fn take_out(
        &mut self,
        which: impl Fn(u32, Option<u32>) -> bool,
        mut each: impl FnMut(Event),
    ) -> (u32, u32) {
        let before = self.events.len();
        // The other events are moved to the back, once each, so nothing is allocated.
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
        let not_sent = self.owed.min(count);
        self.owed -= not_sent;
        (count, count - not_sent)
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        self.count_out(self.events.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel() -> (EventChannel, OwnedFd) {
        EventChannel::new(Peer { pid: 0, uid: 0, comm: String::new() }, 1, false, Arc::default()).expect("a channel")
    }

    fn event(id: u32) -> Event {
        Event { answer: EventAnswer::default(), id, member: None, request: None, sentence: String::new() }
    }

    fn bytes(event_socket: &OwnedFd) -> usize {
        let mut bytes = vec![0; 1 << 20];
        rustix::net::recv(event_socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT).map_or(0, |(_, len)| len)
    }

    #[test]
    fn every_event_has_its_byte() {
        let (mut channel, event_socket) = channel();
        for id in 0..1000 {
            channel.push(event(id));
        }
        channel.notify();
        assert_eq!(bytes(&event_socket), 1000);
        channel.notify();
        assert_eq!(bytes(&event_socket), 0);
        for id in 0..1000 {
            assert_eq!(channel.pop().map(|event| event.id), Some(id));
        }
        assert!(channel.pop().is_none());
    }

    #[test]
    fn a_client_that_reads_nothing_costs_memory_and_no_time() {
        let (mut channel, event_socket) = channel();
        let mut count = 0;
        while channel.owed == 0 {
            channel.push(event(7));
            channel.notify();
            count += 1;
        }
        channel.push(event(7));
        channel.notify();
        assert_eq!(channel.owed, 2);
        assert_eq!(bytes(&event_socket), count - 1);
        channel.notify();
        assert_eq!((channel.owed, bytes(&event_socket)), (0, 2));
    }

    #[test]
    fn take_out_returns_the_notifications_of_its_events() {
        let (mut channel, event_socket) = channel();
        for id in [1, 2, 1] {
            channel.push(event(id));
        }
        channel.notify();
        channel.push(event(1));
        let mut gone = Vec::new();
        let (taken, notified) = channel.take_out(|id, _| id == 1, |event| gone.push(event.id));
        assert_eq!((taken, notified, channel.waiting(), gone), (3, 2, 1, vec![1, 1, 1]));
        channel.notify();
        assert_eq!(bytes(&event_socket), 3, "one for the event that is left, two to be taken");
    }
}
