//! Shared receive queues: the next message takes the next receive, whichever queue pair it arrives
//! at. Principal type: [`Srq`].

use std::fmt;
use std::sync::Arc;

use abi::srq::attr;
use engine::{RecvWr, SrqSpec};

use crate::about::About;
use crate::error::Result;
use crate::message::{Message, Parts};
use crate::operation::Operation;
use crate::pd::{Pd, PdInner};
use crate::pending::{Owner, Pending, Slots};
use crate::rejected::Rejected;

/// Maximum number of parts of one receive.
const PARTS: u32 = 4;

/// A shared receive queue. Clones refer to the same queue. A receive completes on the CQ of the
/// queue pair that took it.
#[derive(Clone)]
pub struct Srq {
    pub(crate) inner: Arc<SrqInner>,
}

pub(crate) struct SrqInner {
    pub(crate) srq: Arc<engine::Srq>,
    pub(crate) slots: Arc<Slots>,
    pub(crate) pd: Arc<PdInner>,
    cookie: u64,
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        if self.srq.destroy().is_err_and(|error| !self.pd.ctx.engine.has_lost(&error)) {
            // The adapter may still use what was posted, so that memory stays for ever.
            let _ = std::mem::ManuallyDrop::new(Arc::clone(&self.slots));
        }
        self.pd.ctx.named.lock().remove(&self.cookie);
    }
}

impl Srq {
    pub(crate) fn new(pd: &Arc<PdInner>, receives: u32) -> Result<Self> {
        let cookie = pd.ctx.cookie();
        let srq = pd.ctx.engine.create_srq(&pd.pd, &SrqSpec { max_wr: receives, max_sge: PARTS, cookie })?;
        pd.ctx.named.lock().insert(cookie, About::Srq(srq.handle()));
        Ok(Self { inner: Arc::new(SrqInner { srq, slots: Arc::new(Slots::new(cookie)), pd: Arc::clone(pd), cookie }) })
    }

    /// The number of the queue in async events.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.inner.srq.handle()
    }

    /// Maximum number of receives in the queue.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.inner.srq.max_wr()
    }

    /// Posts a receive. Its completion comes with `id`, and belongs to the queue pair that took the
    /// receive.
    ///
    /// # Errors
    /// ENOMEM when the queue is full, EINVAL for too many parts.
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        let parts = into.into().parts;
        let sges: Vec<_> = parts.as_slice().iter().map(crate::message::Part::sge).collect();
        let slots = &self.inner.slots;
        let name = slots.put(Pending::new(id, Operation::Receive, parts, Owner::Poller));
        self.inner.srq.post(&RecvWr { wr_id: name, sges: &sges }).map_err(|error| {
            let parts = slots.take(name).map_or(Parts::None, |pending| pending.parts);
            Rejected { error: error.into(), buffers: parts.into_buffers() }
        })
    }

    /// Asks for one [`SrqLimitReached`](crate::EventKind::SrqLimitReached) event when fewer than
    /// `receives` receives are left; 0 cancels the request.
    ///
    /// # Errors
    /// EINVAL for more than the queue's capacity.
    pub fn limit(&self, receives: u32) -> Result<()> {
        Ok(self.inner.srq.modify(attr::LIMIT, 0, receives)?)
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({}, {} receives)", self.number(), self.capacity())
    }
}

impl Pd {
    /// Creates a shared receive queue for at least this many receives, from which several queue
    /// pairs take.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits.
    pub fn srq(&self, receives: u32) -> Result<Srq> {
        Srq::new(&self.inner, receives)
    }
}
