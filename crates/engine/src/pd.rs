//! Protection domains: memory, queue pairs and address handles can be used together only within one
//! domain. Principal type: [`Pd`].

use std::sync::Arc;

use abi::command::number as command;
use abi::errno::Errno;
use abi::pd::{AllocPd, AllocPdAnswer, DeallocPd};

use crate::ah::{AddressVector, Ah};
use crate::engine::Engine;
use crate::error::Result;
use crate::mr::Mr;
use crate::mw::Mw;
use crate::parent::{Parent, Token};
use crate::request;

/// A protection domain.
pub struct Pd {
    engine: Arc<Engine>,
    handle: u32,
    /// `Some` for a parent domain.
    pub(crate) parent: Option<Parent>,
    /// A PD: its parent domains. A parent domain: the objects in it.
    pub(crate) users: Token,
}

impl Engine {
    /// Allocates a protection domain.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>> {
        Pd::alloc(self)
    }
}

impl Pd {
    pub(crate) fn alloc(engine: &Arc<Engine>) -> Result<Arc<Self>> {
        let len = size_of::<AllocPdAnswer>() + size_of::<abi::queue::PdOut>();
        let answer: AllocPdAnswer =
            engine.call(&request::legacy(command::ALLOC_PD, &AllocPd { response: 1 }, len))?.get(0)?;
        Ok(Self::adopt(engine, answer.pd_handle))
    }

    /// Makes the domain that the agent has allocated.
    pub fn adopt(engine: &Arc<Engine>, handle: u32) -> Arc<Self> {
        Self::with_parent(engine, handle, None)
    }

    pub(crate) fn with_parent(engine: &Arc<Engine>, handle: u32, parent: Option<Parent>) -> Arc<Self> {
        Arc::new(Self { engine: Arc::clone(engine), handle, parent, users: Token::default() })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// The agent's handle of the domain.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Registers `length` bytes at `addr`. Work requests and peers address them from `iova` on.
    ///
    /// # Errors
    /// EFAULT for unmapped memory or a missing right; EINVAL for contradictory flags.
    pub fn reg_mr(self: &Arc<Self>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        Mr::register(self, addr, length, iova, access)
    }

    /// A region without memory (`ibv_alloc_null_mr`): reads give zeros, and writes are dropped. It
    /// has only an lkey.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn null_mr(self: &Arc<Self>) -> Result<Arc<Mr>> {
        Mr::nothing(self)
    }

    /// Allocates an unbound memory window of type 1 or 2.
    ///
    /// # Errors
    /// EINVAL for another type, ENOMEM beyond the device's limit.
    pub fn alloc_mw(self: &Arc<Self>, kind: u8) -> Result<Arc<Mw>> {
        Mw::alloc(self, kind)
    }

    /// Makes an address handle.
    ///
    /// # Errors
    /// EINVAL for an address that the port cannot use.
    pub fn create_ah(self: &Arc<Self>, vector: &AddressVector) -> Result<Arc<Ah>> {
        Ah::create(self, vector)
    }

    /// Frees the domain.
    ///
    /// # Errors
    /// EBUSY while the domain has objects or parent domains.
    pub fn dealloc(&self) -> Result<(), Errno> {
        self.engine.check_process().map_err(|error| error.errno)?;
        self.part().map_err(|error| error.errno)?;
        if self.is_parent() {
            return Ok(());
        }
        let body = DeallocPd { pd_handle: self.handle };
        self.engine.give_up(&request::legacy(command::DEALLOC_PD, &body, 0)).map_err(|error| error.errno)
    }
}
