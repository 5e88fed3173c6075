//! How routers learn their tables: from what management has set at the end ports. A real router
//! asks the subnet administration of each of its subnets for the same. A router knows the subnets
//! of its own ports, which differ in the prefix of their GIDs. Adds to [`Managed`].

use super::Managed;
use crate::fabric::{Kind, NodeId};
use crate::port::{Identity, LINK_LOCAL};
use crate::router::Route;
use std::collections::BTreeMap;

impl Managed {
    /// An end port has another LID or prefix.
    pub(super) fn teach_routers(&mut self) {
        let ids = (0..self.fabric.len() as u32).map(NodeId);
        let routers: Vec<NodeId> = ids.filter(|id| self.is_router(*id)).collect();
        for id in routers {
            let (routes, neighbours) = self.tables_of(id);
            let known = self.fabric.node(id).map(|node| node.kind());
            if matches!(known, Some(Kind::Router(old)) if old.routes == routes && old.neighbours == neighbours) {
                continue;
            }
            if let Some(router) = self.fabric.router_mut(id) {
                (router.routes, router.neighbours) = (routes, neighbours);
            }
        }
    }

    fn is_router(&self, id: NodeId) -> bool {
        self.fabric.node(id).is_some_and(|node| matches!(node.kind(), Kind::Router(_)))
    }

    fn tables_of(&self, router: NodeId) -> (Vec<Route>, BTreeMap<(u8, u64), u16>) {
        let identities = || self.ends().filter_map(|end| Some((end, &self.fabric.port(end)?.settings().identity)));
        let is_routed = |own: &Identity| own.lid != 0 && own.prefix != LINK_LOCAL;
        let (mut routes, mut neighbours) = (Vec::new(), BTreeMap::new());
        for (end, own) in identities().filter(|(end, own)| end.node == router && is_routed(own)) {
            let prefix = u128::from(own.prefix) << 64;
            routes.push(Route { prefix, len: 64, port: end.port, via: None });
            let subnet = identities().filter(|(_, other)| is_routed(other) && other.prefix == own.prefix);
            neighbours.extend(subnet.map(|(_, other)| ((end.port, other.guid), other.lid)));
        }
        (routes, neighbours)
    }
}
