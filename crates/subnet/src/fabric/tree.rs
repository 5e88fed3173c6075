//! The tree of links that a multicast packet takes, by the tables and states as they are. Not the
//! path to one port, which is in `resolve`. Principal type: [`Tree`].

use super::{End, Fabric, Kind, NodeId};
use crate::state::Logical;
use std::collections::BTreeSet;
use wire::lrh;

/// What a multicast packet reaches, and what that depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// The end ports that it reaches, without the one that sends it.
    pub ends: BTreeSet<End>,
    /// The nodes that this was resolved by. If none of them has changed, nothing has.
    pub nodes: BTreeSet<NodeId>,
}

impl Fabric {
    /// The end ports that a packet to a multicast LID reaches. Copies that are dropped on the way
    /// reach nobody.
    #[must_use]
    pub fn resolve_multicast(&self, from: End, mlid: u16, sl: u8) -> Tree {
        let header = lrh::Header { dlid: mlid, sl, ..lrh::Header::default() };
        let (mut tree, mut seen) = (Tree::default(), BTreeSet::new());
        tree.nodes.insert(from.node);
        let first = self.index(from).filter(|_| header.is_multicast());
        let vl = |at: u32| self.ports[at as usize].settings.sl_to_vl.vl(sl);
        let mut leaving: Vec<u32> = first.filter(|at| self.leave(*at, vl(*at)).is_ok()).into_iter().collect();
        while let Some(at) = leaving.pop() {
            let Some(peer) = self.ports[at as usize].peer.filter(|_| seen.insert(at)) else { continue };
            let port = &self.ports[peer as usize];
            tree.nodes.insert(NodeId(port.node));
            if !port.logical.receives(false) && port.logical != Logical::ActiveDefer {
                continue;
            }
            let node = &self.nodes[port.node as usize];
            let Kind::Switch(switch) = &node.kind else {
                tree.ends.insert(self.end(peer));
                continue;
            };
            for egress in switch.forward(&header, port.number, node.ports, false).unwrap_or_default().iter() {
                let at = node.first + u32::from(egress);
                match egress {
                    0 => drop(tree.ends.insert(self.end(at))),
                    _ if self.leave(at, switch.vl(port.number, egress, sl)).is_ok() => leaving.push(at),
                    _ => {}
                }
            }
        }
        tree
    }
}
