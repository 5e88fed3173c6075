//! The reliable connection, receiving side: exactly once and in order. Adds to [`Responder`]; what it says in return is in
//! [`super::answers`]. IBA 9.7.4 and 9.7.5.1.
//!
//! A packet's number decides first:
//! * the awaited one is checked, carried out, and acknowledged if that is asked for;
//! * a later one means that something is missing, or late: one NAK, after a moment where the caller keeps such packets ([`super::out_of_order`]),
//!   then silence until the awaited one comes, or is missing once more;
//! * an earlier one is a repetition: SENDs and WRITEs are acknowledged again and not carried out, READs are read again, atomics
//!   and what is only confirmed get the answer that they got.

use super::answers::{Answer, Request};
use super::out_of_order::REACH;
use crate::responder::Pending;
use crate::{Fault, Nak, Open, Outcome, Refusal, Responder, Response, Step};
use wire::{Headers, Psn};

impl Responder {
    pub(crate) fn handle_rc(&mut self, headers: &Headers, len: u32) -> Step {
        if self.dead.is_some() {
            return Step::Ignore(Fault::Dead);
        }
        match headers.psn.since(self.expected) {
            0 => self.in_order(headers, len),
            1.. => self.out_of_order(headers),
            _ => self.repeated(headers),
        }
    }

    fn in_order(&mut self, headers: &Headers, len: u32) -> Step {
        self.nak_sent = false;
        self.answers.take_back_nak();
        self.welcome(headers, len).unwrap_or_else(|fault| {
            self.refuse(Nak::InvalidRequest, fault, self.expected);
            Step::Reply
        })
    }

    fn out_of_order(&mut self, headers: &Headers) -> Step {
        // Once is enough for all that follows the missing packet. But when the numbers begin anew, the requester sends again, and
        // the packet is lost again: silence would leave it to its timer.
        let anew = headers.psn.is_before(self.beyond);
        self.beyond = headers.psn;
        if self.nak_sent && (!anew || matches!(self.answers.last, Answer::RnrNak)) {
            return Step::Ignore(Fault::Sequence { expected: self.expected, got: headers.psn });
        }
        if self.keeps_out_of_order && !self.nak_sent && headers.psn - self.expected <= REACH {
            return Step::OutOfOrder;
        }
        self.tell_gap();
        Step::Reply
    }

    /// The caller can keep packets that come out of order for a moment: it is given [`Step::OutOfOrder`].
    pub fn keep_out_of_order(&mut self) {
        self.keeps_out_of_order = true;
    }

    /// What was missing before packets that came out of order has not come in time, or they are too many to be kept: the requester is told,
    /// unless it has been.
    pub fn missed(&mut self) {
        if self.dead.is_none() && !self.nak_sent {
            self.tell_gap();
        }
    }

    fn tell_gap(&mut self) {
        self.nak_sent = true;
        self.answers.last = Answer::SequenceNak;
    }

    fn repeated(&mut self, headers: &Headers) -> Step {
        let opcode = headers.opcode;
        let known = if opcode.is_send() || opcode.is_write() {
            self.answers.acknowledge_again(headers.psn, self.expected);
            true
        } else if opcode.is_atomic() {
            self.answers.repeat_atomic(headers)
        } else if opcode.is_atomic_write() || opcode.is_flush() {
            self.answers.repeat_confirmation(headers)
        } else {
            self.answers.repeat_read(headers, self.config.mtu)
        };
        if known { Step::Reply } else { Step::Ignore(Fault::Forgotten { opcode, psn: headers.psn }) }
    }

    pub(crate) fn finish_rc(&mut self, pending: &Pending, outcome: Outcome) {
        match (outcome, pending.step) {
            (Outcome::Dropped, _) => {}
            (Outcome::Rnr, _) => {
                self.nak_sent = true;
                self.beyond = self.expected;
                self.answers.last = Answer::RnrNak;
            }
            (Outcome::Refused(nak), _) => self.refuse(nak, Fault::Executor, self.expected),
            (Outcome::AtomicDone(value), Step::Atomic { va, rkey, .. }) => {
                self.answers.answer(self.expected, 1, (va, rkey, pending.xrc_srq), Request::Atomic { value });
                self.expected += 1;
            }
            (_, Step::AtomicWrite { va, rkey } | Step::Flush { va, rkey, .. }) => {
                let flush = matches!(pending.step, Step::Flush { .. });
                self.answers.answer(self.expected, 1, (va, rkey, pending.xrc_srq), Request::Confirmed { flush });
                self.expected += 1;
            }
            (_, Step::Read { va, rkey, len }) => {
                let packets = len.div_ceil(self.config.mtu).max(1);
                let what = (va, rkey, pending.xrc_srq);
                self.answers.answer(self.expected, packets, what, Request::Read { len, until: len });
                self.expected += packets;
            }
            _ => {
                self.expected += 1;
                self.message = pending.next;
                if self.message == Open::None {
                    self.answers.count_message();
                }
                if pending.ack_req {
                    self.answers.acknowledge();
                }
            }
        }
    }

    fn refuse(&mut self, nak: Nak, fault: Fault, psn: Psn) {
        self.dead = Some(Refusal { nak, fault });
        self.answers.last = Answer::FatalNak(nak, psn);
    }

    /// The next answer to send. The caller sends it, or says [`Responder::untransmit`], or [`Responder::read_failed`]. Call it
    /// when a batch of packets is handled, not after each: one ACK answers them all.
    pub fn poll_transmit(&mut self) -> Option<Response> {
        self.answers.poll(&self.config, self.expected)
    }

    /// Whether [`Responder::poll_transmit`] has something to send.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.answers.any()
    }

    /// Whether an ACK is all that [`Responder::poll_transmit`] has to send: it may wait for something that goes the same way.
    #[must_use]
    pub fn owes_only_ack(&self) -> bool {
        self.answers.only_ack()
    }

    /// Takes back the answer that [`Responder::poll_transmit`] has just returned: the path is full. Nothing may come between.
    pub fn untransmit(&mut self) {
        self.answers.unpoll();
    }

    /// The bytes that [`Responder::poll_transmit`] has just asked for cannot be read. A READ that was answered before, and only
    /// repeated, is let drop: its requester may have had its answer, and its memory be closed with good right.
    pub fn read_failed(&mut self, nak: Nak) {
        if let Some(psn) = self.answers.give_up_read() {
            self.refuse(nak, Fault::Executor, psn);
        }
    }
}
