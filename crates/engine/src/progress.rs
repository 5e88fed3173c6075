//! One round of the engine's work: receives from lanes and other hosts, continues blocked QPs, and
//! handles due timers and deferred work. The transport itself is not here. Adds to [`Engine`].
//!
//! A thread that polls a CQ, or the helper thread, calls it. Concurrent rounds do not wait for each
//! other: only one of them receives from each lane. The exception is the last check before
//! sleeping, which waits for locks because it must not miss anything.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::reason::Cause;
use shm::{CELLS, LaneRx, RECORD_MAX, Source};
use wire::Qpn;

use crate::cell::{self, Cell, Notice, Packet, Payload, Record, place};
use crate::core::Arrivals;
use crate::engine::{Deferred, Engine};
use crate::expected::{RoundProgress, RunEnd, note_touched};
use crate::faults::DELAYED_PACKETS;
use crate::lane::Receiver;
use crate::moderation::PERIODS;
use crate::net::inbox::{Inbox, OTHERS};
use crate::pollers::{CqPair, Poller, PollingThread};
use crate::qp::{Lane, Qp};
use crate::receive::{Arrival, Ingress};

/// Rounds in which a polling program finds nothing, before it yields the processor.
const YIELD: u32 = 32;

/// The most rounds of a catch-up.
const CATCH_UP: u32 = 64;

/// The caller of a round.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A polling thread that has found no completions.
    Polls,
    /// A polling thread that has found completions.
    Found,
    /// The helper thread, or a thread that needs a result.
    Helps,
}

/// Rounds in which arrived packets of other hosts are taken, because peers may go on sending.
const ARRIVED: u32 = 8;

impl Arrivals for Engine {
    fn take_arrived(self: Arc<Self>) {
        // Not through the walk of the polls: this waits for locks.
        for lane in self.lanes.list().iter().filter(|lane| lane.may_have_packets()) {
            let mut receiver = lane.receiver.lock();
            let begin = receiver.rx.ring.position();
            // No more than the ring can hold has arrived so far.
            while receiver.rx.ring.position().wrapping_sub(begin) < CELLS && self.receive(lane, &mut receiver) {}
        }
        let _ = (0..ARRIVED).try_for_each(|_| self.receive_from_hosts(true, false).then_some(()));
        self.serve_streams(true);
    }
}

impl Engine {
    /// A round of a polling thread. If it has `found` completions, the program may answer soon, so
    /// delayed ACKs wait for that. Returns the flag `shares` for [`Engine::end_shared_poll`].
    #[inline]
    pub(crate) fn poll(self: &Arc<Self>, found: bool, poller: &Poller) -> bool {
        // In a simulation no helper takes over from a program that has stopped polling.
        let tells = self.clock.simulated().is_none() && self.waker.polled();
        if self.go_round(false, if found { Caller::Found } else { Caller::Polls }, Some(poller)) {
            if self.net.idle.load(Ordering::Relaxed) != 0 {
                self.net.idle.store(0, Ordering::Relaxed);
            }
        } else if self.net.inbox().is_some_and(Inbox::has_hot) {
            // Not an atomic increment: of several pollers some may not count.
            let idle = self.net.idle.load(Ordering::Relaxed) + 1;
            self.net.idle.store(idle % YIELD, Ordering::Relaxed);
            if idle == YIELD {
                // Packets from other hosts need a processor on their way: for the kernel's threads,
                // the agent, the remote process. If all processors polled, no packet would arrive.
                rustix::thread::sched_yield();
            }
        }
        tells
    }

    /// Does all pending work; returns whether there was any. With `sure`, waits for threads that
    /// are doing some of it.
    pub(crate) fn progress(self: &Arc<Self>, sure: bool) -> bool {
        self.go_round(sure, Caller::Helps, None)
    }

    /// Handles all packets that have arrived so far, and waits for threads that are handling some
    /// of them. For callers that are about to end something and must count earlier packets.
    /// Bounded, because peers may go on sending.
    pub fn catch_up(self: &Arc<Self>) {
        for _ in 0..CATCH_UP {
            if !self.progress(true) {
                return;
            }
        }
    }

    fn go_round(self: &Arc<Self>, sure: bool, caller: Caller, poller: Option<&Poller>) -> bool {
        let polled = caller != Caller::Helps;
        let thread = poller.and_then(|poller| self.polling_thread(poller));
        let mut worked = false;
        for lane in self.lanes.walk(poller.map(|poller| poller.cq)).iter() {
            if let Some(thread) = &thread
                && self.pollers.is_polled_by_another(lane.cqs(), thread)
            {
                continue;
            }
            if sure || lane.may_have_packets() {
                let receiver = if sure { Some(lane.receiver.lock()) } else { lane.receiver.try_lock() };
                if let Some(mut receiver) = receiver {
                    worked |= self.receive(lane, &mut receiver);
                }
            }
            if lane.has_blocked.load(Ordering::Acquire) && lane.has_room(sure) {
                worked = true;
                self.go_on(lane);
            }
        }
        if caller != Caller::Found && self.net.has_delayed_acks() {
            worked = true;
            self.send_delayed_acks();
        }
        let turn = poller.is_some_and(|poller| poller.is_turn(OTHERS));
        if self.net.inbox().is_some_and(|inbox| inbox.is_wanted(self, polled, turn)) {
            worked |= self.receive_from_hosts(sure, polled);
        }
        // A caller that has found completions makes rounds rarely enough to check timers each time.
        if self.timers.next().is_some() && poller.is_none_or(|poller| caller == Caller::Found || self.due(poller)) {
            worked |= self.look_at_timers();
        }
        if self.net.is_crowded() {
            worked |= self.schedule_waiting();
        }
        if self.net.has_streams() {
            worked |= self.serve_streams(sure);
        }
        if self.has_deferred() {
            crate::usermem::prepare_thread();
            for work in self.deferred() {
                worked = true;
                self.carry_out_deferred(work);
            }
        }
        worked
    }

    /// A round of a thread that continues to post although there is no room. With many QPs to fill,
    /// it may not poll for a long time. Otherwise the helper would poll instead and, with one
    /// processor per program, take the processor from it.
    #[cold]
    #[inline(never)]
    pub(crate) fn poll_posting(self: &Arc<Self>, poller: &Poller) {
        if !self.due(poller) {
            return;
        }
        if self.waker.is_watching() {
            self.poll(false, poller);
        } else {
            // A thread that posts does not count as polling: it may not have polled yet, or may arm
            // its CQ and sleep.
            self.go_round(false, Caller::Polls, Some(poller));
        }
    }

    /// The polling thread, if other threads may skip lanes for it. If the program polls too rarely,
    /// the helper thread works as well; then both receive from all lanes.
    #[inline]
    fn polling_thread(&self, poller: &Poller) -> Option<PollingThread> {
        // In a simulation no helper takes over from a program that has stopped polling, and time
        // comes from another clock.
        let watched = self.waker.is_watching() && self.clock.simulated().is_none();
        watched.then(|| {
            let now = self.waker.polled_at.load(Ordering::Relaxed);
            self.pollers.record_poll(poller.cq, now, self.waker.watchdog.ticks())
        })
    }

    /// Receives from a lane, up to a batch.
    pub(crate) fn receive(self: &Arc<Self>, lane: &Arc<Lane>, receiver: &mut Receiver<Qp>) -> bool {
        if lane.is_dead() {
            return false;
        }
        crate::usermem::prepare_thread();
        let Receiver { rx, touched, recent, record } = receiver;
        let mut done = RoundProgress::default();
        while done.may_go_on() {
            let len = match rx.ring.pop(record) {
                Ok(None) => break,
                Ok(Some(len)) => Some(len),
                Err(shm::Broken) => None,
            };
            done.records += 1;
            let run = match len {
                Some(len) => self.take_run(lane, (rx, record, len), &mut done, touched, recent),
                None => RunEnd::Broken,
            };
            let cell = match run {
                RunEnd::Empty | RunEnd::Paused => continue,
                RunEnd::Other(len) => cell::decode(&record[..len.min(RECORD_MAX)]),
                RunEnd::Broken => None,
            };
            // By reference: a cell is large enough that a move would call memcpy.
            let valid = cell.as_ref().map(|cell| self.take_cell(lane, (rx, record), cell, &mut done, touched, recent));
            if valid != Some(true) {
                self.break_lane(lane);
                break;
            }
        }
        if done.records == 0 {
            return false;
        }
        lane.set_position(rx.ring.position());
        rx.ring.publish();
        lane.set_cqs(recent.as_ref().map_or(CqPair::default(), |qp| qp.cqs()));
        // Answers are sent once per batch, so that one acknowledgement covers many packets.
        if !touched.is_empty() {
            for qp in touched.drain(..) {
                let mut inner = qp.lock();
                qp.pump(&mut inner);
            }
        }
        if rx.ring.peer_waiting() {
            rx.ring.clear_waiting();
            lane.notify();
        }
        true
    }

    /// Handles a record that was decoded. Returns false if the place of its payload is invalid.
    fn take_cell(
        self: &Arc<Self>,
        lane: &Arc<Lane>,
        (rx, record): (&mut LaneRx, &Record),
        cell: &Cell,
        done: &mut RoundProgress,
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
    ) -> bool {
        let packet = match cell {
            Cell::Notice(notice) => {
                self.heed_notice(lane, notice);
                return true;
            }
            Cell::Packet(packet) | Cell::SrqRequest(packet, _) | Cell::SrqReply(packet, _) => packet,
        };
        let Some(payload) = place(rx, record, packet.payload, packet.len) else { return false };
        match cell {
            Cell::SrqRequest(_, request) => self.on_srq_request(lane, packet, payload, request),
            Cell::SrqReply(_, reply) => {
                if let Some(qp) = self.qps.find(packet.src_qp.value()) {
                    qp.on_srq_reply(lane, packet, payload, reply);
                }
            }
            _ => {
                if let Payload::Bulk(_) = packet.payload {
                    done.bulk += u32::from(packet.len);
                }
                let more = done.may_go_on() && rx.ring.has_next();
                self.accept(lane, (packet, payload, more), touched, recent);
            }
        }
        if let Payload::Bulk(offset) = packet.payload {
            rx.bulk.release(offset, u32::from(packet.len));
        }
        true
    }

    /// Delivers a multicast packet of a lane to the members of its group.
    fn accept_multicast(&self, packet: &Packet, payload: Source<'_>) {
        let group = packet.grh.and_then(|grh| wire::grh::Network::parse(&grh).ok()).map(|network| network.gids().1);
        for qpn in group.map(|group| self.groups.members(&group)).unwrap_or_default() {
            if let Some(qp) = self.qps.find(qpn) {
                qp.arrive(packet, payload, Ingress::Lane, false);
            }
        }
    }

    /// Handles a packet from the lane's peer engine. The packet counts only if the peer owns its
    /// source QPN.
    fn accept(
        &self,
        lane: &Arc<Lane>,
        (packet, payload, more): (&Packet, Source<'_>, bool),
        touched: &mut Vec<Arc<Qp>>,
        recent: &mut Option<Arc<Qp>>,
    ) {
        if self.board.owner(packet.src_qp.value()) != lane.peer {
            return self.drop_of_lane(Cause::Forged, packet, (0, 0));
        }
        if self.is_capturing() {
            self.capture_from_lane(lane, packet, payload);
        }
        if packet.headers.dest_qp == Qpn::MULTICAST && packet.headers.opcode.has_deth() {
            return self.accept_multicast(packet, payload);
        }
        if u32::from(packet.path.device) != self.device() {
            // The address belongs to another device, so the owner of the QPN does not matter.
            self.drop_of_lane(Cause::Device, packet, (packet.path.device.into(), self.device()));
            return self.send_refusal_notice(lane, packet);
        }
        if self.faults.is_on() && self.meets_fault(packet, payload, Ingress::Lane) {
            return;
        }
        let dest = packet.headers.dest_qp.value();
        if recent.as_ref().is_none_or(|qp| qp.qpn() != dest) {
            *recent = self.qps.find(dest);
        }
        let arrive = |qp: &Arc<Qp>| qp.arrive(packet, payload, Ingress::Lane, more);
        let mut arrival = recent.as_ref().map_or(Arrival::Gone, arrive);
        if arrival == Arrival::Gone {
            // The recent QP may be destroyed, and its number may belong to another QP.
            let present = self.qps.find(dest);
            if present.as_ref().map(Arc::as_ptr) != recent.as_ref().map(Arc::as_ptr) {
                *recent = present;
                arrival = recent.as_ref().map_or(Arrival::Gone, arrive);
            }
        }
        match (arrival, recent) {
            (Arrival::Taken, Some(qp)) => note_touched(touched, qp, more),
            (Arrival::Gone, _) => {
                self.drop_of_lane(Cause::NoQp, packet, (0, 0));
                self.send_refusal_notice(lane, packet);
            }
            _ => self.send_refusal_notice(lane, packet),
        }
    }

    /// No QP of this engine accepts the packet. Lanes otherwise lose nothing, so the sender of a
    /// request gets a notice. For a response, the local QP that waits for responses is notified.
    fn send_refusal_notice(&self, lane: &Arc<Lane>, packet: &Packet) {
        let opcode = packet.headers.opcode;
        if !matches!(opcode.transport, wire::Transport::Rc | wire::Transport::Xrc) {
            return;
        }
        if opcode.is_response() {
            if let Some(qp) = self.qps.find(packet.headers.dest_qp.value()) {
                qp.notice(packet.src_qp.value());
            }
        } else {
            self.send_notice(lane, Notice { from: packet.headers.dest_qp, to: packet.src_qp, psn: packet.headers.psn });
        }
    }

    pub(crate) fn send_notice(&self, lane: &Arc<Lane>, notice: Notice) {
        let mut sender = lane.sender.lock();
        let len = cell::encode_notice(&notice, &mut sender.record);
        let record = sender.record;
        match sender.tx.ring.push(&record[..len]) {
            Ok(()) => {
                drop(sender);
                lane.notify();
            }
            Err(shm::PushError::Full) => {
                lane.keep_notice(notice);
                self.waker.attend();
            }
            Err(shm::PushError::Broken(_)) => self.break_lane(lane),
        }
    }

    fn heed_notice(&self, lane: &Arc<Lane>, notice: &Notice) {
        let Some(qp) = self.qps.find(notice.to.value()) else { return };
        // An XRC target may belong to another engine by now. Then its last owner sends a notice for
        // a packet that it refuses.
        if self.board.owner(notice.from.value()) == lane.peer || qp.goes_by(lane) {
            qp.notice(notice.from.value());
        }
    }

    /// The peer has written invalid data: its connections end, and no others.
    fn break_lane(&self, lane: &Arc<Lane>) {
        crate::reason!("lane {} to process {} is broken: the peer wrote invalid data", lane.id, lane.pid);
        lane.kill();
        self.defer(Deferred::Broken(lane.id));
    }

    /// Continues the QPs that found the lane full.
    fn go_on(self: &Arc<Self>, lane: &Arc<Lane>) {
        crate::usermem::prepare_thread();
        let (mut qps, notices) = lane.unblock();
        if lane.is_dead() {
            qps.iter().for_each(Qp::unblock);
            return;
        }
        for notice in notices {
            self.send_notice(lane, notice);
        }
        while let Some(qp) = qps.pop_front() {
            qp.unblock();
            // The lane is full again. No QP waits for a dead lane.
            if lane.has_blocked.load(Ordering::Acquire) && !lane.is_dead() {
                return lane.wait_on(qps, &self.waker);
            }
        }
    }

    fn look_at_timers(self: &Arc<Self>) -> bool {
        let now = self.about_now();
        if self.timers.next().is_none_or(|at| at > now) {
            return false;
        }
        crate::usermem::prepare_thread();
        let due = self.timers.due(now);
        if due.contains(&PERIODS) {
            self.end_periods(now);
        }
        if due.contains(&DELAYED_PACKETS) {
            self.send_delayed_packets();
        }
        for qp in due.iter().filter_map(|&qpn| self.qps.find(qpn)) {
            qp.on_timer(now);
        }
        !due.is_empty()
    }

    #[inline]
    fn has_deferred(&self) -> bool {
        // Acquire: pairs with the release in `defer`.
        self.has_deferred.load(Ordering::Acquire)
    }

    fn deferred(&self) -> Vec<Deferred> {
        self.has_deferred.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.deferred.lock())
    }

    /// Whether to drive the engine although the poll found completions.
    pub(crate) fn due(&self, poller: &Poller) -> bool {
        self.pollers.is_due(poller)
    }

    fn carry_out_deferred(self: &Arc<Self>, work: Deferred) {
        match work {
            Deferred::Overrun(cq) => {
                if let Some(cq) = cq.upgrade() {
                    cq.report_overrun();
                    self.fail_xrc_srqs(&cq);
                    for qp in self.qps.all().iter().filter(|qp| qp.uses(&cq)) {
                        qp.overrun();
                    }
                }
            }
            Deferred::Broken(lane) => self.lose_lane(lane),
        }
    }
}
