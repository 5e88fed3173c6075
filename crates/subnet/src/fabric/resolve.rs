//! The path that packets to a LID take, by the tables and states as they are. A path holds as long
//! as the fabric's epoch does not change. It uses the same rules as packets do. Principal type:
//! [`Path`].

use super::{End, Fabric, Kind, NodeId};
use crate::counters::Cause;
use crate::rate::{Mtu, Rate, Time};
use crate::state::Logical;
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
    /// The port that has the LID: that of an end node or a router, port 0 of a switch, or the far
    /// end of a link out of this fabric.
    pub end: End,
    /// The lowest rate of all links.
    pub rate: Rate,
    /// The smallest MTU of all links.
    pub mtu: Mtu,
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

impl Fabric {
    /// The path from an end port to a unicast LID of its subnet. The source LID does not matter to
    /// a switch, so the port stands for all of them.
    ///
    /// # Errors
    /// Packets would be dropped on the way.
    pub fn resolve(&self, from: End, dlid: u16, sl: u8) -> Result<Path, NoPath> {
        let no_path = |end, cause| NoPath { end, cause };
        let mut at = self.index(from).ok_or(no_path(from, Cause::EgressDown))?;
        let port = &self.ports[at as usize];
        let header = lrh::Header { dlid, sl, ..lrh::Header::default() };
        let mut path = Path {
            epoch: self.epoch,
            vl: 0,
            hops: Vec::new(),
            end: from,
            rate: port.rate,
            mtu: port.settings.mtu,
            delay: 0,
        };
        if port.settings.identity.has(dlid) {
            return Ok(path);
        }
        if header.is_multicast() {
            return Err(no_path(from, Cause::BadLid));
        }
        path.vl = self.leave(at, port.settings.sl_to_vl.vl(sl)).map_err(|cause| no_path(from, cause))?;
        loop {
            at = self.cross(at, &mut path).map_err(|cause| no_path(self.end(at), cause))?;
            let port = &self.ports[at as usize];
            let node = &self.nodes[port.node as usize];
            let Kind::Switch(switch) = &node.kind else {
                let mine = port.settings.identity.has(dlid) || matches!(node.kind, Kind::Outside);
                return if mine { Ok(path) } else { Err(no_path(path.end, Cause::NotMine)) };
            };
            let (id, ingress) = (NodeId(port.node), port.number);
            let own = self.ports[node.first as usize].settings.identity.has(dlid);
            let here = End { node: id, port: ingress };
            let ports = switch.forward(&header, ingress, node.ports, own).map_err(|cause| no_path(here, cause))?;
            let egress = ports.iter().next().ok_or(no_path(here, Cause::NoRoute))?;
            path.end = End { node: id, port: egress };
            if egress == 0 {
                return Ok(path);
            }
            at = node.first + u32::from(egress);
            let vl = self.leave(at, switch.vl(ingress, egress, sl)).map_err(|cause| no_path(path.end, cause))?;
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
            let first = first.is_none_or(|at| self.leave(at, self.ports[at as usize].settings.sl_to_vl.vl(sl)).is_ok());
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
        egress.is_some_and(|at| self.leave(at, switch.vl(hop.ingress, hop.egress, sl)).is_ok())
    }

    /// The end ports that a packet to a multicast LID reaches, without the one that sends it.
    /// Copies that are dropped on the way reach nobody.
    #[must_use]
    pub fn resolve_multicast(&self, from: End, mlid: u16, sl: u8) -> BTreeSet<End> {
        let header = lrh::Header { dlid: mlid, sl, ..lrh::Header::default() };
        let (mut reached, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let first = self.index(from).filter(|_| header.is_multicast());
        let vl = |at: u32| self.ports[at as usize].settings.sl_to_vl.vl(sl);
        let mut leaving: Vec<u32> = first.filter(|at| self.leave(*at, vl(*at)).is_ok()).into_iter().collect();
        while let Some(at) = leaving.pop() {
            let Some(peer) = self.ports[at as usize].peer.filter(|_| seen.insert(at)) else { continue };
            let logical = self.ports[peer as usize].logical;
            if !logical.receives(false) && logical != Logical::ActiveDefer {
                continue;
            }
            let port = &self.ports[peer as usize];
            let node = &self.nodes[port.node as usize];
            let Kind::Switch(switch) = &node.kind else {
                reached.insert(self.end(peer));
                continue;
            };
            for egress in switch.forward(&header, port.number, node.ports, false).unwrap_or_default().iter() {
                let at = node.first + u32::from(egress);
                match egress {
                    0 => drop(reached.insert(self.end(at))),
                    _ if self.leave(at, switch.vl(port.number, egress, sl)).is_ok() => leaving.push(at),
                    _ => {}
                }
            }
        }
        reached
    }

    /// The lane on which a packet leaves a port.
    fn leave(&self, at: u32, vl: Option<u8>) -> Result<u8, Cause> {
        let port = &self.ports[at as usize];
        if !port.logical.queues(false) {
            return Err(Cause::EgressDown);
        }
        vl.filter(|vl| *vl < port.settings.vls).ok_or(Cause::NoVl)
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
