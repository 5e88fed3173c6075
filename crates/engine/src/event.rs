//! Async events: events of a QP, CQ, SRQ, port or the device outside any completion. Principal
//! type: [`AsyncEvent`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use abi::event::{AsyncRecord, kind};
use abi::queue::{CONTEXT_RECORDS, context_page};

use crate::engine::Engine;
use crate::event_file::EventFile;
use crate::memory::View;

/// The object of an event, for its count of read events.
#[derive(Clone)]
pub(crate) enum Object {
    None,
    Cq(std::sync::Weak<crate::cq::Cq>),
    Qp(std::sync::Weak<crate::qp::Qp>),
    Srq(std::sync::Weak<crate::srq::Srq>),
    Hold(std::sync::Weak<crate::xrc::Hold>),
}

/// How many events of one object the program has read. Its destroyer waits until all of them are
/// acknowledged.
#[derive(Default)]
pub(crate) struct Read {
    completion: AtomicU32,
    asynchronous: AtomicU32,
}

impl Read {
    pub(crate) fn count_completion(&self) {
        self.completion.fetch_add(1, Ordering::Relaxed);
    }

    fn count_async(&self) {
        self.asynchronous.fetch_add(1, Ordering::Relaxed);
    }

    /// Read completion events; exact after the object's unread events are removed.
    pub(crate) fn completion(&self) -> u32 {
        self.completion.load(Ordering::Relaxed)
    }

    /// Read async events; exact after the object's unread events are removed.
    pub(crate) fn asynchronous(&self) -> u32 {
        self.asynchronous.load(Ordering::Relaxed)
    }
}

struct Record {
    event: AsyncEvent,
    object: Object,
}

/// One async event, as a program gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncEvent {
    /// The kind of event (see `abi::event::kind`).
    pub kind: u32,
    /// The object's cookie, or the port's number.
    pub element: u64,
}

/// A context's async events: the engine's own, and the agent's in the context page.
pub(crate) struct Events {
    file: EventFile<Record>,
    page: View,
}

impl Events {
    pub(crate) fn new(fd: OwnedFd, page: View) -> Self {
        Self { file: EventFile::new(fd), page }
    }

    pub(crate) fn raise(&self, event_type: u32, element: u64, object: Object) {
        self.file.push(Record { event: AsyncEvent { kind: event_type, element }, object });
    }

    /// Counts a packet that was dropped at `port` for its P_Key or Q_Key. `counter` is a word of
    /// the context page.
    pub(crate) fn violation(&self, counter: usize, port: u32) {
        let last = context_page::PKEY_VIOLATIONS - context_page::QKEY_VIOLATIONS - 4;
        let at = (port.saturating_sub(1) as usize * 4).min(last);
        self.page.word(counter + at).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Raises the last event of the context.
    pub(crate) fn device_fatal(&self) {
        self.raise(kind::DEVICE_FATAL, 0, Object::None);
        self.file.kill();
    }

    /// The agent's next record, and whether more wait. The agent trusts nothing in this memory, and
    /// the engine takes only whole records.
    fn agents_next(&self) -> (Option<Record>, bool) {
        let head = self.page.word(context_page::HEAD).load(Ordering::Acquire);
        let consumer = self.page.word(context_page::CONSUMER);
        let taken = consumer.load(Ordering::Relaxed);
        if head == taken {
            return (None, false);
        }
        let slot = context_page::RECORDS + (taken % CONTEXT_RECORDS) as usize * size_of::<AsyncRecord>();
        let record: AsyncRecord = self.page.read(slot);
        consumer.store(taken.wrapping_add(1), Ordering::Release);
        let event = AsyncEvent { kind: record.event_type, element: record.element };
        (Some(Record { event, object: Object::None }), head != taken.wrapping_add(1))
    }
}

impl Engine {
    /// The descriptor that is readable when an async event waits.
    #[must_use]
    pub fn async_fd(&self) -> BorrowedFd<'_> {
        self.events.file.fd()
    }

    /// The next async event. Waits unless the descriptor has O_NONBLOCK.
    ///
    /// # Errors
    /// EAGAIN, EINTR; EIO when the device is gone and all events are read, or after a fork.
    pub fn async_event(&self) -> Result<AsyncEvent, Errno> {
        self.check_process().map_err(|error| error.errno)?;
        // Under the file's lock only a counter may be touched, because events are raised under the
        // objects' locks.
        let record = self.events.file.next(
            || self.events.agents_next(),
            |record| match &record.object {
                Object::Cq(cq) => cq.upgrade().iter().for_each(|cq| cq.read.count_async()),
                Object::Qp(qp) => qp.upgrade().iter().for_each(|qp| qp.read.count_async()),
                Object::Srq(srq) => srq.upgrade().iter().for_each(|srq| srq.read.count_async()),
                Object::Hold(hold) => hold.upgrade().iter().for_each(|hold| hold.read.count_async()),
                Object::None => {}
            },
        )?;
        match &record.object {
            Object::Cq(cq) => cq.upgrade().iter().for_each(|cq| cq.tell_async()),
            Object::Qp(qp) => qp.upgrade().iter().for_each(|qp| qp.tell_async()),
            Object::Srq(srq) => srq.upgrade().iter().for_each(|srq| srq.tell_async()),
            Object::Hold(hold) => hold.upgrade().iter().for_each(|hold| hold.tell_async()),
            Object::None => {}
        }
        Ok(record.event)
    }

    /// Removes the unread events of an object that is being destroyed.
    pub(crate) fn forget_events(&self, of_it: impl Fn(&Object) -> bool) {
        self.events.file.retain(|record| !of_it(&record.object));
    }
}
