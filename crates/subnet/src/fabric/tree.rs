//! The tree of links that a multicast packet takes, by the tables and states as they are. Not the
//! path to one port, which is in `resolve`. Principal type: [`Tree`].

use super::resolve::{NoPath, Probe};
use super::{End, Fabric, Kind, NodeId};
use crate::counters::Cause;
use crate::state::Logical;
use std::collections::BTreeSet;
use wire::Grh;

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
        let (mut tree, mut seen, mut leaving) = (Tree::default(), BTreeSet::new(), Vec::new());
        tree.nodes.insert(from.node);
        if let Some(at) = self.index(from).filter(|_| probe.is_multicast()) {
            let vl = self.ports[at as usize].settings.sl_to_vl.vl(probe.sl);
            self.copy_leaves(at, vl, probe, (&mut leaving, &mut tree));
        }
        while let Some((at, probe)) = leaving.pop() {
            let Some(peer) = self.ports[at as usize].peer.filter(|_| seen.insert(at)) else { continue };
            let (port, here) = (&self.ports[peer as usize], self.end(peer));
            tree.nodes.insert(here.node);
            if !port.logical.receives(false) && port.logical != Logical::ActiveDefer {
                tree.lost.push(NoPath { end: here, cause: Cause::NotReceiving });
                continue;
            }
            tree.links.push((self.end(at), here));
            match self.copies(peer, &probe) {
                Err(cause) => tree.lost.push(NoPath { end: here, cause }),
                Ok(copies) => copies.into_iter().for_each(|copy| match copy {
                    Copied::Here(at) => drop(tree.ends.insert(self.end(at))),
                    Copied::Onto(at, vl, probe) => self.copy_leaves(at, vl, &probe, (&mut leaving, &mut tree)),
                }),
            }
        }
        tree
    }

    /// What the node of a port does with a packet that comes in there.
    fn copies(&self, at: u32, probe: &Probe) -> Result<Vec<Copied>, Cause> {
        let port = &self.ports[at as usize];
        let node = &self.nodes[port.node as usize];
        match (&node.kind, &probe.grh) {
            (Kind::Switch(switch), _) => {
                port.lets_in(probe)?;
                let egresses = switch.forward(&probe.header(), port.number, node.ports, false)?;
                let copy = |egress: u8| match (node.first + u32::from(egress), egress) {
                    (at, 0) => Copied::Here(at),
                    (at, _) => Copied::Onto(at, switch.vl(port.number, egress, probe.sl), *probe),
                };
                Ok(egresses.iter().map(copy).collect())
            }
            (Kind::Router(router), Some(grh)) => {
                port.lets_in(probe)?;
                let copies = router.forward(grh, port.number)?.into_iter();
                let copies =
                    copies.filter(|(egress, ..)| (1..=node.ports).contains(egress)).map(|(egress, dlid, sl)| {
                        let at = node.first + u32::from(egress) - 1;
                        let grh = Some(Grh { hop_limit: grh.hop_limit - 1, ..*grh });
                        Copied::Onto(
                            at,
                            self.ports[at as usize].settings.sl_to_vl.vl(sl),
                            Probe { dlid, sl, grh, ..*probe },
                        )
                    });
                Ok(copies.collect())
            }
            _ => Ok(vec![Copied::Here(at)]),
        }
    }

    /// A copy leaves a port, or is dropped there.
    fn copy_leaves(
        &self,
        at: u32,
        vl: Option<u8>,
        probe: &Probe,
        (leaving, tree): (&mut Vec<(u32, Probe)>, &mut Tree),
    ) {
        match self.leave(at, vl, probe) {
            Ok(_) => leaving.push((at, *probe)),
            Err(cause) => tree.lost.push(NoPath { end: self.end(at), cause }),
        }
    }
}

/// A copy that a node makes: for its own port, or to leave a port on a lane.
enum Copied {
    Here(u32),
    Onto(u32, Option<u8>, Probe),
}
