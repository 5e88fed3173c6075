//! The sending half of a queue pair: turns work requests into packets, and reports when they are
//! complete. Principal type: [`Requester`]. This file holds what all services share. [`crate::rc`]
//! adds what makes a connection reliable: answers, timers and going back.
//!
//! The operations are numbered as they are posted. Four positions move through them, and never pass
//! each other:
//!
//! ```text
//!              tail               done              cursor             head
//!   ────────────┼──────────────────┼──────────────────┼──────────────────┼──────────▶ operations
//!     forgotten   complete, to be    sent, answers      to be sent, or     not posted
//!                 polled             awaited            sent once more
//! ```
//! An error stops the queue at one operation. Earlier operations end normally, this one gets the
//! error, and later ones are flushed.

use crate::operation::{Incoming, Operation, Ring, Run, SendOp};
use crate::qp::Service;
use crate::rc::Reliable;
use crate::reason::Reason;
use crate::status::Status;
use crate::tally::Tally;
use crate::time::Time;
use wire::{Headers, Psn, Qpn};

/// The configuration that a requester needs before it may send: attributes of the transition to
/// RTS, and of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequesterConfig {
    /// Bytes of payload in one packet; a power of two.
    pub mtu: u32,
    /// Our own QP number.
    pub src_qp: Qpn,
    /// The peer's QP number; unused on UD.
    pub dest_qp: Qpn,
    /// The partition.
    pub pkey: u16,
    /// The number of the first packet.
    pub sq_psn: Psn,
    /// Code of the local ACK timeout.
    pub timeout: u8,
    /// Retries when no answer comes.
    pub retry_cnt: u8,
    /// Retries when the peer has no receive request; 7 is unlimited.
    pub rnr_retry: u8,
    /// READs and atomics that may be outstanding.
    pub max_rd_atomic: u8,
    /// The path is lossless, so no timer runs, until [`Requester::note_loss`] reports a loss.
    pub lossless: bool,
    /// Packets of one piece of a READ; each piece is a request of its own. With 0, a READ is one
    /// piece, however long.
    pub read_piece: u32,
    /// Every this many packets of a message, one packet requests an acknowledgement. With 0, the
    /// requester decides.
    pub ack_every: u32,
    /// The timeout is this many times the local ACK timeout; 0 counts as 1. The IBA lets an adapter
    /// wait up to four times as long (9.7.6.1.3).
    pub patience: u8,
    /// Where packets may be lost: nanoseconds without an answer after which the oldest packet is
    /// sent again as a probe. This is long before the timeout, and does not use up a retry. 0 is
    /// never.
    pub probe_after: u32,
    /// The migration bit of packets: path migration is not armed.
    pub migrated: bool,
}

/// The end of a work request. Each request has one, also an unsignalled one, in post order.
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

/// The position of posting, for [`Requester::take_back`].
#[derive(Clone, Copy, Debug)]
pub struct Posted {
    head: u32,
    done: u32,
}

/// The operation at which the queue stops.
#[derive(Clone, Copy, Debug)]
struct Stop {
    at: u32,
    /// Everything before it is complete, so the failure is final.
    reached: bool,
    failure: Failure,
}

/// How far sending has come. To go back, the first two fields are set back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cursor {
    /// The operation to send from next.
    pub(crate) op: u32,
    /// The packet of that operation to send next.
    pub(crate) packet: u32,
    /// The first operation that was never begun.
    pub(crate) started: u32,
    /// The first packet number that was never sent.
    pub(crate) high: Psn,
    /// Atomics and pieces of READs before the cursor that are not answered in full. The responder
    /// must remember this many.
    pub(crate) reads: u32,
    /// Packets since the last one that requested an acknowledgement.
    pub(crate) since_ack_req: u32,
    /// Messages begun.
    pub(crate) begun: u32,
}

/// The sending half of a queue pair.
#[derive(Debug)]
pub struct Requester {
    pub(crate) service: Service,
    draining: bool,
    /// The base-2 logarithm of the MTU: shifts convert between offsets and packet numbers.
    pub(crate) mtu_shift: u8,
    pub(crate) config: RequesterConfig,
    pub(crate) ops: Ring,
    tail: u32,
    pub(crate) done: u32,
    head: u32,
    pub(crate) cursor: Cursor,
    /// How many packets may be under way.
    pub(crate) window: u32,
    /// Every this many packets of a message, one packet requests an acknowledgement.
    pub(crate) ask_every: u32,
    /// This requester is the only one on the path: see [`Requester::set_exclusive_window`].
    pub(crate) is_exclusive: bool,
    /// Retransmissions because a packet, or its answer, was lost.
    pub(crate) losses: u32,
    /// An alternate path exists, to be tried when this path fails.
    pub(crate) spare: bool,
    /// This path has failed. Every unanswered packet is sent again on the alternate path.
    pub(crate) failed_over: bool,
    /// The caller keeps out-of-order answers.
    pub(crate) keeps_out_of_order: bool,
    pub(crate) rc: Reliable,
    stop: Option<Stop>,
    /// What was noticed; the caller takes it.
    pub tally: Tally,
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
            window: Psn::WINDOW,
            ask_every: 0,
            is_exclusive: false,
            losses: 0,
            spare: false,
            failed_over: false,
            keeps_out_of_order: false,
            rc: Reliable::default(),
            stop: None,
            tally: Tally::default(),
        }
    }

    /// Sets the attributes of the transition to RTS. Packet numbering starts here, with the widest
    /// window.
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

    /// Changes the number of retries when no answer comes.
    pub fn set_retry_cnt(&mut self, count: u8) {
        self.config.retry_cnt = count;
    }

    /// Changes the number of retries when the peer has no receive request.
    pub fn set_rnr_retry(&mut self, count: u8) {
        self.config.rnr_retry = count;
    }

    /// Changes how many READs and atomics may be outstanding.
    pub fn set_max_rd_atomic(&mut self, count: u8) {
        self.config.max_rd_atomic = count;
    }

    /// Changes the partition.
    pub fn set_pkey(&mut self, pkey: u16) {
        self.config.pkey = pkey;
    }

    /// Changes the migration bit of packets, and whether an alternate path is tried when this path
    /// fails.
    pub fn set_migration(&mut self, migrated: bool, spare: bool) {
        self.config.migrated = migrated;
        self.spare = spare;
    }

    /// Whether the path has failed: all retries failed, and there was an alternate path. Call this
    /// before polling packets. Packets that are polled after that are for the alternate path.
    #[inline]
    pub fn has_failed_over(&mut self) -> bool {
        self.failed_over && std::mem::take(&mut self.failed_over)
    }

    /// The path has changed: says whether the new one is lossless.
    pub fn set_lossless(&mut self, lossless: bool) {
        self.config.lossless = lossless;
    }

    /// The path has started to lose packets. From now on the timers run, also for packets under
    /// way, with this patience and these probes.
    pub fn set_lossy(&mut self, now: Time, patience: u8, probe_after: u32) {
        self.config = RequesterConfig { lossless: false, patience, probe_after, ..self.config };
        self.became_lossy(now);
    }

    /// Whether every message that has begun is answered. Only then may the MTU change.
    #[must_use]
    pub fn is_between_messages(&self) -> bool {
        self.cursor.op == self.cursor.started && (!self.service.is_reliable() || self.rc.unacked == self.cursor.high)
    }

    /// Changes the payload size of a packet, and the number of packets in a piece of a READ. Only
    /// between messages.
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

    /// Queues a request. On a queue that has failed, the request completes at once, flushed.
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

    /// The current position of posting, for [`Requester::take_back`].
    #[must_use]
    pub fn posted(&self) -> Posted {
        Posted { head: self.head, done: self.done }
    }

    /// Takes back the requests that were posted since `posted`. Only posting may have happened in
    /// between.
    pub fn take_back(&mut self, posted: Posted) {
        (self.head, self.done) = (posted.head, posted.done);
    }

    /// Requests that are posted and whose completion is not polled.
    #[must_use]
    #[inline(always)]
    pub fn outstanding(&self) -> u32 {
        self.head.wrapping_sub(self.tail)
    }

    /// Whether a request was posted that is not sent, or must be retransmitted.
    #[must_use]
    #[inline(always)]
    pub fn has_unsent(&self) -> bool {
        self.cursor.op != self.head
    }

    /// Requests that are not sent in full, or must be retransmitted.
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

    /// Bytes of the next message to send; a FLUSH has none.
    #[must_use]
    pub fn next_length(&self) -> u32 {
        if !self.has_unsent() {
            return 0;
        }
        let op = &self.ops.at(self.cursor.op).op;
        if op.operation == Operation::Flush { 0 } else { op.length }
    }

    /// RC: packets of the current SEND or WRITE that are not sent yet: all of them if it has not
    /// begun, 0 if there is no such request.
    #[must_use]
    pub fn left_of_message(&self) -> u32 {
        if !self.has_unsent() {
            return 0;
        }
        let op = &self.ops.at(self.cursor.op).op;
        if op.operation.is_read_or_atomic() { 0 } else { self.packets(op).saturating_sub(self.cursor.packet) }
    }

    /// The next packets to send, if one may be sent now. The caller sends them, or only the first
    /// of them, and reports it with [`Requester::sent`]. If it cannot build them, it calls
    /// [`Requester::fail_next`]. If the path is full, it calls nothing and polls again later.
    // Inlined, and so not written to memory: a wide read of what was just written field by field
    // stalls (store forwarding fails).
    #[inline(always)]
    pub fn poll_run(&mut self, now: Time) -> Option<Run> {
        if self.cursor.op != self.cursor.started {
            self.skip_local();
        }
        if !self.may_poll(now) || self.ops.at(self.cursor.op).op.operation.is_local() || !self.prepare() {
            return None;
        }
        let entry = self.ops.at(self.cursor.op);
        if entry.op.operation.is_read_or_atomic() { self.next_request(entry) } else { self.next_packets(entry) }
    }

    /// Whether a request has a packet to send, and nothing forbids sending.
    #[inline(always)]
    fn may_poll(&mut self, now: Time) -> bool {
        if self.cursor.op == self.head || self.stops_here() {
            return false;
        }
        !self.service.is_reliable() || !self.is_waiting(now)
    }

    /// Reports that the packets of `run` are sent, which [`Requester::poll_run`] has just returned,
    /// or the first of them ([`Run::at_most`]). No other call may come in between.
    #[inline(always)]
    pub fn sent(&mut self, now: Time, run: &Run) {
        // Not the whole cursor: see `poll_run`.
        let Cursor { op, packet, started, high, .. } = self.cursor;
        let entry = self.ops.at(op);
        let (first, is_read_or_atomic) = (entry.first, entry.op.operation.is_read_or_atomic());
        let asks = run.asks || is_read_or_atomic;
        if op == started {
            let messages = self.messages(entry);
            self.ops.at_mut(op).number = self.cursor.begun.wrapping_add(1);
            self.cursor.started = op.wrapping_add(1);
            self.cursor.begun = self.cursor.begun.wrapping_add(messages);
        }
        self.cursor.reads += u32::from(is_read_or_atomic);
        self.cursor.since_ack_req = if asks { 0 } else { self.cursor.since_ack_req + run.count };
        self.advance(first, run.end, run.ends);
        if self.service.is_reliable() {
            self.note_sent(now, run.first + (run.count - 1), asks, (op, packet, high));
        } else {
            // On an unreliable service, a request is complete as soon as it is sent.
            self.done = self.cursor.op;
        }
    }

    /// The packet that [`Requester::poll_run`] would return next cannot be built. Its request fails
    /// with `status`, as soon as all requests before it are complete.
    pub fn fail_next(&mut self, status: Status) {
        self.stop_at(self.cursor.op, status, Reason::Local);
    }

    /// The next completion, in post order.
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

    /// The queue pair goes to ERR: every incomplete request is flushed, and so is every later one.
    pub fn flush(&mut self) {
        if !self.is_stopped() {
            self.fail(Status::WrFlushErr, Reason::Flushed);
        }
    }

    /// The status that stopped the queue. An RC queue pair must then go to ERR, a UC or UD one to
    /// SQE.
    #[must_use]
    pub fn fatal(&self) -> Option<Status> {
        self.failure().map(|failure| failure.status)
    }

    /// The failure that stopped the queue, with its reason.
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        self.stop.as_ref().filter(|stop| stop.reached).map(|stop| &stop.failure)
    }

    /// SQD: begins no further request.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Whether [`Requester::drain`] was called and every request that has begun is complete.
    #[must_use]
    pub fn drained(&self) -> bool {
        self.draining && (self.is_stopped() || self.done == self.cursor.started)
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining
    }

    /// SQD to RTS: continues.
    pub fn resume(&mut self) {
        self.draining = false;
    }

    /// SQE to RTS: requests posted from now on are carried out. Does nothing and returns false
    /// while completions wait to be polled.
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

    /// Whether the queue has stopped, or will stop.
    pub(crate) fn has_stop(&self) -> bool {
        self.stop.is_some()
    }

    /// Whether a completion waits to be polled.
    #[inline]
    #[must_use]
    pub fn has_completions(&self) -> bool {
        self.tail != self.done
    }

    /// Whether no further request may begin.
    #[inline(always)]
    pub(crate) fn stops_here(&self) -> bool {
        self.stop.is_some_and(|stop| stop.reached || stop.at == self.cursor.op)
    }

    pub(crate) fn stop_at(&mut self, at: u32, status: Status, reason: Reason) {
        self.stop = Some(Stop { at, reached: false, failure: Failure { status, reason } });
        self.settle();
    }

    /// Stops the queue if `done` has reached the failed request. Call this whenever `done` has
    /// moved.
    pub(crate) fn settle(&mut self) {
        if let Some(stop) = &mut self.stop
            && stop.at == self.done
        {
            stop.reached = true;
            self.done = self.head;
            self.rc.rest();
        }
    }

    /// Whether the operation under the cursor may be sent: it has begun, or may begin now. In the
    /// second case, the operation gets its numbers.
    #[inline(always)]
    pub(crate) fn prepare(&mut self) -> bool {
        let index = self.cursor.op;
        if index != self.cursor.started {
            return true;
        }
        if self.draining {
            return false;
        }
        let entry = self.ops.at_mut(index);
        entry.first = self.cursor.high;
        if self.rc.limit.is_some() {
            entry.number = self.cursor.begun.wrapping_add(1);
        }
        let fence = entry.op.fence;
        if let Err((status, reason)) = self.config.admit(self.service, &entry.op) {
            self.stop_at(index, status, reason);
            return false;
        }
        !fence || self.cursor.reads == 0
    }

    /// Handles an answer. Only reliable services have answers. An answer that does not match is a
    /// ghost answer and is ignored.
    pub fn handle_response(&mut self, now: Time, headers: &Headers, payload_len: u32) -> Incoming {
        let ours = headers.opcode.transport == self.service.transport();
        if !ours || !self.service.is_reliable() || self.is_stopped() {
            return Incoming::Nothing;
        }
        self.handle_answer(now, headers, payload_len)
    }
}
