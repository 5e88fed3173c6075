//! The path that packets to an address take, by the tables and states as they are. It uses the same
//! rules as packets do. A path holds as long as the nodes that it was resolved by do not change
//! ([`Fabric::changed`]). Not the tree of a multicast group, which is in `tree`. Principal types:
//! [`Probe`], [`Path`], [`Passage`].

use super::{End, Fabric, Kind, NodeId};
use crate::counters::Cause;
use crate::port::{Port, Settings};
use crate::rate::{Mtu, Rate, Time};
use crate::state::Logical;
use wire::Grh;
use wire::lrh;

/// The most switches and routers on a path; more are a loop.
pub(super) const MOST_HOPS: usize = 64;

/// A packet whose way is looked for: what of it decides where it goes, and whether it is dropped.
/// The source LID does not matter to a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// The destination LID.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
    /// The GRH, by which a router forwards the packet.
    pub grh: Option<Grh>,
    /// The P_Key; without it, no port enforces partitions.
    pub pkey: Option<u16>,
    /// Bytes of payload, which fit into the MTU of a link or not.
    pub payload: usize,
}

impl Probe {
    /// Whether it goes to a multicast LID.
    #[must_use]
    pub fn is_multicast(&self) -> bool {
        self.header().is_multicast()
    }

    pub(super) fn header(&self) -> lrh::Header {
        lrh::Header { dlid: self.dlid, sl: self.sl, ..lrh::Header::default() }
    }
}

/// A switch or router on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The switch or router.
    pub node: NodeId,
    /// The port that packets come in by.
    pub ingress: u8,
    /// The port that they leave by.
    pub egress: u8,
    /// The lane that they leave on.
    pub vl: u8,
}

/// A path from one end port to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// The epoch for which the path was resolved.
    pub epoch: u64,
    /// The lane of the first link.
    pub vl: u8,
    /// The switches and routers, in order.
    pub hops: Vec<Hop>,
    /// How many hops come before the first router. From there on a router has chosen the service
    /// level.
    pub own_hops: usize,
    /// The port that has the LID: that of an end node or a router, port 0 of a switch, or the far
    /// end of a link out of this fabric.
    pub end: End,
    /// The lowest rate of all links.
    pub rate: Rate,
    /// The smallest MTU of all links.
    pub mtu: Mtu,
    /// The port that sends on the first link with that MTU.
    pub narrowest: End,
    /// The time that a bit takes, without the time that packets wait.
    pub delay: Time,
}

/// Why there is no path: the port that drops the packets, and the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("node {} port {}: {cause}", .end.node.0, .end.port)]
pub struct NoPath {
    /// Where.
    pub end: End,
    /// Why.
    pub cause: Cause,
}

/// Whether packets pass, and what that depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The service levels with which packets pass, as bits, and the path of the lowest.
    pub found: Result<(u16, Path), NoPath>,
    /// The nodes that this was resolved by. If none of them has changed, nothing has.
    pub nodes: Vec<NodeId>,
}

impl Fabric {
    /// The path from an end port to a unicast LID of its subnet.
    ///
    /// # Errors
    /// Packets would be dropped on the way.
    pub fn resolve(&self, from: End, dlid: u16, sl: u8) -> Result<Path, NoPath> {
        self.resolve_to(from, &Probe { dlid, sl, ..Probe::default() })
    }

    /// The path of a packet from an end port, also to another subnet.
    ///
    /// # Errors
    /// The packet would be dropped on the way.
    pub fn resolve_to(&self, from: End, probe: &Probe) -> Result<Path, NoPath> {
        let (path, lost) = self.trace(from, probe);
        lost.map_or(Ok(path), Err)
    }

    /// The way of a packet from an end port to a unicast LID, as far as it gets, and where and why
    /// it is dropped.
    #[must_use]
    pub fn trace(&self, from: End, probe: &Probe) -> (Path, Option<NoPath>) {
        self.trace_by(from, probe, &mut Vec::new())
    }

    fn trace_by(&self, from: End, probe: &Probe, nodes: &mut Vec<NodeId>) -> (Path, Option<NoPath>) {
        let port = self.port(from);
        let mut path = Path {
            epoch: self.epoch,
            vl: 0,
            hops: Vec::new(),
            own_hops: 0,
            end: from,
            rate: port.map_or_else(Rate::default, |port| port.rate),
            mtu: port.map_or_else(Mtu::default, |port| port.settings.mtu),
            narrowest: from,
            delay: 0,
        };
        let lost = self.walk(&mut path, *probe, nodes).err();
        (path, lost)
    }

    /// The service levels with which packets reach a LID, as bits, and the path of the lowest.
    ///
    /// # Errors
    /// Packets of no service level pass.
    pub fn service_levels(&self, from: End, dlid: u16) -> Result<(u16, Path), NoPath> {
        self.passage(from, &Probe { dlid, ..Probe::default() }).found
    }

    /// Whether packets to an address pass, for all service levels. The tables are the same for all
    /// of them, so they differ only in their lanes.
    #[must_use]
    pub fn passage(&self, from: End, probe: &Probe) -> Passage {
        let (mut sl, mut nodes) = (0, Vec::new());
        let path = loop {
            nodes.clear();
            match self.trace_by(from, &Probe { sl, ..*probe }, &mut nodes) {
                (_, Some(NoPath { cause: Cause::NoVl, .. })) if sl < 15 => sl += 1,
                (path, lost) => break lost.map_or(Ok(path), Err),
            }
        };
        let found = path.map(|path| {
            let passes = |sl: u8| {
                let first = self.index(from).filter(|_| path.end != from);
                let lane = |at: u32| self.leave(at, self.ports[at as usize].settings.sl_to_vl.vl(sl), probe);
                let own = path.hops.iter().take(path.own_hops);
                first.is_none_or(|at| lane(at).is_ok()) && own.into_iter().all(|hop| self.hop_passes(hop, sl, probe))
            };
            ((sl..16).filter(|sl| passes(*sl)).fold(0, |levels, sl| levels | 1 << sl), path)
        });
        Passage { found, nodes }
    }

    /// Follows a packet from the end of a path that has just begun, and notes the nodes on the way.
    fn walk(&self, path: &mut Path, mut probe: Probe, nodes: &mut Vec<NodeId>) -> Result<(), NoPath> {
        let no_path = |end, cause| NoPath { end, cause };
        let from = path.end;
        nodes.push(from.node);
        let mut at = self.index(from).ok_or(no_path(from, Cause::EgressDown))?;
        let settings = &self.ports[at as usize].settings;
        if settings.identity.has(probe.dlid) {
            return Ok(());
        }
        if probe.is_multicast() {
            return Err(no_path(from, Cause::BadLid));
        }
        let vl = settings.sl_to_vl.vl(probe.sl);
        path.vl = self.leave(at, vl, &probe).map_err(|cause| no_path(from, cause))?;
        let mut routed = false;
        loop {
            at = self.cross(at, path, nodes).map_err(|cause| no_path(self.end(at), cause))?;
            let here = self.end(at);
            let (egress, vl) = match self.next(at, &mut probe).map_err(|cause| no_path(here, cause))? {
                Next::Here(port) => {
                    path.end = End { port, ..here };
                    return Ok(());
                }
                Next::Switch(egress, vl) => (egress, vl),
                Next::Router(egress, vl) => {
                    routed = true;
                    (egress, vl)
                }
            };
            at = egress;
            path.end = self.end(egress);
            let vl = self.leave(egress, vl, &probe).map_err(|cause| no_path(path.end, cause))?;
            if path.hops.len() == MOST_HOPS {
                return Err(no_path(here, Cause::NoRoute));
            }
            path.hops.push(Hop { node: here.node, ingress: here.port, egress: path.end.port, vl });
            path.own_hops += usize::from(!routed);
        }
    }

    /// What the node of a port does with a packet that comes in there. A router changes its
    /// address.
    fn next(&self, at: u32, probe: &mut Probe) -> Result<Next, Cause> {
        let port = &self.ports[at as usize];
        let node = &self.nodes[port.node as usize];
        let identity = &port.settings.identity;
        match &node.kind {
            Kind::Switch(switch) => {
                port.lets_in(probe)?;
                let own = self.ports[node.first as usize].settings.identity.has(probe.dlid);
                let ports = switch.forward(&probe.header(), port.number, node.ports, own)?;
                match ports.iter().next().ok_or(Cause::NoRoute)? {
                    0 => Ok(Next::Here(0)),
                    egress => {
                        Ok(Next::Switch(node.first + u32::from(egress), switch.vl(port.number, egress, probe.sl)))
                    }
                }
            }
            Kind::Outside => Ok(Next::Here(port.number)),
            _ if !identity.has(probe.dlid) => Err(Cause::NotMine),
            Kind::Router(router) => {
                let Some(grh) = probe.grh.filter(|grh| grh.dgid != identity.gid()) else {
                    return Ok(Next::Here(port.number));
                };
                port.lets_in(probe)?;
                let copy =
                    router.forward(&grh, port.number)?.into_iter().find(|copy| (1..=node.ports).contains(&copy.0));
                let (egress, dlid, sl) = copy.ok_or(Cause::NoRoute)?;
                *probe = Probe { dlid, sl, grh: Some(Grh { hop_limit: grh.hop_limit - 1, ..grh }), ..*probe };
                let egress = node.first + u32::from(egress) - 1;
                Ok(Next::Router(egress, self.ports[egress as usize].settings.sl_to_vl.vl(sl)))
            }
            Kind::Hca => Ok(Next::Here(port.number)),
        }
    }

    /// Whether the switches and routers of a path let packets of a partition pass.
    #[must_use]
    pub fn partition_passes(&self, path: &Path, pkey: u16) -> bool {
        let port = |hop: &Hop, port| self.port(End { node: hop.node, port }).map(|port| &port.settings);
        path.hops.iter().all(|hop| {
            let enters = port(hop, hop.ingress).is_some_and(|at| !at.enforcement.pkey_in || at.pkeys.passes(pkey));
            enters && port(hop, hop.egress).is_some_and(|at| !at.enforcement.pkey_out || at.pkeys.passes(pkey))
        })
    }

    fn hop_passes(&self, hop: &Hop, sl: u8, probe: &Probe) -> bool {
        let Some(Kind::Switch(switch)) = self.node(hop.node).map(|node| &node.kind) else { return false };
        let egress = self.index(End { node: hop.node, port: hop.egress });
        egress.is_some_and(|at| self.leave(at, switch.vl(hop.ingress, hop.egress, sl), probe).is_ok())
    }

    /// The lane on which a packet leaves a port.
    pub(super) fn leave(&self, at: u32, vl: Option<u8>, probe: &Probe) -> Result<u8, Cause> {
        let Port { logical, settings, .. } = &self.ports[at as usize];
        if !logical.queues(false) {
            return Err(Cause::EgressDown);
        }
        if probe.payload > settings.mtu.bytes() {
            return Err(Cause::TooLong);
        }
        let vl = vl.filter(|vl| *vl < settings.vls).ok_or(Cause::NoVl)?;
        match probe.pkey {
            Some(key) if settings.enforcement.pkey_out && !settings.pkeys.passes(key) => Err(Cause::PartitionOut),
            _ => Ok(vl),
        }
    }

    /// The port at the other end of a link, which the path then includes.
    fn cross(&self, at: u32, path: &mut Path, nodes: &mut Vec<NodeId>) -> Result<u32, Cause> {
        let port = &self.ports[at as usize];
        let peer = port.peer.ok_or(Cause::EgressDown)?;
        path.end = self.end(peer);
        nodes.push(path.end.node);
        let logical = self.ports[peer as usize].logical;
        // In error recovery packets wait, so the path stays.
        if !logical.receives(false) && logical != Logical::ActiveDefer {
            return Err(Cause::NotReceiving);
        }
        if port.settings.mtu < path.mtu {
            (path.mtu, path.narrowest) = (port.settings.mtu, self.end(at));
        }
        path.delay += port.delay;
        if port.rate.megabits() < path.rate.megabits() {
            path.rate = port.rate;
        }
        Ok(peer)
    }
}

impl Port {
    /// Whether a port of a switch or router lets packets of a partition in.
    pub(super) fn lets_in(&self, probe: &Probe) -> Result<(), Cause> {
        let Settings { enforcement, pkeys, .. } = &self.settings;
        let foreign = enforcement.pkey_in && probe.pkey.is_some_and(|key| !pkeys.passes(key));
        if foreign { Err(Cause::PartitionIn) } else { Ok(()) }
    }
}

/// Where a node sends a packet: to itself at a port, or out of a port on a lane.
enum Next {
    Here(u8),
    Switch(u32, Option<u8>),
    Router(u32, Option<u8>),
}
