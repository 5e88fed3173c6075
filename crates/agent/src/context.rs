//! A context: the state of one open of a device node, without the objects in the tables.
//!
//! The state consists of the client's identity, its queue memory, its async event file and its
//! engine. Objects live in [`crate::world::World`]. The context does not know how commands arrive.
//! The principal type is [`Context`].

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi::event::AsyncRecord;
use abi::layout::Record;
use abi::queue::{CONTEXT_PAGE_LEN, CONTEXT_RECORDS, HW_COUNTERS_LEN, context_page, hw_counter};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::closer::Closer;
use crate::engine_link::EngineLink;
use crate::foreign::Foreign;
use crate::host::Host;
pub use crate::ids::{ContextId, Peer};
use crate::pending::PendingContext;
use crate::queue_memory::{Block, QueueMemory};

/// Counts by the numbers of [`hw_counter`].
pub(crate) type HwCounters = [u64; hw_counter::ALL.len()];

/// One open of a device node.
pub struct Context {
    /// Its name.
    pub id: ContextId,
    /// The device, by index.
    pub device: usize,
    /// The profile of the ABI that it uses (`abi::open::profile`).
    pub profile: u16,
    /// Its client.
    pub peer: Peer,
    /// Its queue memory.
    pub memory: QueueMemory,
    /// Its async event file, from GET_CONTEXT on.
    pub events: Option<AsyncFile>,
    /// Its engine, from ENGINE_HELLO on.
    pub engine: Option<EngineLink>,
    /// Descriptors that the agent keeps for its channels and for memory that its client handed
    /// over.
    descriptors: u32,
    /// The context whose objects it may also use.
    pub imported: Option<ContextId>,
    /// Its client is gone, and its objects are being destroyed.
    pub ends: bool,
    /// The agent runs a proxy engine for it.
    pub has_proxy: bool,
    /// The contexts to which its ended lanes led. It is filled only if there are fault rules that
    /// these neighbours must forget.
    pub(crate) neighbours: BTreeSet<ContextId>,
    /// The closer for descriptors that its client passes or shares.
    pub closer: Closer,
}

impl Context {
    /// A context before GET_CONTEXT.
    pub fn new(id: ContextId, device: usize, profile: u16, peer: Peer, closer: Closer, memory: QueueMemory) -> Self {
        Self {
            id,
            device,
            profile,
            peer,
            memory,
            events: None,
            engine: None,
            descriptors: 0,
            imported: None,
            ends: false,
            has_proxy: false,
            neighbours: BTreeSet::new(),
            closer,
        }
    }

    /// Counts one more descriptor that the agent keeps for it
    /// ([`crate::shares::room_for_descriptor`] checks the limit).
    pub fn take_descriptor(&mut self) {
        self.descriptors += 1;
    }

    /// Counts one descriptor less.
    pub fn give_descriptor(&mut self) {
        self.descriptors = self.descriptors.saturating_sub(1);
    }

    /// How many descriptors are counted.
    pub fn descriptors(&self) -> u64 {
        self.descriptors.into()
    }

    /// Whether GET_CONTEXT has succeeded.
    pub fn is_open(&self) -> bool {
        self.events.is_some()
    }
}

/// The agent's end of an async event file: an eventfd and a ring of records in the context page.
pub struct AsyncFile {
    eventfd: Arc<Foreign>,
    /// The user's thread is going to write to the eventfd.
    notifies: Arc<AtomicBool>,
    page: Block,
    /// Device and inode of the page's memory. Other processes name this context by them.
    inode: (u64, u64),
    head: u32,
    /// Records for which the ring had no room, oldest first.
    waiting: VecDeque<AsyncRecord>,
    pending: Option<PendingContext>,
}

/// Maximum number of records that wait. Beyond that, the oldest one, which the program has not read
/// for so long, is dropped.
const WAITING_MAX: usize = 256;

impl AsyncFile {
    /// An empty file whose records go to `page`. `closer` is of the client's user.
    pub fn new(host: &dyn Host, page: Block, closer: Closer) -> io::Result<Self> {
        let inode = host.inode(page.descriptor())?;
        assert!(page.mapping(false).length >= CONTEXT_PAGE_LEN as u64, "a context page is a whole page");
        let eventfd = Arc::new(Foreign::new(host.event_file()?, closer));
        let notifies = Arc::new(AtomicBool::new(false));
        Ok(Self { eventfd, notifies, page, inode, head: 0, waiting: VecDeque::new(), pending: None })
    }

    /// Its descriptor, to be duplicated for the client.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// The page with the records.
    pub fn page(&self) -> &Block {
        &self.page
    }

    /// Device and inode of the page's memory.
    pub fn inode(&self) -> (u64, u64) {
        self.inode
    }

    /// The Q_Key and P_Key violations that the client has counted at a port.
    pub fn violations(&self, port: u32) -> [u32; 2] {
        let at = port.saturating_sub(1) as usize * 4;
        [context_page::QKEY_VIOLATIONS, context_page::PKEY_VIOLATIONS].map(|counter| self.page.read(counter + at))
    }

    /// What the client has counted at a port, by the numbers of [`hw_counter`].
    pub(crate) fn hw_counters(&self, port: u32) -> HwCounters {
        let first = context_page::HW_COUNTERS + HW_COUNTERS_LEN * usize::from(port > 1);
        std::array::from_fn(|counter| self.page.read(first + 4 * counter).into())
    }

    /// Gives the client a record with the next [`AsyncFile::flush`], or later when there is room.
    pub fn push(&mut self, record: AsyncRecord) {
        if self.waiting.contains(&record) {
            return;
        }
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
        }
        self.waiting.push_back(record);
        if let Some(pending) = &self.pending {
            pending.note();
        }
    }

    /// Sets where this file notes that records wait.
    pub fn note_at(&mut self, pending: PendingContext) {
        self.pending = Some(pending);
    }

    /// Moves waiting records to the ring and wakes the client. Returns true if none is left.
    pub fn flush(&mut self) -> bool {
        let mut moved = false;
        while let Some(record) = self.waiting.front() {
            // The client writes this count. Whatever it is, at most one ring of records is written.
            let taken = self.page.read(context_page::CONSUMER);
            if self.head.wrapping_sub(taken) >= CONTEXT_RECORDS {
                break;
            }
            let slot = (self.head % CONTEXT_RECORDS) as usize;
            self.page.copy_in(context_page::RECORDS + slot * size_of::<AsyncRecord>(), record.bytes());
            self.head = self.head.wrapping_add(1);
            // Pairs with the client's acquire load of the head: it sees the record before the
            // count.
            self.page.word(context_page::HEAD).store(self.head, Ordering::Release);
            self.waiting.pop_front();
            moved = true;
        }
        if moved && !self.notifies.swap(true, Ordering::AcqRel) {
            let notifies = Arc::clone(&self.notifies);
            self.eventfd.act(move |eventfd| {
                notifies.store(false, Ordering::Release);
                notify(eventfd);
            });
        }
        self.waiting.is_empty()
    }
}

impl Drop for AsyncFile {
    fn drop(&mut self) {
        self.eventfd.closer().end_writes(&self.eventfd);
    }
}

/// Adds one to an eventfd, unless this would block. The client decides whether the eventfd is
/// blocking, and an eventfd with a full counter is readable anyway. A client can fill the counter
/// between the check and the write, and then this blocks.
fn notify(eventfd: &OwnedFd) {
    let mut poll = [PollFd::new(eventfd, PollFlags::OUT)];
    let writable = rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    if writable.is_ok_and(|ready| ready == 1) {
        let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::closer::Closers;
    use crate::host::System;
    use std::sync::mpsc::channel;

    fn record(element: u64) -> AsyncRecord {
        AsyncRecord { element, event_type: 18, reserved: 0 }
    }

    #[test]
    fn records_wait_for_room_and_keep_their_order() {
        let page = QueueMemory::new(Arc::new(System::default()), Closer::default())
            .allocate_apart(CONTEXT_PAGE_LEN)
            .expect("a page")
            .block;
        let mut file = AsyncFile::new(&System::default(), page.clone(), Closer::default()).expect("a file");
        for element in 0..200 {
            file.push(record(element));
        }
        assert_eq!(page.read(context_page::HEAD), 0, "nothing happens before the flush");
        assert!(!file.flush());
        assert_eq!(page.read(context_page::HEAD), CONTEXT_RECORDS);
        page.word(context_page::CONSUMER).store(100, Ordering::Release);
        assert!(file.flush());
        assert_eq!(page.read(context_page::HEAD), 200);
    }

    /// If the program fills its eventfd between the check and the write, the thread of the user
    /// waits until the context ends.
    #[test]
    fn the_end_of_a_context_ends_a_write_that_waits() {
        let page = QueueMemory::new(Arc::new(System::default()), Closer::default())
            .allocate_apart(CONTEXT_PAGE_LEN)
            .expect("a page")
            .block;
        let closer = Closers::threads(|_| {}, 4).of(77);
        let file = AsyncFile::new(&System::default(), page, closer.clone()).expect("a file");
        rustix::io::write(file.descriptor(), &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        rustix::fs::fcntl_setfl(file.descriptor(), rustix::fs::OFlags::empty()).expect("it blocks");
        let (tell, told) = channel();
        let at_work = tell.clone();
        file.eventfd.act(move |eventfd| {
            at_work.send("writes").expect("it is waited for");
            rustix::io::write(eventfd, &1_u64.to_ne_bytes()).expect("it is written");
        });
        closer.act(move || tell.send("goes on").expect("it is waited for"));
        let next = || told.recv_timeout(std::time::Duration::from_secs(30));
        assert_eq!(next(), Ok("writes"));
        drop(file);
        // The write may not have begun when the context ended: then it finds an empty eventfd.
        assert_eq!(next(), Ok("goes on"));
    }

    #[test]
    fn the_thread_of_the_user_notifies_the_client() {
        let page = QueueMemory::new(Arc::new(System::default()), Closer::default())
            .allocate_apart(CONTEXT_PAGE_LEN)
            .expect("a page")
            .block;
        let closer = Closers::threads(|_| {}, 4).of(77);
        let (go, blocked) = channel();
        closer.act(move || blocked.recv().expect("it goes on"));
        let mut file = AsyncFile::new(&System::default(), page.clone(), closer).expect("a file");
        file.push(record(1));
        assert!(file.flush());
        let is_notified_in = |tv_sec| {
            let mut poll = [PollFd::from_borrowed_fd(file.descriptor(), PollFlags::IN)];
            rustix::event::poll(&mut poll, Some(&Timespec { tv_sec, tv_nsec: 0 })).expect("polled") == 1
        };
        assert!(!is_notified_in(0), "not the thread of the user has written");
        go.send(()).expect("it waits");
        assert!(is_notified_in(30));
    }

    #[test]
    fn a_client_that_fills_its_eventfd_does_not_stop_the_agent() {
        let page = QueueMemory::new(Arc::new(System::default()), Closer::default())
            .allocate_apart(CONTEXT_PAGE_LEN)
            .expect("a page")
            .block;
        let mut file = AsyncFile::new(&System::default(), page.clone(), Closer::default()).expect("a file");
        rustix::io::write(file.descriptor(), &(u64::MAX - 1).to_ne_bytes()).expect("filled");
        page.word(context_page::CONSUMER).store(0x8000_0000, Ordering::Release);
        for element in 0..1_000 {
            file.push(record(element));
            file.flush();
        }
        assert!(file.waiting.len() <= WAITING_MAX);
    }
}
