//! Protection domains: memory, queue pairs and peers must be in the same domain to be used
//! together. Principal type: [`Pd`].

use std::fmt;
use std::sync::Arc;

use crate::context::{Context, ContextInner};
use crate::error::Result;

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
    fn new(ctx: &Arc<ContextInner>) -> Result<Self> {
        Ok(Self { inner: Arc::new(PdInner { pd: ctx.engine.alloc_pd()?, ctx: Arc::clone(ctx) }) })
    }
}

impl Context {
    /// Creates a protection domain. Objects that are used together share a domain.
    ///
    /// # Errors
    /// ENOMEM beyond the device's limit.
    pub fn pd(&self) -> Result<Pd> {
        Pd::new(&self.inner)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({})", self.inner.pd.handle())
    }
}
