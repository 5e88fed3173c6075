//! The fabric: nodes, their ports, links between them, and one queue of events. Packets go in by
//! [`Fabric::inject`] and come out of [`Fabric::advance`]. Only the owner moves time.
//!
//! Events are ordered by time and then by the order in which they came about, so that equal calls
//! give equal results. A step touches the ports that an event concerns, and no other: an idle link
//! costs nothing. Flow-control packets are sent when they tell something new; the repetition that
//! the IBA demands after at most 65,536 symbol times is sent where something was damaged, because
//! elsewhere it changes nothing.
//!
//! Switches store and forward. A packet is checked as a whole before it goes on, so a damaged
//! packet dies behind the link that damaged it, and a hop is one event. Cut-through would save the
//! time of a packet per hop; credits, arbitration and throughput would be the same.
//!
//! A packet waits at its egress port, and occupies the receive buffer of the lane that it came in
//! by until it has left. So a congested egress port fills the ingress buffers, and packets to other
//! ports wait behind it: the head-of-line stall of a real switch.
//!
//! Principal type: [`Fabric`].

mod forward;
mod notes;
mod resolve;
mod step;
mod training;
pub mod tree;

pub use notes::Note;
pub use resolve::{Hop, NoPath, Passage, Path, Probe};
pub use training::{RECOVERY, Refused, TRAINING};

use crate::arbitration::Tables;
use crate::counters::Cause;
use crate::frame::Frame;
use crate::port::{Fault, Port, Settings};
use crate::rate::Time;
use crate::router::Router;
use crate::switch::Switch;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use wire::{flow_control, lrh};

/// A node of a fabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

/// A port of a node. Ports count from 1; port 0 of a switch is the switch itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// The node.
    pub node: NodeId,
    /// The port's number.
    pub port: u8,
}

/// What a node is.
#[derive(Debug)]
pub enum Kind {
    /// A channel adapter: a source and a sink of packets.
    Hca,
    /// A switch with its tables.
    Switch(Box<Switch>),
    /// A router with its tables.
    Router(Box<Router>),
    /// The far end of a link out of this fabric. What reaches it is delivered to the owner, and
    /// what the owner injects there comes from outside, with the lane that it has.
    Outside,
}

/// A node: what it is, and who.
#[derive(Debug)]
pub struct Node {
    pub(crate) kind: Kind,
    /// The index of port 1, or of port 0 for a switch.
    pub(crate) first: u32,
    pub(crate) ports: u8,
    /// The node GUID.
    pub guid: u64,
    /// The GUID of the system that the node is a part of.
    pub system_guid: u64,
    /// The epoch in which the node, a port or a link of it changed last.
    pub(crate) changed: u64,
}

/// A packet that has reached its destination, or the owner of a switch or router; also a copy in a
/// capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// When.
    pub time: Time,
    /// The port that it came in by; port 0 of a switch if the switch sent it to itself. In a
    /// capture the port that sent it.
    pub end: End,
    /// The packet.
    pub frame: Frame,
}

#[derive(Debug, PartialEq, Eq)]
enum Happening {
    Arrive(Frame),
    Damaged,
    Flow(flow_control::Header),
    Wake,
    Refresh,
    Trained,
    GiveUp,
    /// A packet of an end port to itself.
    Local(Frame),
}

#[derive(Debug, PartialEq, Eq)]
struct QueuedEvent {
    time: Time,
    sequence: u64,
    port: u32,
    generation: u32,
    what: Happening,
}

impl Ord for QueuedEvent {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.time, self.sequence).cmp(&(other.time, other.sequence))
    }
}

impl PartialOrd for QueuedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// Why two ports cannot be connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unconnectable {
    /// A port does not exist, or is port 0.
    #[error("there is no such port, or it has no cable")]
    NoPort,
    /// A port has a cable already.
    #[error("the port is connected already")]
    Connected,
}

/// A fabric in simulated time.
#[derive(Debug, Default)]
pub struct Fabric {
    pub(crate) nodes: Vec<Node>,
    pub(crate) ports: Vec<Port>,
    events: BinaryHeap<Reverse<QueuedEvent>>,
    sequence: u64,
    now: Time,
    epoch: u64,
    processed: u64,
    deliveries: Vec<Delivery>,
    captured: Vec<Delivery>,
    /// What happened, if the owner watches.
    notes: Option<Vec<Note>>,
    /// Ports that may be able to send now.
    kicked: VecDeque<u32>,
    tables: Option<Arc<Tables>>,
}

impl Fabric {
    /// An empty fabric at time 0.
    #[must_use]
    pub fn new() -> Fabric {
        Fabric::default()
    }

    /// Adds a channel adapter. Its port GUIDs follow its node GUID.
    pub fn add_hca(&mut self, guid: u64, ports: u8) -> NodeId {
        self.add(Kind::Hca, guid, ports)
    }

    /// Adds a switch with ports 1 to `ports`, and port 0. Its external ports have GUIDs in
    /// listings only; on the wire a switch tells that of port 0.
    pub fn add_switch(&mut self, guid: u64, ports: u8) -> NodeId {
        self.add(Kind::Switch(Box::default()), guid, ports)
    }

    /// Adds a router.
    pub fn add_router(&mut self, guid: u64, ports: u8) -> NodeId {
        self.add(Kind::Router(Box::default()), guid, ports)
    }

    /// Adds the far end of a link out of this fabric.
    pub fn add_outside(&mut self, ports: u8) -> NodeId {
        self.add(Kind::Outside, 0, ports)
    }

    fn add(&mut self, kind: Kind, guid: u64, ports: u8) -> NodeId {
        let (id, first) = (self.nodes.len() as u32, self.ports.len() as u32);
        // 255 is the entry of a table that leads nowhere.
        let ports = ports.min(254);
        let tables = self.tables.get_or_insert_with(|| Arc::new(equal_shares())).clone();
        let lowest = u8::from(!matches!(kind, Kind::Switch(_)));
        for number in lowest..=ports {
            let settings = Settings::new(guid.wrapping_add(u64::from(number)), tables.clone());
            self.ports.push(Port::new(id, number, lowest == 0, settings));
        }
        self.epoch += 1;
        self.nodes.push(Node { kind, first, ports, guid, system_guid: guid, changed: self.epoch });
        NodeId(id)
    }

    /// Connects two ports with a cable on which a bit takes `delay`. Training begins.
    ///
    /// # Errors
    /// A port does not exist or is connected.
    pub fn connect(&mut self, a: End, b: End, delay: Time) -> Result<(), Unconnectable> {
        let index = |end: End| self.index(end).filter(|_| end.port != 0).ok_or(Unconnectable::NoPort);
        let ends = [index(a)?, index(b)?];
        if a == b || ends.iter().any(|at| self.ports[*at as usize].peer.is_some()) {
            return Err(Unconnectable::Connected);
        }
        for (own, peer) in [(ends[0], ends[1]), (ends[1], ends[0])] {
            let port = &mut self.ports[own as usize];
            (port.peer, port.delay) = (Some(peer), delay);
            self.touch(own);
        }
        self.train(ends[0]);
        Ok(())
    }

    /// The current time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// A number that changes whenever a table, a setting or a state changes that paths depend on.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The epoch in which a node changed last: its tables, or a setting or state of its ports. A
    /// path still holds if no node that it was resolved by has changed since.
    #[must_use]
    pub fn changed(&self, node: NodeId) -> u64 {
        self.node(node).map_or(self.epoch, |node| node.changed)
    }

    /// How many events have been processed.
    #[must_use]
    pub const fn processed(&self) -> u64 {
        self.processed
    }

    /// How many nodes there are. Their ids count from 0.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there are no nodes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// A node.
    #[must_use]
    pub fn node(&self, node: NodeId) -> Option<&Node> {
        self.nodes.get(node.0 as usize)
    }

    /// A node, to change who it is or what its tables say. Paths may change with it.
    pub fn node_mut(&mut self, node: NodeId) -> Option<&mut Node> {
        self.epoch += 1;
        let node = self.nodes.get_mut(node.0 as usize)?;
        node.changed = self.epoch;
        Some(node)
    }

    /// The tables of a switch, to change them.
    pub fn switch_mut(&mut self, node: NodeId) -> Option<&mut Switch> {
        match &mut self.node_mut(node)?.kind {
            Kind::Switch(switch) => Some(switch),
            _ => None,
        }
    }

    /// The tables of a router, to change them.
    pub fn router_mut(&mut self, node: NodeId) -> Option<&mut Router> {
        match &mut self.node_mut(node)?.kind {
            Kind::Router(router) => Some(router),
            _ => None,
        }
    }

    /// A port.
    #[must_use]
    pub fn port(&self, end: End) -> Option<&Port> {
        self.index(end).map(|at| &self.ports[at as usize])
    }

    /// The settings of a port, to change them. The number of lanes and the size of their buffers
    /// may change only before the port is connected.
    pub fn settings_mut(&mut self, end: End) -> Option<&mut Settings> {
        let at = self.index(end)?;
        self.touch(at);
        Some(&mut self.ports[at as usize].settings)
    }

    /// The other end of a port's cable.
    #[must_use]
    pub fn peer(&self, end: End) -> Option<End> {
        self.port(end)?.peer.map(|peer| self.end(peer))
    }

    /// Makes one direction of a link bad: what this port sends.
    pub fn set_fault(&mut self, end: End, fault: Fault) {
        if let Some(at) = self.index(end) {
            let egress = &mut self.ports[at as usize].egress;
            (egress.fault, egress.fault_count) = (fault, 0);
        }
    }

    /// Begins or ends to keep copies of the packets that a port sends.
    pub fn capture(&mut self, end: End, on: bool) {
        if let Some(at) = self.index(end) {
            self.ports[at as usize].egress.captures = on;
        }
    }

    /// The copies that were kept, in order: when and where each packet was sent, and the packet as
    /// on this link.
    pub fn captured(&mut self) -> Vec<Delivery> {
        std::mem::take(&mut self.captured)
    }

    /// The port's receiver takes no more packets. They stay in its buffer, and the sender stops
    /// when its credits are used up.
    pub fn stop(&mut self, end: End) {
        if let Some(at) = self.index(end) {
            self.ports[at as usize].held.get_or_insert_default();
        }
    }

    /// The port's receiver takes packets again.
    pub fn resume(&mut self, end: End) {
        let Some(at) = self.index(end) else { return };
        for frame in self.ports[at as usize].held.take().into_iter().flatten() {
            self.dispatch(at, frame);
        }
        self.send_all();
    }

    /// Puts a packet into the fabric: at a port of an end node, at port 0 of a switch (which routes
    /// it by its tables), or at another port of a switch or router, for management packets on a
    /// directed route. The lane is 15 for management packets; otherwise it follows from the service
    /// level. Management packets have no credits: if too many wait at a port, it drops the next one
    /// and counts it.
    ///
    /// # Errors
    /// The port drops the packet at once, and why.
    pub fn inject(&mut self, end: End, frame: Frame) -> Result<(), Cause> {
        let at = self.index(end).ok_or(Cause::EgressDown)?;
        let sent = self.send_from(at, end, frame);
        if let Err(cause) = sent {
            self.ports[at as usize].counters.drop(cause);
        }
        self.send_all();
        sent
    }

    fn send_from(&mut self, at: u32, end: End, frame: Frame) -> Result<(), Cause> {
        if frame.lrh.dlid == 0 || frame.lrh.dlid == lrh::LID_PERMISSIVE && !frame.is_management() {
            return Err(Cause::BadLid);
        }
        if end.port == 0 {
            self.dispatch(at, frame);
            return Ok(());
        }
        let port = &self.ports[at as usize];
        if port.relays && !frame.is_management() {
            return Err(Cause::NoRoute);
        }
        let is_outside = matches!(self.nodes[port.node as usize].kind, Kind::Outside);
        let vl = if is_outside { Some(frame.lrh.vl) } else { port.settings.sl_to_vl.vl(frame.lrh.sl) };
        let vl = port.admits(&frame, vl)?;
        if port.settings.identity.has(frame.lrh.dlid) {
            self.push(self.now, at, Happening::Local(frame));
        } else {
            self.enqueue(at, vl, frame, Default::default(), Time::MAX);
        }
        Ok(())
    }

    /// When the next event is due.
    #[must_use]
    pub fn next_event(&self) -> Option<Time> {
        self.events.peek().map(|Reverse(event)| event.time)
    }

    /// Processes all events up to and including `until`, sets the time to it, and returns what was
    /// delivered, in order.
    pub fn advance(&mut self, until: Time) -> Vec<Delivery> {
        while self.next_event().is_some_and(|time| time <= until) {
            if let Some(Reverse(event)) = self.events.pop() {
                self.now = event.time;
                self.processed += 1;
                self.process(event);
                self.send_all();
            }
        }
        self.now = self.now.max(until);
        std::mem::take(&mut self.deliveries)
    }

    pub(crate) fn index(&self, end: End) -> Option<u32> {
        let node = self.node(end.node)?;
        let offset = match node.kind {
            Kind::Switch(_) => end.port,
            _ => end.port.checked_sub(1)?,
        };
        (end.port <= node.ports).then_some(node.first + u32::from(offset))
    }

    pub(crate) fn end(&self, at: u32) -> End {
        let port = &self.ports[at as usize];
        End { node: NodeId(port.node), port: port.number }
    }

    /// Something of a port changes that paths depend on.
    fn touch(&mut self, at: u32) {
        self.epoch += 1;
        self.nodes[self.ports[at as usize].node as usize].changed = self.epoch;
    }

    fn push(&mut self, time: Time, port: u32, what: Happening) {
        let generation = self.ports[port as usize].generation;
        self.sequence += 1;
        self.events.push(Reverse(QueuedEvent { time, sequence: self.sequence, port, generation, what }));
    }

    fn send_all(&mut self) {
        while let Some(port) = self.kicked.pop_front() {
            self.transmit(port);
        }
    }
}

impl Node {
    /// What the node is.
    #[must_use]
    pub const fn kind(&self) -> &Kind {
        &self.kind
    }

    /// How many ports it has, port 0 not counted.
    #[must_use]
    pub const fn ports(&self) -> u8 {
        self.ports
    }
}

/// All lanes with equal weights.
fn equal_shares() -> Tables {
    let lanes: Vec<(u8, u8)> = (0..15).map(|vl| (vl, 64)).collect();
    Tables::new(&[], &lanes, 0)
}
