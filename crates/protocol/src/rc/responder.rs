//! The receiving side of the reliable connection: every packet exactly once and in order. Adds to
//! [`Responder`]. Its answers are in [`super::answers`]. IBA 9.7.4 and 9.7.5.1.
//!
//! A packet's number is checked first:
//! * The expected packet is checked, executed, and acknowledged if it requests that.
//! * A later packet means that a packet is missing or late. The responder sends one NAK, then stays
//!   silent until the expected packet arrives or is missing again. If the caller keeps out-of-order
//!   packets ([`super::out_of_order`]), it waits for a short time before the NAK.
//! * An earlier packet is a duplicate. SENDs and WRITEs are acknowledged again and not executed.
//!   READs are read again. Atomics, ATOMIC WRITEs and FLUSHes get their first answer again.

use super::answers::{Answer, CarriedOut};
use super::out_of_order::REACH;
use crate::qp::Service;
use crate::reason::Fault;
use crate::responder::{Open, Pending, Responder};
use crate::step::{Nak, Outcome, Refusal, Response, Step};
use crate::tally::Occurrence;
use wire::{Headers, Opcode, Psn, Reth, Transport};

/// The expected packet of a SEND or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Expected {
    /// Where its payload goes.
    pub place: PayloadPlace,
    /// The message after it.
    next: Open,
}

/// Where the payload of a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadPlace {
    /// Into a receive request.
    Receive {
        /// The offset in the message.
        offset: u32,
    },
    /// Into memory.
    Write {
        /// The address.
        va: u64,
        /// The rkey.
        rkey: u32,
    },
}

impl Responder {
    pub(crate) fn handle_rc(&mut self, headers: &Headers, len: u32) -> Step {
        if self.dead.is_some() {
            return Step::Ignore(Fault::Dead);
        }
        match headers.psn.since(self.expected) {
            0 => self.in_order(headers, len),
            1.. => {
                self.tally.note(Occurrence::OutOfSequence);
                self.out_of_order(headers)
            }
            _ => {
                self.tally.note(Occurrence::DuplicateRequest);
                self.repeated(headers)
            }
        }
    }

    /// What becomes of a SEND or WRITE packet, if it is the expected packet of a reliable
    /// connection and nothing is wrong with it. Otherwise [`Responder::handle`] finds out what is
    /// wrong. `reth` is the packet's RETH, if it has one. The caller carries the packet out and
    /// calls [`Responder::accept`]; if it cannot, it passes the packet to [`Responder::handle`].
    #[inline(always)]
    #[must_use]
    pub fn expects(&self, (opcode, psn): (Opcode, Psn), reth: Reth, len: u32) -> Option<Expected> {
        let is_next = psn == self.expected && self.service == Service::Rc && opcode.transport == Transport::Rc;
        if !is_next || self.pending.is_some() || self.dead.is_some() {
            return None;
        }
        if opcode.is_send() {
            let (offset, next) = self.send_packet(opcode, len).ok()?;
            return Some(Expected { place: PayloadPlace::Receive { offset }, next });
        }
        if !opcode.is_write() {
            return None;
        }
        let ((reth, offset), next) = self.write_packet(opcode, reth, len).ok()?;
        Some(Expected { place: PayloadPlace::Write { va: reth.va.wrapping_add(offset.into()), rkey: reth.rkey }, next })
    }

    /// Reports that the packet is carried out for which [`Responder::expects`] has returned
    /// `expected`. `ack_req`: the packet requests an acknowledgement. No other call may come in
    /// between.
    #[inline(always)]
    pub fn accept(&mut self, expected: Expected, ack_req: bool) {
        self.note_expected();
        self.go_on(expected.next, ack_req);
    }

    /// The expected packet has arrived.
    #[inline]
    fn note_expected(&mut self) {
        self.nak_sent = false;
        self.answers.take_back_nak();
    }

    /// A packet of a SEND or WRITE is carried out. `next` is the message after it.
    #[inline]
    fn go_on(&mut self, next: Open, ack_req: bool) {
        self.expected += 1;
        self.message = next;
        if next == Open::None {
            self.answers.count_message();
        }
        if ack_req {
            self.answers.acknowledge();
        }
    }

    fn in_order(&mut self, headers: &Headers, len: u32) -> Step {
        self.note_expected();
        self.begin_step(headers, len).unwrap_or_else(|fault| {
            self.refuse(Nak::InvalidRequest, fault, self.expected);
            Step::Reply
        })
    }

    fn out_of_order(&mut self, headers: &Headers) -> Step {
        // One NAK is enough for all packets behind the missing one. But if the numbers start again
        // from a lower one, the requester retransmits and the packet is lost again. Silence would
        // leave the requester to its timer.
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

    /// Says that the caller can keep out-of-order packets for a short time. Such a packet then
    /// gives [`Step::OutOfOrder`].
    pub fn keep_out_of_order(&mut self) {
        self.keeps_out_of_order = true;
    }

    /// The packet before the kept out-of-order packets has not come in time, or they are too many
    /// to be kept. The requester is told, unless it has been already.
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
                self.answers.answer(self.expected, 1, (va, rkey, pending.xrc_srq), CarriedOut::Atomic { value });
                self.expected += 1;
            }
            (_, Step::AtomicWrite { va, rkey } | Step::Flush { va, rkey, .. }) => {
                let flush = matches!(pending.step, Step::Flush { .. });
                self.answers.answer(self.expected, 1, (va, rkey, pending.xrc_srq), CarriedOut::Confirmed { flush });
                self.expected += 1;
            }
            (_, Step::Read { va, rkey, len }) => {
                let packets = len.div_ceil(self.config.mtu).max(1);
                let what = (va, rkey, pending.xrc_srq);
                self.answers.answer(self.expected, packets, what, CarriedOut::Read { len, until: len });
                self.expected += packets;
            }
            _ => self.go_on(pending.next, pending.ack_req),
        }
    }

    fn refuse(&mut self, nak: Nak, fault: Fault, psn: Psn) {
        self.dead = Some(Refusal { nak, fault });
        self.answers.last = Answer::FatalNak(nak, psn);
    }

    /// The next answer to send: one packet, or up to `most` packets in the middle of the answer to
    /// a READ. The caller sends it, or calls [`Responder::untransmit`] or
    /// [`Responder::read_failed`]. Poll after a batch of packets, not after each packet: then one
    /// ACK answers all of them.
    #[inline(always)]
    pub fn poll_answer(&mut self, most: u32) -> Option<Response> {
        self.answers.poll(&self.config, self.expected, most)
    }

    /// The headers of the first packet of an answer. The others have the following numbers.
    #[must_use]
    pub fn headers(&self, response: &Response) -> Headers {
        let Response { opcode, psn, aeth, atomic_ack, .. } = *response;
        let (dest_qp, pkey, migrated) = (self.config.dest_qp, self.config.pkey, self.config.migrated);
        Headers { opcode, psn, dest_qp, pkey, migrated, aeth, atomic_ack, ..Headers::default() }
    }

    /// Encodes the headers of the packet with this index of an answer. `bytes` has room for
    /// [`wire::MAX_LEN`]. Returns their length.
    #[inline(always)]
    pub fn emit(&self, response: &Response, index: u32, bytes: &mut [u8]) -> usize {
        let Response { opcode, psn, aeth, .. } = *response;
        let is_ack = opcode.operation == wire::Operation::Acknowledge;
        if let Some((bth, behind)) = bytes.split_first_chunk_mut()
            && let Some(ack) = behind.first_chunk_mut()
            && is_ack
        {
            let (dest_qp, pkey, migrated) = (self.config.dest_qp, self.config.pkey, self.config.migrated);
            wire::bth::Header { opcode, psn, dest_qp, pkey, migrated, ..wire::bth::Header::default() }.emit(bth);
            aeth.emit(ack);
            return wire::bth::LEN + wire::aeth::LEN;
        }
        self.emit_all(Response { psn: psn + index, ..*response }, bytes)
    }

    #[inline(never)]
    fn emit_all(&self, response: Response, bytes: &mut [u8]) -> usize {
        self.headers(&response).emit(bytes).expect("there is room for all headers")
    }

    /// Whether [`Responder::poll_answer`] has something to send.
    #[must_use]
    pub fn has_answers(&self) -> bool {
        self.answers.any()
    }

    /// Whether [`Responder::poll_answer`] has the answer to a READ or atomic to send.
    #[inline]
    #[must_use]
    pub fn owes_data(&self) -> bool {
        self.answers.owes_data()
    }

    /// Whether [`Responder::poll_answer`] has data to send that a READ has asked for.
    #[must_use]
    pub fn owes_read(&self) -> bool {
        self.answers.owes_read()
    }

    /// Whether an ACK is all that [`Responder::poll_answer`] has to send. Such an ACK may be
    /// delayed until another packet goes the same way.
    #[must_use]
    pub fn owes_only_ack(&self) -> bool {
        self.answers.only_ack()
    }

    /// Takes back the answer that [`Responder::poll_answer`] has just returned, but for the first
    /// `sent` packets, because the path is full. No other call may come in between.
    pub fn untransmit(&mut self, sent: u32) {
        self.answers.unpoll(sent);
    }

    /// The bytes that [`Responder::poll_answer`] has just asked for cannot be read: those of the
    /// first `sent` packets were sent, and those of the next packet are not readable. If the READ
    /// was answered before and is only repeated, its answer is dropped: the requester may already
    /// have the data, so the program may have deregistered the memory with good reason.
    pub fn read_failed(&mut self, sent: u32, nak: Nak) {
        if let Some(psn) = self.answers.give_up_read(sent) {
            self.refuse(nak, Fault::Executor, psn);
        }
    }
}
