//! Messages of one packet between two ends of which neither waits for anything: no loss, no wait for a receive request, no fence, no queue that
//! stops. Most messages are like that, and of all that the general path works out for a packet they need only a number. So a caller may ask
//! beforehand, and say afterwards that it is done; it comes to the same as [`Requester::poll_transmit`], or as [`Responder::handle`] and
//! [`Responder::finish`]. What is not offered here takes the general path. Principal type: [`FastMessage`].

use super::requester::Wait;
use crate::{Access, Open, Operation, Requester, Responder, SendOp, Service, Time};
use wire::{Psn, Qpn};

/// A SEND or WRITE that is one packet, and may be sent now. The packet asks for an acknowledgement.
#[derive(Clone, Copy, Debug)]
pub struct FastMessage<'a> {
    /// Its number.
    pub psn: Psn,
    /// What is sent.
    pub op: &'a SendOp,
}

impl Requester {
    /// The message that [`Requester::poll_transmit`] would return next, if it is for the fast path. Nothing has changed yet.
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

    /// The message that [`Requester::next_fast_message`] has given is sent. Nothing may come between.
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
        // As its timer would be set, which does not run.
        self.rc.expiry = Time::NEVER;
        self.rc.probes = 0;
    }

    /// Whether nothing is waited for and nothing goes again.
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

    /// What its packets say of where they go: the queue pair, the partition and whether path migration is armed.
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> (Qpn, u16, bool) {
        (self.config.dest_qp, self.config.pkey, self.config.migrated)
    }

    /// An ACK that says nothing about credits, as [`Requester::handle_response`] takes it. False: it is not a plain one, and nothing has
    /// changed.
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
    /// Whether a SEND that is one packet, with so many bytes and this number, would be welcome. It takes a receive request.
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

    /// The same of a WRITE, which says that it has `total` bytes.
    #[inline]
    #[must_use]
    pub fn awaits_fast_write(&self, psn: Psn, len: u32, total: u32) -> bool {
        self.awaits_fast_message(psn, len) && len == total && self.config.access.allows(Access::REMOTE_WRITE)
    }

    /// The message that was welcome is carried out. Nothing may come between.
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

    /// What its answers say of where they go, as [`Requester::addresses`].
    #[inline]
    #[must_use]
    pub fn addresses(&self) -> (Qpn, u16, bool) {
        (self.config.dest_qp, self.config.pkey, self.config.migrated)
    }

    /// The number of the last packet and the count of messages that an ACK would say, if that is all that there is to say.
    #[inline]
    #[must_use]
    pub fn fast_ack(&self) -> Option<(Psn, u32)> {
        self.owes_only_ack().then(|| (self.expected - 1, self.msn()))
    }

    /// The ACK that [`Responder::fast_ack`] has given is sent. Nothing may come between.
    #[inline]
    pub fn sent_fast_ack(&mut self) {
        self.answers.said();
    }
}

#[cfg(test)]
mod tests;
