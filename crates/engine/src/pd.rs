//! Protection domains: what memory, queue pairs and address handles must share to be used together.

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
    /// Set for a parent domain.
    pub(crate) parent: Option<Parent>,
    /// Parent domains on it; and of those, what is made on them.
    pub(crate) users: Token,
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

    /// The agent's name for it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Registers `length` bytes at `addr`, which work requests and peers will call `iova`.
    ///
    /// # Errors
    /// EFAULT for memory that is not there or lacks a right, EINVAL for flags that contradict each other.
    pub fn reg_mr(self: &Arc<Self>, addr: u64, length: u64, iova: u64, access: u32) -> Result<Arc<Mr>> {
        Mr::register(self, addr, length, iova, access)
    }

    /// A region of nothing (`ibv_alloc_null_mr`): reads find zeros, and what is written is gone. Only its lkey opens it.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn null_mr(self: &Arc<Self>) -> Result<Arc<Mr>> {
        Mr::nothing(self)
    }

    /// A memory window of type 1 or 2, bound to nothing.
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

    /// Gives the domain back.
    ///
    /// # Errors
    /// EBUSY while an object, or a parent domain, stands on it.
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
