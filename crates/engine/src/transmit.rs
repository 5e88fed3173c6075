//! Transmission: requests and answers of a QP become records on its lane, or packets on the wire.
//!
//! [`Qp::pump`] sends all that a QP has to send; any thread may call it. If the lane is full, the
//! packet goes back to its state machine and the QP to the lane's blocked list; no thread waits.
//! Datagrams are in `datagram.rs`, the destinations and payload sources of packets in `exit.rs`.

use std::sync::Arc;

use abi::queue::qp as word;
use protocol::{Nak, Response, ResponseData, Service, Status, Time, Transmit};
use shm::memory::CELL_DATA;
use shm::{Sink, Source};
use wire::{Operation, Qpn};

use crate::access::{self, Refusal};
use crate::cell::{Envelope, Path};
use crate::engine::Deferred;
use crate::exit::{Exit, Far, Origin, Sent};
use crate::lane::Sender;
use crate::net::batch::Batch;
use crate::net::next_segments::NextSegments;
use crate::progress_mode::Wake;
use crate::qp::{Flow, Inner, Lane, Qp, Route};
use crate::remote_srq::Fetched;
use crate::special::Special;
use crate::wqe::SendBrief;

/// Wakes the peer at the far end of the QP's lane.
#[cold]
pub(crate) fn wake_peer(inner: &mut Inner) {
    match (&inner.link.route, inner.wake) {
        (Route::Lane(lane), Wake::AtOnce) => lane.wake_peer(),
        (Route::Lane(_), _) => inner.wake = Wake::Owed,
        _ => {}
    }
}

impl Qp {
    /// Pumps without waking a peer, which may take the processor and want the lock. Returns the
    /// lane of the peer, for the caller to wake it without the lock.
    pub(crate) fn pump_quietly(self: &Arc<Self>, inner: &mut Inner) -> Option<Arc<Lane>> {
        inner.wake = Wake::Later;
        self.pump(inner);
        let owed = std::mem::replace(&mut inner.wake, Wake::AtOnce) == Wake::Owed;
        match &inner.link.route {
            Route::Lane(lane) if owed => Some(Arc::clone(lane)),
            _ => None,
        }
    }

    /// Sends what can be sent, writes the completions, and sets the timer for the next deadline.
    pub(crate) fn pump(self: &Arc<Self>, inner: &mut Inner) {
        if inner.is_dead() {
            return self.send_srq_replies(inner);
        }
        if let Some(target) = &self.target
            && target.token != 0
        {
            return self.pump_target(inner);
        }
        if !inner.link.blocked {
            if self.service == Service::Ud {
                self.pump_datagrams(inner);
            } else {
                self.go_direct(inner);
                if !self.pump_fast_path(inner) {
                    self.pump_generally(inner);
                }
            }
        }
        self.show(inner);
    }

    /// Pumps a target that other processes may take over: records its progress before it sends.
    #[inline(never)]
    fn pump_target(self: &Arc<Self>, inner: &mut Inner) {
        self.record_progress(inner);
        // Each further round follows a refused request or answer, so there are few rounds.
        while !inner.link.blocked && self.is_served_here() {
            self.pump_connection(inner);
            if inner.link.blocked || !self.send_srq_requests(inner) {
                break;
            }
            self.record_progress(inner);
        }
        self.show(inner);
    }

    /// Writes the completions, and sets the timer for the next deadline.
    pub(crate) fn show(&self, inner: &mut Inner) {
        // Sends first: an acknowledgement precedes the message that came with it. Programs rely on
        // this order, even with two CQs on one channel.
        self.complete_sends(inner);
        // This includes the receives that a failed send has flushed.
        self.show_arrived(inner);
        if inner.link.on_wire() {
            self.recount(inner);
        }
        inner.store(word::SQ_PSN, inner.requester.sq_psn().value());
        self.watch_deadline(inner);
    }

    pub(crate) fn pump_connection(self: &Arc<Self>, inner: &mut Inner) {
        let mut answer = inner.responder.poll_transmit();
        if answer.is_none() && inner.requester.outstanding() == 0 {
            return;
        }
        if inner.requester.has_failed_over() {
            self.fail_over(inner);
        }
        self.find_route(inner);
        if inner.link.is_lossy() {
            self.adopt_mtu(inner);
        }
        let far = if inner.link.is_ruled() { Some(self.far(inner)) } else { None };
        let mtu = inner.link.lane_mtu;
        let path =
            Path { device: inner.link.place.device as u8, port: inner.link.place.port as u8, mtu, ..Path::default() };
        let now = self.time(inner);
        // Taken from the QP for the loop, and put back below.
        let route = std::mem::replace(&mut inner.link.route, Route::Unknown);
        let mut may_ask = !inner.link.special.has(Special::HELD);
        let mut exit = match &route {
            Route::Lane(lane) if !lane.is_dead() => {
                let mut sender = lane.sender.lock();
                if self.engine().is_capturing() {
                    sender.ends = Some(self.ends(inner));
                }
                Exit::Lane(lane, sender, path, far)
            }
            Route::Wire(flow) => {
                may_ask = self.open_window(inner, flow, now);
                Exit::Wire(flow, flow.port.batch.lock(), far)
            }
            _ => {
                let opening = matches!(route, Route::Opening(_));
                inner.link.route = route;
                if answer.is_some() {
                    inner.responder.untransmit();
                }
                if !opening {
                    self.lose_output(inner);
                }
                return;
            }
        };
        let mut sent = false;
        let mut next_segments = None;
        // On the wire an ACK or NAK goes last: a shorter segment can only end a segment run.
        let mut last_word = None;
        while let Some(response) = answer {
            if inner.link.on_wire() && response.headers.opcode.operation == Operation::Acknowledge {
                last_word = Some(response);
                break;
            }
            let done = match self.source_of_response(inner, &response) {
                Fetched::Here => self.send_response(&mut exit, &response),
                Fetched::Bytes(bytes) => {
                    self.leave_by(&mut exit, &response.headers, bytes.len() as u32, &Origin::Bytes(bytes))
                }
                Fetched::Refused(nak) => {
                    inner.responder.read_failed(nak);
                    self.after_refusal(inner, None);
                    answer = inner.responder.poll_transmit();
                    continue;
                }
                Fetched::Waits => {
                    inner.responder.untransmit();
                    break;
                }
            };
            match done {
                Sent::Yes => sent = true,
                Sent::Full => {
                    inner.responder.untransmit();
                    inner.link.blocked = true;
                }
                Sent::Refused(refusal) => {
                    let asking = inner.attributes.dest_qp_num;
                    self.happened(format_args!("could not read what QP {asking:#x} asked for: {refusal}"));
                    inner.responder.read_failed(if refusal.by_key() {
                        Nak::RemoteAccess
                    } else {
                        Nak::RemoteOperational
                    });
                    // The refusal itself is still to be sent, from the error state.
                    self.after_refusal(inner, None);
                }
            }
            answer = if inner.link.blocked { None } else { inner.responder.poll_transmit() };
        }
        while may_ask && !inner.link.blocked {
            let fresh = inner.requester.sq_psn();
            let Some(transmit) = inner.requester.poll_transmit(now) else { break };
            if self.must_wait(inner, &transmit, fresh, now) {
                break;
            }
            if let Exit::Wire(flow, batch, _) = &mut exit
                && self.service == Service::Uc
                && !self.may_go(inner, flow, batch, transmit.len, transmit.headers.dest_qp, now)
            {
                inner.requester.untransmit();
                break;
            }
            let mut done = self.send_request(inner, &mut exit, &transmit, &mut next_segments);
            if matches!(done, Sent::Yes)
                && let Exit::Wire(flow, batch, _) = &mut exit
                && let Some(next_segments) = &next_segments
            {
                done = self.send_segment_run(inner, (flow, batch), &transmit, next_segments, now);
            }
            match done {
                Sent::Yes => {
                    sent = true;
                    self.charge(inner, transmit.len, now);
                }
                Sent::Full => {
                    inner.requester.untransmit();
                    inner.link.blocked = true;
                }
                Sent::Refused(refusal) => {
                    self.explain(inner, transmit.slot, Status::LocProtErr, &refusal, refusal.advice());
                    inner.requester.fail_current(Status::LocProtErr);
                }
            }
        }
        if let Some(response) = last_word {
            self.send_response(&mut exit, &response);
            inner.store(word::OWED, 0);
        }
        let wakes = exit.finish(self, inner.link.blocked, sent);
        inner.link.route = route;
        if wakes {
            wake_peer(inner);
        }
    }

    /// The state machines' time, read only for a running timer: a clock costs as much as a message.
    pub(crate) fn time(&self, inner: &Inner) -> Time {
        const TIMED: Special = Special::WIRE.and(Special::LOSSY).and(Special::PACED);
        let timed =
            inner.link.special.has(TIMED) || inner.deadline.is_some() || inner.requester.poll_timeout().is_some();
        if timed { self.engine().about_now() } else { Time(0) }
    }

    /// No lane could be opened: drops the output. The next timer or request tries again.
    pub(crate) fn give_up_route(&self, inner: &mut Inner) {
        self.lose_output(inner);
        self.show(inner);
    }

    /// There is no path to the peer: drops the output. The usual timers detect the loss.
    #[cold]
    fn lose_output(&self, inner: &mut Inner) {
        let now = self.engine().now();
        self.lose_answers(inner);
        let mut lost = false;
        while let Some(transmit) = inner.requester.poll_transmit(now) {
            lost = true;
            if let Err(refusal) = self.rehearse(inner, &transmit) {
                self.explain(inner, transmit.slot, Status::LocProtErr, &refusal, refusal.advice());
                inner.requester.fail_current(Status::LocProtErr);
            }
        }
        if lost || inner.requester.outstanding() > 0 {
            if inner.attributes.timeout == 0 {
                // "Wait for ever" is for peers that may come back. This peer is known to be gone.
                inner.requester.set_timeout(14);
            }
            inner.requester.note_loss(now);
        }
    }

    /// Reads the payload of a lost packet, so that a bad buffer fails even without a peer.
    #[cold]
    pub(crate) fn rehearse(&self, inner: &Inner, transmit: &Transmit) -> Result<(), Refusal> {
        if transmit.len == 0 {
            return Ok(());
        }
        let entry: SendBrief = inner.queues.sq.read(transmit.slot);
        let origin =
            Origin::Request { sq: &inner.queues.sq, entry: &entry, index: transmit.slot, offset: transmit.offset };
        self.fill(&origin, &mut Sink::from(&mut vec![0; transmit.len as usize][..]))
    }

    /// Sends a packet of a request. `next_segments` is the likely memory of the next packets.
    fn send_request<'a>(
        &'a self,
        inner: &Inner,
        exit: &mut Exit<'_>,
        transmit: &Transmit,
        next_segments: &mut Option<NextSegments<'a>>,
    ) -> Sent {
        if transmit.len == 0 {
            return self.leave_by(exit, &transmit.headers, 0, &Origin::Nothing);
        }
        if let Some(next_segments) = next_segments
            && let Some((stretch, at)) = next_segments.place(transmit.slot, transmit.offset, transmit.len)
        {
            return self.leave_by(exit, &transmit.headers, transmit.len, &Origin::Held { stretch, at });
        }
        let entry: SendBrief = inner.queues.sq.read(transmit.slot);
        if matches!(exit, Exit::Wire(..)) {
            *next_segments = NextSegments::find(self, inner, transmit, &entry);
        }
        let origin =
            Origin::Request { sq: &inner.queues.sq, entry: &entry, index: transmit.slot, offset: transmit.offset };
        self.leave_by(exit, &transmit.headers, transmit.len, &origin)
    }

    fn send_response(&self, exit: &mut Exit<'_>, response: &Response) -> Sent {
        let (from, len) = match response.source {
            // A response without bytes: key and address mean nothing (V-75).
            ResponseData::None | ResponseData::Read { len: 0, .. } => (Origin::Nothing, 0),
            ResponseData::Read { va, rkey, offset, len, xrc_srq } => {
                let pd = self.pd_of_answer(xrc_srq);
                (Origin::Memory { pd, rkey, addr: va.wrapping_add(u64::from(offset)) }, len)
            }
        };
        self.leave_by(exit, &response.headers, len, &from)
    }

    /// The other end, for the fault rules.
    #[cold]
    fn far(&self, inner: &Inner) -> Far {
        Far { gid: inner.attributes.dest.dgid, port: inner.attributes.port_num.into() }
    }

    #[inline]
    fn leave_by(&self, exit: &mut Exit<'_>, headers: &wire::Headers, len: u32, from: &Origin<'_>) -> Sent {
        if let Exit::Lane(.., Some(far)) | Exit::Wire(.., Some(far)) = exit {
            let far = *far;
            return self.leave_with_faults(exit, &far, headers, len, from);
        }
        self.leave_now(exit, headers, len, from)
    }

    /// Sends a packet that no fault rule affects.
    #[inline]
    pub(crate) fn leave_now(&self, exit: &mut Exit<'_>, headers: &wire::Headers, len: u32, from: &Origin<'_>) -> Sent {
        match exit {
            Exit::Lane(lane, sender, path, _) => self.put(lane, sender, *path, headers, None, len, from),
            Exit::Wire(flow, batch, _) => match self.put_on_wire(flow, batch, headers, len, from) {
                Ok(()) => Sent::Yes,
                Err(refusal) => Sent::Refused(refusal),
            },
        }
    }

    /// Adds a packet to the batch for another host.
    pub(crate) fn put_on_wire(
        &self,
        flow: &Flow,
        batch: &mut Batch,
        headers: &wire::Headers,
        len: u32,
        from: &Origin<'_>,
    ) -> Result<(), Refusal> {
        tracing::trace!("to {}: {headers}", flow.target.to.ip());
        let way = (&flow.target, &flow.envelope);
        let put = batch.put(&*flow.port.outlet, way, headers, len as usize, |to| self.fill(from, to))?;
        if let Err(error) = put {
            // The packet is lost, as on any network.
            flow.complain(&error);
        }
        if self.engine().is_capturing() {
            batch.is_of(Qpn::new(self.qpn()));
        }
        Ok(())
    }

    /// Puts one packet on a lane.
    #[inline]
    #[allow(clippy::too_many_arguments, reason = "a packet is made of that many parts, and this is where they meet")]
    pub(crate) fn put(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        path: Path,
        headers: &wire::Headers,
        grh: Option<[u8; 40]>,
        len: u32,
        from: &Origin<'_>,
    ) -> Sent {
        if self.engine().is_capturing() {
            return self.put_captured(lane, sender, path, headers, grh, len, from);
        }
        self.put_unseen(lane, sender, path, headers, grh, len, from)
    }

    /// Puts one packet on a lane: a small one in cells, a large one with its payload in the bulk
    /// area.
    #[allow(clippy::too_many_arguments, reason = "a packet is made of that many parts, and this is where they meet")]
    pub(crate) fn put_unseen(
        &self,
        lane: &Lane,
        sender: &mut Sender,
        path: Path,
        headers: &wire::Headers,
        grh: Option<[u8; 40]>,
        len: u32,
        from: &Origin<'_>,
    ) -> Sent {
        let about = Envelope { path, src_qp: Qpn::new(self.qpn()), len: len as u16, grh: grh.as_ref() };
        let Sender { tx, record, load, wanted, .. } = sender;
        let head = 16 + if grh.is_some() { wire::grh::LEN } else { 0 } + headers.len();
        if head + len as usize <= shm::RECORD_MAX {
            let head = about.encode(headers, None, record);
            let end = head + len as usize;
            if let Err(refusal) = self.fill(from, &mut Sink::from(&mut record[head..end])) {
                return Sent::Refused(refusal);
            }
            // Whole cells need no padding: the peer could already read the bytes behind the record.
            return match tx.ring.push(&record[..end.next_multiple_of(CELL_DATA)]) {
                Ok(()) => Sent::Yes,
                Err(shm::PushError::Full) => Sent::Full,
                Err(shm::PushError::Broken(_)) => self.broken(lane),
            };
        }
        let slot = match tx.bulk.reserve(len as usize) {
            Ok(Some(slot)) => slot,
            Ok(None) => {
                *wanted = len;
                return Sent::Full;
            }
            Err(shm::Broken) => return self.broken(lane),
        };
        if load.add(len) {
            self.engine().waker.copied();
        }
        if let Err(refusal) = self.fill(from, &mut tx.bulk.sink(&slot)) {
            tx.bulk.cancel(slot);
            return Sent::Refused(refusal);
        }
        let head = about.encode(headers, Some(slot.offset), record);
        match tx.ring.push(&record[..head.next_multiple_of(CELL_DATA)]) {
            Ok(()) => Sent::Yes,
            Err(shm::PushError::Full) => {
                tx.bulk.cancel(slot);
                Sent::Full
            }
            Err(shm::PushError::Broken(_)) => self.broken(lane),
        }
    }

    /// The peer has broken the lane's rules: only its connections with this process end.
    pub(crate) fn broken(&self, lane: &Lane) -> Sent {
        crate::reason!("lane {} to process {} is broken: the peer wrote invalid data", lane.id, lane.pid);
        lane.kill();
        self.engine().defer(Deferred::Broken(lane.id));
        Sent::Full
    }

    /// Copies a packet's payload to its destination buffer.
    #[inline]
    pub(crate) fn fill(&self, from: &Origin<'_>, to: &mut Sink<'_>) -> Result<(), Refusal> {
        match *from {
            Origin::Nothing => Ok(()),
            Origin::Bytes(bytes) => access::copy(to, Source::from(bytes)),
            Origin::Held { stretch, at } => stretch.read(at, to),
            Origin::Memory { pd, rkey, addr } => {
                let wanted = self.remote(pd, abi::mr::access::REMOTE_READ);
                access::read(self.engine(), wanted, (rkey, addr), to)
            }
            Origin::Request { sq, entry, index, offset } if entry.inline != 0 => {
                access::copy(to, sq.inline(index, entry.length as usize).part(offset as usize, to.len()))
            }
            Origin::Request { sq, entry, index, offset } => {
                let elements = (0..usize::from(entry.num_sge)).map(|number| sq.element(index, number));
                access::gather(self.engine(), self.pd, elements, offset, to)
            }
        }
    }

    fn watch_deadline(&self, inner: &mut Inner) {
        inner.deadline = inner.requester.poll_timeout();
        let reordered = inner.incoming.rnr_grace.out_of_order.as_ref().map(|buffer| buffer.until());
        let waits = [
            inner.deadline,
            inner.incoming.rnr_grace.until(),
            reordered,
            inner.incoming.unanswered.until(),
            Self::waits_until(inner),
        ];
        for at in waits.into_iter().flatten() {
            self.look_again(inner, at);
        }
    }

    /// Sets the timer for `at` or earlier. One alarm is enough: if it is early, it is set again.
    pub(crate) fn look_again(&self, inner: &mut Inner, at: Time) {
        if inner.alarm.is_none_or(|known| at < known) {
            inner.alarm = Some(at);
            if self.engine().timers.set(at, self.qpn()) {
                self.engine().waker.attend();
            }
        }
    }

    /// Handles a timer of this QP, which may be due.
    pub(crate) fn on_timer(self: &Arc<Self>, now: Time) {
        let mut inner = self.lock();
        if inner.alarm.is_some_and(|at| at <= now) {
            inner.alarm = None;
        }
        if inner.is_dead() {
            return;
        }
        if inner.link.on_wire() || inner.ud.last_flow.is_some() {
            // The QP may have waited for an answer long enough.
            inner.link.blocked = false;
        }
        if inner.incoming.rnr_grace.until().is_some_and(|until| until <= now) {
            self.end_rnr_grace(&mut inner);
        }
        if inner.incoming.rnr_grace.out_of_order.as_ref().is_some_and(|buffer| buffer.until() <= now) {
            self.miss(&mut inner, now);
        }
        self.answer_probes(&mut inner);
        self.see_line(&mut inner, now);
        if inner.requester.poll_timeout().is_some_and(|at| at <= now) {
            tracing::debug!(
                "QP {:#x} has heard nothing in time, {} packets under way",
                self.qpn(),
                inner.requester.under_way()
            );
            inner.requester.handle_timeout(now);
        }
        self.pump(&mut inner);
    }

    /// The lane has room again: sends what waits.
    pub(crate) fn unblock(self: &Arc<Self>) {
        let mut inner = self.lock();
        inner.link.blocked = false;
        self.pump(&mut inner);
    }
}
