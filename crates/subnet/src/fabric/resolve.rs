//! The path that packets to a LID take, by the tables and states as they are. A path holds as long
//! as the fabric's epoch does not change. It uses the same rules as packets do. Principal type:
//! [`Path`].

use super::{End, Fabric, Kind, NodeId};
use crate::counters::Cause;
use crate::port::{Port, Settings};
use crate::rate::{Mtu, Rate, Time};
use crate::state::Logical;
use crate::switch::Ports;
use std::collections::BTreeSet;
use wire::lrh;

/// The most switches on a path; more are a loop.
pub(super) const MOST_HOPS: usize = 64;

/// A switch on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The switch.
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
    /// The epoch for which the path holds.
    pub epoch: u64,
    /// The lane of the first link.
    pub vl: u8,
    /// The switches, in order.
    pub hops: Vec<Hop>,
    /// The port that has the LID: that of an end node or a router, or port 0 of a switch.
    pub end: End,
    /// The lowest rate of all links.
    pub rate: Rate,
    /// The smallest MTU of all links.
    pub mtu: Mtu,
    /// The time that a bit takes, without the time that packets wait.
    pub delay: Time,
}

/// A packet that every MTU and every partition lets pass.
const ANY: Probe = Probe { dlid: 0, sl: 0, pkey: None, payload: 0 };

/// A packet whose way is looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// The destination LID.
    pub dlid: u16,
    /// The service level.
    pub sl: u8,
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

    fn header(&self) -> lrh::Header {
        lrh::Header { dlid: self.dlid, sl: self.sl, ..lrh::Header::default() }
    }
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

/// The ways of the copies of a multicast packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// The links that copies pass, each as the port that sends and the port that receives.
    pub links: Vec<(End, End)>,
    /// The end ports that copies reach.
    pub reached: BTreeSet<End>,
    /// Where and why copies are dropped.
    pub lost: Vec<NoPath>,
}

impl Port {
    /// Whether a switch's port lets packets of a partition in.
    fn lets_in(&self, probe: &Probe) -> Result<(), Cause> {
        let Settings { enforcement, pkeys, .. } = &self.settings;
        let foreign = enforcement.pkey_in && probe.pkey.is_some_and(|key| !pkeys.passes(key));
        if foreign { Err(Cause::PartitionIn) } else { Ok(()) }
    }
}

impl Fabric {
    /// The path from an end port to a unicast LID of its subnet. The source LID does not matter to
    /// a switch, so the port stands for all of them.
    ///
    /// # Errors
    /// Packets would be dropped on the way.
    pub fn resolve(&self, from: End, dlid: u16, sl: u8) -> Result<Path, NoPath> {
        let (path, lost) = self.trace(from, &Probe { dlid, sl, ..Probe::default() });
        lost.map_or(Ok(path), Err)
    }

    /// The way of a packet from an end port to a unicast LID of its subnet, as far as it gets, and
    /// where and why it is dropped.
    #[must_use]
    pub fn trace(&self, from: End, probe: &Probe) -> (Path, Option<NoPath>) {
        let port = self.port(from);
        let mut path = Path {
            epoch: self.epoch,
            vl: 0,
            hops: Vec::new(),
            end: from,
            rate: port.map_or_else(Rate::default, |port| port.rate),
            mtu: port.map_or_else(Mtu::default, |port| port.settings.mtu),
            delay: 0,
        };
        let lost = self.walk(&mut path, probe).err();
        (path, lost)
    }

    /// Follows a packet from the end of a path that has just begun.
    fn walk(&self, path: &mut Path, probe: &Probe) -> Result<(), NoPath> {
        let Probe { dlid, sl, .. } = *probe;
        let no_path = |end, cause| NoPath { end, cause };
        let from = path.end;
        let mut at = self.index(from).ok_or(no_path(from, Cause::EgressDown))?;
        let settings = &self.ports[at as usize].settings;
        let header = probe.header();
        if settings.identity.has(dlid) {
            return Ok(());
        }
        if header.is_multicast() {
            return Err(no_path(from, Cause::BadLid));
        }
        path.vl = self.leave(at, settings.sl_to_vl.vl(sl), probe).map_err(|cause| no_path(from, cause))?;
        loop {
            at = self.cross(at, path).map_err(|cause| no_path(self.end(at), cause))?;
            let port = &self.ports[at as usize];
            let node = &self.nodes[port.node as usize];
            let Kind::Switch(switch) = &node.kind else {
                let mine = port.settings.identity.has(dlid);
                return if mine { Ok(()) } else { Err(no_path(path.end, Cause::NotMine)) };
            };
            let (id, ingress) = (NodeId(port.node), port.number);
            let here = End { node: id, port: ingress };
            port.lets_in(probe).map_err(|cause| no_path(here, cause))?;
            let own = self.ports[node.first as usize].settings.identity.has(dlid);
            let ports = switch.forward(&header, ingress, node.ports, own).map_err(|cause| no_path(here, cause))?;
            let egress = ports.iter().next().ok_or(no_path(here, Cause::NoRoute))?;
            path.end = End { node: id, port: egress };
            if egress == 0 {
                return Ok(());
            }
            at = node.first + u32::from(egress);
            let vl = self.leave(at, switch.vl(ingress, egress, sl), probe).map_err(|cause| no_path(path.end, cause))?;
            if path.hops.len() == MOST_HOPS {
                return Err(no_path(here, Cause::NoRoute));
            }
            path.hops.push(Hop { node: id, ingress, egress, vl });
        }
    }

    /// The service levels with which packets reach a LID, as bits, and the path of the lowest. The
    /// tables are the same for all of them, so they differ only in their lanes.
    ///
    /// # Errors
    /// Packets of no service level pass.
    pub fn service_levels(&self, from: End, dlid: u16) -> Result<(u16, Path), NoPath> {
        let mut sl = 0;
        let path = loop {
            match self.resolve(from, dlid, sl) {
                Err(NoPath { cause: Cause::NoVl, .. }) if sl < 15 => sl += 1,
                path => break path?,
            }
        };
        let passes = |sl: u8| {
            let first = self.index(from).filter(|_| path.end != from);
            let first =
                first.is_none_or(|at| self.leave(at, self.ports[at as usize].settings.sl_to_vl.vl(sl), &ANY).is_ok());
            first && path.hops.iter().all(|hop| self.hop_passes(hop, sl))
        };
        let levels = (sl..16).filter(|sl| passes(*sl)).fold(0, |levels, sl| levels | 1 << sl);
        Ok((levels, path))
    }

    /// Whether the switches of a path let packets of a partition pass.
    #[must_use]
    pub fn partition_passes(&self, path: &Path, pkey: u16) -> bool {
        let port = |hop: &Hop, port| self.port(End { node: hop.node, port }).map(|port| &port.settings);
        path.hops.iter().all(|hop| {
            let enters = port(hop, hop.ingress).is_some_and(|at| !at.enforcement.pkey_in || at.pkeys.passes(pkey));
            enters && port(hop, hop.egress).is_some_and(|at| !at.enforcement.pkey_out || at.pkeys.passes(pkey))
        })
    }

    fn hop_passes(&self, hop: &Hop, sl: u8) -> bool {
        let Some(Kind::Switch(switch)) = self.node(hop.node).map(|node| &node.kind) else { return false };
        let egress = self.index(End { node: hop.node, port: hop.egress });
        egress.is_some_and(|at| self.leave(at, switch.vl(hop.ingress, hop.egress, sl), &ANY).is_ok())
    }

    /// The end ports that a packet to a multicast LID reaches, without the one that sends it. Copies
    /// that are dropped on the way reach nobody.
    #[must_use]
    pub fn resolve_multicast(&self, from: End, mlid: u16, sl: u8) -> BTreeSet<End> {
        self.trace_multicast(from, &Probe { dlid: mlid, sl, ..Probe::default() }).reached
    }

    /// The ways of the copies of a packet to a multicast LID.
    #[must_use]
    pub fn trace_multicast(&self, from: End, probe: &Probe) -> Copies {
        let header = probe.header();
        let mut copies = Copies::default();
        let mut seen = BTreeSet::new();
        let mut leaving = Vec::new();
        let first = self.index(from).filter(|_| header.is_multicast());
        if let Some(at) = first {
            let vl = self.ports[at as usize].settings.sl_to_vl.vl(probe.sl);
            self.copy_leaves(at, vl, probe, (&mut leaving, &mut copies));
        }
        while let Some(at) = leaving.pop() {
            let Some(peer) = self.ports[at as usize].peer.filter(|_| seen.insert(at)) else { continue };
            let (port, here) = (&self.ports[peer as usize], self.end(peer));
            if !port.logical.receives(false) && port.logical != Logical::ActiveDefer {
                copies.lost.push(NoPath { end: here, cause: Cause::NotReceiving });
                continue;
            }
            copies.links.push((self.end(at), here));
            let node = &self.nodes[port.node as usize];
            let Kind::Switch(switch) = &node.kind else {
                copies.reached.insert(here);
                continue;
            };
            let egresses = port.lets_in(probe).and_then(|()| switch.forward(&header, port.number, node.ports, false));
            let egresses = egresses.unwrap_or_else(|cause| {
                copies.lost.push(NoPath { end: here, cause });
                Ports::default()
            });
            for egress in egresses.iter() {
                let at = node.first + u32::from(egress);
                match egress {
                    0 => drop(copies.reached.insert(self.end(at))),
                    _ => {
                        let vl = switch.vl(port.number, egress, probe.sl);
                        self.copy_leaves(at, vl, probe, (&mut leaving, &mut copies));
                    }
                }
            }
        }
        copies
    }

    /// A copy leaves a port, or is dropped there.
    fn copy_leaves(&self, at: u32, vl: Option<u8>, probe: &Probe, (leaving, copies): (&mut Vec<u32>, &mut Copies)) {
        match self.leave(at, vl, probe) {
            Ok(_) => leaving.push(at),
            Err(cause) => copies.lost.push(NoPath { end: self.end(at), cause }),
        }
    }

    /// The lane on which a packet leaves a port.
    fn leave(&self, at: u32, vl: Option<u8>, probe: &Probe) -> Result<u8, Cause> {
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
    fn cross(&self, at: u32, path: &mut Path) -> Result<u32, Cause> {
        let port = &self.ports[at as usize];
        let peer = port.peer.ok_or(Cause::EgressDown)?;
        let logical = self.ports[peer as usize].logical;
        // In error recovery packets wait, so the path stays.
        if !logical.receives(false) && logical != Logical::ActiveDefer {
            return Err(Cause::NotReceiving);
        }
        path.end = self.end(peer);
        path.mtu = path.mtu.min(port.settings.mtu);
        path.delay += port.delay;
        if port.rate.megabits() < path.rate.megabits() {
            path.rate = port.rate;
        }
        Ok(peer)
    }
}
