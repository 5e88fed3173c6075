//! One round of the engine's work: what lanes and other hosts bring, who was blocked, which timers are due, and what was put off.
//!
//! Whoever has time calls it: a thread that polls a CQ, or the helper. Two at once do not wait for each other: each lane is received
//! from by one of them, unless the last look before sleeping is taken, which has to be sure.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use abi::reason::Cause;
use shm::{LaneRx, RECORD_MAX};
use wire::Qpn;

use crate::cell::{self, Cell, Notice, Packet, Payload};
use crate::engine::{Deferred, Engine};
use crate::fast_path::receiving::{Done, RunEnd};
use crate::faults::DELAYED_PACKETS;
use crate::lane::{Lane, Receiver};
use crate::moderation::PERIODS;
use crate::net::inbox::{Inbox, OTHERS};
use crate::pollers::{Concern, Poller, Visitor};
use crate::qp::Qp;
use crate::receive::{Arrival, Origin};

/// How many records one round takes from a lane, so that no lane starves the others.
pub(crate) const BATCH: usize = 64;

/// How many bytes of bulk at most, about: what has come is said, and answered, while the sender still has something to do.
pub(crate) const BULK_BATCH: u32 = 256 * 1024;

/// Rounds in which a program that polls finds nothing, before it lets others have the processor.
const YIELD: u32 = 32;

/// Rounds that are taken to catch up, at most.
const CATCH_UP: u32 = 64;

/// Who does a round of work.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// A thread that polls, and has nothing.
    Polls,
    /// A thread that polls, and has got something.
    Found,
    /// The helper thread, or one that needs something done.
    Helps,
}

/// Where so many bytes of payload are; `None` for a place that no sound peer names.
#[inline]
pub(crate) fn place(rx: &LaneRx, record: &[u8; RECORD_MAX], payload: Payload, len: u16) -> Option<*const u8> {
    match payload {
        Payload::Inline(at) => Some(record[at..].as_ptr()),
        Payload::Bulk(offset) => rx.bulk.slice(offset, u32::from(len)).map(|bytes| bytes.as_ptr().cast_const()),
    }
}

impl Engine {
    /// What a polling thread does. One that has `found` something is about to answer it, maybe, and what is owed waits for that.
    /// Says whether [`Engine::end_poll`] is to be told how it ends.
    #[inline]
    pub(crate) fn poll(self: &Arc<Self>, found: bool, poller: &Poller) -> bool {
        // In a simulation nobody takes over from a program that has stopped polling.
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
                // What comes from other hosts needs a processor on its way: the kernel's threads, the agent, the far process. Where
                // all are busy polling, nothing would come.
                rustix::thread::sched_yield();
            }
        }
        tells
    }

    /// Does what there is to do; says whether there was something. With `sure`, waits for those who are at it.
    pub(crate) fn progress(self: &Arc<Self>, sure: bool) -> bool {
        self.go_round(sure, Caller::Helps, None)
    }

    /// Does what has come so far, and waits for those who are at it: for whoever is about to end something, which shall count what
    /// came before. Bounded, for peers may go on sending.
    pub fn catch_up(self: &Arc<Self>) {
        for _ in 0..CATCH_UP {
            if !self.progress(true) {
                return;
            }
        }
    }

    fn go_round(self: &Arc<Self>, sure: bool, caller: Caller, poller: Option<&Poller>) -> bool {
        let polled = caller != Caller::Helps;
        let visitor = poller.and_then(|poller| self.visitor(poller));
        let mut worked = false;
        for lane in self.lanes.walk(poller.map(|poller| poller.who)).iter() {
            if let Some(visitor) = &visitor
                && self.pollers.is_seen_to(lane.concern(), visitor)
            {
                continue;
            }
            if sure || lane.seems_to_have() {
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
        if caller != Caller::Found {
            worked |= self.send_delayed_acks();
        }
        let turn = poller.is_some_and(|poller| poller.is_turn(OTHERS));
        worked |= self.receive_from_hosts(sure, polled, turn);
        // One that has got something is here seldom enough.
        if self.timers.next().is_some() && poller.is_none_or(|poller| caller == Caller::Found || self.due(poller)) {
            worked |= self.look_at_timers();
        }
        worked |= self.schedule_waiting();
        if self.has_deferred() {
            crate::usermem::prepare_thread();
            for work in self.deferred() {
                worked = true;
                self.settle(work);
            }
        }
        worked
    }

    /// What a thread does that posts on although there is no room. It does not poll, maybe for long, with many queue pairs to fill; the helper would do
    /// so instead of it, and where each program has one processor, take that from it.
    #[cold]
    #[inline(never)]
    pub(crate) fn poll_posting(self: &Arc<Self>, poller: &Poller) {
        if !self.due(poller) {
            return;
        }
        if self.waker.is_watching() {
            self.poll(false, poller);
        } else {
            // One that has not polled yet, or arms its queue and sleeps, has done neither by posting.
            self.go_round(false, Caller::Polls, Some(poller));
        }
    }

    /// The thread that polls, if others may leave it the lanes of its own. One that polls only now and then has the helper beside it, which goes
    /// everywhere, and goes everywhere itself.
    #[inline]
    fn visitor(&self, poller: &Poller) -> Option<Visitor> {
        // In a simulation nobody takes over from a program that has stopped polling, and the time is another.
        let watched = self.waker.is_watching() && self.clock.simulated().is_none();
        watched.then(|| {
            let now = self.waker.polled_at.load(Ordering::Relaxed);
            self.pollers.sit(poller.who, now, self.waker.watchdog.ticks())
        })
    }

    /// Takes what a lane has brought, up to a batch.
    pub(crate) fn receive(self: &Arc<Self>, lane: &Arc<Lane>, receiver: &mut Receiver) -> bool {
        if lane.is_dead() {
            return false;
        }
        crate::usermem::prepare_thread();
        let Receiver { rx, touched, recent, record } = receiver;
        let fast_path = !self.is_capturing();
        let mut done = Done::default();
        while done.may_go_on() {
            let popped = rx.ring.pop(record);
            if matches!(popped, Ok(None)) {
                break;
            }
            done.records += 1;
            let run = match popped {
                Ok(Some(len)) if fast_path => self.take_run(lane, (rx, record, len), &mut done, touched, recent),
                Ok(len) => RunEnd::Other(len.unwrap_or(0)),
                Err(shm::Broken) => RunEnd::Broken,
            };
            let cell = match run {
                RunEnd::Over => continue,
                RunEnd::Other(len) => cell::decode(&record[..len.min(RECORD_MAX)]),
                RunEnd::Broken => None,
            };
            // By reference: a cell is longer than what is moved without a call.
            let Some(cell) = &cell else {
                self.break_lane(lane);
                break;
            };
            match cell {
                Cell::Notice(notice) => self.heed_notice(lane, notice),
                Cell::SrqRequest(packet, _) | Cell::SrqReply(packet, _) => {
                    let Some(payload) = place(rx, record, packet.payload, packet.len) else {
                        self.break_lane(lane);
                        break;
                    };
                    match cell {
                        Cell::SrqRequest(_, request) => self.on_srq_request(lane, packet, payload, request),
                        Cell::SrqReply(_, reply) => {
                            if let Some(qp) = self.qps.find(packet.src_qp.value()) {
                                qp.on_srq_reply(lane, packet, payload, reply);
                            }
                        }
                        _ => {}
                    }
                    if let Payload::Bulk(offset) = packet.payload {
                        rx.bulk.release(offset, u32::from(packet.len));
                    }
                }
                Cell::Packet(packet) => {
                    let Some(payload) = place(rx, record, packet.payload, packet.len) else {
                        self.break_lane(lane);
                        break;
                    };
                    if let Payload::Bulk(_) = packet.payload {
                        done.bulk += u32::from(packet.len);
                    }
                    let more = done.may_go_on() && rx.ring.has_next();
                    self.accept(lane, (packet, payload, more), touched, recent);
                    if let Payload::Bulk(offset) = packet.payload {
                        rx.bulk.release(offset, u32::from(packet.len));
                    }
                }
            }
        }
        if done.records == 0 {
            return false;
        }
        lane.stands_at(rx.ring.position());
        rx.ring.publish();
        lane.concerns(recent.as_ref().map_or(Concern::default(), |qp| qp.concern()));
        // Answers go once per batch, so that one acknowledgement stands for many packets.
        for qp in touched.drain(..) {
            let mut inner = qp.lock();
            qp.pump(&mut inner);
        }
        if rx.peer_waiting() {
            rx.clear_waiting();
            lane.notify();
        }
        true
    }

    /// A packet from the engine at the lane's far end. It is believed only for QPs that this engine owns.
    fn accept(
        &self,
        lane: &Arc<Lane>,
        (packet, payload, more): (&Packet, *const u8, bool),
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
            let group = packet.grh.and_then(|grh| wire::grh::Network::parse(&grh).ok()).map(|network| network.gids().1);
            for qpn in group.map(|group| self.groups.members(&group)).unwrap_or_default() {
                if let Some(qp) = self.qps.find(qpn) {
                    qp.arrive(packet, payload, Origin::Lane, false);
                }
            }
            return;
        }
        if u32::from(packet.path.device) != self.device() {
            // The address is another device's, whoever has the number.
            self.drop_of_lane(Cause::Device, packet, (packet.path.device.into(), self.device()));
            return self.turn_away(lane, packet);
        }
        if self.faults.is_on() && self.meets_fault(packet, payload, Origin::Lane) {
            return;
        }
        let dest = packet.headers.dest_qp.value();
        if recent.as_ref().is_none_or(|qp| qp.qpn() != dest) {
            *recent = self.qps.find(dest);
        }
        let arrive = |qp: &Arc<Qp>| qp.arrive(packet, payload, Origin::Lane, more);
        let mut arrival = recent.as_ref().map_or(Arrival::Gone, arrive);
        if arrival == Arrival::Gone {
            // The QP that was recent may be gone, and its number another's.
            let present = self.qps.find(dest);
            if present.as_ref().map(Arc::as_ptr) != recent.as_ref().map(Arc::as_ptr) {
                *recent = present;
                arrival = recent.as_ref().map_or(Arrival::Gone, arrive);
            }
        }
        match (arrival, recent) {
            (Arrival::Taken, Some(qp)) => {
                let is_last = touched.last().is_some_and(|last| Arc::ptr_eq(last, qp));
                match (more, is_last) {
                    (true, false) => touched.push(Arc::clone(qp)),
                    // Answered just now.
                    (false, true) => drop(touched.pop()),
                    _ => {}
                }
            }
            (Arrival::Gone, _) => {
                self.drop_of_lane(Cause::NoQp, packet, (0, 0));
                self.turn_away(lane, packet);
            }
            _ => self.turn_away(lane, packet),
        }
    }

    /// Nobody here can take the packet. On a lane, where nothing is ever lost otherwise, its sender is told; of an answer, who waits for it.
    fn turn_away(&self, lane: &Arc<Lane>, packet: &Packet) {
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
        // An XRC target can be another engine's by now, which its last one may say by turning packets away.
        if self.board.owner(notice.from.value()) == lane.peer || qp.goes_by(lane) {
            qp.notice(notice.from.value());
        }
    }

    /// The peer has written what no sound peer writes: its connections end, nobody else's.
    fn break_lane(&self, lane: &Arc<Lane>) {
        crate::reason!("lane {} to process {} is broken: the peer wrote invalid data", lane.id, lane.pid);
        lane.kill();
        self.defer(Deferred::Broken(lane.id));
    }

    /// Goes on with those who found the lane full.
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
            // Again, by this one or another. Nobody waits for a lane that is gone.
            if lane.has_blocked.load(Ordering::Acquire) && !lane.is_dead() {
                return lane.wait_on(qps);
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

    fn settle(self: &Arc<Self>, work: Deferred) {
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
