//! An event channel: one connection to the agent's node, and the [`EventSocket`] that brings the
//! events.
//!
//! A reader takes a message from the event socket, and asks the agent for its event if necessary,
//! under one lock. A thread that ends or moves an id takes out the id's messages under the same
//! lock. So there are always as many messages as events. No thread waits while it holds the lock.
//! The principal type is [`Channel`].

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use abi::errno::Errno;
use abi::open::flag;
use abi::ucma::connection::{NextEvent, NextEventAnswer};
use abi::ucma::id::Taken;
use abi::ucma::{NODE, SENTENCE_MAX, build, command};
use engine::{Answer, Control, Result, SocketControl, refusal};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::net::RecvFlags;

use crate::event::{Event, EventKind};
use crate::event_socket::{self, EventSocket, Message, Reading};
use crate::param::{Id, PortSpace, QpKind};

/// How long a waiting thread polls for an event before it sleeps.
const LINGER: Duration = Duration::from_micros(100);

/// The agent closes its two sockets one after the other. This time is longer than the pause between
/// them.
const SOCKET_CLOSE_TIMEOUT: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// An event channel.
pub struct Channel {
    control: Box<dyn Control>,
    pub(crate) event_socket: EventSocket,
    agent: u32,
    /// An id that was created in advance, with its cookie, port space and QP type.
    pub(crate) kept: Mutex<Option<(u64, Id, PortSpace, QpKind)>>,
    /// The agent's number for this channel, used in commands on another channel.
    pub(crate) token: OnceLock<u32>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Channel").field("fd", &self.event_socket.fd.as_raw_fd()).finish_non_exhaustive()
    }
}

impl Channel {
    /// Opens a channel to the agent of a run directory.
    ///
    /// # Errors
    /// No agent answers there, or its version differs.
    pub fn open(run_directory: &Path) -> Result<Self> {
        let (control, fds) = SocketControl::open_with_descriptors(&run_directory.join(NODE), 0, flag::TOLD)?;
        let event_socket = fds.into_iter().next();
        let event_socket =
            event_socket.ok_or_else(|| refusal(Errno::EPROTO, "an event channel came without its descriptor"))?;
        let agent = control.agent();
        Ok(Self { agent, ..Self::over(Box::new(control), event_socket) })
    }

    /// A channel over any connection to an agent, with the event socket that came with the
    /// connection: a message socket.
    #[must_use]
    pub fn over(control: Box<dyn Control>, event_socket: OwnedFd) -> Self {
        Self {
            control,
            event_socket: EventSocket::new(event_socket),
            agent: 0,
            kept: Mutex::new(None),
            token: OnceLock::new(),
        }
    }

    /// The process id of the agent, or 0 if the agent has no process of its own. Its data about
    /// devices is valid while it lives.
    #[must_use]
    pub fn agent(&self) -> u32 {
        self.agent
    }

    /// The event socket: readable while an event waits. With O_NONBLOCK on it,
    /// [`Channel::next_event`] fails with EAGAIN.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.event_socket.fd.as_fd()
    }

    /// The next event. Waits for one unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN if there is none, EINTR after a signal whose handler does not restart calls, EIO if
    /// the agent has ended.
    pub fn next_event(&self) -> Result<Event> {
        let mut found = self.look_for_event()?;
        loop {
            if let Some(event) = found {
                return Ok(event);
            }
            self.event_socket.peek(RecvFlags::empty())?;
            found = self.try_event()?;
        }
    }

    /// The next event, if there is one. On a blocking descriptor, this polls for a short time:
    /// usually the event comes from the peer's next step, which takes less time than a wake-up.
    ///
    /// # Errors
    /// EIO if the agent has ended.
    pub fn look_for_event(&self) -> Result<Option<Event>> {
        let found = self.try_event()?;
        if found.is_none() && self.waits() { self.look() } else { Ok(found) }
    }

    /// Whether the program's descriptor is blocking.
    fn waits(&self) -> bool {
        rustix::fs::fcntl_getfl(&self.event_socket.fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
    }

    /// Polls for an event for a short time. Other threads get the processor between two attempts.
    fn look(&self) -> Result<Option<Event>> {
        shm::spin::spin(LINGER, || self.try_event().transpose()).transpose()
    }

    /// The next event if there is one, even if the descriptor is blocking.
    ///
    /// # Errors
    /// EIO if the agent has ended.
    pub fn try_event(&self) -> Result<Option<Event>> {
        let mut reading = self.reading();
        let mut failed = None;
        while let Some(message) = self.event_socket.take(&mut reading)? {
            let event = match message {
                Some(Message::Told(bytes)) => self.told(&mut reading, &bytes)?,
                Some(Message::Ask) => match self.ask_for_event() {
                    Ok(answer) => {
                        reading.count(event_socket::counts(&answer.bytes));
                        Event::read(&answer.bytes)?
                    }
                    // A message without its event: the request found nothing.
                    Err(error) if error.errno == Errno::EAGAIN => continue,
                    // The agent has ended, and its events are gone. After the last message, the
                    // event socket reports this.
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

    /// Whether the agent has ended, after a call has failed with EIO. One of its two sockets may
    /// end a short time before the other.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let mut event_socket = [PollFd::new(&self.event_socket.fd, PollFlags::IN)];
        let _ = rustix::event::poll(&mut event_socket, Some(&SOCKET_CLOSE_TIMEOUT));
        let mut byte = [0u8; 1];
        matches!(
            rustix::net::recv(&self.event_socket.fd, &mut byte[..], RecvFlags::PEEK | RecvFlags::DONTWAIT),
            Ok((_, 0)) | Err(rustix::io::Errno::CONNRESET)
        )
    }

    /// Handles an event that came through the event socket.
    fn told(&self, reading: &mut Reading<'_>, bytes: &[u8]) -> Result<Event> {
        let (event, id) = (Event::read(bytes)?, event_socket::counts(bytes));
        reading.count(id);
        if event.kind == EventKind::CONNECT_REQUEST {
            // If this fails, the agent has ended, and the count no longer matters.
            let _ = self.say(&build(command::TAKEN, &Taken { id, count: 1 }, &[], 0));
        }
        Ok(event)
    }

    fn ask_for_event(&self) -> Result<Answer> {
        let room = size_of::<NextEventAnswer>() + SENTENCE_MAX;
        self.call(&build(command::NEXT_EVENT, &NextEvent { reserved: 0 }, &[], room), &[])
    }

    /// Closes the channel, and with it all its ids, even if copies of its descriptors exist (in a
    /// forked child).
    pub fn close(&self) {
        self.control.close();
    }

    /// Prevents other threads from reading.
    pub(crate) fn reading(&self) -> Reading<'_> {
        self.event_socket.reading()
    }

    /// Sends a command and waits for its answer.
    pub(crate) fn call(&self, request: &[u8], fds: &[BorrowedFd<'_>]) -> Result<Answer> {
        self.control.call(request, fds)
    }

    /// Sends a command without an answer.
    pub(crate) fn say(&self, request: &[u8]) -> Result<()> {
        self.control.tell(request)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}
