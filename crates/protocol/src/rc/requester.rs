//! The sending side of the reliable connection: what an answer means, when to retransmit, and when
//! to give up. IBA 9.7.5 to 9.7.7. Principal type: [`Reliable`], the part of a [`Requester`] that
//! only RC has.
//!
//! One number holds the progress: `unacked`, the oldest packet number without an answer. It lies in
//! the oldest incomplete operation, because operations complete in order:
//!
//! ```text
//!                   unacked              cursor                 high
//!   ───────────────────┼────────────────────┼──────────────────────┼─────────────▶ packet numbers
//!     answered            answer awaited       sent before, to be     never sent
//!                                              sent once more
//! ```
//! * An answer whose number is not in `[unacked, high)` is a ghost answer: it belongs to a packet
//!   that was answered before, or to no packet.
//! * An ACK answers all packets up to its own number, except READs and atomics. Only their data
//!   answers them. An answer that passes one of them shows that its data was lost (an implied NAK).
//! * To retry, the requester goes back: the cursor returns to `unacked`, and everything from there
//!   on is retransmitted. A READ, or a piece of one, that was answered in part asks for the rest.
//! * Every packet behind a lost one can report the loss, so one loss is often reported more than
//!   once. A report belongs to the known loss if it comes before the retransmission can have been
//!   answered, or if its number only continues the earlier reports. Any other report is of a new
//!   loss. On a path that reorders packets, every late packet may cause a report, so after each try
//!   the requester waits longer before it counts the next one.
//! * Any progress resets the retry counters.
//!
//! Credits, by which a receiver tells how many receive requests it has, are in [`super::window`].

use super::out_of_order::REACH;
use crate::operation::{Incoming, Operation, QueuedOperation};
use crate::qp::Service;
use crate::reason::Reason;
use crate::requester::Requester;
use crate::status::Status;
use crate::tally::Occurrence;
use crate::time::Time;
use wire::{Headers, NakCode, Psn, Syndrome, rnr};

/// Progress steps after which a loss is forgotten.
pub(super) const LOSS_MEMORY: u16 = 1024;

/// What the running timer is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// An answer. When the timer ends, the requester goes back.
    #[default]
    Answer,
    /// The receiver to be ready. Nothing is sent before the timer ends.
    Ready,
}

/// The state that only a reliable requester has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reliable {
    /// The oldest packet number without an answer.
    pub(crate) unacked: Psn,
    pub(super) wait: Wait,
    /// Retries since the last progress, after silence or a loss.
    retries: u8,
    /// Retries since the last progress, because the receiver was not ready.
    rnr_retries: u8,
    /// A packet was lost since the last progress, and is retransmitted.
    pub(super) again: bool,
    /// If `again`: when retransmission began.
    pub(super) again_since: Time,
    /// If `again`: the number of the last answer that passed data of a READ or atomic.
    passed: Psn,
    /// At the last loss, the responder had accepted no packet from this number on.
    accepted: Psn,
    /// The packet whose round trip is being timed, and when it was sent, or [`Time::NEVER`].
    pub(super) timed: (Psn, Time),
    /// The shortest time in which an answer ever came, in nanoseconds; 0 while unknown.
    pub(super) soonest: u64,
    /// The oldest packet is retransmitted alone as a probe, because no answer came. Later packets
    /// wait for its answer.
    pub(super) probing: bool,
    /// Probes since the last progress, or since the timer ended.
    pub(super) probes: u8,
    /// A report came so early that the requester took it for a repetition. It counts as a loss when
    /// the timer ends.
    pub(super) reported: bool,
    /// The last probe retransmitted the only packet under way, and exactly one answer has come so
    /// far.
    pub(super) probe_answered: bool,
    /// Progress steps until a recent loss on the path is forgotten; 0 if there was no loss.
    pub(super) recent_loss: u16,
    /// A path that is configured as lossless has lost a packet. The timer runs until everything
    /// sent is answered.
    pub(super) lossy: bool,
    /// The last message that finds a receive request, if the peer sends credits.
    pub(crate) limit: Option<u32>,
    /// The current answer comes before data that is missing, and may be kept.
    out_of_order: bool,
    /// Data of a READ or atomic is being placed.
    placing: bool,
    /// When the timer ends, or [`Time::NEVER`].
    pub(crate) deadline: Time,
    /// While an answer is awaited: when the wait counts as an unsuccessful try.
    pub(super) expiry: Time,
}

impl Default for Reliable {
    fn default() -> Reliable {
        Reliable::new(Psn::default())
    }
}

impl Reliable {
    pub(crate) fn new(unacked: Psn) -> Reliable {
        Reliable {
            unacked,
            wait: Wait::Answer,
            retries: 0,
            rnr_retries: 0,
            again: false,
            again_since: Time(0),
            passed: unacked,
            accepted: unacked,
            timed: (unacked, Time::NEVER),
            soonest: 0,
            probing: false,
            probes: 0,
            reported: false,
            probe_answered: false,
            recent_loss: 0,
            lossy: false,
            limit: None,
            out_of_order: false,
            placing: false,
            deadline: Time::NEVER,
            expiry: Time::NEVER,
        }
    }

    /// Resets everything: no answer is awaited any more.
    pub(crate) fn rest(&mut self) {
        *self = Reliable::new(self.unacked);
    }
}

/// Answers.
impl Requester {
    pub(crate) fn handle_answer(&mut self, now: Time, headers: &Headers, payload_len: u32) -> Incoming {
        let psn = headers.psn;
        let is_ghost = psn - self.rc.unacked >= self.cursor.high - self.rc.unacked;
        if is_ghost {
            // A probe was answered twice, so its packet was late and not lost.
            self.rc.probe_answered = false;
            if psn + 1 == self.rc.unacked && headers.opcode.operation == wire::Operation::Acknowledge {
                // The last answer is repeated, perhaps because there are more receive requests now.
                self.note_credits(headers);
            }
            if self.config.lossless {
                // Nothing should have been lost, so the two ends disagree on the count, and the
                // right answer may never come.
                self.note_loss(now);
            }
            return Incoming::Nothing;
        }
        self.note_credits(headers);
        if headers.opcode.is_read_response() {
            return self.read_response(now, headers, payload_len);
        }
        match headers.opcode.operation {
            wire::Operation::AtomicAcknowledge => return self.atomic_response(now, headers),
            wire::Operation::Acknowledge => match headers.aeth.syndrome {
                Syndrome::Ack(_) => self.accepted(now, psn + 1),
                Syndrome::RnrNak(code) => {
                    self.tally.note(Occurrence::RnrNakRetryErr);
                    self.not_ready(now, psn, code);
                }
                Syndrome::Nak(NakCode::PsnSequence) => {
                    self.tally.note(Occurrence::PacketSeqErr);
                    self.missed(now, psn);
                }
                Syndrome::Nak(code) => self.refused(now, psn, code),
                Syndrome::Reserved(_) => {}
            },
            _ => {}
        }
        self.passed_data()
    }

    /// Handles an ACK without credits, if it changes nothing but the oldest unanswered packet.
    /// Returns false, without having changed anything, if [`Requester::handle_response`] must
    /// handle it.
    #[inline]
    #[must_use]
    pub fn handle_ack(&mut self, now: Time, psn: Psn) -> bool {
        if !self.is_undisturbed() || psn - self.rc.unacked >= self.cursor.high - self.rc.unacked {
            return false;
        }
        self.accepted(now, psn + 1);
        true
    }

    /// Whether the requester waits for no timer, credit or path change, and retransmits nothing.
    #[inline]
    #[must_use]
    pub fn is_undisturbed(&self) -> bool {
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

    /// The result for the caller after an answer: whether it is out of order.
    fn passed_data(&mut self) -> Incoming {
        if std::mem::take(&mut self.rc.out_of_order) { Incoming::OutOfOrder } else { Incoming::Nothing }
    }

    /// Says that the caller can keep out-of-order answers for a short time. Such an answer then
    /// gives [`Incoming::OutOfOrder`].
    pub fn keep_out_of_order(&mut self) {
        self.keeps_out_of_order = true;
    }

    /// Packets sent from now on take another path, also if the peer has migrated first. Retries on
    /// the old path do not count.
    pub fn begin_path(&mut self) {
        self.rc.retries = 0;
    }

    /// Whether this answer would be out of order now.
    #[must_use]
    pub fn lacks_data_before(&self, headers: &Headers) -> bool {
        // An ACK also answers the packet that it names. Every other response answers only packets
        // before that packet, besides the data that it carries.
        let is_ack = headers.opcode.operation == wire::Operation::Acknowledge
            && matches!(headers.aeth.syndrome, Syndrome::Ack(_));
        let end = headers.psn + u32::from(is_ack);
        let (mut op, mut answered) = (self.done, self.rc.unacked);
        while answered.is_before(end) && op != self.cursor.started {
            let entry = self.ops.at(op);
            if entry.op.operation.is_read_or_atomic() {
                return true;
            }
            (op, answered) = (op.wrapping_add(1), entry.first + self.packets(&entry.op));
        }
        false
    }

    /// Data that was missing before the out-of-order answer `psn` has not come in time. It is
    /// requested again.
    pub fn missed_data(&mut self, now: Time, psn: Psn) {
        let is_ghost = psn - self.rc.unacked >= self.cursor.high - self.rc.unacked;
        if !is_ghost && !self.is_stopped() {
            self.note_passed(now, psn);
        }
    }

    /// Everything before `end` has arrived. This suffices for SENDs and WRITEs.
    pub(super) fn accepted(&mut self, now: Time, end: Psn) {
        // A responder may acknowledge a retransmission with the highest number that it had reached
        // before. Such an ACK passes READs whose answers are still to come.
        if self.answers_all_before(now, end) || end.since(self.rc.accepted) <= 0 {
            return;
        }
        self.imply_loss(now, end);
    }

    /// Everything before `end` has arrived. Returns false if data of a READ or atomic before `end`
    /// is missing. That data is requested again, unless it has been already.
    fn acknowledge(&mut self, now: Time, end: Psn) -> bool {
        let complete = self.answers_all_before(now, end);
        if !complete {
            self.imply_loss(now, end);
        }
        complete && !self.is_stopped()
    }

    /// An answer that ends before `end` has passed data of a READ or atomic, which was therefore
    /// lost.
    fn imply_loss(&mut self, now: Time, end: Psn) {
        let may_be_late = self.rc.wait == Wait::Answer && (self.rc.lossy || !self.config.lossless);
        if self.keeps_out_of_order && may_be_late && !self.rc.again && end - self.rc.unacked <= REACH {
            self.rc.out_of_order = true;
            return;
        }
        self.note_passed(now, end);
    }

    /// An answer for everything before `end` has passed data of a READ or atomic. Counts that data
    /// as lost.
    fn note_passed(&mut self, now: Time, end: Psn) {
        self.tally.note(Occurrence::ImpliedNakSeqErr);
        // Further answers behind the first one report the same loss. But if the numbers start again
        // from a lower one, the retransmission itself was lost.
        let anew = !self.rc.again || end.since(self.rc.passed) <= 0;
        self.rc.passed = end;
        if anew {
            self.hear_of_loss(now);
        }
    }

    /// Moves `unacked` to `end`. Stops at a READ or atomic that lacks its data, and then returns
    /// false.
    fn answers_all_before(&mut self, now: Time, end: Psn) -> bool {
        let before = self.rc.unacked;
        let mut complete = true;
        while self.rc.unacked != end {
            let entry = self.ops.at(self.done);
            if entry.op.operation.is_read_or_atomic() {
                complete = false;
                break;
            }
            let next = entry.first + self.packets(&entry.op);
            if end.is_before(next) {
                self.rc.unacked = end;
                break;
            }
            self.rc.unacked = next;
            self.done = self.done.wrapping_add(1);
        }
        if self.rc.unacked != before {
            self.progress(now);
        }
        complete
    }

    /// The responder had no receive request for packet `psn`.
    fn not_ready(&mut self, now: Time, psn: Psn, code: u8) {
        if !self.acknowledge(now, psn) || self.rc.wait == Wait::Ready {
            return;
        }
        let rnr_retry = self.config.rnr_retry;
        if rnr_retry < 7 && self.rc.rnr_retries >= rnr_retry {
            let reason = Reason::NotReady { dest_qp: self.config.dest_qp, psn, rnr_retry };
            return self.fail(Status::RnrRetryExcErr, reason);
        }
        self.rc.rnr_retries = self.rc.rnr_retries.saturating_add(1);
        self.go_back();
        self.rc.wait = Wait::Ready;
        self.rc.deadline = now.after(rnr::nanoseconds(code));
    }

    /// The responder expects packet `psn` and received a later one.
    fn missed(&mut self, now: Time, psn: Psn) {
        let losses = self.losses;
        if self.acknowledge(now, psn) {
            self.hear_of_loss(now);
        }
        if self.losses != losses {
            self.rc.accepted = psn;
        }
    }

    /// The responder lacks a packet. Retransmits, unless that was done already. A report that comes
    /// sooner than an answer can come is a repetition. Counting repetitions would use up all
    /// retries.
    fn hear_of_loss(&mut self, now: Time) {
        // Half of the shortest time, because the timed packet may have waited behind others. The
        // pause doubles with each retry, because then many packets wait behind the retransmission.
        let pause = (self.rc.soonest / 2) << (self.rc.retries.clamp(1, 8) - 1);
        let until = self.rc.again_since.after(pause);
        let known = self.rc.again && (self.has_gone_back() || now < until);
        if known || self.rc.wait == Wait::Ready || self.is_stopped() {
            if known && self.rc.retries > 1 && self.rc.wait == Wait::Answer && !self.has_gone_back() {
                // If the report was of another loss after all, the peer may not report that loss
                // again. So the report counts at `until`, unless an answer comes before.
                self.rc.deadline = self.rc.deadline.min(until);
                self.rc.reported = true;
            }
            return;
        }
        if self.rc.soonest == 0 {
            // No better estimate of the round trip exists yet.
            self.rc.soonest = now.0.saturating_sub(self.rc.timed.1.0) / 2;
        }
        self.rc.recent_loss = LOSS_MEMORY;
        self.retry(now);
    }

    /// The responder refused packet `psn`.
    fn refused(&mut self, now: Time, psn: Psn, code: NakCode) {
        if self.acknowledge(now, psn) {
            let status = match code {
                NakCode::InvalidRequest | NakCode::PsnSequence => Status::RemInvReqErr,
                NakCode::RemoteAccess => Status::RemAccessErr,
                NakCode::RemoteOperational => Status::RemOpErr,
                NakCode::InvalidRd => Status::RemInvRdReqErr,
            };
            self.fail(status, Reason::Refused { dest_qp: self.config.dest_qp, code, psn });
        }
    }

    fn read_response(&mut self, now: Time, headers: &Headers, payload_len: u32) -> Incoming {
        if !self.acknowledge(now, headers.psn) {
            return self.passed_data();
        }
        let QueuedOperation { op, first, .. } = *self.ops.at(self.done);
        let empty = headers.opcode.operation == wire::Operation::ReadResponseOnly && payload_len == 0;
        if op.operation.is_confirmed() && empty {
            self.rc.placing = true;
            self.placed(now, Ok(()));
            return Incoming::Nothing;
        }
        if op.operation != Operation::Read {
            return self.wrong_answer(headers);
        }
        let packet = headers.psn - first;
        let last = packet + 1 == self.packets(&op);
        // The answer to the rest of a piece may begin with a first or with a middle packet, because
        // responders differ.
        if headers.opcode.place().ends() != (packet + 1 == self.piece_end(&op, packet)) {
            return self.wrong_answer(headers);
        }
        let (offset, len) = self.part(&op, packet);
        if payload_len != len {
            let (dest_qp, psn) = (self.config.dest_qp, headers.psn);
            self.fail(Status::LocLenErr, Reason::WrongLength { dest_qp, psn, expected: len, got: payload_len });
            return Incoming::Nothing;
        }
        self.rc.placing = true;
        Incoming::Place { slot: op.slot, offset, len, last }
    }

    fn atomic_response(&mut self, now: Time, headers: &Headers) -> Incoming {
        if !self.acknowledge(now, headers.psn) {
            return self.passed_data();
        }
        let op = self.ops.at(self.done).op;
        if !op.operation.is_atomic() {
            return self.wrong_answer(headers);
        }
        self.rc.placing = true;
        Incoming::PlaceAtomic { slot: op.slot, value: headers.atomic_ack }
    }

    /// Reports whether the caller has placed the data that [`Requester::handle_response`] returned.
    pub fn placed(&mut self, now: Time, result: Result<(), Status>) {
        if !std::mem::take(&mut self.rc.placing) {
            return;
        }
        if let Err(status) = result {
            return self.fail(status, Reason::Local);
        }
        let entry = self.ops.at(self.done);
        let packet = self.rc.unacked - entry.first;
        let (packets, piece_end) = (self.packets(&entry.op), self.piece_end(&entry.op, packet));
        if packet + 1 == piece_end {
            // After going back, the cursor may not have reached this piece again. Then no piece is
            // counted.
            self.cursor.reads = self.cursor.reads.saturating_sub(1);
        }
        self.rc.unacked += 1;
        if packet + 1 == packets {
            self.done = self.done.wrapping_add(1);
        }
        self.progress(now);
    }

    fn wrong_answer(&mut self, headers: &Headers) -> Incoming {
        let operation = self.ops.at(self.done).op.operation;
        let reason =
            Reason::WrongAnswer { dest_qp: self.config.dest_qp, psn: headers.psn, operation, opcode: headers.opcode };
        self.fail(Status::BadRespErr, reason);
        Incoming::Nothing
    }
}

/// Progress and retries.
impl Requester {
    /// `unacked` has moved.
    fn progress(&mut self, now: Time) {
        self.pass_local();
        self.rc.retries = 0;
        self.rc.rnr_retries = 0;
        self.rc.again = false;
        self.rc.reported = false;
        self.rc.wait = Wait::Answer;
        self.update_loss_state();
        self.stop_watch(now);
        if self.rc.unacked == self.cursor.high {
            self.rc.deadline = Time::NEVER;
            self.rc.lossy = false;
        } else if self.rc.deadline != Time::NEVER {
            self.start_timer(now);
        }
        self.skip_answered();
        self.settle();
    }

    /// Moves the cursor past packets that were to be retransmitted but were answered meanwhile.
    fn skip_answered(&mut self) {
        let behind = self.done.wrapping_sub(self.cursor.op).cast_signed();
        if behind > 0 || (behind == 0 && self.cursor.packet < self.answered_packets()) {
            self.cursor.op = self.done;
            self.cursor.packet = self.answered_packets();
        }
    }

    /// The number of packets of the oldest incomplete operation that are answered.
    pub(super) fn answered_packets(&self) -> u32 {
        if self.done == self.cursor.started { 0 } else { self.rc.unacked - self.ops.at(self.done).first }
    }

    /// A packet was lost: goes back to the oldest unanswered packet, unless the retries are used
    /// up.
    pub(super) fn retry(&mut self, now: Time) {
        let (dest_qp, psn) = (self.config.dest_qp, self.rc.unacked);
        let (timeout, retry_cnt) = (self.config.timeout, self.config.retry_cnt);
        if self.rc.retries >= retry_cnt && std::mem::take(&mut self.spare) {
            // The retries on the old path do not count on the new one.
            self.rc.retries = 0;
            self.failed_over = true;
        } else if self.rc.retries >= retry_cnt {
            return self.fail(Status::RetryExcErr, Reason::Silence { dest_qp, psn, timeout, retry_cnt });
        } else {
            self.rc.retries += 1;
        }
        self.losses = self.losses.wrapping_add(1);
        self.send_again();
        self.arm(now);
    }

    /// Goes back because all unanswered packets may be lost.
    pub(super) fn send_again(&mut self) {
        self.rc.again = true;
        self.rc.accepted = self.cursor.high;
        self.go_back();
    }

    fn go_back(&mut self) {
        self.rc.deadline = Time::NEVER;
        self.rc.probing = false;
        self.rc.reported = false;
        self.cursor.op = self.done;
        self.cursor.packet = self.answered_packets();
        self.cursor.reads = 0;
        self.cursor.since_ack_req = 0;
    }

    /// Whether no packet was sent since going back.
    pub(super) fn has_gone_back(&self) -> bool {
        (self.cursor.op, self.cursor.packet) == (self.done, self.answered_packets())
    }
}
