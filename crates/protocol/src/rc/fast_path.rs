//! The fast path for messages of one packet, when no special case applies: no loss, no wait for a
//! receive request, no fence, and a queue that does not stop. Most messages are like that. The
//! general path does much work for a packet, and these packets need only a number. So a caller asks
//! beforehand whether the fast path is possible, and reports afterwards that it has sent or
//! executed the message. The result is the same as with [`Requester::poll_transmit`], or with
//! [`Responder::handle`] and [`Responder::finish`]. All other messages take the general path.
//! Principal type: [`FastMessage`].

use super::requester::Wait;
use crate::operation::{Operation, SendOp};
use crate::qp::Service;
use crate::rc::standing::Open;
use crate::requester::Requester;
use crate::responder::{Access, Responder};
use crate::time::Time;
use wire::{Psn, Qpn};

/// A SEND or WRITE of one packet that may be sent now. The packet requests an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct FastMessage<'a> {
    /// The packet number.
    pub psn: Psn,
    /// The request.
    pub op: &'a SendOp,
}

impl Requester {
    /// The message that [`Requester::poll_transmit`] would return next, if it may take the fast
    /// path. Changes nothing.
    #[inline]
    #[must_use]
    pub fn next_fast_message(&self) -> Option<FastMessage<'_>> {
        let index = self.cursor.op;
        if index == self.head() || index != self.cursor.started || !self.may_use_fast_path() {
            return None;
        }
        let op = &self.ops.at(index).op;
        let fits = matches!(op.operation, Operation::Send | Operation::Write) && op.length <= self.config.mtu;
        let under_way = self.cursor.high - self.rc.unacked;
        (fits && !op.fence && under_way < self.window).then_some(FastMessage { psn: self.cursor.high, op })
    }

    /// Reports that the message of [`Requester::next_fast_message`] is sent. No other call may come
    /// in between.
    #[inline]
    pub fn sent_fast_message(&mut self) {
        let index = self.cursor.op;
        let (first, number) = (self.cursor.high, self.cursor.begun.wrapping_add(1));
        let entry = self.ops.at_mut(index);
        (entry.first, entry.number) = (first, number);
        self.cursor.begun = number;
        self.cursor.high = first + 1;
        self.cursor.op = index.wrapping_add(1);
        self.cursor.started = self.cursor.op;
        self.cursor.unasked = 0;
        // The same values as starting the timer on a lossless path, where the timer does not run.
        self.rc.expiry = Time::NEVER;
        self.rc.probes = 0;
    }

    /// Whether the requester waits for no timer, credit or path change, and retransmits nothing.
    #[inline]
    #[must_use]
    pub fn may_use_fast_path(&self) -> bool {
        self.service == Service::Rc
            && self.config.lossless
            && !self.rc.lossy
            && !self.rc.again
            && !self.rc.probing
            && self.rc.wait == Wait::Answer
            && self.rc.deadline == Time::NEVER
            && self.rc.limit.is_none()
            && !self.failed_over
            && !self.is_draining()
            && !self.has_stop()
    }

    /// The addressing of its packets: destination QP, P_Key, and the migration state (true if path
    /// migration is not armed).
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> (Qpn, u16, bool) {
        (self.config.dest_qp, self.config.pkey, self.config.migrated)
    }

    /// Handles an ACK without credits like [`Requester::handle_response`]. Returns false, without
    /// changing anything, if the ACK must take the general path.
    #[inline]
    #[must_use]
    pub fn acknowledged_on_fast_path(&mut self, now: Time, psn: Psn) -> bool {
        if !self.may_use_fast_path() || psn - self.rc.unacked >= self.cursor.high - self.rc.unacked {
            return false;
        }
        self.accepted(now, psn + 1);
        true
    }
}

impl Responder {
    /// Whether a SEND of one packet, with this number and length, would be accepted. It takes a
    /// receive request.
    #[inline]
    #[must_use]
    pub fn awaits_fast_message(&self, psn: Psn, len: u32) -> bool {
        psn == self.expected
            && self.service == Service::Rc
            && self.message == Open::None
            && self.pending.is_none()
            && self.dead.is_none()
            && len <= self.config.mtu
    }

    /// Like [`Responder::awaits_fast_message`], for a WRITE that announces `total` bytes.
    #[inline]
    #[must_use]
    pub fn awaits_fast_write(&self, psn: Psn, len: u32, total: u32) -> bool {
        self.awaits_fast_message(psn, len) && len == total && self.config.access.allows(Access::REMOTE_WRITE)
    }

    /// Reports that the accepted message is carried out. No other call may come in between.
    #[inline]
    pub fn took_fast_message(&mut self, ack_req: bool) {
        self.nak_sent = false;
        self.answers.take_back_nak();
        self.expected += 1;
        self.answers.count_message();
        if ack_req {
            self.answers.acknowledge();
        }
    }

    /// The addressing of its answers, like [`Requester::addresses`].
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> (Qpn, u16, bool) {
        (self.config.dest_qp, self.config.pkey, self.config.migrated)
    }

    /// The packet number and the message count of an ACK, if an ACK is the only pending answer.
    #[inline]
    #[must_use]
    pub fn fast_ack(&self) -> Option<(Psn, u32)> {
        self.owes_only_ack().then(|| (self.expected - 1, self.msn()))
    }

    /// Reports that the ACK of [`Responder::fast_ack`] is sent. No other call may come in between.
    #[inline]
    pub fn sent_fast_ack(&mut self) {
        self.answers.said();
    }
}

#[cfg(test)]
mod tests;
