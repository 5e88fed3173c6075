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

use crate::engine::Engine;
use crate::error::{Result, refusal};
use crate::memory::View;
use crate::pd::Pd;
use crate::wqe::Layout;

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
    engine: Arc<Engine>,
    users: Token,
}

impl Engine {
    /// Allocates a thread domain.
    ///
    /// # Errors
    /// EIO after a fork.
    pub fn alloc_td(self: &Arc<Self>) -> Result<Arc<Td>> {
        self.check_process()?;
        Ok(Arc::new(Td { engine: Arc::clone(self), users: Token::default() }))
    }
}

impl Td {
    /// Frees the domain.
    ///
    /// # Errors
    /// EBUSY while a parent domain uses it.
    pub fn dealloc(&self) -> Result<()> {
        self.engine.check_process()?;
        unused(&self.users, "a thread domain is part of a parent domain")
    }
}

impl Pd {
    /// Allocates a parent domain on this PD.
    ///
    /// # Errors
    /// EINVAL when this is a parent domain itself.
    pub fn parent(self: &Arc<Self>, td: Option<&Arc<Td>>, allocator: Option<Box<dyn Allocator>>) -> Result<Arc<Self>> {
        self.engine().check_process()?;
        if self.parent.is_some() {
            return Err(refusal(Errno::EINVAL, "a parent domain is not made of another one"));
        }
        let parts = td.map(|td| &td.users).into_iter().chain([&self.users]).map(Arc::clone).collect();
        let parent = Parent { allocator, parts: Mutex::new(parts) };
        Ok(Self::with_parent(self.engine(), self.handle(), Some(parent)))
    }

    /// Whether it is a parent domain.
    #[must_use]
    pub fn is_parent(&self) -> bool {
        self.parent.is_some()
    }

    /// The token that an object of this domain holds during its life.
    pub(crate) fn token(&self) -> Token {
        Arc::clone(&self.users)
    }

    /// Refuses while a parent domain is on this PD, or an object is in this parent domain.
    /// Otherwise releases the parts of the parent domain.
    pub(crate) fn part(&self) -> Result<()> {
        unused(&self.users, "a parent domain is on the PD, or something is in the parent domain")?;
        if let Some(parent) = &self.parent {
            parent.parts.lock().clear();
        }
        Ok(())
    }

    /// The memory for the entries of a queue, for which the agent has reserved `layout` in `view`.
    pub(crate) fn settle(&self, view: &View, layout: Layout, purpose: Purpose) -> Result<(View, Layout)> {
        let len = layout.count as usize * layout.stride as usize;
        Ok(lie(self.lend(len, purpose)?, view, layout))
    }

    /// Memory from the domain's allocator; `None` means the default queue memory.
    fn lend(&self, len: usize, purpose: Purpose) -> Result<Option<Region>> {
        let allocator = self.parent.as_ref().and_then(|parent| parent.allocator.as_ref()).filter(|_| len > 0);
        Ok(allocator.map(|allocator| allocator.allocate(len, purpose)).transpose()?.flatten())
    }

    /// As [`Pd::lend`], for a queue that shall have `count` entries, of at most `most`, before the
    /// agent is asked to change it. If the allocator fails, nothing has changed. A request that the
    /// agent will refuse needs no memory.
    pub(crate) fn lend_ahead(
        &self,
        (count, most): (u32, u32),
        stride: usize,
        purpose: Purpose,
    ) -> Result<Option<Region>> {
        let sound = count != 0 && count <= most;
        // The agent rounds up in the same way.
        let rounded = if sound { count.checked_next_power_of_two().unwrap_or(0) } else { 0 };
        self.lend(rounded as usize * stride, purpose)
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

fn unused(users: &Token, what: &'static str) -> Result<()> {
    if Arc::strong_count(users) > 1 {
        return Err(refusal(Errno::EBUSY, what));
    }
    Ok(())
}
