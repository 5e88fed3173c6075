//! Parent domains: a protection domain with a thread domain, and with a say in where queues lie.
//!
//! The entries of a queue are this process's own affair, so that they may lie wherever the program wants; the words that the agent
//! reads stay in queue memory. A thread domain is a promise that one thread at a time uses what is made in it; nothing here
//! gets faster by it, for locks that nobody else wants cost nearly nothing. The principal type is [`Parent`].

use std::sync::Arc;

use abi::errno::Errno;
use parking_lot::Mutex;
use shm::region::Region;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::memory::View;
use crate::pd::Pd;
use crate::wqe::Layout;

/// What a queue's memory is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// The send or the receive queue of a QP.
    Qp = 1,
    /// A CQ.
    Cq = 2,
    /// An SRQ.
    Srq = 3,
}

/// Who says where the queues of a domain lie.
pub trait Allocator: Send + Sync {
    /// Memory of `len` bytes; `None` is where queues always lie.
    ///
    /// # Errors
    /// ENOMEM.
    fn allocate(&self, len: usize, purpose: Purpose) -> Result<Option<Region>>;
}

/// What lives in a domain: a count, of which each takes one.
pub(crate) type Token = Arc<()>;

/// What makes a PD a parent domain.
pub(crate) struct Parent {
    allocator: Option<Box<dyn Allocator>>,
    /// Of the PD and the thread domain that it is made of; until it is given back, for a queue may outlive it in some list.
    parts: Mutex<Vec<Token>>,
}

/// A thread domain.
pub struct Td {
    engine: Arc<Engine>,
    users: Token,
}

impl Engine {
    /// A thread domain.
    ///
    /// # Errors
    /// EIO after a fork.
    pub fn alloc_td(self: &Arc<Self>) -> Result<Arc<Td>> {
        self.check_process()?;
        Ok(Arc::new(Td { engine: Arc::clone(self), users: Token::default() }))
    }
}

impl Td {
    /// Gives the domain back.
    ///
    /// # Errors
    /// EBUSY while a parent domain has it.
    pub fn dealloc(&self) -> Result<()> {
        self.engine.check_process()?;
        unused(&self.users, "a thread domain is part of a parent domain")
    }
}

impl Pd {
    /// A parent domain on this PD.
    ///
    /// # Errors
    /// EINVAL when this is a parent domain itself.
    pub fn parent(self: &Arc<Self>, td: Option<&Arc<Td>>, allocator: Option<Box<dyn Allocator>>) -> Result<Arc<Self>> {
        self.engine().check_process()?;
        if self.parent.is_some() {
            return Err(Error::refuse(Errno::EINVAL, "a parent domain is not made of another one"));
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

    /// What an object that is made on it keeps for as long as it lives.
    pub(crate) fn token(&self) -> Token {
        Arc::clone(&self.users)
    }

    /// Refuses while a parent domain is on it, or something in it that is one; lets go of what a parent domain is made of.
    pub(crate) fn part(&self) -> Result<()> {
        unused(&self.users, "a parent domain is on the PD, or something is in the parent domain")?;
        if let Some(parent) = &self.parent {
            parent.parts.lock().clear();
        }
        Ok(())
    }

    /// Where the entries of a queue lie that the agent has found room for at `layout` of `view`.
    pub(crate) fn settle(&self, view: &View, layout: Layout, purpose: Purpose) -> Result<(View, Layout)> {
        let len = layout.count as usize * layout.stride as usize;
        Ok(lie(self.lend(len, purpose)?, view, layout))
    }

    /// Memory of the domain's allocator; `None` is where queues always lie.
    fn lend(&self, len: usize, purpose: Purpose) -> Result<Option<Region>> {
        let allocator = self.parent.as_ref().and_then(|parent| parent.allocator.as_ref()).filter(|_| len > 0);
        Ok(allocator.map(|allocator| allocator.allocate(len, purpose)).transpose()?.flatten())
    }

    /// The same for a queue that is to have `count` entries, of at most `most`, before the agent is asked to change it: where the
    /// allocator has nothing, nothing is to have changed. What the agent will refuse needs no memory.
    pub(crate) fn lend_ahead(
        &self,
        (count, most): (u32, u32),
        stride: usize,
        purpose: Purpose,
    ) -> Result<Option<Region>> {
        let sound = count != 0 && count <= most;
        // As the agent rounds it.
        let rounded = if sound { count.checked_next_power_of_two().unwrap_or(0) } else { 0 };
        self.lend(rounded as usize * stride, purpose)
    }
}

/// Where the entries of a queue lie: in what was lent, if that is large enough, or else where the agent has found room.
pub(crate) fn lie(lent: Option<Region>, view: &View, layout: Layout) -> (View, Layout) {
    let len = layout.count as usize * layout.stride as usize;
    match lent.filter(|region| region.len() >= len) {
        None => (view.clone(), layout),
        Some(region) => (View::whole(region), Layout { offset: 0, ..layout }),
    }
}

fn unused(users: &Token, what: &str) -> Result<()> {
    if Arc::strong_count(users) > 1 {
        return Err(Error::refuse(Errno::EBUSY, what));
    }
    Ok(())
}
