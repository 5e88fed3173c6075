//! Transmission: requests and answers of a QP become records on its lane, or packets on the wire.
//!
//! [`Qp::pump`] sends all that a QP has to send; any thread may call it. If the lane is full, the
//! packet stays with its state machine and the QP goes to the lane's blocked list; no thread waits.
//! Datagrams are in `datagram.rs`. Packets, with their headers and the sources of their payload,
//! are in `cell.rs`. How a packet gets on its path is in `put.rs`.

use std::sync::Arc;

use abi::queue::qp as word;
use protocol::{Nak, Response, ResponseData, Service, Status, Time};
use shm::Sink;
use shm::memory::CELL_DATA;
use wire::{Operation, Qpn};

use crate::access::{HeldRegion, Refusal};
use crate::cell::{Origin, OutgoingRun, Path, RunHeaders};
use crate::progress_mode::Wake;
use crate::put::{Exit, Far, Sent};
use crate::qp::{Inner, Lane, Qp, Route};
use crate::remote_srq::Fetched;
use crate::special::Special;

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
        if inner.link.stream.is_some() {
            return self.pump_stream(inner);
        }
        if !inner.link.blocked {
            if self.service == Service::Ud {
                self.pump_datagrams(inner);
            } else {
                if self.engine().direct.is_on() {
                    self.go_direct(inner);
                }
                if !self.send_undisturbed(inner) {
                    self.pump_generally(inner);
                    if inner.incoming.rnr_grace.is_behind_read() && !inner.responder.owes_read() {
                        self.serve_rnr_grace(inner);
                        return self.pump(inner);
                    }
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
        if self.service != Service::XrcTgt {
            inner.traffic.show(inner.view.as_ref());
        }
        if inner.requester.tally.has_any() || inner.responder.tally.has_any() {
            self.count_noticed(inner);
        }
        self.watch_deadline(inner);
    }

    /// Adds the collected completions to the CQ. The answers must be sent first: a program that
    /// polls its last message may exit at once, and the peer must still get the acknowledgement.
    #[inline]
    pub(crate) fn show_arrived(&self, inner: &mut Inner) {
        if inner.incoming.arrived.is_empty() {
            return;
        }
        if let Some(cq) = &self.recv_cq {
            cq.push_all(&inner.incoming.arrived);
            return inner.incoming.arrived.clear();
        }
        for (cqe, cq) in inner.incoming.arrived.drain(..).zip(inner.xrc.arrived_at.drain(..)) {
            cq.push(&cqe);
        }
    }

    /// Sends an ACK and requests over a lane, as long as nothing disturbs the connection. Returns
    /// whether that was all; otherwise [`Qp::pump_generally`] sends the rest, and finds out what
    /// disturbs it. The packets are those that it would send: this only skips its checks.
    #[inline]
    fn send_undisturbed(&self, inner: &mut Inner) -> bool {
        let special = self.special(inner);
        let mtu = inner.mtu_bits();
        let Inner { requester, responder, queues, link, wake, traffic, .. } = inner;
        let lane = match &link.route {
            Route::Lane(lane) if !lane.is_dead() && !special.has_beside(Special::default()) => lane,
            _ => return requester.outstanding() == 0 && !responder.has_answers(),
        };
        let answers = responder.has_answers();
        if answers && !responder.owes_only_ack() || requester.outstanding() > 0 && !requester.is_undisturbed() {
            return false;
        }
        if !answers && !requester.has_unsent() {
            return true;
        }
        let path = Path {
            device: link.place.device as u16,
            port: link.place.port as u8,
            mtu: link.lane_mtu,
            ..Path::default()
        };
        let mut sender = lane.sender.lock();
        let mut region = HeldRegion::of_qp(self.engine(), self, std::mem::take(&mut queues.source));
        let mut sent = false;
        if answers && let Some(response) = responder.poll_answer(1) {
            let ack = self.run(RunHeaders::Answer(responder, response), 1, 0, Origin::Nothing);
            if self.put_on_lane(lane, &mut sender, path, &ack, None, &mut region).0 == 0 {
                responder.untransmit(0);
                queues.source = region.into_kept();
                return false;
            }
            traffic.sent(1, 0, ack.headers.len(), mtu);
            sent = true;
        }
        while requester.has_unsent()
            && let Some(run) = requester.poll_run(Time(0))
        {
            // Worth it only for a record of one cell: a longer copy hides the cost of the release.
            region.set_last(requester.unsent() == 1 && run.len < CELL_DATA as u32);
            let from = Origin::of_request(&queues.sq, &run);
            let packets = self.run(RunHeaders::Request(requester, run), run.count, run.len, from);
            let (count, _) = self.put_on_lane(lane, &mut sender, path, &packets, None, &mut region);
            sent |= count > 0;
            traffic.sent(count, run.len, run.opcode.headers_len(), mtu);
            if count == run.count {
                requester.sent(Time(0), &run);
                continue;
            }
            if count > 0 {
                requester.sent(Time(0), &run.at_most(count));
            }
            break;
        }
        queues.source = region.into_kept();
        drop(sender);
        if sent && lane.peer_needs_wake() {
            match *wake {
                Wake::AtOnce => lane.wake_peer(),
                _ => *wake = Wake::Owed,
            }
        }
        !requester.has_unsent()
    }

    /// Sends whatever the connection has to send.
    #[inline(never)]
    fn pump_generally(self: &Arc<Self>, inner: &mut Inner) {
        loop {
            self.pump_connection(inner);
            if !(inner.requester.has_local() && self.carry_out(inner)) {
                break;
            }
        }
    }

    /// Sends the answers and requests of a connection.
    pub(crate) fn pump_connection(self: &Arc<Self>, inner: &mut Inner) {
        if inner.requester.outstanding() == 0 && !inner.responder.has_answers() {
            return;
        }
        if inner.requester.has_failed_over() {
            self.fail_over(inner);
        }
        self.find_route(inner);
        let special = self.special(inner);
        if special.has(Special::LOSSY) {
            self.adopt_mtu(inner);
        }
        let far = if special.has(Special::RULED.and(Special::NARROW)) { Some(self.far(inner)) } else { None };
        let now = self.time(inner);
        // Taken from the QP for the loop, and put back below.
        let route = std::mem::replace(&mut inner.link.route, Route::Unknown);
        let mut may_ask = !special.has(Special::HELD);
        let mut exit = match &route {
            Route::Lane(lane) if !lane.is_dead() => {
                let mut sender = lane.sender.lock();
                if special.has(Special::CAPTURED) {
                    sender.ends = Some(self.ends(inner));
                }
                let (place, mtu) = (inner.link.place, inner.link.lane_mtu);
                let path = Path { device: place.device as u16, port: place.port as u8, mtu, ..Path::default() };
                Exit::Lane(lane, sender, path, far)
            }
            Route::Wire(flow) => {
                may_ask = self.open_window(inner, flow, now);
                Exit::Wire(flow, flow.port.batch.lock(), far)
            }
            _ => {
                let opening = matches!(route, Route::Opening(_));
                inner.link.route = route;
                if !opening {
                    self.lose_output(inner);
                }
                return;
            }
        };
        let mut region = HeldRegion::of_qp(self.engine(), &**self, std::mem::take(&mut inner.queues.source));
        let mut sent = false;
        let last_word = self.send_answers(inner, &mut exit, &mut region, &mut sent);
        if may_ask {
            self.send_requests(inner, &mut exit, &mut region, now, &mut sent);
        }
        if let Some(response) = last_word {
            self.send_response(inner, &mut exit, &response, &mut region);
            inner.traffic.sent(1, 0, response.opcode.headers_len(), 31);
            inner.store(word::OWED, 0);
        }
        // Released before the peer is woken, and before a lock is taken below.
        inner.queues.source = region.into_kept();
        let wakes = exit.finish(self, inner.link.blocked, sent);
        inner.link.route = route;
        if wakes {
            wake_peer(inner);
        }
    }

    /// Sends the answers. On the wire an ACK or NAK goes last: a shorter segment can only end a
    /// datagram. It is returned, and the caller sends it behind the requests.
    #[inline]
    fn send_answers(
        &self,
        inner: &mut Inner,
        exit: &mut Exit<'_>,
        region: &mut HeldRegion<'_>,
        sent: &mut bool,
    ) -> Option<Response> {
        // Fault rules and narrow links see each packet, and the memory of another engine is read
        // for each packet.
        let one_by_one = inner.link.special.has(Special::RULED.and(Special::NARROW)) || self.target.is_some();
        let most = if one_by_one { 1 } else { u32::MAX };
        while let Some(response) = inner.responder.poll_answer(most) {
            if inner.link.on_wire() && response.opcode.operation == Operation::Acknowledge {
                return Some(response);
            }
            let (count, done) = match self.source_of_response(inner, &response) {
                Fetched::Here => self.send_response(inner, exit, &response, region),
                Fetched::Bytes(headers, bytes) => {
                    let run = self.run(RunHeaders::Full(&headers), 1, bytes.len() as u32, Origin::Bytes(bytes));
                    self.put_run(exit, &run, region)
                }
                Fetched::Refused(nak) => {
                    region.release();
                    inner.responder.read_failed(0, nak);
                    self.after_refusal(inner, None);
                    continue;
                }
                Fetched::Waits => {
                    inner.responder.untransmit(0);
                    return None;
                }
            };
            if count > 0 {
                *sent = true;
                let (mtu, len) = (inner.mtu_bits(), response.source.len());
                if matches!(done, Sent::Lost) {
                    inner.traffic.lost(inner.view.as_ref(), 1, len, response.opcode.headers_len(), mtu);
                } else {
                    inner.traffic.sent(count, len, response.opcode.headers_len(), mtu);
                }
            }
            match done {
                Sent::Yes | Sent::Lost => {}
                Sent::Full => {
                    inner.responder.untransmit(count);
                    inner.link.blocked = true;
                    return None;
                }
                Sent::Refused(refusal) => {
                    region.release();
                    let asking = inner.attributes.dest_qp_num;
                    self.happened(format_args!("could not read what QP {asking:#x} asked for: {refusal}"));
                    let nak = if refusal.by_key() { Nak::RemoteAccess } else { Nak::RemoteOperational };
                    inner.responder.read_failed(count, nak);
                    // The refusal itself is still to be sent, from the error state.
                    self.after_refusal(inner, None);
                }
            }
        }
        None
    }

    /// Sends the requests, as far as the path has room.
    #[inline]
    fn send_requests(
        self: &Arc<Self>,
        inner: &mut Inner,
        exit: &mut Exit<'_>,
        region: &mut HeldRegion<'_>,
        now: Time,
        sent: &mut bool,
    ) {
        // Fault rules, narrow links, rates, and the window of an unreliable connection see each
        // packet.
        const EACH: Special = Special::RULED.and(Special::PACED).and(Special::NARROW);
        let counts_bytes = self.service == Service::Uc && inner.link.on_wire();
        let one_by_one = counts_bytes || inner.link.special.has(EACH);
        while !inner.link.blocked {
            let Some(mut run) = inner.requester.poll_run(now) else { return };
            if one_by_one {
                run = run.at_most(1);
                if self.must_wait(inner, run.first, now) {
                    return;
                }
                if let Exit::Wire(flow, batch, _) = exit
                    && counts_bytes
                    && !self.may_go(inner, flow, batch, run.len, Qpn::new(inner.attributes.dest_qp_num), now)
                {
                    return;
                }
            }
            let (count, end) = self.send_request(inner, exit, &run, region);
            if count > 0 {
                *sent = true;
                let mtu = inner.mtu_bits();
                if matches!(end, Sent::Lost) {
                    inner.traffic.lost(inner.view.as_ref(), 1, run.len, run.opcode.headers_len(), mtu);
                } else {
                    inner.traffic.sent(count, run.len, run.opcode.headers_len(), mtu);
                }
                inner.requester.sent(now, &run.at_most(count));
                if one_by_one {
                    self.charge(inner, run.len, now);
                }
            }
            match end {
                Sent::Yes | Sent::Lost => {}
                Sent::Full => inner.link.blocked = true,
                Sent::Refused(refusal) => {
                    region.release();
                    self.explain(inner, run.slot, Status::LocProtErr, &refusal, refusal.advice());
                    inner.requester.fail_next(Status::LocProtErr);
                }
            }
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
        let lost_answers = self.lose_answers(inner);
        let mut lost = false;
        while let Some(run) = inner.requester.poll_run(now) {
            lost = true;
            match self.rehearse(inner, &run) {
                Ok(()) => {
                    let mtu = inner.mtu_bits();
                    inner.traffic.lost(inner.view.as_ref(), run.count, run.len, run.opcode.headers_len(), mtu);
                    inner.requester.sent(now, &run);
                }
                Err(refusal) => {
                    self.explain(inner, run.slot, Status::LocProtErr, &refusal, refusal.advice());
                    inner.requester.fail_next(Status::LocProtErr);
                }
            }
        }
        if inner.link.pathless && (lost || lost_answers) {
            self.tell_no_path(inner);
        }
        if lost || inner.requester.outstanding() > 0 {
            if inner.attributes.timeout == 0 {
                // "Wait for ever" is for peers that may come back. This peer is known to be gone.
                inner.requester.set_timeout(14);
            }
            inner.requester.note_loss(now);
        }
    }

    /// Reads the payload of lost packets, so that a bad buffer fails even without a peer.
    #[cold]
    pub(crate) fn rehearse(&self, inner: &Inner, run: &protocol::Run) -> Result<(), Refusal> {
        let from = Origin::of_request(&inner.queues.sq, run);
        let mut bytes = vec![0; run.len as usize];
        let region = &mut HeldRegion::new(self.engine());
        (0..run.count).try_for_each(|index| self.fill(region, from, index * run.len, &mut Sink::from(&mut bytes[..])))
    }

    /// Sends the packets of a request.
    #[inline]
    fn send_request(
        &self,
        inner: &Inner,
        exit: &mut Exit<'_>,
        run: &protocol::Run,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        let from = Origin::of_request(&inner.queues.sq, run);
        self.put_run(exit, &self.run(RunHeaders::Request(&inner.requester, *run), run.count, run.len, from), region)
    }

    #[inline]
    fn send_response(
        &self,
        inner: &Inner,
        exit: &mut Exit<'_>,
        response: &Response,
        region: &mut HeldRegion<'_>,
    ) -> (u32, Sent) {
        let (from, len) = match response.source {
            // A response without bytes: key and address mean nothing (V-75).
            ResponseData::None | ResponseData::Read { len: 0, .. } => (Origin::Nothing, 0),
            ResponseData::Read { va, rkey, offset, len, xrc_srq } => {
                let pd = self.pd_of_answer(xrc_srq);
                (Origin::Memory { pd, rkey, addr: va.wrapping_add(u64::from(offset)) }, len)
            }
        };
        let run = self.run(RunHeaders::Answer(&inner.responder, *response), response.count, len, from);
        self.put_run(exit, &run, region)
    }

    /// A run of packets of this QP.
    #[inline]
    pub(crate) fn run<'a>(&self, headers: RunHeaders<'a>, count: u32, len: u32, from: Origin<'a>) -> OutgoingRun<'a> {
        OutgoingRun { src_qp: Qpn::new(self.qpn()), headers, count, len, from }
    }

    /// The other end, for the fault rules.
    #[cold]
    fn far(&self, inner: &Inner) -> Far {
        Far {
            gid: inner.attributes.dest.dgid,
            port: inner.attributes.port_num.into(),
            room: inner.link.room,
            links: inner.link.links.there,
        }
    }

    fn watch_deadline(&self, inner: &mut Inner) {
        inner.deadline = inner.requester.poll_timeout();
        let earlier = |one: Option<Time>, other: Option<Time>| match (one, other) {
            (Some(one), Some(other)) => Some(one.min(other)),
            _ => one.or(other),
        };
        let mut at = earlier(inner.deadline, inner.incoming.rnr_grace.until());
        at = earlier(at, inner.incoming.rnr_grace.out_of_order.as_ref().map(|buffer| buffer.until()));
        if inner.link.on_wire() || self.service == Service::Ud {
            at = earlier(at, inner.incoming.unanswered.until());
            at = earlier(at, Self::waits_until(inner));
        }
        if let Some(at) = at {
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
        if inner.link.stream.is_some() {
            return self.on_stream_timer(&mut inner, now);
        }
        if inner.link.on_wire() || inner.ud.last_flow.is_some() {
            // The QP may have waited for an answer long enough.
            inner.link.blocked = false;
        }
        if inner.ud.missing.is_some() {
            // The datagram may have waited long enough. If not, the pump sets the timer again.
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
