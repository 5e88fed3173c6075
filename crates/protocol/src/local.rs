//! Requests that the caller carries out without a packet. They take no packet number. Adds to
//! [`Requester`].
//!
//! **Local requests** bind a memory window or invalidate a key. When a local request reaches the
//! head of the queue, the caller carries it out. This happens once, even if the packets around it
//! are retransmitted. IBA 10.8.2.3.
//!
//! **Direct requests** are WRITEs, READs and atomics for which the caller reaches the target's
//! memory itself. Only the next request qualifies, and only while nothing of the queue pair is
//! under way. Then it cannot overtake another request, and both ends' packet numbers stay as they
//! are. How the memory is accessed is not decided here.

use crate::operation::{Operation, SendOp};
use crate::qp::Service;
use crate::reason::Reason;
use crate::requester::Requester;
use crate::status::Status;
use crate::time::Time;

/// Local requests.
impl Requester {
    /// Whether the next request is a local one.
    #[must_use]
    pub fn has_local(&self) -> bool {
        self.cursor.op != self.head()
            && self.cursor.op == self.cursor.started
            && self.ops.at(self.cursor.op).op.operation.is_local()
    }

    /// The next request, if it is a local one and may begin now. The caller carries it out and
    /// calls [`Requester::local_done`], without another call in between.
    pub fn poll_local(&mut self, now: Time) -> Option<SendOp> {
        if !self.has_local() || self.stops_here() {
            return None;
        }
        if self.service.is_reliable() && self.is_waiting(now) || !self.prepare() {
            return None;
        }
        Some(self.ops.at(self.cursor.op).op)
    }

    /// Reports the result of the request that [`Requester::poll_local`] has just returned. The
    /// request completes in post order; if there is a status, it completes with that status.
    pub fn local_done(&mut self, result: Result<(), Status>) {
        let index = self.cursor.op;
        match result {
            Ok(()) => {
                self.cursor.op = index.wrapping_add(1);
                self.cursor.started = self.cursor.op;
                self.cursor.packet = 0;
                self.pass_local();
                self.settle();
            }
            Err(status) => self.stop_at(index, status, Reason::Local),
        }
    }

    /// Completes local requests that were carried out, once everything before them is complete.
    pub(crate) fn pass_local(&mut self) {
        while self.done != self.cursor.started && self.ops.at(self.done).op.operation.is_local() {
            self.done = self.done.wrapping_add(1);
        }
    }

    /// Skips local requests after going back: they are not carried out again.
    pub(crate) fn skip_local(&mut self) {
        while self.cursor.op != self.cursor.started && self.ops.at(self.cursor.op).op.operation.is_local() {
            self.cursor.op = self.cursor.op.wrapping_add(1);
            self.cursor.packet = 0;
        }
    }
}

/// Direct requests.
impl Requester {
    /// The next WRITE, READ or atomic, if it could be sent now and no request before it awaits an
    /// answer. The caller either calls [`Requester::direct_done`], without another call in between,
    /// or leaves the request to [`Requester::poll_run`].
    pub fn poll_direct(&mut self, now: Time) -> Option<SendOp> {
        let index = self.cursor.op;
        if index == self.head() || index != self.cursor.started || index != self.done {
            return None;
        }
        let op = self.ops.at(index).op;
        let may =
            is_direct_kind(op.operation) && self.service == Service::Rc && !self.is_draining() && !self.stops_here();
        (may && !self.is_waiting(now) && self.config.admit(self.service, &op).is_ok()).then_some(op)
    }

    /// Whether `op` could be carried out directly in place of [`Requester::post`]: the queue is
    /// empty, and nothing disturbs it.
    #[inline]
    #[must_use]
    pub fn is_idle_for(&self, op: &SendOp) -> bool {
        self.outstanding() == 0
            && !self.has_unsent()
            && is_direct_kind(op.operation)
            && self.is_undisturbed()
            && self.config.admit(self.service, op).is_ok()
    }

    /// Whether the next request is a WRITE, READ or atomic. If not, both [`Requester::poll_direct`]
    /// and [`Requester::next_direct`] return `None`.
    #[inline]
    #[must_use]
    pub fn may_be_direct(&self) -> bool {
        self.cursor.op != self.head() && is_direct_kind(self.ops.at(self.cursor.op).op.operation)
    }

    /// The next WRITE, READ or atomic that has not begun, whatever is under way.
    #[must_use]
    pub fn next_direct(&self) -> Option<SendOp> {
        let index = self.cursor.op;
        let begins = index != self.head() && index == self.cursor.started && self.service == Service::Rc;
        if !begins || self.stops_here() {
            return None;
        }
        Some(self.ops.at(index).op).filter(|op| is_direct_kind(op.operation))
    }

    /// Whether requests await an answer, and all of them are WRITEs, READs and atomics. When they
    /// are answered and nothing else has changed, [`Requester::poll_direct`] returns the request
    /// that [`Requester::next_direct`] returns now. A stopped queue awaits nothing.
    #[must_use]
    pub fn awaits_only_direct_kinds(&self) -> bool {
        let index = self.cursor.op;
        // A stopped queue counts all requests as done, also those that never began.
        let begun = if self.is_stopped() { 0 } else { index.wrapping_sub(self.done) };
        begun != 0 && (1..=begun).all(|back| is_direct_kind(self.ops.at(index.wrapping_sub(back)).op.operation))
    }

    /// Reports the result of the request that [`Requester::poll_direct`] has just returned. The
    /// request completes, or fails with the status.
    pub fn direct_done(&mut self, result: Result<(), Status>) {
        let index = self.cursor.op;
        match result {
            Ok(()) => {
                self.cursor.op = index.wrapping_add(1);
                self.cursor.started = self.cursor.op;
                self.cursor.packet = 0;
                self.done = self.cursor.op;
                self.settle();
            }
            Err(status) => self.stop_at(index, status, Reason::Local),
        }
    }
}

fn is_direct_kind(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::Read | Operation::FetchAdd | Operation::CmpSwap)
}
