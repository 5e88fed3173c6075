//! The *event socket* of an event channel: the socket that programs poll, and the messages that
//! come through it.
//!
//! The event socket always has as many messages as there are events. Most messages are the events
//! themselves; the others say that an event waits with the agent. When an id ends, its events must
//! go too. So this file empties the event socket, drops the id's messages, and keeps the others.
//! The agent is then asked to send one wake-up for each kept message. This file sends no commands.
//! The principal type is [`EventSocket`].

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use abi::Record;
use abi::errno::Errno;
use abi::ucma::connection::{NextEventAnswer, event};
use abi::ucma::{SENTENCE_MAX, event_message};
use engine::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use rustix::net::RecvFlags;

/// Longer than any message.
const ROOM: usize = size_of::<NextEventAnswer>() + SENTENCE_MAX;

/// The client's end of the socket.
pub(crate) struct EventSocket {
    pub(crate) fd: OwnedFd,
    reading: Mutex<Taken>,
}

/// The right to take messages, and the messages taken so far.
pub(crate) type Reading<'a> = MutexGuard<'a, Taken>;

/// Messages that were taken from the socket.
pub(crate) struct Taken {
    /// Messages that were taken from the socket, but not handed to the program.
    kept: VecDeque<Message>,
    /// For each id, the number of events that the program has got.
    reported: HashMap<u32, u32>,
    buffer: Box<[u8; ROOM]>,
}

/// A message for one event.
pub(crate) enum Message {
    /// The event waits with the agent.
    Ask,
    /// The event itself.
    Told(Box<[u8]>),
}

/// The messages of an id that has ended or moved.
#[derive(Default)]
pub(crate) struct Purged {
    /// The id's events, oldest first.
    pub(crate) messages: Vec<Message>,
    /// The connection requests among them, which are ids themselves.
    pub(crate) requests: Vec<u32>,
    /// The number of wake-ups needed for the messages that are kept.
    pub(crate) notifications: u32,
}

impl EventSocket {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let taken = Taken { kept: VecDeque::new(), reported: HashMap::new(), buffer: Box::new([0; ROOM]) };
        Self { fd, reading: Mutex::new(taken) }
    }

    /// Prevents other threads from taking messages.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.reading.lock()
    }

    /// Checks for a message, or waits for one.
    pub(crate) fn peek(&self, flags: RecvFlags) -> Result<()> {
        self.receive(&mut [0; 1], flags | RecvFlags::PEEK).map(drop)
    }

    /// Takes the next message. `None`: there is none. `Some(None)`: it was a wake-up without a kept
    /// message.
    pub(crate) fn take(&self, taken: &mut Taken) -> Result<Option<Option<Message>>> {
        let message = match self.receive(&mut taken.buffer[..], RecvFlags::DONTWAIT) {
            Ok(len) => read(&taken.buffer[..len]),
            Err(error) if error.errno == Errno::EAGAIN => return Ok(None),
            Err(error) => return Err(error),
        };
        if taken.kept.is_empty() {
            return Ok(Some(message));
        }
        taken.kept.extend(message);
        Ok(Some(taken.kept.pop_front()))
    }

    /// Takes out the events of an id, if there are any. `told`: how many events of the id the agent
    /// has sent or handed out. `asks`: how many messages belong to events that the agent has
    /// dropped.
    pub(crate) fn purge(&self, taken: &mut Taken, id: u32, told: u32, asks: u32) -> Purged {
        if asks == 0 && told == taken.reported(id) {
            return Purged::default();
        }
        // Drops the wake-ups in the socket: the agent sends new ones for all kept messages.
        while let Ok(len) = self.receive(&mut taken.buffer[..], RecvFlags::DONTWAIT) {
            let message = read(&taken.buffer[..len]);
            taken.kept.extend(message);
        }
        let (mut purged, mut asks) = (Purged::default(), asks);
        for message in std::mem::take(&mut taken.kept) {
            match message {
                Message::Ask if asks > 0 => asks -= 1,
                Message::Told(bytes) if counts(&bytes) == id => {
                    let told = NextEventAnswer::read_zero_extended(&bytes).event;
                    purged.requests.extend((told.event == event::CONNECT_REQUEST).then_some(told.id));
                    purged.messages.push(Message::Told(bytes));
                }
                other => taken.kept.push_back(other),
            }
        }
        purged.notifications = u32::try_from(taken.kept.len()).unwrap_or(u32::MAX);
        purged
    }

    fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        match rustix::net::recv(&self.fd, buffer, flags) {
            Ok((_, 0)) => Err(Error::new(Errno::EIO, "the softhca agent is gone, and with it the event channel")),
            Ok((len, _)) => Ok(len),
            Err(error) => Err(Error::from(Errno(error.raw_os_error()))),
        }
    }
}

impl Taken {
    /// Counts an event that the program gets against this id. Id 0 counts nothing.
    pub(crate) fn count(&mut self, id: u32) {
        if id != 0 {
            *self.reported.entry(id).or_default() += 1;
        }
    }

    /// The number of events of an id that the program has got.
    pub(crate) fn reported(&self, id: u32) -> u32 {
        self.reported.get(&id).copied().unwrap_or(0)
    }

    /// Forgets an id that leaves this channel. Returns the number of its events that the program
    /// has got.
    pub(crate) fn forget(&mut self, id: u32) -> u32 {
        self.reported.remove(&id).unwrap_or(0)
    }

    /// Adds an id that comes from another channel. The program has got `reported` of its events,
    /// and has not got `messages`. Returns the number of wake-ups needed for `messages`.
    pub(crate) fn adopt(&mut self, id: u32, reported: u32, messages: Vec<Message>) -> u32 {
        if reported > 0 {
            *self.reported.entry(id).or_default() += reported;
        }
        let notifications = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        // They are older than all events of the id on this channel.
        for message in messages.into_iter().rev() {
            self.kept.push_front(message);
        }
        notifications
    }
}

/// Parses a message; `None` for a wake-up.
fn read(bytes: &[u8]) -> Option<Message> {
    match bytes {
        [event_message::WOKEN] => None,
        [_] => Some(Message::Ask),
        told => Some(Message::Told(told.into())),
    }
}

/// The id against which an event counts.
pub(crate) fn counts(bytes: &[u8]) -> u32 {
    NextEventAnswer::read_zero_extended(bytes).counts
}
