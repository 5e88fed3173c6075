//! Protection domains: what memory, queue pairs and peers must share to be used together. Principal type: [`Pd`].

use std::fmt;
use std::sync::Arc;

use crate::builder::QpBuilder;
use crate::connected::{Reliable, Unreliable};
use crate::context::ContextInner;
use crate::cq::Cq;
use crate::datagram::Datagram;
use crate::error::Result;
use crate::memory::{Buffer, Exposed, Kept, Memory};
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

    /// Registers memory that the program has already, such as a `Vec<u8>`, and takes it over: nothing is copied.
    /// [`Buffer::into_inner`] gives it back.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fabric = fabric::Fabric::start()?;
    /// # let device = fabric.open()?;
    /// # let (pd, cq, received) = (device.pd()?, device.cq(16)?, device.cq(16)?);
    /// # let (left, right) = (pd.reliable(&cq).build()?, pd.reliable(&received).build()?);
    /// # let (to_left, to_right) = (left.endpoint(), right.endpoint());
    /// # let (left, right) = (left.connect(&to_right)?, right.connect(&to_left)?);
    /// # right.receive(2, pd.buffer(64)?)?;
    /// let words: Vec<u8> = b"as it is".to_vec();
    /// left.send(1, pd.register(words)?)?;
    /// let buffer = cq.wait()?.ok()?.into_buffer();
    /// let words: Vec<u8> = buffer.into_inner()?;
    /// assert_eq!(words, b"as it is");
    /// # drop(right); Ok(()) }
    /// ```
    ///
    /// ```compile_fail,E0382
    /// # fn example(pd: softhca::Pd, words: Vec<u8>) -> softhca::Result<()> {
    /// let buffer = pd.register(words)?;
    /// println!("{words:?}"); // It is the buffer's.
    /// # drop(buffer); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// EINVAL for memory of 0 bytes, ENOMEM beyond the device's limit. The memory is in the error.
    pub fn register<M: Memory>(&self, memory: M) -> Result<Buffer, Kept<M>> {
        Buffer::over(&self.inner, memory)
    }

    /// Registers memory that the program has already, such as a [`Mapping`](crate::Mapping), for peers to touch, and takes it over.
    /// [`Exposed::into_inner`] gives it back when no peer can touch it any more.
    ///
    /// # Errors
    /// As [`Pd::register`].
    pub fn expose_memory<M: Memory>(&self, memory: M, access: Access) -> Result<Exposed, Kept<M>> {
        Exposed::over(&self.inner, memory, access)
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
