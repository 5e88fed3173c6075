//! Protection domains: what memory, queue pairs and peers must share to be used together. Principal type: [`Pd`].

use std::fmt;
use std::sync::Arc;

use crate::builder::QpBuilder;
use crate::connected::{Reliable, Unreliable};
use crate::context::ContextInner;
use crate::cq::Cq;
use crate::datagram::Datagram;
use crate::error::Result;
use crate::memory::{Buffer, Exposed};
use crate::remote::Access;
use crate::srq::Srq;

/// A protection domain. Clones are the same; it ends with the last clone and the last object in it.
#[derive(Clone)]
pub struct Pd {
    pub(crate) inner: Arc<PdInner>,
}

pub(crate) struct PdInner {
    pub(crate) pd: Arc<engine::Pd>,
    pub(crate) ctx: Arc<ContextInner>,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        // Refused only when the agent is gone, or in a child process, which owns nothing of it.
        let _ = self.pd.dealloc();
    }
}

impl Pd {
    pub(crate) fn new(ctx: &Arc<ContextInner>) -> Result<Self> {
        Ok(Self { inner: Arc::new(PdInner { pd: ctx.engine.alloc_pd()?, ctx: Arc::clone(ctx) }) })
    }

    /// Registered memory of one's own, zeroed. Registering takes a question to the agent: make buffers beforehand, or a large one, and
    /// cut it with [`Buffer::pieces`].
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    ///
    /// # Panics
    /// When there is no such length of memory.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.inner, len)
    }

    /// Registered memory that peers may touch, zeroed.
    ///
    /// # Errors
    /// As [`Pd::buffer`].
    ///
    /// # Panics
    /// As [`Pd::buffer`].
    pub fn expose(&self, len: usize, access: Access) -> Result<Exposed> {
        Exposed::new(&self.inner, len, access)
    }

    /// A connected queue pair whose messages arrive, in order and once (RC): SEND, RDMA WRITE and READ, atomics.
    pub fn reliable<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Reliable> {
        QpBuilder::new(self, cq)
    }

    /// A connected queue pair whose messages may be lost (UC): SEND and RDMA WRITE.
    pub fn unreliable<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Unreliable> {
        QpBuilder::new(self, cq)
    }

    /// A queue pair that sends to everybody and hears everybody, one packet per message (UD).
    pub fn datagrams<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Datagram> {
        QpBuilder::new(self, cq)
    }

    /// A queue of at least so many receives, from which several queue pairs take.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits.
    pub fn srq(&self, receives: u32) -> Result<Srq> {
        Srq::new(&self.inner, receives)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({})", self.inner.pd.handle())
    }
}
