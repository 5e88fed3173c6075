//! Local requests, which send no packet: binding a memory window, invalidating a key. They take no
//! packet number. When a local request reaches the head of the queue, the caller carries it out.
//! This happens once, even if the packets around it are retransmitted. Adds to [`Requester`]. IBA
//! 10.8.2.3.

use crate::operation::SendOp;
use crate::reason::Reason;
use crate::requester::Requester;
use crate::status::Status;
use crate::time::Time;

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
