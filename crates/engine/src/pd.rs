//! Protection domains: memory, queue pairs and address handles can be used together only within one
//! domain. Principal type: [`Pd`].

use std::sync::Arc;

use abi::command::number as command;
use abi::errno::Errno;
use abi::pd::{AllocPd, AllocPdAnswer, DeallocPd};
use shm::region::Region;

use crate::core::Core;
use crate::error::{Result, refusal};
use crate::memory::{Layout, View};
use crate::parent::{Allocator, Parent, Purpose, Td, Token, lie, unused};
use crate::request;

/// A protection domain.
pub struct Pd {
    core: Arc<Core>,
    handle: u32,
    /// `Some` for a parent domain.
    parent: Option<Parent>,
    /// A PD: its parent domains. A parent domain: the objects in it.
    users: Token,
}

impl Core {
    /// Whether the domain belongs to this device.
    #[must_use]
    pub fn has_pd(&self, pd: &Pd) -> bool {
        std::ptr::eq(self, &*pd.core)
    }

    /// Allocates a protection domain.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        Pd::alloc(self)
    }
}

impl Pd {
    pub(crate) fn alloc(core: &Arc<Core>) -> Result<Arc<Self>> {
        let len = size_of::<AllocPdAnswer>() + size_of::<abi::queue::PdOut>();
        let answer: AllocPdAnswer =
            core.call(&request::legacy(command::ALLOC_PD, &AllocPd { response: 1 }, len))?.get(0)?;
        Ok(Self::adopt(core, answer.pd_handle))
    }

    /// Makes the domain that the agent has allocated.
    pub fn adopt(core: &Arc<Core>, handle: u32) -> Arc<Self> {
        Self::with_parent(core, handle, None)
    }

    fn with_parent(core: &Arc<Core>, handle: u32, parent: Option<Parent>) -> Arc<Self> {
        Arc::new(Self { core: Arc::clone(core), handle, parent, users: Token::default() })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The agent's handle of the domain.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// EBUSY while the domain has objects or parent domains.
    pub fn dealloc(&self) -> Result<(), Errno> {
        self.core.check_process().map_err(|error| error.errno)?;
        self.part().map_err(|error| error.errno)?;
        if self.is_parent() {
            return Ok(());
        }
        let body = DeallocPd { pd_handle: self.handle };
        self.core.give_up(&request::legacy(command::DEALLOC_PD, &body, 0)).map_err(|error| error.errno)
    }

    /// Allocates a parent domain on this PD.
    ///
    /// # Errors
    /// EINVAL when this is a parent domain itself.
    pub fn parent(self: &Arc<Self>, td: Option<&Arc<Td>>, allocator: Option<Box<dyn Allocator>>) -> Result<Arc<Self>> {
        self.core.check_process()?;
        if self.parent.is_some() {
            return Err(refusal(Errno::EINVAL, "a parent domain is not made of another one"));
        }
        let parent = Parent::new(td.map(|td| &**td), &self.users, allocator);
        Ok(Self::with_parent(&self.core, self.handle, Some(parent)))
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
            parent.release();
        }
        Ok(())
    }

    /// The memory for the entries of a queue, for which the agent has reserved `layout` in `view`.
    pub(crate) fn place_queue(&self, view: &View, layout: Layout, purpose: Purpose) -> Result<(View, Layout)> {
        let len = layout.count as usize * layout.stride as usize;
        Ok(lie(self.lend(len, purpose)?, view, layout))
    }

    /// Memory from the domain's allocator; `None` means the default queue memory.
    fn lend(&self, len: usize, purpose: Purpose) -> Result<Option<Region>> {
        Ok(self.parent.as_ref().map(|parent| parent.lend(len, purpose)).transpose()?.flatten())
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
