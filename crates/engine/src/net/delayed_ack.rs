//! Delayed acknowledgements: an ACK that waits for the program's next request.
//!
//! A system call for each packet is the main cost of the wire. A program that answers each message
//! will post soon, and an ACK that leaves together with that request costs nothing. So if a
//! connection has shown this pattern, its ACK waits. It leaves when the program posts, when the
//! program polls and finds nothing, or when the helper thread checks, which is within a few
//! milliseconds. Queue memory records that an ACK is owed, so that the agent can send it if the
//! process ends meanwhile. Adds to [`Engine`] and [`Qp`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::queue::{OWED, qp as word};
use protocol::Service;

use crate::engine::Engine;
use crate::qp::{Inner, Qp, Route};

impl Engine {
    /// Sends the delayed acknowledgements.
    pub(crate) fn send_delayed_acks(self: &Arc<Self>) {
        crate::usermem::prepare_thread();
        self.net.has_delayed_acks.store(false, Ordering::Relaxed);
        let delayed = std::mem::take(&mut *self.net.delayed_acks.lock());
        for qp in &delayed {
            let mut inner = qp.lock();
            inner.wire.is_listed = false;
            qp.send_delayed_ack(&mut inner);
        }
        // Keeps the allocation for the next delayed ACKs.
        let mut list = self.net.delayed_acks.lock();
        if list.is_empty() {
            *list = delayed;
            list.clear();
        }
    }
}

impl Qp {
    /// Called after packets from another host. Sends answers and requests; if an ACK is the only
    /// answer, it may be delayed until the program posts.
    pub(crate) fn pump_or_delay_ack(self: &Arc<Self>, inner: &mut Inner) {
        let receives = !inner.incoming.arrived.is_empty();
        let pattern = &mut inner.wire.reply_pattern;
        // Without a new message, a delayed ACK remains delayed.
        let replies = if receives { pattern.receive() } else { pattern.is_reply_due() };
        let idle = !inner.requester.has_unsent() && !inner.responder.has_answers();
        let may_wait = replies && inner.responder.owes_only_ack() && !inner.requester.has_unsent();
        if inner.is_dead() || self.service != Service::Rc || !inner.link.on_wire() || !(idle || may_wait) {
            return self.pump(inner);
        }
        if may_wait {
            if let Some(view) = &inner.view {
                view.word(word::RQ_PSN).store(inner.responder.expected_psn().value(), Ordering::Relaxed);
                // Release: pairs with the agent, which reads this word first; it then finds the
                // word RQ_PSN, too.
                view.word(word::OWED).store(OWED | inner.responder.msn(), Ordering::Release);
            }
            if !std::mem::replace(&mut inner.wire.is_listed, true) {
                self.engine().net.delayed_acks.lock().push(Arc::clone(self));
            }
            self.engine().net.has_delayed_acks.store(true, Ordering::Release);
        }
        self.show(inner);
    }

    /// Sends the acknowledgement that is owed, if it has not been sent yet.
    pub(crate) fn send_delayed_ack(&self, inner: &mut Inner) {
        if self.service == Service::Rc
            && inner.link.on_wire()
            && !inner.is_dead()
            && inner.responder.has_answers()
            && matches!(inner.link.route, Route::Wire(_))
            && let Some(qp) = self.arc()
        {
            qp.pump(inner);
        }
    }
}
