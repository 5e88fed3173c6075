//! The *bell* of an event channel: the descriptor that programs poll, and what comes through it.
//!
//! There are as many messages in the bell as there are events. Most of them are the events themselves; some say that one waits with
//! the agent. When an id ends, its events go with it, wherever they are: all messages are taken out, those of the id are dropped, the
//! others are kept here, and the agent is asked to ring as often as there are any. The principal type is [`Bell`].

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;

use abi::Record;
use abi::errno::Errno;
use abi::ucma::connection::{NextEventAnswer, event};
use abi::ucma::{SENTENCE_MAX, bell};
use engine::{Error, Result};
use parking_lot::{Mutex, MutexGuard};
use rustix::net::RecvFlags;

/// Longer than any message.
const ROOM: usize = size_of::<NextEventAnswer>() + SENTENCE_MAX;

/// The client's end.
pub(crate) struct Bell {
    pub(crate) fd: OwnedFd,
    reading: Mutex<Taken>,
}

/// The right to take messages, and what is known of those that were taken.
pub(crate) type Reading<'a> = MutexGuard<'a, Taken>;

/// What has been taken.
pub(crate) struct Taken {
    /// Taken out, but the program has not got it.
    kept: VecDeque<Message>,
    /// How many events of each id the program has got.
    reported: HashMap<u32, u32>,
    buffer: Box<[u8; ROOM]>,
}

/// What stands for an event.
pub(crate) enum Message {
    /// It waits with the agent.
    Ask,
    /// It is this.
    Told(Box<[u8]>),
}

/// What was found when an id ended or moved.
#[derive(Default)]
pub(crate) struct Purged {
    /// Its events, oldest first.
    pub(crate) messages: Vec<Message>,
    /// The requests among them, which are ids themselves.
    pub(crate) requests: Vec<u32>,
    /// How often the bell has to ring for what is kept.
    pub(crate) rings: u32,
}

impl Bell {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        let taken = Taken { kept: VecDeque::new(), reported: HashMap::new(), buffer: Box::new([0; ROOM]) };
        Self { fd, reading: Mutex::new(taken) }
    }

    /// Keeps others from taking messages.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.reading.lock()
    }

    /// Looks whether there is a message, or waits for one.
    pub(crate) fn peek(&self, flags: RecvFlags) -> Result<()> {
        self.receive(&mut [0; 1], flags | RecvFlags::PEEK).map(drop)
    }

    /// What the next message stands for: nothing if there is none, and nothing in it if it has come in vain.
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

    /// Takes out the events of an id, if there are any: so many have been told of it or given out, and for so many that the agent has
    /// dropped there are messages.
    pub(crate) fn purge(&self, taken: &mut Taken, id: u32, told: u32, asks: u32) -> Purged {
        if asks == 0 && told == taken.reported(id) {
            return Purged::default();
        }
        // Messages of kept events are not worth more than the events.
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
        purged.rings = u32::try_from(taken.kept.len()).unwrap_or(u32::MAX);
        purged
    }

    fn receive(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<usize> {
        match rustix::net::recv(&self.fd, buffer, flags) {
            Ok((_, 0)) => Err(Error {
                errno: Errno::EIO,
                reason: "the softhca agent is gone, and with it the event channel".into(),
            }),
            Ok((len, _)) => Ok(len),
            Err(error) => Err(Error::plain(Errno(error.raw_os_error()))),
        }
    }
}

impl Taken {
    /// The program gets an event that counts against this id; 0 is none.
    pub(crate) fn count(&mut self, id: u32) {
        if id != 0 {
            *self.reported.entry(id).or_default() += 1;
        }
    }

    /// How many events of an id the program has got.
    pub(crate) fn reported(&self, id: u32) -> u32 {
        self.reported.get(&id).copied().unwrap_or(0)
    }

    /// The id is not on this channel any more; how many of its events the program has got.
    pub(crate) fn forget(&mut self, id: u32) -> u32 {
        self.reported.remove(&id).unwrap_or(0)
    }

    /// An id has come from another channel, with so many events that the program has got and these that it has not; how often the bell
    /// has to ring for them.
    pub(crate) fn adopt(&mut self, id: u32, reported: u32, messages: Vec<Message>) -> u32 {
        if reported > 0 {
            *self.reported.entry(id).or_default() += reported;
        }
        let rings = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        // They are older than anything that has come of the id here.
        for message in messages.into_iter().rev() {
            self.kept.push_front(message);
        }
        rings
    }
}

/// What a message stands for; nothing if it was only rung.
fn read(bytes: &[u8]) -> Option<Message> {
    match bytes {
        [bell::RUNG] => None,
        [_] => Some(Message::Ask),
        told => Some(Message::Told(told.into())),
    }
}

/// The id against which a told event counts.
pub(crate) fn counts(bytes: &[u8]) -> u32 {
    NextEventAnswer::read_zero_extended(bytes).counts
}
