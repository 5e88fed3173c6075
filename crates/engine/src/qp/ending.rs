//! How a QP ends: its last command, and the cleanup that follows when nothing can reach the QP any
//! more. Adds to [`Qp`].

use std::sync::Weak;

use abi::errno::Errno;

use super::{Inner, Qp, Route};
use crate::error::{Result, refusal};
use crate::extent::Keeper;

impl Qp {
    /// Destroys the QP; its requests end without completions. Returns how many of its events were
    /// read.
    ///
    /// # Errors
    /// EBUSY while it is in a multicast group.
    pub fn destroy(&self) -> Result<u32> {
        self.engine.check_process()?;
        if self.lock().is_dead() {
            return Err(refusal(Errno::EINVAL, format!("QP {:#x} is destroyed", self.qpn)));
        }
        // An adapter has long taken and acknowledged what the peer has sent.
        self.engine.take_arrived();
        self.send_off();
        // Before the agent reads what still arrives for the peer's sake.
        self.drop_stream(&mut self.lock());
        let order = self.engine.memory.allocation.lock();
        let request = super::destroy(self.handle);
        // Only a multicast group can make the agent refuse.
        let destroyed = match self.engine.groups.has(self.qpn) {
            true => self.engine.call(&request).map(drop),
            false => self.engine.tell(&request),
        };
        match destroyed {
            Err(error) if !self.engine.has_lost(&error) => return Err(error),
            _ => self.leave(),
        }
        drop(order);
        self.finish_endings();
        Ok(self.read.asynchronous())
    }

    /// Removes the QP from everything that refers to it.
    pub(crate) fn leave(&self) {
        self.engine.forget_qp(self.qpn);
        self.abandon();
        self.left();
    }

    /// The cleanup after nothing can reach the QP any more.
    pub(crate) fn left(&self) {
        self.purge();
        self.engine.groups.forget(self.qpn);
        self.engine.events.forget(self);
    }

    /// Removes the QP's completions from its CQs. The completions of an XRC target belong to its
    /// SRQs.
    pub(crate) fn purge(&self) {
        for cq in self.send_cq.iter().chain(&self.recv_cq) {
            cq.purge(self.qpn);
        }
    }

    /// Releases all that the QP holds, so that nothing reaches it any more.
    pub(crate) fn abandon(&self) {
        self.let_go(&mut self.lock());
    }

    pub(crate) fn let_go(&self, inner: &mut Inner) {
        if let Some(lint) = self.lint() {
            lint.emptied(self);
        }
        self.say_gone(inner);
        self.send_delayed_ack(inner);
        self.uncount(inner);
        self.abandon_remote_srq(inner);
        self.drop_stream(inner);
        (inner.ud.last_flow, inner.xrc.named) = (None, None);
        inner.incoming.rnr_grace.clear();
        inner.direct.forget();
        inner.view = None;
        inner.link.route = Route::Unknown;
        inner.queues.sq.forget();
        inner.queues.rq.forget();
        inner.queues.token = None;
        (inner.queues.source, inner.incoming.place) = Default::default();
    }
}

impl Keeper for Qp {
    fn weak(&self) -> Weak<dyn Keeper> {
        Self::weak(self)
    }

    fn give_up_withdrawn(&self) {
        let mut inner = self.lock();
        inner.queues.source.give_up_withdrawn();
        inner.incoming.place.give_up_withdrawn();
    }
}
