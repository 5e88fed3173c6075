//! An event channel: one connection to the agent's node, and the [`Bell`] that brings the events.
//!
//! A reader takes a message from the bell, and asks for its event if need be, under one lock; whoever ends or moves an id takes out its
//! messages under the same lock. So there are as many messages as events. Nobody waits with the lock held. The principal type is
//! [`Channel`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use abi::errno::Errno;
use abi::open::flag;
use abi::ucma::connection::{NextEvent, NextEventAnswer};
use abi::ucma::id::Taken;
use abi::ucma::{NODE, SENTENCE_MAX, build, command};
use engine::{Answer, Control, Error, Result, SocketControl};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::net::RecvFlags;

use crate::bell::{self, Bell, Message, Reading};
use crate::event::{Event, EventKind};
use crate::param::{Id, PortSpace, QpKind};

/// How long who waits for an event looks for it before sleeping.
const LINGER: Duration = Duration::from_micros(100);

/// Longer than the time between the ends of an agent's two sockets.
const A_MOMENT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// An event channel.
pub struct Channel {
    control: Box<dyn Control>,
    pub(crate) bell: Bell,
    agent: u32,
    /// An id that nobody has yet, with its cookie and what it is for.
    pub(crate) kept: Mutex<Option<(u64, Id, PortSpace, QpKind)>>,
    /// By which the agent knows this channel on another one.
    pub(crate) token: OnceLock<u32>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("fd", &self.bell.fd.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Channel {
    /// Opens a channel to the agent of a run directory.
    ///
    /// # Errors
    /// No agent answers there, or one of another version.
    pub fn open(run_directory: &Path) -> Result<Self> {
        let (control, fds) = SocketControl::open_with_descriptors(&run_directory.join(NODE), 0, flag::TOLD)?;
        let bell = fds.into_iter().next();
        let bell = bell.ok_or_else(|| Error::refuse(Errno::EPROTO, "an event channel came without its descriptor"))?;
        let agent = control.agent();
        Ok(Self { agent, ..Self::over(Box::new(control), bell) })
    }

    /// A channel over any connection to an agent, with the bell that came with it, a socket of messages.
    #[must_use]
    pub fn over(control: Box<dyn Control>, bell: OwnedFd) -> Self {
        Self { control, bell: Bell::new(bell), agent: 0, kept: Mutex::new(None), token: OnceLock::new() }
    }

    /// The agent's process; 0 where there is none of its own. What it tells of devices holds while it lives.
    #[must_use]
    pub fn agent(&self) -> u32 {
        self.agent
    }

    /// The bell: readable while an event waits. O_NONBLOCK on it makes [`Channel::next_event`] answer EAGAIN.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.bell.fd.as_fd()
    }

    /// The next event; waits for one unless the descriptor is set to O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN when there is none, EINTR after a signal whose handler does not restart calls, EIO when the agent is gone.
    pub fn next_event(&self) -> Result<Event> {
        let mut looked = false;
        loop {
            if let Some(event) = self.try_event()? {
                return Ok(event);
            }
            // What is waited for is mostly the peer's next step, which takes less than being woken does.
            if !looked
                && self.waits()
                && let Some(event) = self.look()?
            {
                return Ok(event);
            }
            looked = true;
            self.bell.peek(RecvFlags::empty())?;
        }
    }

    /// Whether the program has its descriptor wait.
    fn waits(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.bell.fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// Looks for an event for a moment. Whoever else wants the processor has it between two looks.
    fn look(&self) -> Result<Option<Event>> {
        let end = Instant::now() + LINGER;
        while Instant::now() < end {
            rustix::thread::sched_yield();
            if let Some(event) = self.try_event()? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The next event if there is one, whatever the descriptor is set to.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn try_event(&self) -> Result<Option<Event>> {
        let mut reading = self.reading();
        let mut failed = None;
        while let Some(message) = self.bell.take(&mut reading)? {
            let event = match message {
                Some(Message::Told(bytes)) => self.told(&mut reading, &bytes)?,
                Some(Message::Ask) => match self.ask_for_event() {
                    Ok(answer) => {
                        reading.count(bell::counts(&answer.bytes));
                        Event::read(&answer.bytes)?
                    }
                    // A message without its event: a question in vain.
                    Err(error) if error.errno == Errno::EAGAIN => continue,
                    // The agent is gone with its events; behind their messages the bell says so.
                    Err(error) if error.errno == Errno::EIO => {
                        failed = Some(error);
                        continue;
                    }
                    Err(error) => return Err(error),
                },
                None => continue,
            };
            return Ok(Some(event));
        }
        failed.map_or(Ok(None), Err)
    }

    /// Whether the agent is gone, after a call has failed with EIO. Of its two sockets one may end a moment before the other.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut bell = [PollFd::new(&self.bell.fd, PollFlags::IN)];
        let _ = rustix::event::poll(&mut bell, Some(&A_MOMENT));
        let mut byte = [0u8; 1];
        matches!(
            rustix::net::recv(&self.bell.fd, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT),
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET)
        )
    }

    /// An event that the bell has brought.
    fn told(&self, reading: &mut Reading<'_>, bytes: &[u8]) -> Result<Event> {
        let (event, id) = (Event::read(bytes)?, bell::counts(bytes));
        reading.count(id);
        if event.kind == EventKind::CONNECT_REQUEST {
            // With the agent gone nobody asks any more.
            let _ = self.say(&build(command::TAKEN, &Taken { id, count: 1 }, &[], 0));
        }
        Ok(event)
    }

    fn ask_for_event(&self) -> Result<Answer> {
        let room = size_of::<NextEventAnswer>() + SENTENCE_MAX;
        self.call(&build(command::NEXT_EVENT, &NextEvent { reserved: 0 }, &[], room), &[])
    }

    /// Ends the channel, and with it all its ids, even where copies of its descriptors live on (in a forked child).
    pub fn close(&self) {
        self.control.close();
    }

    /// Keeps others from reading.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.bell.reading()
    }

    /// Carries out one command.
    pub(crate) fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        self.control.call(request, fds)
    }

    /// Has one command carried out, of which nothing will be heard.
    pub(crate) fn say(&self, request: &[u8]) -> Result<()> {
        self.control.tell(request)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}
