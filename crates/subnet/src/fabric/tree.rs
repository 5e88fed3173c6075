//! The tree of links that a multicast packet takes, by the tables and states as they are. Not the
//! path to one port, which is in `resolve`. Principal type: [`Tree`].

use super::resolve::{NoPath, Probe};
use super::{End, Fabric, Kind, NodeId};
use crate::counters::Cause;
use crate::state::Logical;
use std::collections::BTreeSet;

/// The ways of the copies of a multicast packet, and what they depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The end ports that copies reach, without the one that sends the packet.
    pub ends: BTreeSet<End>,
    /// The links that copies pass, each as the port that sends and the port that receives.
    pub links: Vec<(End, End)>,
    /// Where and why copies are dropped.
    pub lost: Vec<NoPath>,
    /// The nodes that this was resolved by. If none of them has changed, nothing has.
    pub nodes: BTreeSet<NodeId>,
}

impl Fabric {
    /// The end ports that a packet to a multicast LID reaches. Copies that are dropped on the way
    /// reach nobody.
    #[must_use]
    pub fn resolve_multicast(&self, from: End, mlid: u16, sl: u8) -> Tree {
        self.trace_multicast(from, &Probe { dlid: mlid, sl, ..Probe::default() })
    }

    /// The ways of the copies of a packet to a multicast LID.
    #[must_use]
    pub fn trace_multicast(&self, from: End, probe: &Probe) -> Tree {
        let header = probe.header();
        let (mut tree, mut seen, mut leaving) = (Tree::default(), BTreeSet::new(), Vec::new());
        tree.nodes.insert(from.node);
        if let Some(at) = self.index(from).filter(|_| header.is_multicast()) {
            let vl = self.ports[at as usize].settings.sl_to_vl.vl(probe.sl);
            self.copy_leaves(at, vl, probe, (&mut leaving, &mut tree));
        }
        while let Some(at) = leaving.pop() {
            let Some(peer) = self.ports[at as usize].peer.filter(|_| seen.insert(at)) else { continue };
            let (port, here) = (&self.ports[peer as usize], self.end(peer));
            tree.nodes.insert(here.node);
            if !port.logical.receives(false) && port.logical != Logical::ActiveDefer {
                tree.lost.push(NoPath { end: here, cause: Cause::NotReceiving });
                continue;
            }
            tree.links.push((self.end(at), here));
            let node = &self.nodes[port.node as usize];
            let Kind::Switch(switch) = &node.kind else {
                tree.ends.insert(here);
                continue;
            };
            let egresses = port.lets_in(probe).and_then(|()| switch.forward(&header, port.number, node.ports, false));
            let egresses = egresses.unwrap_or_else(|cause| {
                tree.lost.push(NoPath { end: here, cause });
                crate::switch::Ports::default()
            });
            for egress in egresses.iter() {
                let at = node.first + u32::from(egress);
                match egress {
                    0 => drop(tree.ends.insert(self.end(at))),
                    _ => {
                        let vl = switch.vl(port.number, egress, probe.sl);
                        self.copy_leaves(at, vl, probe, (&mut leaving, &mut tree));
                    }
                }
            }
        }
        tree
    }

    /// A copy leaves a port, or is dropped there.
    fn copy_leaves(&self, at: u32, vl: Option<u8>, probe: &Probe, (leaving, tree): (&mut Vec<u32>, &mut Tree)) {
        match self.leave(at, vl, probe) {
            Ok(_) => leaving.push(at),
            Err(cause) => tree.lost.push(NoPath { end: self.end(at), cause }),
        }
    }
}
