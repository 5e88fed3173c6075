//! The connection manager's side of an open device: an event channel to the agent, and a thread
//! that delivers each event to its id. Principal type: [`Manager`].
//!
//! The thread sleeps on the channel's descriptor. When a peer disconnects, the thread answers and
//! flushes the queue pair of the connection. So threads that wait for its completions wake up, even
//! if the program never asks for the event.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Instant;

use ::cm::{Channel, Event, EventKind};
use abi::errno::Errno;
use abi::qp::{ModifyQp, attr, state};
use engine::usermem;
use parking_lot::{Condvar, Mutex};

use crate::error::{Error, Result};
use crate::wait::readable;

/// Opens a channel to the agent of a device.
pub(crate) type Opener = Box<dyn Fn() -> ::cm::Result<Channel> + Send + Sync>;

/// The connections of an open device.
pub(crate) struct Manager {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    channel: Channel,
    state: Mutex<Mailboxes>,
    next: AtomicU64,
}

#[derive(Default)]
struct Mailboxes {
    /// Mailboxes by cookie.
    boxes: HashMap<u64, Arc<Mailbox>>,
    /// Set when no more events can come; the reason.
    ended: Option<Error>,
}

/// The events of one id, and its waiters.
#[derive(Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    came: Condvar,
    #[cfg(feature = "tokio")]
    told: tokio::sync::Notify,
    #[cfg(feature = "tokio")]
    over: tokio::sync::Notify,
}

#[derive(Default)]
struct Mail {
    events: VecDeque<Event>,
    ended: Option<Error>,
    /// The connection has ended.
    closed: bool,
    /// The queue pair that ends with the connection.
    guarded: Option<Guarded>,
}

/// The queue pair of a connection.
#[derive(Clone)]
struct Guarded {
    qp: Weak<engine::Qp>,
    engine: Weak<engine::Engine>,
}

impl Manager {
    pub(crate) fn open(opener: &Opener) -> Result<Self> {
        let shared = Arc::new(Shared { channel: opener()?, state: Mutex::default(), next: AtomicU64::new(1) });
        let thread = std::thread::Builder::new().name("softhca-cm".into()).stack_size(256 * 1024);
        let listening = Arc::clone(&shared);
        let thread = thread
            .spawn(move || listening.listen())
            .map_err(|error| engine::by_system(shm::denied::named("pthread_create")(error)))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.shared.channel
    }

    /// Creates a mailbox for a new id. Returns it with the cookie that its events carry.
    pub(crate) fn mailbox(&self) -> (u64, Arc<Mailbox>) {
        let cookie = self.shared.next.fetch_add(1, Ordering::Relaxed);
        let mailbox = Arc::<Mailbox>::default();
        let mut state = self.shared.state.lock();
        mailbox.mail.lock().ended = state.ended.clone();
        state.boxes.insert(cookie, Arc::clone(&mailbox));
        (cookie, mailbox)
    }

    /// Removes the mailbox of an id that has ended, and rejects the requests in it that nobody has
    /// accepted.
    pub(crate) fn forget(&self, cookie: u64) {
        let mailbox = self.shared.state.lock().boxes.remove(&cookie);
        let events = mailbox.map(|mailbox| std::mem::take(&mut mailbox.mail.lock().events));
        events.into_iter().flatten().for_each(|event| self.shared.refuse(&event));
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        self.shared.channel.close();
        // The thread sees the end of the stream, whatever happens on the agent's side.
        let _ = rustix::net::shutdown(self.shared.channel.fd(), rustix::net::Shutdown::Both);
        if let Some(thread) = self.thread.take().filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn listen(&self) {
        usermem::block_other_signals();
        loop {
            let next = match self.channel.try_event() {
                Ok(None) => readable(self.channel.fd(), None).map(|_| None),
                Ok(event) => Ok(event),
                Err(error) => Err(error.into()),
            };
            match next {
                Ok(None) => {}
                Ok(Some(event)) => self.deliver(event),
                Err(error) => return self.end(&error),
            }
        }
    }

    fn deliver(&self, event: Event) {
        let mailbox = self.state.lock().boxes.get(&event.cookie).map(Arc::clone);
        if event.kind == EventKind::DISCONNECTED {
            // The peer waits for an answer (DREP). The call fails if the peer's own message was the
            // answer.
            let _ = self.channel.disconnect(event.id);
        }
        match mailbox {
            Some(mailbox) => mailbox.put(event),
            None => self.refuse(&event),
        }
    }

    /// Rejects a request that nobody will answer.
    fn refuse(&self, event: &Event) {
        if event.kind == EventKind::CONNECT_REQUEST {
            // Fails only when the agent is gone. Then there is no peer to reject.
            let _ = self.channel.destroy_id(event.id);
        }
    }

    fn end(&self, error: &Error) {
        let mut state = self.state.lock();
        state.ended = Some(error.clone());
        let boxes: Vec<_> = state.boxes.values().map(Arc::clone).collect();
        drop(state);
        boxes.iter().for_each(|mailbox| mailbox.end(error));
    }
}

impl Mailbox {
    /// Sets the queue pair that ends with the connection.
    pub(crate) fn guard(&self, qp: &Arc<engine::Qp>, engine: &Arc<engine::Engine>) {
        let guarded = Guarded { qp: Arc::downgrade(qp), engine: Arc::downgrade(engine) };
        let mut mail = self.mail.lock();
        if mail.closed {
            drop(mail);
            guarded.flush();
        } else {
            mail.guarded = Some(guarded);
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.mail.lock().closed
    }

    /// Waits until the connection has ended, at most until `end`. Returns whether it has ended.
    pub(crate) fn wait_closed(&self, end: Option<Instant>) -> Result<bool> {
        let mut mail = self.mail.lock();
        loop {
            if let Some(error) = &mail.ended {
                return Err(error.clone());
            }
            if mail.closed {
                return Ok(true);
            }
            match end {
                None => self.came.wait(&mut mail),
                Some(end) if self.came.wait_until(&mut mail, end).timed_out() => return Ok(mail.closed),
                Some(_) => {}
            }
        }
    }

    /// Waits for the next event, at most until `end`.
    pub(crate) fn wait(&self, end: Option<Instant>) -> Result<Option<Event>> {
        let mut mail = self.mail.lock();
        loop {
            if let Some(event) = mail.take()? {
                return Ok(Some(event));
            }
            match end {
                None => self.came.wait(&mut mail),
                Some(end) if self.came.wait_until(&mut mail, end).timed_out() => return mail.take(),
                Some(_) => {}
            }
        }
    }

    /// Waits for the next event, and lets other tasks run meanwhile. No event is lost when the
    /// future is dropped.
    #[cfg(feature = "tokio")]
    pub(crate) async fn event(&self) -> Result<Event> {
        loop {
            let told = self.told.notified();
            if let Some(event) = self.mail.lock().take()? {
                return Ok(event);
            }
            told.await;
        }
    }

    /// Waits until the connection has ended.
    #[cfg(feature = "tokio")]
    pub(crate) async fn closed(&self) -> Result<()> {
        loop {
            let over = self.over.notified();
            {
                let mail = self.mail.lock();
                match &mail.ended {
                    Some(error) => return Err(error.clone()),
                    None if mail.closed => return Ok(()),
                    None => {}
                }
            }
            over.await;
        }
    }

    fn put(&self, event: Event) {
        let over = matches!(event.kind, EventKind::DISCONNECTED | EventKind::DEVICE_REMOVAL);
        let mut mail = self.mail.lock();
        mail.events.push_back(event);
        mail.closed |= over;
        let guarded = mail.guarded.take_if(|_| over);
        drop(mail);
        if let Some(guarded) = guarded {
            guarded.flush();
        }
        self.came.notify_all();
        #[cfg(feature = "tokio")]
        {
            self.told.notify_one();
            self.over.notify_waiters();
        }
    }

    fn end(&self, error: &Error) {
        let mut mail = self.mail.lock();
        mail.closed = true;
        mail.ended = Some(error.clone());
        drop(mail);
        self.came.notify_all();
        #[cfg(feature = "tokio")]
        {
            self.told.notify_waiters();
            self.over.notify_waiters();
        }
    }
}

impl Mail {
    fn take(&mut self) -> Result<Option<Event>> {
        match (self.events.pop_front(), &self.ended) {
            (None, Some(error)) => Err(error.clone()),
            (event, _) => Ok(event),
        }
    }
}

impl Guarded {
    /// Flushes the queue pair. If the flush fails, the queue pair has ended already.
    fn flush(&self) {
        let Some(qp) = self.qp.upgrade() else { return };
        // Everything that the peer acknowledged before it ended has arrived. Its acknowledgement
        // may still be unread here, so poll once more.
        if let Some(engine) = self.engine.upgrade() {
            engine.catch_up();
        }
        let _ = qp.modify(&ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() });
    }
}

/// The error of a device that was opened without a connection manager.
pub(crate) fn none() -> Error {
    Error::refused(
        Errno::EOPNOTSUPP,
        "this device was opened by a control of its own, which leads to no connection manager",
    )
}
