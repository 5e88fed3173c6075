//! The reliable connection, sending side: what an answer means, when to send again, and when to give up. IBA 9.7.5 to 9.7.7.
//! Principal type: [`Reliable`], the part of a [`Requester`] that only RC has.
//!
//! One number tells the progress of everything: `unacked`, the oldest packet number without an answer. It lies in the oldest
//! incomplete operation, because operations complete in order:
//!
//! ```text
//!                   unacked              cursor                 high
//!   ───────────────────┼────────────────────┼──────────────────────┼─────────────▶ packet numbers
//!     answered            answer awaited       sent before, to be     never sent
//!                                              sent once more
//! ```
//! * An answer whose number is not in `[unacked, high)` is a ghost: of a packet that was answered before, or of nothing.
//! * An ACK answers all packets up to its own, except READs and atomics: they are answered by their data alone. An answer that
//!   passes one of those says that its data was lost (an implied NAK).
//! * Trying again is going back: the cursor returns to `unacked`, and everything from there on is sent once more. A READ, or a
//!   piece of one, that was answered in part asks for the rest.
//! * A loss is reported by whatever comes behind it, and often more than once. Reports that come sooner than an answer to what is
//!   sent again could, and those whose numbers only go on, are of the loss that is known; the others are of a new one. On a path that
//!   reorders any late packet may have its report, so each try waits longer before the next one counts.
//! * Any progress forgives: the counters of tries begin anew.
//!
//! What a receiver says about its receive requests is in [`super::credits`].

use super::out_of_order::REACH;
use crate::ring::Entry;
use crate::{Incoming, Operation, Reason, Requester, Status, Time};
use wire::{Headers, NakCode, Psn, Syndrome, rnr};

/// How often something has to be answered until a loss is forgotten.
pub(super) const ROUGH: u16 = 1024;

/// What the running timer is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// An answer; when it ends, go back.
    #[default]
    Answer,
    /// The receiver to be ready; nothing is sent before it ends.
    Ready,
}

/// What only a reliable requester knows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reliable {
    /// The oldest packet number without an answer.
    pub(crate) unacked: Psn,
    pub(super) wait: Wait,
    /// Tries since the last progress, when nothing was heard or something was lost.
    retries: u8,
    /// Tries since the last progress, when the receiver was not ready.
    rnr_retries: u8,
    /// Something was lost since the last progress, and is sent again.
    pub(super) again: bool,
    /// If so: when sending again began.
    pub(super) again_since: Time,
    /// If so: the number of the last answer that passed data of a READ or atomic.
    passed: Psn,
    /// When something was lost last, the responder had accepted nothing from this number on.
    accepted: Psn,
    /// The packet that is being timed, and when it was sent, or [`Time::NEVER`].
    pub(super) timed: (Psn, Time),
    /// The shortest time in which an answer ever came, in nanoseconds; 0 while that is not known.
    pub(super) soonest: u64,
    /// The oldest packet is sent once more and alone, because nothing was heard; what follows waits for its answer.
    pub(super) probing: bool,
    /// How often that was done since the last progress, or since the timer ended.
    pub(super) probes: u8,
    /// A report came too soon to be of a new loss.
    pub(super) reported: bool,
    /// What was sent once more was all that was under way, and it was answered: once only, so far.
    pub(super) doubted: bool,
    /// The path has lost something not long ago: so many more times of progress until that is forgotten.
    pub(super) rough: u16,
    /// A path that loses nothing has lost something: the timer runs until everything sent is answered.
    pub(super) lossy: bool,
    /// The last message that finds a receive request, if the peer says such things.
    pub(super) limit: Option<u32>,
    /// The answer at hand comes before data that is missing, and may be kept.
    out_of_order: bool,
    /// Data of a READ or atomic is being placed.
    placing: bool,
    /// When something is to be done, or [`Time::NEVER`].
    pub(crate) deadline: Time,
    /// While an answer is awaited: when that counts as a try that was in vain.
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
            doubted: false,
            rough: 0,
            lossy: false,
            limit: None,
            out_of_order: false,
            placing: false,
            deadline: Time::NEVER,
            expiry: Time::NEVER,
        }
    }

    /// Nothing is awaited any more.
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
            // What a probe has asked for was answered twice: it was late, and not lost.
            self.rc.doubted = false;
            if psn + 1 == self.rc.unacked && headers.opcode.operation == wire::Operation::Acknowledge {
                // The last answer once more, perhaps because there are more receive requests now.
                self.note_credits(headers);
            }
            if self.config.lossless {
                // Nothing was lost, so the ends do not count alike, and the right answer may never come.
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
                Syndrome::RnrNak(code) => self.not_ready(now, psn, code),
                Syndrome::Nak(NakCode::PsnSequence) => self.missed(now, psn),
                Syndrome::Nak(code) => self.refused(now, psn, code),
                Syndrome::Reserved(_) => {}
            },
            _ => {}
        }
        self.passed_data()
    }

    /// An answer was heard, or comes out of order.
    fn passed_data(&mut self) -> Incoming {
        if std::mem::take(&mut self.rc.out_of_order) { Incoming::OutOfOrder } else { Incoming::Nothing }
    }

    /// The caller can keep answers that come out of order for a moment: it is given [`Incoming::OutOfOrder`].
    pub fn keep_out_of_order(&mut self) {
        self.keeps_out_of_order = true;
    }

    /// What is sent from now on goes by another path, also where it was the peer that has changed over: tries on the old one do not count.
    pub fn begin_path(&mut self) {
        self.rc.retries = 0;
    }

    /// Whether an answer would be out of order now.
    #[must_use]
    pub fn lacks_data_before(&self, headers: &Headers) -> bool {
        // A refusal says of the packet that it names only that it came.
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

    /// What was missing before the answer of number `psn`, which came out of order, has not come in time: it is asked for again.
    pub fn missed_data(&mut self, now: Time, psn: Psn) {
        let is_ghost = psn - self.rc.unacked >= self.cursor.high - self.rc.unacked;
        if !is_ghost && !self.is_stopped() {
            self.note_passed(now, psn);
        }
    }

    /// Everything before `end` has arrived, and SENDs and WRITEs need to know no more.
    pub(super) fn accepted(&mut self, now: Time, end: Psn) {
        // To what is sent again a responder may say how far it had come before. That passes READs whose answers are still to come.
        if self.answers_all_before(now, end) || end.since(self.rc.accepted) <= 0 {
            return;
        }
        self.imply_loss(now, end);
    }

    /// Everything before `end` has arrived. False when that cannot be: data of a READ or atomic before it is missing, which is to
    /// be sent again, if that has not happened yet.
    fn acknowledge(&mut self, now: Time, end: Psn) -> bool {
        let complete = self.answers_all_before(now, end);
        if !complete {
            self.imply_loss(now, end);
        }
        complete && !self.is_stopped()
    }

    /// An answer that ends before `end` has passed data of a READ or atomic: that was lost.
    fn imply_loss(&mut self, now: Time, end: Psn) {
        let may_be_late = self.rc.wait == Wait::Answer && (self.rc.lossy || !self.config.lossless);
        if self.keeps_out_of_order && may_be_late && !self.rc.again && end - self.rc.unacked <= REACH {
            self.rc.out_of_order = true;
            return;
        }
        self.note_passed(now, end);
    }

    /// Data that an answer which ends before `end` has passed is lost.
    fn note_passed(&mut self, now: Time, end: Psn) {
        // The stragglers behind the first one say nothing new; but when the numbers begin anew, what was sent again was lost.
        let anew = !self.rc.again || end.since(self.rc.passed) <= 0;
        self.rc.passed = end;
        if anew {
            self.hear_of_loss(now);
        }
    }

    /// Moves on to `end`, or to the READ or atomic before it that lacks its data: then false.
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

    /// The responder awaits packet `psn` and got a later one.
    fn missed(&mut self, now: Time, psn: Psn) {
        let losses = self.losses;
        if self.acknowledge(now, psn) {
            self.hear_of_loss(now);
        }
        if self.losses != losses {
            self.rc.accepted = psn;
        }
    }

    /// The responder lacks something. Sends again, unless that was done already: reports that come sooner than an answer could are
    /// repetitions, and would use up all tries.
    fn hear_of_loss(&mut self, now: Time) {
        // Half, for what was timed may have waited behind others; longer with each try, for now many wait behind what is sent again.
        let pause = (self.rc.soonest / 2) << (self.rc.retries.clamp(1, 8) - 1);
        let until = self.rc.again_since.after(pause);
        let known = self.rc.again && (self.has_gone_back() || now < until);
        if known || self.rc.wait == Wait::Ready || self.is_stopped() {
            if known && self.rc.retries > 1 && self.rc.wait == Wait::Answer && !self.has_gone_back() {
                // If it was of another loss after all, nobody may say so again: unless something is heard, it is believed then.
                self.rc.deadline = self.rc.deadline.min(until);
                self.rc.reported = true;
            }
            return;
        }
        if self.rc.soonest == 0 {
            // Nothing better is known yet of how long an answer takes.
            self.rc.soonest = now.0.saturating_sub(self.rc.timed.1.0) / 2;
        }
        self.rc.rough = ROUGH;
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
        let Entry { op, first, .. } = *self.ops.at(self.done);
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
        // The answer to the rest of a piece may begin with a first or with a middle packet: responders differ.
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

    /// The caller has placed what [`Requester::handle_response`] gave it, or could not.
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
            // Having gone back, the cursor may not have come to this piece again: then none is counted.
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

/// Progress, and the lack of it.
impl Requester {
    /// `unacked` has moved.
    fn progress(&mut self, now: Time) {
        self.pass_local();
        self.rc.retries = 0;
        self.rc.rnr_retries = 0;
        self.rc.again = false;
        self.rc.reported = false;
        self.rc.wait = Wait::Answer;
        self.note_road();
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

    /// What was to be sent again may have been answered meanwhile.
    fn skip_answered(&mut self) {
        let behind = self.done.wrapping_sub(self.cursor.op).cast_signed();
        if behind > 0 || (behind == 0 && self.cursor.packet < self.answered_packets()) {
            self.cursor.op = self.done;
            self.cursor.packet = self.answered_packets();
        }
    }

    /// Packets of the oldest incomplete operation that are answered.
    pub(super) fn answered_packets(&self) -> u32 {
        if self.done == self.cursor.started { 0 } else { self.rc.unacked - self.ops.at(self.done).first }
    }

    /// Something was lost: once more from the oldest unanswered packet, if that was not done too often.
    pub(super) fn retry(&mut self, now: Time) {
        let (dest_qp, psn) = (self.config.dest_qp, self.rc.unacked);
        let (timeout, retry_cnt) = (self.config.timeout, self.config.retry_cnt);
        if self.rc.retries >= retry_cnt && std::mem::take(&mut self.spare) {
            // Another path, another history.
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

    /// Everything that is not answered may be lost.
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
        self.cursor.unasked = 0;
    }

    /// Whether nothing was sent since going back.
    pub(super) fn has_gone_back(&self) -> bool {
        (self.cursor.op, self.cursor.packet) == (self.done, self.answered_packets())
    }
}
