//! Requests that the caller carries out without a packet, because it reaches the target's memory
//! itself. Only the next request qualifies, and only while nothing of the queue pair is under way.
//! Then it cannot overtake another request, and both ends' packet numbers stay as they are. How the
//! memory is accessed is not decided here. Adds to [`Requester`].

use crate::operation::{Operation, SendOp};
use crate::qp::Service;
use crate::reason::Reason;
use crate::requester::Requester;
use crate::status::Status;
use crate::time::Time;

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
