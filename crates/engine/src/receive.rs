//! Received packets: executes requests on this process's memory, and completes its own requests
//! from responses.
//!
//! The state machines decide what to do. This file is the executor: it does the step and reports
//! the result. An error in a packet causes a status at its sender, and at most an error of the QP
//! that the packet was for. The file also posts receive requests. Principal method: [`Qp::arrive`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::cq::opcode as wc_opcode;
use abi::event::kind;
use abi::mr::access as right;
use abi::private::violation;
use abi::queue::qp as word;
use abi::reason::Cause;
use protocol::{AtomicOp, Fault, Incoming, Nak, Outcome, RecvEnd, Service, State, Status, Step};
use shm::{Sink, Source};
use wire::{Qpn, Syndrome};

use crate::access::{self, Atomic, FlushRange, HeldRegion, Refusal, Use};
use crate::cell::Packet;
use crate::drops::of_fault;
use crate::memory::SendBrief;
use crate::post_error::{PostCause, PostError, WorkQueue};
use crate::qp::{Inner, Qp, Receive, RecvWr, Route};
use crate::srq::{Srq, write_recv};

/// Bytes before a datagram in its receive buffer.
const GRH: u32 = 40;

/// What a program can do about a message that is longer than its buffer.
const LONGER_BUFFERS: &str = "post receive buffers as long as the longest message";

/// Whether a packet reached a QP that could take it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Arrival {
    Taken,
    /// The QP's state does not allow the packet, or the QP is not connected to the sender. The drop
    /// has been counted.
    NotTaken,
    /// The QP no longer exists.
    Gone,
}

/// Where a packet comes from.
#[derive(Clone, Copy)]
pub(crate) enum Ingress<'a> {
    /// An engine of this agent, over a lane. The owner of the source QPN has been checked.
    Lane,
    /// Another host.
    Host { from: &'a [u8; 16], to: &'a [u8; 16] },
}

impl Qp {
    /// Posts a receive request.
    ///
    /// # Errors
    /// EINVAL in RESET, with an SRQ, or for too many elements; ENOMEM when the queue is full.
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if self.engine().check_process().is_err() {
            return Err(PostError { queue: WorkQueue::Receive(self.qpn()), cause: PostCause::Inherited });
        }
        let mut inner = self.lock();
        let refuse = |cause| Err(self.refused_receive(wr.wr_id, cause));
        if inner.is_dead() || !inner.state.takes_receives() {
            if let Some(lint) = self.lint() {
                lint.refused_receive(self, &inner);
            }
            return refuse(if inner.is_dead() { PostCause::Destroyed } else { PostCause::State(inner.state) });
        }
        if self.srq.is_some() || self.recv_cq.is_none() {
            return refuse(PostCause::NoReceiveQueue);
        }
        if wr.sges.len() > self.caps.max_recv_sge as usize {
            return refuse(PostCause::TooManySges { given: wr.sges.len(), most: self.caps.max_recv_sge });
        }
        if inner.queues.rq.count() == 0
            || inner.queues.rq.used(self.queue_use.freed_recv.load(Ordering::Acquire), inner.queues.rq_tail)
                >= self.caps.max_recv_wr
        {
            return refuse(PostCause::QueueFull { depth: self.caps.max_recv_wr });
        }
        let index = inner.queues.rq_tail;
        write_recv(&inner.queues.rq, index, wr);
        inner.queues.rq_tail = inner.queues.rq.advance(index);
        inner.store(word::RQ_TAIL, inner.queues.rq_tail);
        if let Some(lint) = self.lint() {
            lint.posted_receive(self, &inner, wr);
        }
        if self.service != Service::Rc {
            let left = self.receives_left(&inner);
            inner.incoming.unanswered.posted(left);
            self.answer_probes(&mut inner);
        }
        if inner.state == State::Err {
            self.flush_receives(&mut inner);
            self.show_arrived(&mut inner);
        } else if inner.incoming.rnr_grace.until().is_some()
            && let Some(qp) = self.arc()
        {
            self.serve_rnr_grace(&mut inner);
            qp.pump(&mut inner);
        }
        Ok(())
    }

    /// Handles one packet. `payload` has `packet.len` bytes. With `more` packets to come, the
    /// answer waits, so that one answer acknowledges many packets; the caller then pumps the QP.
    pub(crate) fn arrive(
        self: &Arc<Self>,
        packet: &Packet,
        payload: Source<'_>,
        origin: Ingress<'_>,
        more: bool,
    ) -> Arrival {
        let mut inner = self.lock();
        let arrival = self.take(&mut inner, packet, payload, origin);
        if arrival == Arrival::Taken && !more {
            self.pump(&mut inner);
        }
        arrival
    }

    /// Handles one packet as [`Qp::arrive`] does, without an answer.
    pub(crate) fn take(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>, origin: Ingress<'_>) -> Arrival {
        if inner.is_dead() {
            return Arrival::Gone;
        }
        if !self.is_of_service(packet.headers.opcode)
            || !self.is_connected(inner, packet, origin)
            || !self.is_in_partition(inner, packet)
        {
            return self.refuse(inner, packet, origin);
        }
        let sender_counts = || self.service != Service::Ud || self.engine().board.has_paths();
        // Copies that the agent brings have been counted on the links of the subnet.
        let is_copy = || packet.headers.dest_qp == Qpn::MULTICAST && self.engine().board.has_paths();
        if matches!(origin, Ingress::Host { .. }) && !is_copy() || !sender_counts() {
            inner.traffic.received(1, payload.len() as u32, packet.headers.len());
        }
        if packet.path.mtu != inner.link.peer_mtu && !self.follow_mtu(inner, packet) {
            return Arrival::Taken;
        }
        if inner.link.migration.heeds(packet.headers.migrated) && !self.on_migration_bit(inner, packet, origin) {
            return Arrival::NotTaken;
        }
        if packet.headers.opcode.is_response() {
            self.on_response(inner, packet, payload);
        } else if inner.state.serves() {
            if inner.xrc.remote_srq.is_some()
                && let Some(waits) = self.waits_for_remote_srq(inner, packet, payload)
            {
                return if waits { Arrival::Taken } else { Arrival::NotTaken };
            }
            if inner.incoming.rnr_grace.is_empty() || !self.waits_behind(inner, packet, payload) {
                self.on_request(inner, packet, payload);
            }
        } else {
            return self.refuse(inner, packet, origin);
        }
        if inner.incoming.rnr_grace.out_of_order.is_some() {
            self.take_out_of_order(inner);
        }
        Arrival::Taken
    }

    /// The peer could not accept one of this QP's packets, or its answer was lost. From now on the
    /// retransmission timer runs.
    pub(crate) fn notice(self: &Arc<Self>, from: u32) {
        let mut inner = self.lock();
        if !inner.is_dead() && inner.attributes.dest_qp_num == from && inner.requester.outstanding() > 0 {
            let now = self.engine().now();
            if self.has_moved(&inner) {
                self.look_for_peer(&mut inner);
            }
            inner.requester.note_loss(now);
            self.pump(&mut inner);
        }
    }

    pub(crate) fn on_response(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) {
        let headers = &packet.headers;
        // A positive acknowledgement sets no timer, so it does not need the exact time.
        let plain = !headers.opcode.has_aeth() || matches!(headers.aeth.syndrome, Syndrome::Ack(_));
        let before = inner.requester.under_way();
        let now = if plain { self.time(inner) } else { self.engine().now() };
        let (slot, offset, bytes) = match inner.requester.handle_response(now, headers, u32::from(packet.len)) {
            Incoming::Nothing => (0, 0, None),
            Incoming::OutOfOrder => {
                self.keep_answer(inner, packet, payload);
                (0, 0, None)
            }
            Incoming::Place { slot, offset, len, .. } => (slot, offset, Some(payload.part(0, len as usize))),
            Incoming::PlaceAtomic { slot, value } => {
                self.place(inner, slot, 0, Source::from(&value.to_ne_bytes()[..]), now);
                (0, 0, None)
            }
        };
        if let Some(bytes) = bytes {
            self.place(inner, slot, offset, bytes, now);
        }
        if plain && let Route::Wire(flow) = &inner.link.route {
            let acked = before.saturating_sub(inner.requester.under_way());
            flow.peer.window.progress(acked * inner.requester.mtu());
        }
        self.complete_sends(inner);
    }

    /// Copies the data of a READ or atomic response to the request's scatter list.
    fn place(&self, inner: &mut Inner, slot: u32, offset: u32, bytes: Source<'_>, now: protocol::Time) {
        let entry: SendBrief = inner.queues.sq.read(slot);
        let elements = inner.queues.sq.elements(slot, usize::from(entry.num_sge));
        let end = u64::from(offset) + bytes.len() as u64;
        let placed = if end > u64::from(entry.length) {
            let why = format_args!("the answer of {end} bytes does not fit in a scatter list of {}", entry.length);
            self.explain(inner, slot, Status::LocLenErr, &why, Some("give an atomic 8 bytes of scatter list"));
            Err(Status::LocLenErr)
        } else {
            // The region is released before anything is explained.
            let scattered = access::scatter(&mut HeldRegion::new(self.engine()), self.pd, elements, offset, bytes);
            scattered.map_err(|refusal| {
                self.explain(inner, slot, Status::LocProtErr, &refusal, refusal.advice());
                Status::LocProtErr
            })
        };
        inner.requester.placed(now, placed);
    }

    pub(crate) fn on_request(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) {
        if inner.state == State::Rtr && !inner.established {
            inner.established = true;
            self.raise(kind::COMM_EST);
        }
        if inner.responder.owes_read()
            && !packet.headers.opcode.is_read()
            && !self.follows_reads(inner, packet, payload)
        {
            return;
        }
        let step = inner.responder.handle(&packet.headers, u32::from(packet.len));
        let mut pd = self.pd;
        if let Some(target) = &self.target
            && !matches!(step, Step::Ignore(_) | Step::Reply | Step::OutOfOrder)
        {
            pd = match self.enter_domain(inner, target, packet, &step) {
                Ok(Some(pd)) => pd,
                Ok(None) => return self.send_away(inner, packet, payload, &step),
                Err(nak) => {
                    inner.responder.finish(Outcome::Refused(nak));
                    return self.after_refusal(inner, None);
                }
            };
            if inner.xrc.remote_srq.is_some()
                && let Some((outcome, status)) = self.done_before(inner, packet.headers.psn)
            {
                inner.responder.finish(outcome);
                return self.after_refusal(inner, status);
            }
        }
        let status = self.execute(inner, packet, payload, step, pd);
        self.after_refusal(inner, status);
    }

    /// Executes a step that another engine's responder requires.
    #[inline(never)]
    pub(crate) fn execute_apart(
        &self,
        inner: &mut Inner,
        packet: &Packet,
        payload: Source<'_>,
        step: Step,
        pd: u32,
    ) -> Option<Status> {
        self.execute(inner, packet, payload, step, pd)
    }

    /// Executes a step with the keys of a PD. Returns the status with which the receive request
    /// ends, if that is an error.
    #[inline(always)]
    fn execute(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>, step: Step, pd: u32) -> Option<Status> {
        let mut status = None;
        match step {
            Step::Ignore(fault) => {
                if let Fault::QKey { got, .. } = fault {
                    self.count_violation(inner, packet, violation::QKEY, got);
                }
                tracing::debug!("QP {:#x} ignored {} from QP {}: {fault}", self.qpn(), packet.headers, packet.src_qp);
                let (cause, got, expected) = of_fault(&fault);
                self.drop_packet(inner, cause, packet, (got, expected));
            }
            Step::Reply => {}
            Step::OutOfOrder => self.keep_request(inner, packet, payload),
            Step::Receive { offset, len, first, last } => {
                status = self.on_send(inner, packet, payload, (offset, len, first), last)
            }
            Step::Write { va, rkey, total, offset, len, first, imm, .. } => {
                let wanted = self.remote(pd, right::REMOTE_WRITE);
                self.on_write(inner, packet, payload, wanted, (rkey, va, total), (offset, len, first), imm);
            }
            Step::Read { va, rkey, len } => {
                let wanted = self.remote(pd, right::REMOTE_READ);
                let checked = if len == 0 {
                    Ok(())
                } else {
                    access::check_remote(self.engine(), wanted, rkey, va, u64::from(len))
                };
                let outcome = self.outcome(checked, "RDMA READ");
                inner.responder.finish(outcome);
            }
            Step::Atomic { op, va, rkey, swap_add, compare } => {
                let what = match op {
                    AtomicOp::CmpSwap => Atomic::CompareSwap { compare, swap: swap_add },
                    AtomicOp::FetchAdd => Atomic::FetchAdd(swap_add),
                };
                let wanted = self.remote(pd, right::REMOTE_ATOMIC);
                let outcome = match access::atomic(self.engine(), wanted, (rkey, va), what) {
                    Ok(value) => Outcome::AtomicDone(value),
                    Err(refusal) => self.outcome(Err(refusal), "atomic"),
                };
                inner.responder.finish(outcome);
            }
            Step::AtomicWrite { va, rkey } => {
                let outcome = self.outcome(self.atomic_write(pd, (rkey, va), payload), "ATOMIC WRITE");
                inner.responder.finish(outcome);
            }
            Step::Flush { va, rkey, len, region, access } => {
                let wanted = self.remote(pd, access.0);
                let what =
                    if region { FlushRange::Region } else { FlushRange::Range { addr: va, len: u64::from(len) } };
                let flushed = access::flush(self.engine(), wanted, rkey, what);
                let outcome = self.outcome(flushed, "FLUSH");
                inner.responder.finish(outcome);
            }
        }
        status
    }

    /// Carries out an ATOMIC WRITE.
    fn atomic_write(&self, pd: u32, place: (u32, u64), payload: Source<'_>) -> Result<(), Refusal> {
        let mut word = [0; 8];
        access::copy(&Sink::from(&mut word[..]), payload)?;
        let value = Atomic::Write(u64::from_ne_bytes(word));
        access::atomic(self.engine(), self.remote(pd, right::REMOTE_WRITE), place, value).map(drop)
    }

    fn outcome(&self, result: Result<(), Refusal>, what: &str) -> Outcome {
        match result {
            Ok(()) => Outcome::Done,
            Err(refusal) => {
                if self.service.is_reliable() {
                    self.happened(format_args!("refused a peer's {what}: {refusal}"));
                }
                Outcome::Refused(if refusal.by_key() { Nak::RemoteAccess } else { Nak::RemoteOperational })
            }
        }
    }

    /// A responder that has refused a request is dead, and its QP fails. `status` is the status of
    /// the current receive request.
    pub(crate) fn after_refusal(&self, inner: &mut Inner, status: Option<Status>) {
        let refusal = match inner.responder.dead() {
            Some(refusal) => *refusal,
            // An unreliable service sends no NAK, but a request that did not fit still ends its
            // queue (V-70).
            None => {
                if let Some(status) = status {
                    self.end_receiving(inner, status);
                }
                return;
            }
        };
        if inner.state == State::Err {
            return;
        }
        if let Some(lint) = self.lint() {
            lint.refused_peer(self, &refusal.fault);
        }
        // The executor has already explained its own refusals.
        if status.is_none() && refusal.fault != Fault::Executor {
            let asking = inner.attributes.dest_qp_num;
            self.happened(format_args!("refused a request of QP {asking:#x}: {}", refusal.fault));
        }
        match refusal.nak {
            Nak::InvalidRequest if status.is_none() => self.raise(kind::QP_REQ_ERR),
            Nak::RemoteAccess => self.raise(kind::QP_ACCESS_ERR),
            Nak::InvalidRd => self.raise(kind::QP_REQ_ERR),
            _ => {}
        }
        let status = status.unwrap_or_else(|| {
            let status = refusal.fault.receive_status();
            if let Some(receive) = &inner.incoming.receive {
                let why = format_args!("its message was refused: {}", refusal.fault);
                self.failed(receive.wr_id, status, &why, refusal.fault.advice());
            }
            status
        });
        self.end_receiving(inner, status);
    }

    fn end_receiving(&self, inner: &mut Inner, status: Status) {
        if let Some(receive) = inner.incoming.receive.take() {
            self.complete_receive(inner, &receive, status, None, wc_opcode::RECV, None);
        }
        self.abandon_remote_srq(inner);
        self.flushes(inner, format_args!("{status} while receiving"));
        inner.set_state(State::Err);
        inner.requester.flush();
        self.complete_sends(inner);
        self.flush_receives(inner);
    }

    /// Handles a packet of a SEND. Returns the status with which its receive request ends, if that
    /// is an error.
    fn on_send(
        &self,
        inner: &mut Inner,
        packet: &Packet,
        payload: Source<'_>,
        (offset, len, first): (u32, u32, bool),
        last: Option<RecvEnd>,
    ) -> Option<Status> {
        if first && inner.incoming.receive.is_none() && inner.link.is_ruled() && self.withholds_receive(inner, packet) {
            return None;
        }
        if first && inner.incoming.receive.is_none() && !self.take_receive(inner) {
            self.lacks_receive(inner, packet, payload);
            return None;
        }
        let Some(receive) = inner.incoming.receive.take() else {
            inner.responder.finish(Outcome::Dropped);
            return None;
        };
        let before = if self.service == Service::Ud { GRH } else { 0 };
        let fits = u64::from(before) + u64::from(offset) + u64::from(len) <= u64::from(receive.length);
        if !fits && !self.service.is_reliable() {
            return self.lacks_room(inner, packet, receive, before + offset + len);
        }
        let placed = if fits {
            self.place_in_receive(inner, &receive, packet, payload.part(0, len as usize), before + offset)
        } else {
            let (came, room) = (before + offset + len, receive.length);
            let why = format_args!("a message of at least {came} bytes came for a receive buffer of {room}");
            self.failed(receive.wr_id, Status::LocLenErr, &why, Some(LONGER_BUFFERS));
            Err((Status::LocLenErr, Nak::InvalidRequest))
        };
        match (placed, last) {
            (Err((status, nak)), _) => {
                inner.incoming.receive = Some(receive);
                inner.responder.finish(Outcome::Refused(nak));
                Some(status)
            }
            (Ok(()), Some(end)) => {
                // Invalidate before the acknowledgement. If the key stays valid here, the requester
                // gets no answer (IBA 9.9.6.3, class J).
                if let Some(key) = end.invalidate
                    && !self.invalidates(&receive, key)
                {
                    inner.incoming.receive = Some(receive);
                    inner.responder.finish(Outcome::Dropped);
                    self.tell_peer_of_loss(inner);
                    return Some(Status::RemInvReqErr);
                }
                inner.responder.finish(Outcome::Done);
                let end = (RecvEnd { byte_len: end.byte_len + before, ..end }, packet.path);
                self.complete_receive(inner, &receive, Status::Success, Some(end), wc_opcode::RECV, Some(packet));
                None
            }
            (Ok(()), None) => {
                inner.incoming.receive = Some(receive);
                inner.responder.finish(Outcome::Done);
                None
            }
        }
    }

    /// Copies the payload of a SEND to its receive request, from `offset` on, and before it the GRH
    /// of a datagram.
    #[inline]
    fn place_in_receive(
        &self,
        inner: &Inner,
        receive: &Receive,
        packet: &Packet,
        payload: Source<'_>,
        offset: u32,
    ) -> Result<(), (Status, Nak)> {
        let mut region = HeldRegion::new(self.engine());
        let grh = packet.grh.as_ref().filter(|_| self.service == Service::Ud);
        let scattered = grh
            .map_or(Ok(()), |grh| self.scatter(inner, receive, 0, Source::from(&grh[..]), &mut region))
            .and_then(|()| self.scatter(inner, receive, offset, payload, &mut region));
        // Released before anything is explained.
        region.release();
        scattered.map_err(|refusal| {
            let status = if refusal.by_key() { Status::LocProtErr } else { Status::LocAccessErr };
            let why = format_args!("the receive buffer cannot take the message: {refusal}");
            self.failed(receive.wr_id, status, &why, refusal.advice());
            (status, Nak::RemoteOperational)
        })
    }

    /// A message of an unreliable service is longer than its receive buffer. The message is
    /// dropped, and the QP continues. A request of the QP's own queue serves the next message (IBA
    /// 9.9.6.3, class D). A request from an SRQ ends with an error (class E).
    #[cold]
    fn lacks_room(&self, inner: &mut Inner, packet: &Packet, receive: Receive, came: u32) -> Option<Status> {
        inner.responder.finish(Outcome::Dropped);
        self.drop_packet(inner, Cause::Length, packet, (came, receive.length));
        if receive.index.is_some() {
            inner.incoming.receive = Some(receive);
            return None;
        }
        let grh = if self.service == Service::Ud { " (datagrams need 40 bytes for the GRH)" } else { "" };
        let room = receive.length;
        let why = format_args!("a message of at least {came} bytes came for a receive buffer of {room}{grh}");
        self.failed(receive.wr_id, Status::LocLenErr, &why, Some(LONGER_BUFFERS));
        self.complete_receive(inner, &receive, Status::LocLenErr, None, wc_opcode::RECV, None);
        None
    }

    /// Copies payload to the current receive request.
    #[inline]
    pub(crate) fn scatter(
        &self,
        inner: &Inner,
        receive: &Receive,
        offset: u32,
        from: Source<'_>,
        region: &mut HeldRegion<'_>,
    ) -> Result<(), Refusal> {
        match receive.index {
            Some(index) => {
                let elements = inner.queues.rq.elements(index, receive.num_sge as usize);
                access::scatter(region, self.pd, elements, offset, from)
            }
            None => {
                let pd = self.shared_queue(inner).map_or(self.pd, |srq| srq.pd());
                access::scatter(region, pd, inner.incoming.shared.iter().copied(), offset, from)
            }
        }
    }

    /// The SRQ from which the QP takes receive requests.
    fn shared_queue<'a>(&'a self, inner: &'a Inner) -> Option<&'a Arc<Srq>> {
        self.srq.as_ref().or(inner.xrc.named.as_ref())
    }

    /// Handles a packet of a WRITE.
    #[allow(clippy::too_many_arguments, reason = "a write is said by that many numbers")]
    fn on_write(
        &self,
        inner: &mut Inner,
        packet: &Packet,
        payload: Source<'_>,
        wanted: Use,
        (rkey, va, total): (u32, u64, u32),
        (offset, len, first): (u32, u32, bool),
        imm: Option<RecvEnd>,
    ) {
        if imm.is_some()
            && inner.incoming.receive.is_none()
            && inner.link.is_ruled()
            && self.withholds_receive(inner, packet)
        {
            return;
        }
        if imm.is_some() && inner.incoming.receive.is_none() && !self.take_receive(inner) {
            return self.lacks_receive(inner, packet, payload);
        }
        let mut written = Ok(());
        // A WRITE of one packet is checked when it is written.
        if first && total > len {
            written = access::check_remote(self.engine(), wanted, rkey, va, u64::from(total));
        }
        if len > 0 {
            let place = (rkey, va.wrapping_add(u64::from(offset)));
            let payload = payload.part(0, len as usize);
            written = written.and_then(|()| HeldRegion::new(self.engine()).write(wanted, place, payload));
        }
        let done = written.is_ok();
        if let Err(refusal) = &written
            && !self.service.is_reliable()
            && self.drop_packet(inner, Cause::Memory, packet, (rkey, 0))
        {
            // Such packets end no connection, so there may be very many. A sentence costs more than
            // a packet.
            self.note(format_args!("dropped a peer's RDMA WRITE: {refusal}"));
        }
        let outcome = self.outcome(written, "RDMA WRITE");
        inner.responder.finish(outcome);
        if let Some(end) = imm.filter(|_| done)
            && let Some(receive) = inner.incoming.receive.take()
        {
            let opcode = wc_opcode::RECV_RDMA_WITH_IMM;
            self.complete_receive(inner, &receive, Status::Success, Some((end, packet.path)), opcode, None);
        }
    }
}
