//! The sending half of a queue pair: turns work requests into packets, and tells when they are complete. Principal type:
//! [`Requester`]. What makes a connection reliable (answers, timers, going back) is in [`crate::rc`]; here is what all services share.
//!
//! The operations are numbered as they are posted. Four marks move through them, never past each other:
//!
//! ```text
//!              tail               done              cursor             head
//!   ────────────┼──────────────────┼──────────────────┼──────────────────┼──────────▶ operations
//!     forgotten   complete, to be    sent, answers      to be sent, or     not posted
//!                 polled             awaited            sent once more
//! ```
//! An error stops the queue at one operation: those before it end as they end, it gets the error, those behind it are flushed.

use crate::rc::Reliable;
use crate::ring::Ring;
use crate::{Incoming, Operation, Reason, SendOp, Service, Status, Time, Transmit};
use wire::{Headers, Psn, Qpn};

/// What a requester has to know before it may send: the attributes of the transition to RTS, and of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterConfig {
    /// Bytes of payload in one packet; a power of two.
    pub mtu: u32,
    /// Our own number.
    pub src_qp: Qpn,
    /// The peer's number; unused on UD.
    pub dest_qp: Qpn,
    /// The partition.
    pub pkey: u16,
    /// The first packet's number.
    pub sq_psn: Psn,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// How often to try again when nothing is heard.
    pub retry_cnt: u8,
    /// How often to try again when the peer has no receive request; 7 is without end.
    pub rnr_retry: u8,
    /// READs and atomics at once.
    pub max_rd_atomic: u8,
    /// The path loses nothing unless [`Requester::note_loss`] says so: no timer runs meanwhile.
    pub lossless: bool,
    /// A READ is asked for in pieces of so many packets, each a request of its own; 0 is in one piece, however long.
    pub read_piece: u32,
    /// At most so many packets of a message without one that asks for an acknowledgement; 0 leaves it to the requester.
    pub ack_every: u32,
    /// Waits up to this many times the local ACK timeout; 0 is once. The IBA lets an adapter take up to four (9.7.6.1.3).
    pub patience: u8,
    /// Where packets may be lost: nanoseconds without an answer after which the oldest packet is sent once more, long before the
    /// timeout, and without using up a try; 0 is never.
    pub probe_after: u32,
    /// Packets say that the path is the one to stay on: path migration is not armed.
    pub migrated: bool,
}

/// The end of a work request. There is one for each, unsignalled ones too, in the order of posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The caller's name for the request.
    pub slot: u32,
    /// How it ended.
    pub status: Status,
}

/// What stopped a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The status of the request that failed.
    pub status: Status,
    /// Why.
    pub reason: Reason,
}

/// The queue already holds as many requests as its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the send queue is full")]
pub struct Full;

/// How far posting had come.
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    head: u32,
    done: u32,
}

/// The operation at which the queue stops.
#[derive(Clone, Copy, Debug)]
struct Stop {
    at: u32,
    /// Everything before it is complete: the failure is a fact.
    reached: bool,
    failure: Failure,
}

/// How far sending has come. Sending goes back by setting the first two fields back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// The operation to send from next.
    pub(crate) op: u32,
    /// And its packet.
    pub(crate) packet: u32,
    /// The first operation that was never begun.
    pub(crate) started: u32,
    /// The first packet number that was never sent.
    pub(crate) high: Psn,
    /// Atomics and pieces of READs before here that are not answered in full: what the responder has to remember.
    pub(crate) reads: u32,
    /// Packets since the last that asked for an acknowledgement.
    pub(crate) unasked: u32,
    /// Messages begun.
    pub(crate) begun: u32,
}

/// What [`Requester::untransmit`] restores.
#[derive(Clone, Copy, Debug, Default)]
struct Undo {
    cursor: Cursor,
    done: u32,
    deadline: Time,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub struct Requester {
    pub(crate) service: Service,
    draining: bool,
    /// The MTU as a power of two: offsets and packet numbers turn into each other by shifts.
    pub(crate) mtu_shift: u8,
    pub(crate) config: RequesterConfig,
    pub(crate) ops: Ring,
    tail: u32,
    pub(crate) done: u32,
    head: u32,
    pub(crate) cursor: Cursor,
    undo: Undo,
    /// How many packets may be under way.
    pub(crate) window: u32,
    /// At most so many packets of a message without one that asks for an acknowledgement.
    pub(crate) ask_every: u32,
    /// Nobody else is on the path: see [`Requester::set_window_alone`].
    pub(crate) alone: bool,
    /// How often something was sent again because it, or its answer, was lost.
    pub(crate) losses: u32,
    /// There is another path, to be tried when this one fails.
    pub(crate) spare: bool,
    /// This path has failed, and what was not answered goes once more, by the other one.
    pub(crate) failed_over: bool,
    /// The caller keeps answers that come out of order.
    pub(crate) keeps_out_of_order: bool,
    pub(crate) rc: Reliable,
    stop: Option<Stop>,
}

impl Requester {
    /// A requester for at most `depth` requests at once. Configure it before polling it.
    #[must_use]
    pub fn new(service: Service, depth: u32) -> Requester {
        Requester {
            service,
            draining: false,
            mtu_shift: 0,
            config: RequesterConfig { mtu: 1, ..RequesterConfig::default() },
            ops: Ring::new(depth),
            tail: 0,
            done: 0,
            head: 0,
            cursor: Cursor::default(),
            undo: Undo::default(),
            window: Psn::WINDOW,
            ask_every: 0,
            alone: false,
            losses: 0,
            spare: false,
            failed_over: false,
            keeps_out_of_order: false,
            rc: Reliable::default(),
            stop: None,
        }
    }

    /// Sets what the transition to RTS sets. The numbering of packets begins here, and with as wide a window as there is.
    pub fn configure(&mut self, config: RequesterConfig) {
        self.mtu_shift = config.mtu.max(1).ilog2() as u8;
        self.config = RequesterConfig { mtu: 1 << self.mtu_shift, ..config };
        self.cursor.high = config.sq_psn;
        self.rc = Reliable::new(config.sq_psn);
        self.set_window(Psn::WINDOW);
    }

    /// Changes the code of the local ACK timeout.
    pub fn set_timeout(&mut self, code: u8) {
        self.config.timeout = code;
    }

    /// Changes how often to try again when nothing is heard.
    pub fn set_retry_cnt(&mut self, count: u8) {
        self.config.retry_cnt = count;
    }

    /// Changes how often to try again when the peer has no receive request.
    pub fn set_rnr_retry(&mut self, count: u8) {
        self.config.rnr_retry = count;
    }

    /// Changes how many READs and atomics may be under way.
    pub fn set_max_rd_atomic(&mut self, count: u8) {
        self.config.max_rd_atomic = count;
    }

    /// Changes the partition.
    pub fn set_pkey(&mut self, pkey: u16) {
        self.config.pkey = pkey;
    }

    /// Changes what packets say about path migration, and whether another path is to be tried when this one fails.
    pub fn set_migration(&mut self, migrated: bool, spare: bool) {
        self.config.migrated = migrated;
        self.spare = spare;
    }

    /// Whether the path has failed: all tries were in vain, and there was another one. To be asked before packets are polled; what
    /// is polled from then on is for the other path.
    #[inline]
    pub fn has_failed_over(&mut self) -> bool {
        self.failed_over && std::mem::take(&mut self.failed_over)
    }

    /// The path is another one.
    pub fn set_lossless(&mut self, lossless: bool) {
        self.config.lossless = lossless;
    }

    /// The path has come to lose packets: from now on the timers run, for what is under way too, with this patience and these probes.
    pub fn doubt(&mut self, now: Time, patience: u8, probe_after: u32) {
        self.config = RequesterConfig { lossless: false, patience, probe_after, ..self.config };
        self.doubted(now);
    }

    /// Whether no message has begun that is not answered: then the MTU may change.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.cursor.op == self.cursor.started && (!self.service.is_reliable() || self.rc.unacked == self.cursor.high)
    }

    /// Changes how much one packet carries, and of how many a piece of a READ is made. Only between messages.
    pub fn set_mtu(&mut self, mtu: u32, read_piece: u32) {
        if self.is_between_messages() {
            self.mtu_shift = mtu.max(1).ilog2() as u8;
            self.config.mtu = 1 << self.mtu_shift;
            self.config.read_piece = read_piece;
        }
    }

    /// The number of the next new packet.
    #[must_use]
    pub fn sq_psn(&self) -> Psn {
        self.cursor.high
    }

    /// Queues a request. On a queue that has failed it completes at once, flushed.
    ///
    /// # Errors
    /// The queue is full.
    pub fn post(&mut self, op: SendOp) -> Result<(), Full> {
        if !self.ops.put(self.tail, self.head, op) {
            return Err(Full);
        }
        self.head = self.head.wrapping_add(1);
        if self.is_stopped() {
            self.done = self.head;
        }
        Ok(())
    }

    /// How far posting has come, for [`Requester::take_back`].
    #[must_use]
    pub fn posted(&self) -> Posted {
        Posted { head: self.head, done: self.done }
    }

    /// Takes back what was posted since: it never was. Only posting may have come between.
    pub fn take_back(&mut self, posted: Posted) {
        (self.head, self.done) = (posted.head, posted.done);
    }

    /// Requests that are posted and whose completion was not polled.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// Whether something was posted that is not sent, or has to be sent once more.
    #[must_use]
    pub fn has_unsent(&self) -> bool {
        self.cursor.op != self.head
    }

    /// Requests that were posted and not sent in full, or have to be sent once more.
    #[inline]
    #[must_use]
    pub fn unsent(&self) -> u32 {
        self.head.wrapping_sub(self.cursor.op)
    }

    /// Bytes of payload in one packet.
    #[must_use]
    pub fn mtu(&self) -> u32 {
        self.config.mtu
    }

    /// Bytes of the message that is sent next; a FLUSH has none.
    #[must_use]
    pub fn next_length(&self) -> u32 {
        if !self.has_unsent() {
            return 0;
        }
        let op = &self.ops.at(self.cursor.op).op;
        if op.operation == Operation::Flush { 0 } else { op.length }
    }

    /// RC: packets of the SEND or WRITE at hand that have not been sent yet, all of them if it has not begun; 0 when there is none.
    #[must_use]
    pub fn left_of_message(&self) -> u32 {
        if !self.has_unsent() {
            return 0;
        }
        let op = &self.ops.at(self.cursor.op).op;
        if op.operation.is_read_or_atomic() { 0 } else { self.packets(op).saturating_sub(self.cursor.packet) }
    }

    /// The next packet to send, if one may be sent now. The caller sends it, or says [`Requester::untransmit`], or
    /// [`Requester::fail_current`].
    pub fn poll_transmit(&mut self, now: Time) -> Option<Transmit> {
        if self.cursor.op != self.cursor.started {
            self.skip_local();
        }
        if !self.may_poll(now) {
            return None;
        }
        self.note_undo();
        let entry = self.ops.at(self.cursor.op);
        if self.cursor.op == self.cursor.started && (entry.op.operation.is_local() || !self.begin()) {
            return None;
        }
        let entry = *self.ops.at(self.cursor.op);
        let asks = entry.op.operation.is_read_or_atomic();
        if self.service.is_reliable()
            && !(self.fits_window(&entry) && (!asks || self.may_ask()) && self.may_carry(&entry))
        {
            self.untransmit();
            return None;
        }
        let packet = if asks { self.ask(&entry) } else { self.carry(&entry) };
        if self.service.is_reliable() {
            self.note_sent(now, packet.headers.psn, packet.headers.ack_req || asks, self.undo.cursor);
        } else {
            // What is not reliable is complete as soon as it is sent.
            self.done = self.cursor.op;
        }
        Some(packet)
    }

    /// Whether there is a request to send a packet of, and nothing forbids it.
    pub(crate) fn may_poll(&mut self, now: Time) -> bool {
        if self.cursor.op == self.head || self.stops_here() {
            return false;
        }
        !self.service.is_reliable() || !self.is_waiting(now)
    }

    /// A packet is about to be returned, and may be taken back.
    pub(crate) fn note_undo(&mut self) {
        self.undo = Undo { cursor: self.cursor, done: self.done, deadline: self.rc.deadline };
    }

    /// Takes back the packet that [`Requester::poll_transmit`] has just returned: the path is full. Nothing may come between.
    pub fn untransmit(&mut self) {
        self.cursor = self.undo.cursor;
        self.done = self.undo.done;
        self.note_not_sent(self.undo.deadline);
    }

    /// The packet that [`Requester::poll_transmit`] has just returned cannot be made: its request fails with `status`, as soon
    /// as all requests before it are complete.
    pub fn fail_current(&mut self, status: Status) {
        self.untransmit();
        self.stop_at(self.cursor.op, status, Reason::Local);
    }

    /// The next completion, in the order of posting.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        if self.tail == self.done {
            return None;
        }
        let index = self.tail;
        self.tail = self.tail.wrapping_add(1);
        let status = match &self.stop {
            Some(stop) if stop.reached && index == stop.at => stop.failure.status,
            Some(stop) if stop.reached && index.wrapping_sub(stop.at).cast_signed() > 0 => Status::WrFlushErr,
            _ => Status::Success,
        };
        Some(Completion { slot: self.ops.at(index).op.slot, status })
    }

    /// The queue pair goes to ERR: every request that is not complete is flushed, and so is every later one.
    pub fn flush(&mut self) {
        if !self.is_stopped() {
            self.fail(Status::WrFlushErr, Reason::Flushed);
        }
    }

    /// The status that stopped the queue. On RC the queue pair has to go to ERR now, on UC and UD to SQE.
    #[must_use]
    pub fn fatal(&self) -> Option<Status> {
        self.failure().map(|failure| failure.status)
    }

    /// What stopped the queue, with the reason.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.stop.as_ref().filter(|stop| stop.reached).map(|stop| &stop.failure)
    }

    /// SQD: begin no further request.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`Requester::drain`] was asked for and everything that was begun is complete.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.draining && (self.is_stopped() || self.done == self.cursor.started)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// SQD to RTS: go on.
    pub fn resume(&mut self) {
        self.draining = false;
    }

    /// SQE to RTS: requests posted from now on are carried out. Does nothing, and says so, while completions wait to be polled.
    pub fn recover(&mut self) -> bool {
        if self.tail != self.head {
            return false;
        }
        self.stop = None;
        self.cursor.op = self.head;
        self.cursor.started = self.head;
        self.cursor.packet = 0;
        true
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|stop| stop.reached)
    }

    /// The oldest incomplete request fails now.
    pub(crate) fn fail(&mut self, status: Status, reason: Reason) {
        self.stop_at(self.done, status, reason);
    }

    pub(crate) fn head(&self) -> u32 {
        self.head
    }

    /// Whether the queue has stopped, or will.
    pub(crate) fn has_stop(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether [`Requester::poll_completion`] has something.
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.tail != self.done
    }

    /// Whether nothing further is begun.
    pub(crate) fn stops_here(&self) -> bool {
        self.stop.is_some_and(|stop| stop.reached || stop.at == self.cursor.op)
    }

    pub(crate) fn stop_at(&mut self, at: u32, status: Status, reason: Reason) {
        self.stop = Some(Stop { at, reached: false, failure: Failure { status, reason } });
        self.settle();
    }

    /// To be called whenever `done` has moved: perhaps it has come to where the queue stops.
    pub(crate) fn settle(&mut self) {
        if let Some(stop) = &mut self.stop
            && stop.at == self.done
        {
            stop.reached = true;
            self.done = self.head;
            self.rc.rest();
        }
    }

    /// Begins the operation under the cursor, if it may begin.
    pub(crate) fn begin(&mut self) -> bool {
        if self.draining {
            return false;
        }
        let index = self.cursor.op;
        let entry = self.ops.at_mut(index);
        let op = entry.op;
        if let Err((status, reason)) = self.config.admit(self.service, &op) {
            self.stop_at(index, status, reason);
            return false;
        }
        if op.fence && self.cursor.reads > 0 {
            return false;
        }
        (entry.first, entry.number) = (self.cursor.high, self.cursor.begun.wrapping_add(1));
        let begun = *entry;
        self.cursor.begun = self.cursor.begun.wrapping_add(self.messages(&begun));
        self.cursor.started = index.wrapping_add(1);
        true
    }

    /// An answer came. Only reliable services have answers; what does not fit is a ghost, and ignored.
    pub fn handle_response(&mut self, now: Time, headers: &Headers, payload_len: u32) -> Incoming {
        let ours = headers.opcode.transport == self.service.transport();
        if !ours || !self.service.is_reliable() || self.is_stopped() {
            return Incoming::Nothing;
        }
        self.handle_answer(now, headers, payload_len)
    }
}
