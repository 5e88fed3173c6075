//! What an event does at a port: packets and flow-control packets that arrive, and the choice of
//! what leaves next. Not what a node does with a packet ([`super::forward`]).

use super::{Delivery, End, Fabric, Happening, QueuedEvent};
use crate::counters::Cause;
use crate::frame::Frame;
use crate::port::{Hold, Place, Port, Queued};
use crate::rate::Time;
use crate::state::{self, Physical};
use wire::flow_control;

/// Bytes of a flow-control packet on the wire, with its delimiters.
const FLOW_BYTES: usize = flow_control::LEN + 2;
/// Management packets that wait at one port; more are dropped, because VL 15 has no credits.
const MANAGEMENT_ROOM: usize = 64;

impl Fabric {
    pub(super) fn process(&mut self, event: QueuedEvent) {
        let at = event.port;
        let current = self.ports[at as usize].generation == event.generation;
        match event.what {
            Happening::Wake => {
                let wake = &mut self.ports[at as usize].egress.wake;
                if *wake == Some(event.time) {
                    *wake = None;
                    self.kicked.push_back(at);
                }
            }
            Happening::Local(frame) => self.deliver(at, frame),
            Happening::Arrive(_) | Happening::Damaged if !current => {
                self.ports[at as usize].counters.drop(Cause::LinkLost);
            }
            Happening::Arrive(frame) => self.arrive(at, frame),
            Happening::Damaged => self.ports[at as usize].counters.drop(Cause::Damaged),
            Happening::Flow(header) if current => self.told(at, &header),
            Happening::Refresh if current => {
                let egress = &mut self.ports[at as usize].egress;
                egress.flow_due |= std::mem::take(&mut egress.refresh);
                self.kicked.push_back(at);
            }
            Happening::Trained if current => self.trained(at),
            Happening::GiveUp if current => self.give_up(at),
            _ => {}
        }
    }

    fn arrive(&mut self, at: u32, mut frame: Frame) {
        frame.hops = frame.hops.saturating_add(1);
        let port = &mut self.ports[at as usize];
        let management = frame.is_management();
        if !management {
            let Some(lane) = port.lanes.get_mut(usize::from(frame.lrh.vl)) else {
                return port.counters.drop(Cause::Damaged);
            };
            if !lane.receiver.arrive(frame.blocks()) {
                return port.counters.drop(Cause::Overrun);
            }
        }
        if !port.logical.receives(management) {
            port.counters.drop(Cause::NotReceiving);
            return self.release(hold_at(at, &frame));
        }
        if !management && port.logical == state::Logical::Armed {
            self.change(at, state::Event::Data);
        }
        let port = &mut self.ports[at as usize];
        port.counters.received.count(&frame);
        match &mut port.held {
            Some(held) if !management => held.push_back(frame),
            _ => self.dispatch(at, frame),
        }
    }

    /// The neighbour has told its credits.
    fn told(&mut self, at: u32, header: &flow_control::Header) {
        let port = &mut self.ports[at as usize];
        let Some(lane) = port.lanes.get_mut(usize::from(header.vl)) else { return };
        let before = lane.receiver.limit();
        lane.receiver.told(header.sent);
        lane.sender.told(header.limit);
        if lane.receiver.limit() != before {
            port.egress.flow_due |= 1 << header.vl;
        }
        self.kicked.push_back(at);
    }

    /// A packet has left the buffer that it came in by, or a copy of it has.
    pub(super) fn release(&mut self, hold: Hold) {
        let Some(place) = hold.last() else { return };
        let port = &mut self.ports[place.port as usize];
        port.lanes[usize::from(place.vl)].receiver.release(place.blocks);
        port.egress.flow_due |= 1 << place.vl;
        self.kicked.push_back(place.port);
    }

    /// Queues a packet at its egress port.
    pub(super) fn enqueue(&mut self, at: u32, vl: u8, mut frame: Frame, hold: Hold, expires: Time) {
        let now = self.now;
        frame.lrh.vl = vl;
        let port = &mut self.ports[at as usize];
        let queued = Queued { frame, hold, expires };
        if queued.frame.is_management() {
            if port.egress.management.len() >= MANAGEMENT_ROOM {
                return port.counters.drop(Cause::Vl15Full);
            }
            port.egress.management.push_back(queued);
        } else {
            let lane = &mut port.lanes[usize::from(vl)];
            if lane.queue.is_empty() {
                lane.head_since = now;
            }
            lane.queue.push_back(queued);
        }
        self.kicked.push_back(at);
    }

    /// Sends what the port may send now: credits, then management packets, then data by
    /// arbitration.
    pub(super) fn transmit(&mut self, at: u32) {
        let now = self.now;
        let egress = &mut self.ports[at as usize].egress;
        if egress.busy_until > now {
            let until = egress.busy_until;
            return self.wake(at, until);
        }
        let sent = std::mem::take(&mut egress.sending);
        self.release(sent);
        let port = &self.ports[at as usize];
        if port.physical != Physical::LinkUp || !port.logical.sends(true) {
            return;
        }
        if port.egress.flow_due != 0 {
            return self.send_credits(at);
        }
        self.expire(at);
        match choose(&mut self.ports[at as usize], now) {
            Some(queued) => self.send(at, queued),
            None => self.wait(at),
        }
    }

    fn send_credits(&mut self, at: u32) {
        let port = &mut self.ports[at as usize];
        let vl = port.egress.flow_due.trailing_zeros() as u8;
        port.egress.flow_due &= !(1 << vl);
        let lane = &port.lanes[usize::from(vl)];
        let initial = port.logical == state::Logical::Init;
        let (sent, limit) = (lane.sender.sent(), lane.receiver.limit());
        let header = flow_control::Header { initial, sent, vl, limit };
        self.put(at, FLOW_BYTES, vl, Happening::Flow(header));
        let port = &self.ports[at as usize];
        if port.egress.flow_due != 0 || port.backlog() > 0 {
            self.kicked.push_back(at);
        }
    }

    fn send(&mut self, at: u32, queued: Queued) {
        let Queued { frame, hold, .. } = queued;
        let port = &mut self.ports[at as usize];
        let (bytes, vl) = (frame.wire_len(), frame.lrh.vl);
        if let Some(lane) = port.lanes.get_mut(usize::from(vl)) {
            lane.sender.send(frame.blocks());
        }
        port.counters.sent.count(&frame);
        if port.egress.captures {
            let copy = Delivery { time: self.now, end: self.end(at), frame: frame.clone() };
            self.captured.push(copy);
        }
        let port = &mut self.ports[at as usize];
        let more = !matches!(hold, Hold::Nothing) || port.backlog() > 0;
        port.egress.sending = hold;
        self.put(at, bytes, vl, Happening::Arrive(frame));
        if more {
            self.kicked.push_back(at);
        }
    }

    /// Puts a packet on the wire, where the fault of the link may damage it. The CRCs find every
    /// single changed bit, so a damaged packet needs no bytes.
    fn put(&mut self, at: u32, bytes: usize, vl: u8, what: Happening) {
        let now = self.now;
        let port = &mut self.ports[at as usize];
        let Some(peer) = port.peer else { return };
        let fault = port.egress.fault;
        let time = port.rate.time_of(bytes) * (1 + Time::from(fault.slower));
        port.egress.busy_until = now + time;
        let arrival = now + time + port.delay;
        port.egress.fault_count = port.egress.fault_count.wrapping_add(1);
        if fault.corrupt_every == 0 || !port.egress.fault_count.is_multiple_of(fault.corrupt_every) {
            return self.push(arrival, peer, what);
        }
        // The credits of what is lost come back with the next repetition.
        if usize::from(vl) < port.lanes.len() {
            let (refresh, armed) = (port.rate.refresh(), port.egress.refresh != 0);
            port.egress.refresh |= 1 << vl;
            if !armed {
                self.push(now + refresh, at, Happening::Refresh);
            }
        }
        self.push(arrival, peer, Happening::Damaged);
    }

    /// Drops the packets that have waited too long at the head of their lanes.
    fn expire(&mut self, at: u32) {
        for vl in 0..self.ports[at as usize].lanes.len() {
            loop {
                let now = self.now;
                let port = &mut self.ports[at as usize];
                let Some((_, cause)) = port.deadline(&port.lanes[vl]).filter(|(time, _)| *time <= now) else { break };
                let lane = &mut port.lanes[vl];
                let Some(queued) = lane.queue.pop_front() else { break };
                lane.head_since = now;
                port.counters.drop(cause);
                self.release(queued.hold);
            }
        }
    }

    /// Nothing can leave: notes since when, and wakes up when a packet expires.
    fn wait(&mut self, at: u32) {
        let now = self.now;
        let port = &mut self.ports[at as usize];
        if port.lanes.iter().all(|lane| lane.queue.is_empty()) {
            port.egress.waiting_since = None;
            return;
        }
        port.egress.waiting_since.get_or_insert(now);
        let deadline = port.lanes.iter().filter_map(|lane| port.deadline(lane)).map(|(time, _)| time).min();
        if let Some(time) = deadline {
            self.wake(at, time);
        }
    }

    /// Counts how long a port has waited until now, if it still waits.
    pub(crate) fn count_wait(&mut self, end: End) {
        let Some(at) = self.index(end) else { return };
        let (now, port) = (self.now, &mut self.ports[at as usize]);
        if let Some(since) = &mut port.egress.waiting_since {
            port.counters.waited += now - std::mem::replace(since, now);
        }
    }

    fn wake(&mut self, at: u32, time: Time) {
        let wake = &mut self.ports[at as usize].egress.wake;
        if wake.is_none_or(|earlier| earlier > time) {
            *wake = Some(time);
            self.push(time, at, Happening::Wake);
        }
    }
}

/// Takes the packet that leaves next from its queue.
fn choose(port: &mut Port, now: Time) -> Option<Queued> {
    if let Some(queued) = port.egress.management.pop_front() {
        return Some(queued);
    }
    if !port.logical.sends(false) {
        return None;
    }
    let mut arbiter = port.egress.arbiter;
    let vl = arbiter.next(&port.settings.arbitration, |vl| port.ready(vl))?;
    port.egress.arbiter = arbiter;
    if let Some(since) = port.egress.waiting_since.take() {
        port.counters.waited += now - since;
    }
    let lane = &mut port.lanes[usize::from(vl)];
    lane.head_since = now;
    lane.queue.pop_front()
}

/// The place of a packet that has just arrived.
pub(super) fn hold_at(at: u32, frame: &Frame) -> Hold {
    if frame.is_management() {
        return Hold::Nothing;
    }
    Hold::One(Place { port: at, vl: frame.lrh.vl, blocks: frame.blocks() })
}
