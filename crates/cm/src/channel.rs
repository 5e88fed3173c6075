//! An event channel: one connection to the agent's node, and the *bell* that tells of events.
//!
//! The bell is the descriptor that programs poll: the agent puts a byte into it for each event. A reader takes a byte and asks for
//! an event under one lock, and whoever ends an id takes the bytes of the events that went with it under the same lock; so there
//! are as many bytes as events. Nobody waits with the lock held. The principal type is [`Channel`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use abi::errno::Errno;
use abi::ucma::connection::{NextEvent, NextEventAnswer};
use abi::ucma::{NODE, SENTENCE_MAX, build, command};
use engine::{Answer, Control, Error, Result, SocketControl};
use parking_lot::{Mutex, MutexGuard};
use rustix::fs::OFlags;
use rustix::net::RecvFlags;

use crate::event::Event;

/// How long who waits for an event looks for it before sleeping. Whoever else wants the processor has it between two looks.
const LINGER: Duration = Duration::from_micros(30);

/// An event channel.
pub struct Channel {
    control: Box<dyn Control>,
    bell: OwnedFd,
    agent: u32,
    /// Held by whoever takes bytes from the bell.
    reading: Mutex<()>,
    /// By which the agent knows this channel on another one.
    pub(crate) token: OnceLock<u32>,
}

/// The right to take bytes from the bell.
pub(crate) type Reading<'a> = MutexGuard<'a, ()>;

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("fd", &self.bell.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Channel {
    /// Opens a channel to the agent of a run directory.
    ///
    /// # Errors
    /// No agent answers there, or one of another version.
    pub fn open(run_directory: &Path) -> Result<Self> {
        let (control, fds) = SocketControl::open_with_descriptors(&run_directory.join(NODE), 0)?;
        let bell = fds.into_iter().next();
        let bell = bell.ok_or_else(|| Error::refuse(Errno::EPROTO, "an event channel came without its descriptor"))?;
        let agent = control.agent();
        Ok(Self { agent, ..Self::over(Box::new(control), bell) })
    }

    /// A channel over any connection to an agent, with the bell that came with it.
    #[must_use]
    pub fn over(control: Box<dyn Control>, bell: OwnedFd) -> Self {
        Self { control, bell, agent: 0, reading: Mutex::new(()), token: OnceLock::new() }
    }

    /// The agent's process; 0 where there is none of its own. What it tells of devices holds while it lives.
    #[must_use]
    pub fn agent(&self) -> u32 {
        self.agent
    }

    /// The bell: readable while an event waits. O_NONBLOCK on it makes [`Channel::next_event`] answer EAGAIN.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next event; waits for one unless the descriptor is set to O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN when there is none, EINTR after a signal whose handler does not restart calls, EIO when the agent is gone.
    pub fn next_event(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.try_event()? {
                return Ok(event);
            }
            self.wait()?;
        }
    }

    /// The next event if there is one, whatever the descriptor is set to.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn try_event(&self) -> Result<Option<Event>> {
        let reading = self.reading();
        loop {
            if !self.take_byte(&reading)? {
                return Ok(None);
            }
            let room = size_of::<NextEventAnswer>() + SENTENCE_MAX;
            match self.call(&build(command::NEXT_EVENT, &NextEvent { reserved: 0 }, &[], room), &[]) {
                Ok(answer) => return Event::read(&answer).map(Some),
                // A byte without its event: a question in vain.
                Err(error) if error.errno == Errno::EAGAIN => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until there may be an event, or answers EAGAIN, as the program asked for.
    fn wait(&self) -> Result<()> {
        // What is waited for is mostly the peer's next step, which takes less than being woken does.
        let waits = rustix::fs::fcntl_getfl(&self.bell).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
        let end = Instant::now() + LINGER;
        while waits && Instant::now() < end {
            rustix::thread::sched_yield();
            match self.receive(RecvFlags::PEEK | RecvFlags::DONTWAIT) {
                Err(error) if error.errno == Errno::EAGAIN => {}
                done => return done,
            }
        }
        self.receive(RecvFlags::PEEK)
    }

    /// Ends the channel, and with it all its ids, even where copies of its descriptors live on (in a forked child).
    pub fn close(&self) {
        self.control.close();
    }

    /// Keeps others from reading.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.reading.lock()
    }

    /// Takes the bytes of events that are not there any more.
    pub(crate) fn take_bytes(&self, reading: &Reading<'_>, count: u32) {
        for _ in 0..count {
            // What is not in the bell yet was owed, and is not sent any more.
            if !matches!(self.take_byte(reading), Ok(true)) {
                return;
            }
        }
    }

    /// Whether there was one.
    fn take_byte(&self, _reading: &Reading<'_>) -> Result<bool> {
        match self.receive(RecvFlags::DONTWAIT) {
            Ok(()) => Ok(true),
            Err(error) if error.errno == Errno::EAGAIN => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn receive(&self, flags: RecvFlags) -> Result<()> {
        let mut byte = [0u8; 1];
        match rustix::net::recv(&self.bell, &mut byte[..], flags) {
            Ok((_, 0)) => Err(Error {
                errno: Errno::EIO,
                reason: "the softhca agent is gone, and with it the event channel".into(),
            }),
            Ok(_) => Ok(()),
            Err(error) => Err(Error::plain(Errno(error.raw_os_error()))),
        }
    }

    /// Carries out one command.
    pub(crate) fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        self.control.call(request, fds)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}
