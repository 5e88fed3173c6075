//! Deadlocks: in the tables of a fabric, before any packet runs, and among the packets that wait.
//!
//! A channel is the egress port of a link with one lane. Packets in the buffer behind a channel
//! wait for the channels that they leave by. If channels wait for each other in a circle, and all
//! are full, nothing in the circle ever moves. These methods look at the whole fabric: they are for
//! diagnosis, and no step uses them. Principal types: [`Channel`], and the methods
//! [`Fabric::routing_cycle`] and [`Fabric::deadlock`].

use crate::fabric::{End, Fabric, Kind, NodeId};
use crate::port::Place;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A lane of a link, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel {
    /// The switch or end node that sends.
    pub node: NodeId,
    /// Its port.
    pub port: u8,
    /// The lane.
    pub vl: u8,
}

impl fmt::Display for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {} port {} VL {}", self.node.0, self.port, self.vl)
    }
}

/// The index of an egress port, and a lane.
type Edge = (u32, u8);
type Graph = BTreeMap<Edge, BTreeSet<Edge>>;

impl Fabric {
    /// A circle of channels that wait for each other by the tables, for packets of these service
    /// levels from any end port to any unicast LID. `None`: the routes cannot deadlock.
    #[must_use]
    pub fn routing_cycle(&self, service_levels: &[u8]) -> Option<Vec<Channel>> {
        let mut graph = Graph::new();
        let lids = self.nodes.iter().map(|node| match &node.kind {
            Kind::Switch(switch) => switch.linear.len(),
            _ => 0,
        });
        let sources: Vec<u32> = (0..self.ports.len() as u32).filter(|at| self.begins_packets(*at)).collect();
        for dlid in 1..lids.max().unwrap_or(0) {
            for sl in service_levels {
                self.depend(&sources, dlid as u16, *sl, &mut graph);
            }
        }
        self.cycle(&graph)
    }

    /// Whether a port is one of an end node or a router, with a cable.
    fn begins_packets(&self, at: u32) -> bool {
        let port = &self.ports[at as usize];
        port.peer.is_some() && !matches!(self.nodes[port.node as usize].kind, Kind::Switch(_))
    }

    /// Adds the channels that packets to one LID use, from every end port.
    fn depend(&self, sources: &[u32], dlid: u16, sl: u8, graph: &mut Graph) {
        // Packets that arrive at a port on a lane go on alike, wherever they began.
        let mut seen: BTreeSet<Edge> = BTreeSet::new();
        for &source in sources {
            let Some(vl) = self.ports[source as usize].settings.sl_to_vl.vl(sl) else { continue };
            let mut channel = (source, vl);
            while seen.insert(channel) {
                let Some(next) = self.next_channel(channel.0, dlid, sl) else { break };
                graph.entry(channel).or_default().insert(next);
                channel = next;
            }
        }
    }

    /// The channel by which a packet leaves the switch behind a channel.
    fn next_channel(&self, from: u32, dlid: u16, sl: u8) -> Option<Edge> {
        let ingress = &self.ports[self.ports[from as usize].peer? as usize];
        let node = &self.nodes[ingress.node as usize];
        let Kind::Switch(switch) = &node.kind else { return None };
        let egress = switch.route(dlid).filter(|port| *port > 0 && *port <= node.ports && *port != ingress.number)?;
        let at = node.first + u32::from(egress);
        self.ports[at as usize].peer?;
        Some((at, switch.vl(ingress.number, egress, sl)?))
    }

    /// The channels whose first packet waits for credits, and since when.
    #[must_use]
    pub fn stalls(&self) -> Vec<(Channel, crate::Time)> {
        let stalled = self.blocked();
        let since = |edge: &Edge| self.ports[edge.0 as usize].lanes[usize::from(edge.1)].head_since;
        stalled.iter().map(|edge| (self.channel(*edge), since(edge))).collect()
    }

    /// A circle of channels in which packets wait for each other and will never move. `None`: every
    /// packet that waits can still move.
    #[must_use]
    pub fn deadlock(&self) -> Option<Vec<Channel>> {
        let mut stuck = self.blocked();
        // A buffer empties if one of its packets can move, or if an end node takes from it.
        let waits: Graph = stuck.iter().map(|edge| (*edge, self.waits_for(*edge))).collect();
        loop {
            let moves = |edge: &&Edge| waits[*edge].is_empty() || !waits[*edge].is_subset(&stuck);
            let moving: Vec<Edge> = stuck.iter().filter(moves).copied().collect();
            if moving.is_empty() {
                break;
            }
            moving.iter().for_each(|edge| {
                stuck.remove(edge);
            });
        }
        let graph = waits.into_iter().filter(|(edge, _)| stuck.contains(edge)).collect();
        self.cycle(&graph)
    }

    fn blocked(&self) -> BTreeSet<Edge> {
        let lanes = self.ports.iter().enumerate().flat_map(|(at, port)| {
            let blocked = move |vl: &usize| self.is_blocked(at as u32, *vl as u8);
            (0..port.lanes.len()).filter(blocked).map(move |vl| (at as u32, vl as u8))
        });
        lanes.collect()
    }

    /// Whether the first packet of a channel has no credits, and none are on their way.
    fn is_blocked(&self, at: u32, vl: u8) -> bool {
        let port = &self.ports[at as usize];
        let Some(head) = port.lanes[usize::from(vl)].queue.front() else { return false };
        let behind = port.peer.and_then(|peer| self.ports[peer as usize].lanes.get(usize::from(vl)));
        port.ready(vl).is_none() && behind.is_none_or(|lane| lane.receiver.free() < head.frame.blocks())
    }

    /// The channels by which the packets in the buffer behind a channel leave. None, if one of them
    /// is on the wire just now.
    fn waits_for(&self, (at, vl): Edge) -> BTreeSet<Edge> {
        let Some(peer) = self.ports[at as usize].peer else { return BTreeSet::new() };
        let node = &self.nodes[self.ports[peer as usize].node as usize];
        let count = u32::from(node.ports) + u32::from(matches!(node.kind, Kind::Switch(_)));
        let mut found = BTreeSet::new();
        let behind = |place: &Place| (place.port, place.vl) == (peer, vl);
        for egress in node.first..node.first + count {
            if self.ports[egress as usize].egress.sending.place().as_ref().is_some_and(behind) {
                return BTreeSet::new();
            }
            for (lane, queue) in self.ports[egress as usize].lanes.iter().map(|lane| &lane.queue).enumerate() {
                if queue.iter().filter_map(|queued| queued.hold.place()).any(|place| behind(&place)) {
                    found.insert((egress, lane as u8));
                }
            }
        }
        found
    }

    fn channel(&self, (at, vl): Edge) -> Channel {
        let End { node, port } = self.end(at);
        Channel { node, port, vl }
    }

    /// A circle of the graph, by depth-first search without recursion.
    fn cycle(&self, graph: &Graph) -> Option<Vec<Channel>> {
        let mut done: BTreeSet<Edge> = BTreeSet::new();
        for start in graph.keys() {
            if done.contains(start) {
                continue;
            }
            let mut path = vec![*start];
            let mut open: Vec<Vec<Edge>> = vec![next(graph, *start)];
            while let Some(children) = open.last_mut() {
                let Some(child) = children.pop() else {
                    open.pop();
                    done.extend(path.pop());
                    continue;
                };
                if let Some(at) = path.iter().position(|edge| *edge == child) {
                    return Some(path[at..].iter().map(|edge| self.channel(*edge)).collect());
                }
                if !done.contains(&child) {
                    path.push(child);
                    open.push(next(graph, child));
                }
            }
        }
        None
    }
}

fn next(graph: &Graph, edge: Edge) -> Vec<Edge> {
    graph.get(&edge).into_iter().flatten().rev().copied().collect()
}
