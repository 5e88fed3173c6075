//! What happens at a time and not by a packet: traps that are sent, links that go down after the
//! answer to the Set, and samples of counters. The causes of traps are in [`super::mirror`] and
//! [`super::agents`]. Principal type: [`Timer`].

use super::{Datagram, Managed, Output};
use crate::fabric::{End, NodeId};
use crate::rate::{MICROSECOND, Time};
use crate::state::{Event, Physical};
use mad::traps::Traps;
use std::time::Duration;
use wire::layout::Layout;
use wire::notice::Notice;

/// How long a link stays up after the Set that takes it down.
pub const LINK_DELAY: Time = 100 * MICROSECOND;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A port may send a trap.
    Trap(End),
    /// A port is switched on, or trains again.
    Restart(End),
    /// A port is switched off.
    Disable(End),
    /// A tunnel says hello.
    Tunnel(usize),
    /// Changed paths are sent to the peers of tunnels.
    Reach,
    /// The owner counts what it carries by itself, before a node samples its counters.
    Count(NodeId),
    /// A node samples its counters.
    Sample(NodeId),
    /// The agents answer what asks for PortInfo.
    Answer,
}

/// A time of the agents as one of the model.
fn time(duration: Duration) -> Time {
    Time::try_from(duration.as_nanos().saturating_mul(1000)).unwrap_or(Time::MAX)
}

impl Managed {
    /// Carries out all timers that are due.
    pub(super) fn fire(&mut self) {
        while let Some((_, timer)) = self.timers.first().copied().filter(|(time, _)| *time <= self.fabric.now()) {
            self.timers.pop_first();
            match timer {
                Timer::Trap(end) => self.send_trap(end),
                Timer::Restart(end) => self.restart(end),
                Timer::Disable(end) => self.fabric.set_enabled(end, false),
                Timer::Tunnel(index) => self.tunnel_time(index),
                Timer::Reach => self.tell_reach(),
                Timer::Count(node) => {
                    self.outputs.push(Output::Count);
                    self.timers.insert((self.fabric.now() + 1, Timer::Sample(node)));
                }
                Timer::Sample(node) => self.sample(node),
                Timer::Answer => self.serve_asked(),
            }
        }
    }

    pub(super) fn restart(&mut self, end: End) {
        if self.fabric.port(end).is_some_and(|port| port.physical() == Physical::Disabled) {
            self.fabric.set_enabled(end, true);
        } else {
            // Any state may be left for DOWN.
            let _ = self.fabric.set_state(end, Event::SetDown);
        }
    }

    pub(super) fn after_answer(&mut self, timer: Timer) {
        self.timers.insert((self.fabric.now() + LINK_DELAY, timer));
    }

    /// A notice of an end port, without the port's LID, which the trap adds.
    pub(super) fn notice<T: Layout>(&self, end: End, kind: u8, number: u16, details: T) -> Notice {
        let producer = self.node(end.node).map_or(0, |node| node.info.node_type.into());
        Notice::with(kind, producer, number, self.lid(end), details)
    }

    /// An end port has something to tell. Without a manager it is lost.
    pub(super) fn trap(&mut self, end: End, notice: Notice) {
        if !self.has_manager(end) {
            return;
        }
        let traps = self.traps.entry(end).or_default();
        traps.push(notice);
        if let Some(deadline) = traps.deadline() {
            self.timers.insert((time(deadline).max(self.fabric.now()), Timer::Trap(end)));
        }
    }

    /// A node samples the counters of a port.
    fn sample(&mut self, id: NodeId) {
        let Some(port) = self.node(id).map(|node| node.samples.port()) else { return };
        self.count(id, port);
        let now = self.clock();
        if let Some(node) = self.nodes.get_mut(id.0 as usize) {
            node.sample(now);
        }
        self.await_sample(id);
    }

    /// Waits for the time at which a node samples its counters next.
    pub(super) fn await_sample(&mut self, id: NodeId) {
        if let Some(deadline) = self.node(id).and_then(|node| node.samples.deadline()) {
            self.timers.insert((time(deadline).max(self.fabric.now()), Timer::Count(id)));
        }
    }

    /// How many traps of an end port wait until a manager represses them.
    #[must_use]
    pub fn waiting_traps(&self, end: End) -> usize {
        self.traps.get(&end).map_or(0, Traps::waiting)
    }

    fn has_manager(&self, end: End) -> bool {
        self.port(end).is_some_and(|port| port.info.lid != 0 && port.info.master_sm_lid != 0)
    }

    fn send_trap(&mut self, end: End) {
        if !self.has_manager(end) {
            self.traps.remove(&end);
            return;
        }
        let (now, info) = (self.clock(), self.port(end).map(|port| port.info).unwrap_or_default());
        let Some(traps) = self.traps.get_mut(&end) else { return };
        let trap = traps.poll_transmit(&info, now);
        match traps.deadline() {
            Some(deadline) => {
                let next = time(deadline).max(self.fabric.now() + MICROSECOND);
                self.timers.insert((next, Timer::Trap(end)));
            }
            None => {
                self.traps.remove(&end);
            }
        }
        if let Some(trap) = trap {
            let datagram = Datagram::smp(info.lid, info.master_sm_lid, info.master_sm_sl, trap.to_mad());
            // The next repetition may find a way.
            let _ = self.put(end, &datagram);
        }
    }

    /// The manager has received a trap. Returns whether it was one of this port's agent.
    pub(super) fn repressed(&mut self, end: End, transaction: u64) -> bool {
        self.traps.get_mut(&end).is_some_and(|traps| traps.repress(transaction))
    }
}
