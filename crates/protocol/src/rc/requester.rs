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
//! * Trying again is going back: the cursor returns to `unacked`, and everything from there on is sent once more. A READ that was
//!   answered in part asks for the rest.
//! * Any progress forgives: the counters of tries begin anew.
//!
//! End-to-end credits are ignored, as a requester may: a receiver that is not ready says so by RNR NAK.

use crate::ring::Entry;
use crate::{Incoming, Operation, Reason, Requester, Service, Status, Time, timeout};
use wire::{Headers, NakCode, Psn, Syndrome, rnr};

/// What the running timer is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Wait {
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
    wait: Wait,
    /// Tries since the last progress, when nothing was heard or something was lost.
    retries: u8,
    /// Tries since the last progress, when the receiver was not ready.
    rnr_retries: u8,
    /// An implied NAK was acted upon; the stragglers behind it say nothing new.
    implied: bool,
    /// A path that loses nothing has lost something: the timer runs until everything sent is answered.
    lossy: bool,
    /// Data of a READ or atomic is being placed.
    placing: bool,
    /// When the timer ends, or [`Time::NEVER`].
    pub(crate) deadline: Time,
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
            implied: false,
            lossy: false,
            placing: false,
            deadline: Time::NEVER,
        }
    }

    /// Nothing is awaited any more.
    pub(crate) fn rest(&mut self) {
        *self = Reliable::new(self.unacked);
    }
}

/// Timers.
impl Requester {
    /// When to call [`Requester::handle_timeout`], if nothing happens before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.rc.deadline != Time::NEVER).then_some(self.rc.deadline)
    }

    /// Time has passed. Too early a call does nothing.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.rc.deadline == Time::NEVER || now < self.rc.deadline {
            return;
        }
        self.rc.deadline = Time::NEVER;
        match self.rc.wait {
            // The path was full all the while: that is not the peer's silence.
            Wait::Answer if self.has_gone_back() => self.arm(now),
            Wait::Answer => self.retry(now),
            Wait::Ready => {
                self.rc.wait = Wait::Answer;
                self.arm(now);
            }
        }
    }

    /// A packet of ours, or its answer, was lost on a path that loses nothing: from now on the ordinary timer runs, until
    /// everything that was sent is answered.
    pub fn note_loss(&mut self, now: Time) {
        if self.service == Service::Rc && !self.is_stopped() && self.rc.unacked != self.cursor.high {
            self.rc.lossy = true;
            self.arm(now);
        }
    }

    /// Whether the receiver was not ready and its time has not passed.
    pub(crate) fn is_waiting(&mut self, now: Time) -> bool {
        if self.rc.wait == Wait::Ready && now >= self.rc.deadline {
            self.handle_timeout(now);
        }
        self.rc.wait == Wait::Ready
    }

    /// Starts the timer for an answer, unless it runs.
    pub(crate) fn arm(&mut self, now: Time) {
        if self.rc.deadline == Time::NEVER {
            self.rc.deadline = self.answer_by(now);
        }
    }

    fn answer_by(&self, now: Time) -> Time {
        let lossless = self.config.lossless && !self.rc.lossy;
        match timeout(self.config.timeout) {
            Some(nanoseconds) if !lossless => now.after(nanoseconds),
            _ => Time::NEVER,
        }
    }
}

/// Answers.
impl Requester {
    pub(crate) fn handle_answer(&mut self, now: Time, headers: &Headers, payload_len: u32) -> Incoming {
        let psn = headers.psn;
        let is_ghost = psn - self.rc.unacked >= self.cursor.high - self.rc.unacked;
        if is_ghost {
            return Incoming::Nothing;
        }
        if headers.opcode.is_read_response() {
            return self.read_response(now, headers, payload_len);
        }
        match headers.opcode.operation {
            wire::Operation::AtomicAcknowledge => return self.atomic_response(now, headers),
            wire::Operation::Acknowledge => match headers.aeth.syndrome {
                Syndrome::Ack(_) => {
                    self.acknowledge(now, psn + 1);
                }
                Syndrome::RnrNak(code) => self.not_ready(now, psn, code),
                Syndrome::Nak(NakCode::PsnSequence) => self.missed(now, psn),
                Syndrome::Nak(code) => self.refused(now, psn, code),
                Syndrome::Reserved(_) => {}
            },
            _ => {}
        }
        Incoming::Nothing
    }

    /// Everything before `end` has arrived. False when that cannot be: data of a READ or atomic before it is missing.
    fn acknowledge(&mut self, now: Time, end: Psn) -> bool {
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
        if !complete && !self.is_stopped() && !self.rc.implied {
            self.retry(now);
            self.rc.implied = true;
        }
        complete && !self.is_stopped()
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
        if self.acknowledge(now, psn) && self.rc.wait != Wait::Ready {
            self.retry(now);
        }
    }

    /// The responder refused packet `psn`.
    fn refused(&mut self, now: Time, psn: Psn, code: NakCode) {
        if self.acknowledge(now, psn) {
            let status = match code {
                NakCode::InvalidRequest | NakCode::PsnSequence => Status::RemInvReqErr,
                NakCode::RemoteAccess => Status::RemAccessErr,
                NakCode::RemoteOperational => Status::RemOpErr,
            };
            self.fail(status, Reason::Refused { dest_qp: self.config.dest_qp, code, psn });
        }
    }

    fn read_response(&mut self, now: Time, headers: &Headers, payload_len: u32) -> Incoming {
        if !self.acknowledge(now, headers.psn) {
            return Incoming::Nothing;
        }
        let Entry { op, first } = *self.ops.at(self.done);
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
            return Incoming::Nothing;
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
        // Having gone back, the cursor may not have come to this piece again: then it does not count as asked for.
        let counts = self.cursor.op != self.done || self.cursor.packet >= piece_end;
        self.cursor.reads -= u32::from(counts && packet + 1 == piece_end);
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
        self.rc.retries = 0;
        self.rc.rnr_retries = 0;
        self.rc.implied = false;
        self.rc.wait = Wait::Answer;
        if self.rc.unacked == self.cursor.high {
            self.rc.deadline = Time::NEVER;
            self.rc.lossy = false;
        } else if self.rc.deadline != Time::NEVER {
            self.rc.deadline = self.answer_by(now);
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
    fn answered_packets(&self) -> u32 {
        if self.done == self.cursor.started { 0 } else { self.rc.unacked - self.ops.at(self.done).first }
    }

    /// Something was lost: once more from the oldest unanswered packet, if that was not done too often.
    fn retry(&mut self, now: Time) {
        let (dest_qp, psn) = (self.config.dest_qp, self.rc.unacked);
        let (timeout, retry_cnt) = (self.config.timeout, self.config.retry_cnt);
        if self.rc.retries >= retry_cnt {
            return self.fail(Status::RetryExcErr, Reason::Silence { dest_qp, psn, timeout, retry_cnt });
        }
        self.rc.retries += 1;
        self.losses = self.losses.wrapping_add(1);
        self.rc.implied = false;
        self.go_back();
        self.arm(now);
    }

    fn go_back(&mut self) {
        self.rc.deadline = Time::NEVER;
        self.cursor.op = self.done;
        self.cursor.packet = self.answered_packets();
        self.cursor.reads = 0;
        self.cursor.unasked = 0;
    }

    /// Whether nothing was sent since going back.
    fn has_gone_back(&self) -> bool {
        (self.cursor.op, self.cursor.packet) == (self.done, self.answered_packets())
    }
}
