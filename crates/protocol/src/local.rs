//! Requests that send nothing: binding a memory window, invalidating a key. They take no packet number; each is carried out by the
//! caller when its turn comes in the queue, once, however often the packets around it go again. Adds to [`Requester`]. IBA 10.8.2.3.

use crate::{Reason, Requester, SendOp, Status, Time};

impl Requester {
    /// Whether the request whose turn it is sends nothing.
    #[must_use]
    pub fn has_local(&self) -> bool {
        self.cursor.op != self.head()
            && self.cursor.op == self.cursor.started
            && self.ops.at(self.cursor.op).op.operation.is_local()
    }

    /// The request whose turn it is, if it is one that sends nothing and may begin now. The caller carries it out and says
    /// [`Requester::local_done`]; nothing may come between.
    pub fn poll_local(&mut self, now: Time) -> Option<SendOp> {
        if !self.has_local() || self.stops_here() {
            return None;
        }
        if self.service.is_reliable() && self.is_waiting(now) || !self.begin() {
            return None;
        }
        Some(self.ops.at(self.cursor.op).op)
    }

    /// How the request went that [`Requester::poll_local`] has just given. It completes in its turn, with the status if there is one.
    pub fn local_done(&mut self, result: Result<(), Status>) {
        let index = self.cursor.op;
        match result {
            Ok(()) => {
                self.cursor.op = index.wrapping_add(1);
                self.cursor.packet = 0;
                self.pass_local();
                self.settle();
            }
            Err(status) => {
                self.cursor.started = index;
                self.stop_at(index, status, Reason::Local);
            }
        }
    }

    /// Requests that were carried out here are complete as soon as everything before them is.
    pub(crate) fn pass_local(&mut self) {
        while self.done != self.cursor.started && self.ops.at(self.done).op.operation.is_local() {
            self.done = self.done.wrapping_add(1);
        }
    }

    /// Going back does not carry anything out again that sends nothing.
    pub(crate) fn skip_local(&mut self) {
        while self.cursor.op != self.cursor.started && self.ops.at(self.cursor.op).op.operation.is_local() {
            self.cursor.op = self.cursor.op.wrapping_add(1);
            self.cursor.packet = 0;
        }
    }
}
