//! The send queue: posting, and the completions of what was sent.
//!
//! [`SendBatch`] is how a program posts. The batch checks each request and copies it to queue
//! memory. All its requests are sent when the batch ends (see `transmit.rs`). Requests complete in
//! the order of posting. A failed request ends the queue. Receive requests are in `receive.rs`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::cq::{Wc, opcode as wc_opcode};
use abi::event::kind;
use abi::post::{Sge, opcode, send_flags};
use abi::queue::qp as word;
use protocol::{Destination, Operation, Posted, SendOp, Service, State, Status};
use wire::feth::selectivity;
use wire::{Feth, Qpn};

use crate::access::{self, Refusal};
use crate::ah::Ah;
use crate::direct::at_once::AtOnce;
use crate::direct::carry::LocalData;
use crate::lock::MutexGuard;
use crate::memory::{Cqe, DatagramEntry, FREES_SEND, SendBrief};
use crate::post_error::{PostCause, PostError, WorkQueue};
use crate::qp::{Inner, Qp};
use crate::window::Bind;

/// A send request.
#[derive(Clone, Copy)]
pub struct SendWr<'a> {
    /// The completion returns it.
    pub wr_id: u64,
    /// IBV numbering.
    pub opcode: u32,
    /// See `abi::post::send_flags`.
    pub send_flags: u32,
    /// Immediate data as the program gave it (network order), or the key to invalidate.
    pub imm: u32,
    /// RDMA and atomics: address at the peer.
    pub remote_addr: u64,
    /// RDMA and atomics: key at the peer.
    pub rkey: u32,
    /// Atomics: the value to compare with or to add.
    pub compare_add: u64,
    /// Compare and swap: the value to swap in.
    pub swap: u64,
    /// UD: the address handle, the QP number at the destination, and its Q_Key.
    pub ud: Option<(&'a Ah, u32, u32)>,
    /// XRC: the number of the shared receive queue at the peer.
    pub xrc_srq: u32,
    /// FLUSH: the range and the kind of flush.
    pub flush: Flush,
    /// BIND_MW: the window, its memory and its rights.
    pub bind: Option<&'a Bind>,
    /// The gather list; for a READ or an atomic, the scatter list of the response.
    pub sges: &'a [Sge],
}

impl Default for SendWr<'_> {
    fn default() -> Self {
        Self {
            wr_id: 0,
            opcode: opcode::SEND,
            send_flags: 0,
            imm: 0,
            remote_addr: 0,
            rkey: 0,
            compare_add: 0,
            swap: 0,
            ud: None,
            xrc_srq: 0,
            flush: Flush::default(),
            bind: None,
            sges: &[],
        }
    }
}

impl SendWr<'_> {
    /// Whether the data is copied when the request is posted.
    fn is_inline(&self) -> bool {
        self.send_flags & send_flags::INLINE != 0
    }
}

/// The parameters of a FLUSH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flush {
    /// Bytes of the range at the peer.
    pub length: u32,
    /// The placement type, and whether the flush covers the range or the whole region.
    pub feth: Feth,
}

/// Bytes of an ATOMIC WRITE.
const WORD: u32 = 8;

/// A batch of requests that a program posts. It holds the QP's lock, and sends the requests when it
/// ends.
pub struct SendBatch<'a> {
    pub(crate) qp: &'a Arc<Qp>,
    pub(crate) inner: MutexGuard<'a, Inner>,
    /// Requests may be taken back, so each one waits for the end of the batch.
    waits: bool,
    /// The last request was carried out at once.
    carried: bool,
}

/// A position in a batch.
#[derive(Clone, Copy)]
pub struct Mark {
    posted: Posted,
    tail: u32,
}

impl Qp {
    /// Begins to post send requests.
    ///
    /// # Errors
    /// EIO after a fork; EINVAL when the QP is destroyed.
    pub fn send_batch(self: &Arc<Self>) -> Result<SendBatch<'_>, PostError> {
        if self.engine().check_process().is_err() {
            return Err(PostError { queue: WorkQueue::Send(self.qpn()), cause: PostCause::Inherited });
        }
        crate::usermem::prepare_thread();
        let inner = self.lock();
        if inner.is_dead() {
            return Err(self.refused_send(0, PostCause::Destroyed));
        }
        Ok(SendBatch { qp: self, inner, waits: false, carried: false })
    }
}

impl SendBatch<'_> {
    /// Adds one request.
    ///
    /// # Errors
    /// EINVAL for a state, opcode or list that is not valid for the QP; ENOMEM when the queue is
    /// full.
    pub fn push(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let slot = self.inner.queues.sq_tail;
        let added = self.add(wr).map_err(|cause| self.qp.refused_send(wr.wr_id, cause));
        if let Some(lint) = self.qp.lint() {
            lint.posted_send(self.qp, &self.inner, slot, wr, added.is_ok());
        }
        added
    }

    #[inline]
    fn add(&mut self, wr: &SendWr<'_>) -> Result<(), PostCause> {
        let operation = self.check(wr)?;
        if operation.is_local() {
            return self.add_local(wr, operation);
        }
        let length = self.check_length(wr, operation)?;
        if !self.inner.direct.remote_grants.is_empty() && !self.waits {
            match self.carry_at_once(wr, operation, length) {
                AtOnce::Done => return Ok(()),
                AtOnce::Unfit => {}
                AtOnce::Unanswered(refusal) => return self.add_unanswered(wr, operation, length, &refusal),
            }
        }
        self.add_entry(wr, operation, length)
    }

    /// Adds a request to the queue.
    #[inline(always)]
    fn add_entry(&mut self, wr: &SendWr<'_>, operation: Operation, length: u32) -> Result<(), PostCause> {
        let index = self.inner.queues.sq_tail;
        let dest = self.write_entry(wr, index, length)?;
        self.add_operation(send_op(wr, index, operation, length, dest))
    }

    /// Carries out a request in place of queueing it, if it can be carried out directly and nothing
    /// is queued before it. Apart, so that other requests do not pay for it.
    #[inline(never)]
    fn carry_at_once(&mut self, wr: &SendWr<'_>, operation: Operation, length: u32) -> AtOnce {
        let (qp, inner) = (self.qp, &mut *self.inner);
        let op = send_op(wr, inner.queues.sq_tail, operation, length, Destination::default());
        if !inner.requester.is_idle_for(&op) {
            return AtOnce::Unfit;
        }
        let data = if !wr.is_inline() {
            LocalData::Elements(wr.sges.iter().copied())
        } else if let [element] = wr.sges {
            LocalData::Program(*element)
        } else {
            return AtOnce::Unfit;
        };
        let end = qp.carry_one(inner, &op, data);
        if matches!(end, AtOnce::Done) {
            self.carried = true;
            let next = inner.queues.sq.advance(op.slot);
            inner.queues.sq_tail = next;
            inner.store(word::SQ_TAIL, next);
            inner.store(word::SQ_HEAD, next);
            let brief = qp.brief(wr, length);
            if brief.signaled != 0 {
                qp.push_completion(inner, &brief, op.slot, Status::Success);
            }
        }
        end
    }

    /// Adds the atomic of [`AtOnce::Unanswered`], and lets it fail.
    #[cold]
    fn add_unanswered(
        &mut self,
        wr: &SendWr<'_>,
        operation: Operation,
        length: u32,
        refusal: &Refusal,
    ) -> Result<(), PostCause> {
        self.add_entry(wr, operation, length)?;
        self.qp.fail_unanswered(&mut self.inner, refusal);
        Ok(())
    }

    /// Adds an operation whose entry is written.
    #[inline]
    pub(crate) fn add_operation(&mut self, op: SendOp) -> Result<(), PostCause> {
        self.carried = false;
        let inner = &mut *self.inner;
        let index = op.slot;
        if let Some(stream) = inner.link.stream.as_mut().filter(|stream| stream.takes_requests()) {
            stream.post(op);
        } else if inner.requester.post(op).is_err() {
            return Err(PostCause::QueueFull { depth: self.qp.caps.max_send_wr });
        }
        inner.queues.sq_tail = inner.queues.sq.advance(index);
        inner.store(word::SQ_TAIL, inner.queues.sq_tail);
        Ok(())
    }

    /// Checks everything but the length of a request; returns its operation.
    #[inline]
    fn check(&self, wr: &SendWr<'_>) -> Result<Operation, PostCause> {
        let (qp, inner) = (self.qp, &*self.inner);
        if !inner.state.takes_sends() {
            return Err(PostCause::State(inner.state));
        }
        let operation =
            operation(wr.opcode, qp.service).ok_or(PostCause::Opcode { opcode: wr.opcode, service: qp.service })?;
        if let Some(stream) = &inner.link.stream {
            stream.check(operation, wr.sges.len(), wr.opcode)?;
        }
        if wr.sges.len() > qp.caps.max_send_sge as usize && !wr.is_inline() {
            return Err(PostCause::TooManySges { given: wr.sges.len(), most: qp.caps.max_send_sge });
        }
        if self.room() == 0 {
            return Err(PostCause::QueueFull { depth: qp.caps.max_send_wr });
        }
        Ok(operation)
    }

    /// Checks the length of a request, and returns it.
    #[inline]
    fn check_length(&self, wr: &SendWr<'_>, operation: Operation) -> Result<u32, PostCause> {
        let total: u64 = wr.sges.iter().map(|sge| u64::from(sge.length)).sum();
        if operation.is_confirmed() {
            check_confirmed(operation, wr, total)?;
        }
        if wr.is_inline() {
            // An entry always has room for 8 bytes of inline data.
            let carries = !operation.is_read_or_atomic() || operation == Operation::AtomicWrite;
            let most = self.qp.caps.max_inline_data;
            if !carries || total > u64::from(most.max(WORD)) {
                return Err(PostCause::Inline { bytes: total, most });
            }
        }
        Ok(u32::try_from(total).unwrap_or(u32::MAX))
    }

    /// Writes the entry of a request, with its gather list or inline data. Returns the destination
    /// of a datagram.
    #[inline]
    fn write_entry(&mut self, wr: &SendWr<'_>, index: u32, length: u32) -> Result<Destination, PostCause> {
        let (qp, inner) = (self.qp, &mut *self.inner);
        let brief = qp.brief(wr, length);
        let mut dest = Destination::default();
        if qp.service == Service::Ud {
            let (ah, qpn, qkey) = wr.ud.ok_or(PostCause::NoAddress)?;
            let mut entry = DatagramEntry { brief, ..bytemuck::Zeroable::zeroed() };
            ah.direct(&mut entry);
            entry.remote_qpn = qpn;
            entry.remote_qkey = if qkey & 0x8000_0000 != 0 { inner.attributes.qkey } else { qkey };
            entry.foreign = u8::from(ah.pd() != qp.pd);
            dest = Destination { dest_qp: Qpn::new(entry.remote_qpn), qkey: entry.remote_qkey };
            inner.queues.sq.write(index, &entry);
        } else {
            inner.queues.sq.write(index, &brief);
        }
        if wr.is_inline() {
            let room = &mut inner.queues.sq.inline_room(index, length as usize);
            access::inline(wr.sges, room).map_err(|addr| PostCause::InlineFault { addr })?;
        } else {
            for (number, sge) in wr.sges.iter().enumerate() {
                inner.queues.sq.set_element(index, number, sge);
            }
        }
        Ok(dest)
    }

    /// How many more requests the queue can take.
    #[must_use]
    pub fn room(&self) -> u32 {
        if self.inner.queues.sq.count() == 0 {
            return 0;
        }
        let used =
            self.inner.queues.sq.used(self.qp.queue_use.freed_send.load(Ordering::Acquire), self.inner.queues.sq_tail);
        self.qp.caps.max_send_wr.saturating_sub(used)
    }

    /// The current position of the batch, for [`SendBatch::take_back`]. All requests that are added
    /// from now on wait for the end of the batch.
    #[must_use]
    pub fn mark(&mut self) -> Mark {
        self.waits = true;
        Mark { posted: self.inner.requester.posted(), tail: self.inner.queues.sq_tail }
    }

    /// Takes back the requests that were added after `mark`. No packet of these requests has left.
    pub fn take_back(&mut self, mark: Mark) {
        let inner = &mut *self.inner;
        inner.requester.take_back(mark.posted);
        if let Some(stream) = &mut inner.link.stream {
            stream.take_back(inner.queues.sq.used(mark.tail, inner.queues.sq_tail));
        }
        inner.queues.sq_tail = mark.tail;
        inner.store(word::SQ_TAIL, mark.tail);
    }

    /// Sends the posted requests.
    pub fn finish(self) {
        let Self { qp, mut inner, carried, .. } = self;
        if inner.link.on_wire() {
            inner.wire.reply_pattern.post();
        }
        if qp.engine().waker.progress_mode.is_on() {
            return qp.send_in_shared_mode(inner);
        }
        if carried {
            // Nothing was queued before the last request, and nothing is queued now.
            let Inner { traffic, view, .. } = &mut *inner;
            return traffic.show(view.as_ref());
        }
        qp.pump(&mut inner);
        let (on_wire, blocked) = (inner.link.on_wire(), inner.link.blocked);
        drop(inner);
        if on_wire {
            qp.engine().waker.sent();
        }
        if blocked {
            qp.make_room();
        }
    }
}

/// A request as the requester keeps it.
#[inline(always)]
fn send_op(wr: &SendWr<'_>, slot: u32, operation: Operation, length: u32, dest: Destination) -> SendOp {
    SendOp {
        slot,
        operation,
        length: match operation {
            Operation::Flush => wr.flush.length,
            _ if operation.is_atomic() => WORD,
            _ => length,
        },
        remote_addr: wr.remote_addr,
        rkey: wr.rkey,
        imm: if operation == Operation::SendInv { wr.imm } else { u32::from_be(wr.imm) },
        feth: wr.flush.feth,
        compare: wr.compare_add,
        swap_add: if operation == Operation::FetchAdd { wr.compare_add } else { wr.swap },
        solicited: wr.send_flags & send_flags::SOLICITED != 0,
        fence: wr.send_flags & send_flags::FENCE != 0,
        dest,
        xrc_srq: wr.xrc_srq & 0xff_ffff,
    }
}

/// Checks the length of an ATOMIC WRITE and the parameters of a FLUSH.
fn check_confirmed(operation: Operation, wr: &SendWr<'_>, total: u64) -> Result<(), PostCause> {
    if operation == Operation::AtomicWrite {
        let fits = total == u64::from(WORD);
        return if fits { Ok(()) } else { Err(PostCause::AtomicWrite { bytes: total }) };
    }
    let Feth { placement, selectivity } = wr.flush.feth;
    let known = matches!(placement, 1..=3) && matches!(selectivity, selectivity::RANGE | selectivity::REGION);
    if !known {
        return Err(PostCause::Flush { placement, selectivity });
    }
    if !wr.sges.is_empty() {
        return Err(PostCause::FlushWithSges { given: wr.sges.len() });
    }
    Ok(())
}

/// The operation of a work request opcode; `None` if the service does not support it.
fn operation(number: u32, service: Service) -> Option<Operation> {
    let operation = match number {
        opcode::RDMA_WRITE => Operation::Write,
        opcode::RDMA_WRITE_WITH_IMM => Operation::WriteImm,
        opcode::SEND => Operation::Send,
        opcode::SEND_WITH_IMM => Operation::SendImm,
        opcode::RDMA_READ => Operation::Read,
        opcode::ATOMIC_CMP_AND_SWP => Operation::CmpSwap,
        opcode::ATOMIC_FETCH_AND_ADD => Operation::FetchAdd,
        opcode::SEND_WITH_INV => Operation::SendInv,
        opcode::BIND_MW => Operation::BindMw,
        opcode::LOCAL_INV => Operation::LocalInv,
        opcode::ATOMIC_WRITE => Operation::AtomicWrite,
        opcode::FLUSH => Operation::Flush,
        _ => return None,
    };
    let offered = match service {
        Service::Rc => true,
        Service::XrcIni => !operation.is_confirmed(),
        Service::XrcTgt => false,
        Service::Uc => !operation.is_read_or_atomic() && operation != Operation::SendInv,
        Service::Ud => matches!(operation, Operation::Send | Operation::SendImm),
    };
    offered.then_some(operation)
}

impl Qp {
    /// Whether a request with these flags gives a completion.
    #[inline]
    pub(crate) fn signals(&self, flags: u32) -> bool {
        self.sq_sig_all || flags & abi::post::send_flags::SIGNALED != 0
    }

    /// The header of the entry of a request.
    #[inline(always)]
    fn brief(&self, wr: &SendWr<'_>, length: u32) -> SendBrief {
        SendBrief {
            wr_id: wr.wr_id,
            length,
            opcode: wr.opcode as u8,
            signaled: u8::from(self.signals(wr.send_flags)),
            inline: u8::from(wr.is_inline()),
            num_sge: wr.sges.len() as u8,
        }
    }

    /// Writes the completions of finished send requests, and ends the queue if a request failed.
    #[inline]
    pub(crate) fn complete_sends(&self, inner: &mut Inner) {
        if (inner.requester.has_completions() || inner.draining.is_some()) && !self.has_ended_requests(inner) {
            self.complete_all_sends(inner);
        }
    }

    /// Does the work of `complete_sends`. Apart, because most calls find nothing to do.
    fn complete_all_sends(&self, inner: &mut Inner) {
        let (mut last, mut explained) = (None, false);
        while let Some(completion) = inner.requester.poll_completion() {
            let index = completion.slot;
            last = Some(index);
            match completion.status {
                Status::Success | Status::WrFlushErr => {}
                // Explained before the program can poll the completion: it may ask at once why the
                // request failed.
                _ if !explained => {
                    explained = true;
                    self.explain_failure(inner, index);
                    self.tell_flushed_behind(inner);
                }
                _ => {}
            }
            self.show_send(inner, index, completion.status);
        }
        if let Some(index) = last {
            inner.store(word::SQ_HEAD, inner.queues.sq.advance(index));
            if inner.requester.fatal().is_some() && matches!(inner.state, State::Rts | State::Sqd) {
                self.end_sending(inner);
            }
        }
        if inner.draining.is_some() && inner.requester.drained() {
            inner.store(word::FLAGS, 0);
            // A queue that failed has not drained.
            if inner.draining.take() == Some(true) && inner.state == State::Sqd {
                self.raise(kind::SQ_DRAINED);
            }
        }
    }

    /// Writes the completion of a request, if it has one.
    #[inline]
    pub(crate) fn show_send(&self, inner: &Inner, index: u32, status: Status) {
        let entry: SendBrief = inner.queues.sq.read(index);
        let shown = status != Status::Success || entry.signaled != 0;
        if let Some(lint) = self.lint() {
            lint.send_over(self, index, status, shown);
        }
        if shown {
            self.push_completion(inner, &entry, index, status);
        }
    }

    /// Writes the completion of a request.
    #[inline]
    fn push_completion(&self, inner: &Inner, brief: &SendBrief, index: u32, status: Status) {
        let wc = Wc {
            wr_id: brief.wr_id,
            status: status.as_u32(),
            opcode: completed(u32::from(brief.opcode)),
            byte_len: if operation(u32::from(brief.opcode), Service::Rc).is_some_and(Operation::is_atomic) {
                8
            } else {
                brief.length
            },
            qp_num: self.qpn(),
            ..Wc::default()
        };
        let cqe = Cqe { wc, timestamp: 0, freed: inner.queues.sq.advance(index), flags: FREES_SEND };
        if let Some(cq) = &self.send_cq {
            cq.push(&cqe);
        }
    }

    /// Handles a failed send: the send queue of an unreliable QP halts; a reliable QP goes to the
    /// error state.
    fn end_sending(&self, inner: &mut Inner) {
        let next = self.service.after_send_error();
        if !inner.incoming.rnr_grace.is_empty() {
            // The peer has had no answer to the requests in the RNR grace queue.
            self.say_gone(inner);
        }
        inner.set_state(next);
        if next == State::Err {
            self.flush_receives(inner);
        }
    }

    /// Notes why the first request failed, if the failure ends the queue. Skips local refusals,
    /// which are explained where they happen.
    #[cold]
    fn explain_failure(&self, inner: &Inner, slot: u32) {
        if let Some(failure) = inner.requester.failure()
            && failure.reason != protocol::Reason::Local
            && matches!(inner.state, State::Rts | State::Sqd)
        {
            let peer = if failure.reason.is_of_peer() { self.peer_in_words(inner) } else { String::new() };
            let why = format_args!("{}{peer}", failure.reason);
            self.explain(inner, slot, failure.status, &why, failure.reason.advice());
        }
    }

    /// Notes how many requests a failed send flushes: the sends after it and, on a reliable QP, the
    /// receive requests.
    #[cold]
    fn tell_flushed_behind(&self, inner: &Inner) {
        if matches!(inner.state, State::Rts | State::Sqd) {
            let ends = self.service.after_send_error() == State::Err;
            self.says_flushed(inner.requester.outstanding(), if ends { self.receives_left(inner) } else { 0 });
        }
    }

    /// Notes why a request failed locally.
    pub(crate) fn explain(
        &self,
        inner: &Inner,
        slot: u32,
        status: Status,
        why: &dyn std::fmt::Display,
        advice: Option<&str>,
    ) {
        let entry: SendBrief = inner.queues.sq.read(slot);
        self.failed(entry.wr_id, status, why, advice);
    }
}

/// The completion opcode of a work request opcode.
fn completed(number: u32) -> u32 {
    match number {
        opcode::RDMA_WRITE | opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        opcode::RDMA_READ => wc_opcode::RDMA_READ,
        opcode::ATOMIC_CMP_AND_SWP => wc_opcode::COMP_SWAP,
        opcode::ATOMIC_FETCH_AND_ADD => wc_opcode::FETCH_ADD,
        opcode::BIND_MW => wc_opcode::BIND_MW,
        opcode::LOCAL_INV => wc_opcode::LOCAL_INV,
        opcode::ATOMIC_WRITE => wc_opcode::ATOMIC_WRITE,
        opcode::FLUSH => wc_opcode::FLUSH,
        _ => wc_opcode::SEND,
    }
}
