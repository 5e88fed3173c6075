//! Parent domains: a protection domain with a thread domain, and with an allocator for queue
//! memory.
//!
//! Only this process reads the entries of a queue, so they may be in memory of the program's
//! choice. The words that the agent reads stay in queue memory. A thread domain promises that one
//! thread at a time uses its objects. Nothing here becomes faster by it, because uncontended locks
//! cost almost nothing. Principal type: [`Parent`].

use std::sync::Arc;

use abi::errno::Errno;
use parking_lot::Mutex;
use shm::region::Region;

use crate::core::Core;
use crate::error::{Result, refusal};
use crate::memory::{Layout, View};

/// The purpose of a queue's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The send queue or the receive queue of a QP.
    Qp = 1,
    /// A CQ.
    Cq = 2,
    /// An SRQ.
    Srq = 3,
}

/// Chooses the memory for the queues of a domain.
pub trait Allocator: Send + Sync {
    /// Memory of `len` bytes; `None` means the default queue memory.
    ///
    /// # Errors
    /// ENOMEM.
    fn allocate(&self, len: usize, purpose: Purpose) -> Result<Option<Region>>;
}

/// Held by each object of a domain, to count the objects.
pub(crate) type Token = Arc<()>;

/// The parts of a PD that is a parent domain.
pub(crate) struct Parent {
    allocator: Option<Box<dyn Allocator>>,
    /// Tokens of the PD and the thread domain below it. Dropped when the domain is freed, because a
    /// queue in some list may outlive it.
    parts: Mutex<Vec<Token>>,
}

/// A thread domain.
pub struct Td {
    core: Arc<Core>,
    users: Token,
}

impl Core {
    /// Allocates a thread domain.
    ///
    /// # Errors
    /// EIO after a fork.
    pub fn alloc_td(self: &Arc<Self>) -> Result<Arc<Td>> {
        self.check_process()?;
        Ok(Arc::new(Td { core: Arc::clone(self), users: Token::default() }))
    }
}

impl Td {
    /// Frees the domain.
    ///
    /// # Errors
    /// EBUSY while a parent domain uses it.
    pub fn dealloc(&self) -> Result<()> {
        self.core.check_process()?;
        unused(&self.users, "a thread domain is part of a parent domain")
    }
}

impl Parent {
    /// A parent domain on the PD with the token `pd`.
    pub(crate) fn new(td: Option<&Td>, pd: &Token, allocator: Option<Box<dyn Allocator>>) -> Self {
        let parts = td.map(|td| &td.users).into_iter().chain([pd]).map(Arc::clone).collect();
        Self { allocator, parts: Mutex::new(parts) }
    }

    /// Releases the PD and the thread domain.
    pub(crate) fn release(&self) {
        self.parts.lock().clear();
    }

    /// Memory from the allocator; `None` means the default queue memory.
    pub(crate) fn lend(&self, len: usize, purpose: Purpose) -> Result<Option<Region>> {
        let allocator = self.allocator.as_ref().filter(|_| len > 0);
        Ok(allocator.map(|allocator| allocator.allocate(len, purpose)).transpose()?.flatten())
    }
}

/// The place of a queue's entries: the lent memory if it is large enough, otherwise the agent's
/// place.
pub(crate) fn lie(lent: Option<Region>, view: &View, layout: Layout) -> (View, Layout) {
    let len = layout.count as usize * layout.stride as usize;
    match lent.filter(|region| region.len() >= len) {
        None => (view.clone(), layout),
        Some(region) => (View::whole(region), Layout { offset: 0, ..layout }),
    }
}

/// Refuses while an object holds the token.
pub(crate) fn unused(users: &Token, what: &'static str) -> Result<()> {
    if Arc::strong_count(users) > 1 {
        return Err(refusal(Errno::EBUSY, what));
    }
    Ok(())
}
