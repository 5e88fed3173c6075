//! Requests that are carried out without a packet because the caller reaches the target's memory itself. Only one whose turn it is while
//! nothing of the queue pair is under way: then there is nothing that it could overtake, and both ends' packet numbers stay as they are.
//! Adds to [`Requester`].

use crate::{Operation, Reason, Requester, SendOp, Service, Status, Time};

impl Requester {
    /// The WRITE, READ or atomic whose turn it is, if it could be sent now and nothing before it awaits an answer. The caller either says
    /// [`Requester::alone_done`], with nothing between, or leaves it to [`Requester::poll_transmit`].
    pub fn poll_alone(&mut self, now: Time) -> Option<SendOp> {
        let index = self.cursor.op;
        if index == self.head() || index != self.cursor.started || index != self.done {
            return None;
        }
        let op = self.ops.at(index).op;
        let may = is_fit(op.operation) && self.service == Service::Rc && !self.is_draining() && !self.stops_here();
        (may && !self.is_waiting(now) && self.config.admit(self.service, &op).is_ok()).then_some(op)
    }

    /// Whether what comes next is a WRITE, READ or atomic. Where it is not, neither [`Requester::poll_alone`] nor [`Requester::next_fit`] gives
    /// anything.
    #[inline]
    #[must_use]
    pub fn may_go_alone(&self) -> bool {
        self.cursor.op != self.head() && is_fit(self.ops.at(self.cursor.op).op.operation)
    }

    /// The WRITE, READ or atomic that comes next and was not begun, whatever is under way.
    #[must_use]
    pub fn next_fit(&self) -> Option<SendOp> {
        let index = self.cursor.op;
        let begins = index != self.head() && index == self.cursor.started && self.service == Service::Rc;
        if !begins || self.stops_here() {
            return None;
        }
        Some(self.ops.at(index).op).filter(|op| is_fit(op.operation))
    }

    /// Whether something awaits an answer, and nothing but WRITEs, READs and atomics: when they are answered and nothing is changed
    /// meanwhile, [`Requester::poll_alone`] gives what [`Requester::next_fit`] gives now. A queue that has stopped awaits nothing.
    #[must_use]
    pub fn awaits_alike(&self) -> bool {
        let index = self.cursor.op;
        // A queue that has stopped counts all as done, what was never begun, too.
        let begun = if self.is_stopped() { 0 } else { index.wrapping_sub(self.done) };
        begun != 0 && (1..=begun).all(|back| is_fit(self.ops.at(index.wrapping_sub(back)).op.operation))
    }

    /// How the request went that [`Requester::poll_alone`] has just given: it is complete, or it fails with the status.
    pub fn alone_done(&mut self, result: Result<(), Status>) {
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

fn is_fit(operation: Operation) -> bool {
    matches!(operation, Operation::Write | Operation::Read | Operation::FetchAdd | Operation::CmpSwap)
}
