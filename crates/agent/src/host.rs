//! What the agent's commands need from the operating system: random numbers, memory that clients
//! map, new and duplicated descriptors, and a thread for jobs that take long.
//!
//! Commands ask their world's [`Host`] for these, so a test can run them without a kernel.
//! [`System`] is the host of every agent that runs. Three things are not part of it. A command
//! wakes nobody: pushes and events wait until the owner of the world flushes it. The wire's sockets
//! belong to [`crate::wire`], and with `wire = "off"` there are none. What a command drops ends by
//! itself: memory is unmapped, and a descriptor is closed, or given to its
//! [`Closer`](crate::closer::Closer). The principal type is [`Host`].

use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::rand::{GetRandomFlags, getrandom};
use shm::capture_ring::create_capture_ring;
use shm::denied::denied;
use shm::notifier::Notifier;
use shm::region::Region;
use shm::socket::Socket;
use shm::wake_word::WakeWordView;

use crate::deferred_free;
use crate::numbers::Chance;

/// The system, as commands see it.
pub trait Host: Send + Sync {
    /// Random words for one number space. `None`: numbers are given out in order.
    fn chance(&self) -> Option<Chance>;

    /// A number that nobody can guess, or 0 if there is no randomness.
    fn secret(&self) -> u64;

    /// New memory that a client may map and write, with its file.
    fn memory(&self, name: &str, len: usize) -> io::Result<(Region, OwnedFd)>;

    /// New memory that clients map only for reading, with its file.
    fn published(&self, name: &str, len: usize) -> io::Result<(Region, OwnedFd)>;

    /// Returns a range of such memory to the system; its bytes are zero after that.
    fn punch(&self, memory: &Region, offset: usize, len: usize) -> io::Result<()>;

    /// Does a job that may take milliseconds, where no command waits for it.
    fn later(&self, job: Box<dyn FnOnce() + Send>);

    /// The memory of a capture ring for `room` bytes.
    fn capture_ring(&self, room: usize) -> io::Result<OwnedFd>;

    /// Another descriptor of an open file.
    fn duplicate(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd>;

    /// Device and inode of memory that this host has made.
    fn inode(&self, memory: BorrowedFd<'_>) -> io::Result<(u64, u64)>;

    /// An eventfd as programs expect an event file to be: reads block unless the program asks
    /// otherwise.
    fn event_file(&self) -> io::Result<OwnedFd>;

    /// A socket on which the agent pushes records to an engine, with room for `room` bytes, and the
    /// engine's end.
    fn push_socket(&self, room: usize) -> io::Result<(Socket, OwnedFd)>;

    /// An eventfd whose notifications are events of the epoll set `set`, with the number `number`.
    /// It never blocks. Returns it with a view of a wake word's memory.
    fn relay(&self, set: BorrowedFd<'_>, number: u32, wake_word: BorrowedFd<'_>)
    -> io::Result<(OwnedFd, WakeWordView)>;
}

impl fmt::Debug for dyn Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Host")
    }
}

/// Linux.
#[derive(Default)]
pub struct System {
    /// One source that all number spaces share.
    random: Option<Arc<Mutex<Random>>>,
}

impl System {
    /// A host whose number spaces are random. That of [`Default`] gives numbers out in order.
    pub fn random() -> io::Result<Self> {
        Ok(Self { random: Some(Arc::new(Mutex::new(Random::new()?))) })
    }
}

impl Host for System {
    fn chance(&self) -> Option<Chance> {
        let random = Arc::clone(self.random.as_ref()?);
        Some(Box::new(move || random.lock().word()))
    }

    fn secret(&self) -> u64 {
        let mut secret = [0; 8];
        let _ = getrandom(&mut secret, GetRandomFlags::empty());
        u64::from_ne_bytes(secret)
    }

    fn memory(&self, name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        Region::create(name, len)
    }

    fn published(&self, name: &str, len: usize) -> io::Result<(Region, OwnedFd)> {
        Region::create_published(name, len)
    }

    fn punch(&self, memory: &Region, offset: usize, len: usize) -> io::Result<()> {
        memory.punch(offset, len)
    }

    fn later(&self, job: Box<dyn FnOnce() + Send>) {
        deferred_free::later(job);
    }

    fn capture_ring(&self, room: usize) -> io::Result<OwnedFd> {
        create_capture_ring(room)
    }

    fn duplicate(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        fd.try_clone_to_owned()
    }

    fn inode(&self, memory: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
        let memory = rustix::fs::fstat(memory)?;
        Ok((memory.st_dev, memory.st_ino))
    }

    fn event_file(&self) -> io::Result<OwnedFd> {
        rustix::event::eventfd(0, EventfdFlags::CLOEXEC).map_err(denied("eventfd2"))
    }

    fn push_socket(&self, room: usize) -> io::Result<(Socket, OwnedFd)> {
        let (ours, theirs) = Socket::pair()?;
        ours.only_send()?;
        ours.set_send_room(room)?;
        Ok((ours, theirs.into()))
    }

    fn relay(
        &self,
        set: BorrowedFd<'_>,
        number: u32,
        wake_word: BorrowedFd<'_>,
    ) -> io::Result<(OwnedFd, WakeWordView)> {
        let notifier = OwnedFd::from(Notifier::new()?);
        let wake_word = WakeWordView::map(wake_word)?;
        // With ET, every notification is an event of its own, although the eventfd is never
        // drained.
        epoll::add(set, &notifier, EventData::new_u64(number.into()), EventFlags::IN | EventFlags::ET)?;
        Ok((notifier, wake_word))
    }
}

/// A source of random numbers that cannot be guessed.
pub(crate) struct Random {
    words: [u8; 256],
    used: usize,
}

impl Random {
    pub(crate) fn new() -> io::Result<Self> {
        let mut random = Self { words: [0; 256], used: 256 };
        random.fill()?;
        Ok(random)
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut filled = 0;
        while filled < self.words.len() {
            filled += getrandom(&mut self.words[filled..], GetRandomFlags::empty()).map_err(denied("getrandom"))?;
        }
        self.used = 0;
        Ok(())
    }

    pub(crate) fn word(&mut self) -> u32 {
        // If the system should have no more, the same numbers are returned again, which costs some
        // retries.
        if self.used + 4 > self.words.len() && self.fill().is_err() {
            self.used = 0;
        }
        let bytes = self.words[self.used..].first_chunk::<4>().copied().unwrap_or_default();
        self.used += 4;
        u32::from_ne_bytes(bytes)
    }
}
