//! Async events: events of a QP, CQ, SRQ, port or the device outside any completion. Principal
//! type: [`AsyncEvent`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};

use abi::errno::Errno;
use abi::event::{AsyncRecord, kind};
use abi::private::violation;
use abi::queue::{CONTEXT_RECORDS, HW_COUNTERS_LEN, context_page};

use crate::event_file::EventFile;
use crate::memory::View;

/// An object that has events: a QP, a CQ, an SRQ, or one handle of an XRC target.
pub(crate) trait Object: Send + Sync {
    /// Its count of read events.
    fn read(&self) -> &ReadCounts;
    /// Counts an async event that the program has read, also in the agent's count, which other
    /// libraries use.
    fn count_async(&self);
}

/// The object of an event. It may end before the event is read.
pub(crate) type WeakObject = Weak<dyn Object>;

/// How many events of one object the program has read. The call that destroys the object waits
/// until all of them are acknowledged.
#[derive(Default)]
pub(crate) struct ReadCounts {
    completion: AtomicU32,
    asynchronous: AtomicU32,
}

impl ReadCounts {
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

struct EventRecord {
    event: AsyncEvent,
    object: Option<WeakObject>,
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
    file: EventFile<EventRecord>,
    page: View,
}

impl Events {
    pub(crate) fn new(fd: OwnedFd, page: View) -> Self {
        Self { file: EventFile::new(fd), page }
    }

    pub(crate) fn raise(&self, event_type: u32, element: u64, object: Option<WeakObject>) {
        self.file.push(EventRecord { event: AsyncEvent { kind: event_type, element }, object });
    }

    /// Counts a packet that was dropped at `port` for its P_Key or Q_Key. `kind` is one of
    /// `abi::private::violation`.
    pub(crate) fn violation(&self, kind: u8, port: u32) {
        let counters = [context_page::QKEY_VIOLATIONS, context_page::PKEY_VIOLATIONS];
        let counter = counters[usize::from(kind == violation::PKEY)];
        let last = counters[1] - counters[0] - 4;
        let at = (port.saturating_sub(1) as usize * 4).min(last);
        // At its end, the count stays.
        let _ = self.page.word(counter + at).fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_add(1));
    }

    /// Adds to a counter of `port`. `counter` is one of `abi::queue::hw_counter`.
    #[cold]
    pub(crate) fn count(&self, counter: usize, port: u8, more: u32) {
        let at = context_page::HW_COUNTERS + HW_COUNTERS_LEN * usize::from(port > 1) + 4 * counter;
        self.page.word(at).fetch_add(more, std::sync::atomic::Ordering::Relaxed);
    }

    /// The descriptor that is readable when an event waits.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.fd()
    }

    /// Waits for an event unless the descriptor has O_NONBLOCK; then this fails with EAGAIN.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        self.file.wait()
    }

    /// The next event, if there is one.
    pub(crate) fn take(&self) -> Result<Option<AsyncEvent>, Errno> {
        // Under the file's lock only a counter may be touched, because events are raised under the
        // objects' locks.
        let count = |record: &EventRecord| {
            if let Some(object) = record.object.as_ref().and_then(Weak::upgrade) {
                object.read().count_async();
            }
        };
        let Some(record) = self.file.take(|| self.agents_next(), count)? else { return Ok(None) };
        if let Some(object) = record.object.as_ref().and_then(Weak::upgrade) {
            object.count_async();
        }
        Ok(Some(record.event))
    }

    /// Removes the unread events of an object that is being destroyed.
    pub(crate) fn forget(&self, object: &dyn Object) {
        let is_its =
            |record: &EventRecord| record.object.as_ref().is_some_and(|of| std::ptr::addr_eq(of.as_ptr(), object));
        self.file.retain(|record| !is_its(record));
    }

    /// Raises the last event of the context.
    pub(crate) fn device_fatal(&self) {
        self.raise(kind::DEVICE_FATAL, 0, None);
        self.file.kill();
    }

    /// The agent's next record, and whether more wait. The agent trusts nothing in this memory, and
    /// the engine takes only whole records.
    fn agents_next(&self) -> (Option<EventRecord>, bool) {
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
        (Some(EventRecord { event, object: None }), head != taken.wrapping_add(1))
    }
}
