//! Protection domains: memory, queue pairs and peers must be in the same domain to be used
//! together. Principal type: [`Pd`].

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

/// A protection domain. Clones refer to the same domain. It ends with the last clone and the last
/// object in it.
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
        // Fails only when the agent is gone, or in a child process, which does not own the object.
        let _ = self.pd.dealloc();
    }
}

impl Pd {
    pub(crate) fn new(ctx: &Arc<ContextInner>) -> Result<Self> {
        Ok(Self { inner: Arc::new(PdInner { pd: ctx.engine.alloc_pd()?, ctx: Arc::clone(ctx) }) })
    }

    /// Allocates registered memory, zeroed. Registration needs a command to the agent: allocate
    /// buffers beforehand, or split a large one with [`Buffer::pieces`].
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    ///
    /// # Panics
    /// If this length of memory is impossible.
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        Buffer::new(&self.inner, len)
    }

    /// Allocates registered memory that peers may access, zeroed.
    ///
    /// # Errors
    /// The errors of [`Pd::buffer`].
    ///
    /// # Panics
    /// As [`Pd::buffer`].
    pub fn expose(&self, len: usize, access: Access) -> Result<Exposed> {
        Exposed::new(&self.inner, len, access)
    }

    /// Registers existing memory of the program, such as a `Vec<u8>`, and takes ownership of it,
    /// without a copy. [`Buffer::into_inner`] gives the memory back.
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
    /// println!("{words:?}"); // The buffer owns `words`.
    /// # drop(buffer); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// EINVAL for memory of 0 bytes, ENOMEM beyond the device's limit. The error contains the
    /// memory.
    pub fn register<M: Memory>(&self, memory: M) -> Result<Buffer, Kept<M>> {
        Buffer::over(&self.inner, memory)
    }

    /// Registers existing memory of the program, such as a [`Mapping`](crate::Mapping), takes
    /// ownership of it, and lets peers access it. [`Exposed::into_inner`] gives the memory back
    /// when no peer can access it any more.
    ///
    /// # Errors
    /// The errors of [`Pd::register`].
    pub fn expose_memory<M: Memory>(&self, memory: M, access: Access) -> Result<Exposed, Kept<M>> {
        Exposed::over(&self.inner, memory, access)
    }

    /// Builds a connected queue pair whose messages arrive once and in order (RC): SEND, RDMA WRITE
    /// and READ, atomics.
    pub fn reliable<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Reliable> {
        QpBuilder::new(self, cq)
    }

    /// Builds a connected queue pair whose messages may be lost (UC): SEND and RDMA WRITE.
    pub fn unreliable<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Unreliable> {
        QpBuilder::new(self, cq)
    }

    /// Builds a queue pair that sends to, and receives from, any number of peers, one packet per
    /// message (UD).
    pub fn datagrams<'a>(&'a self, cq: &'a Cq) -> QpBuilder<'a, Datagram> {
        QpBuilder::new(self, cq)
    }

    /// Creates a shared receive queue for at least this many receives, from which several queue
    /// pairs take.
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
