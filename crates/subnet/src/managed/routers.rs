//! How routers learn their tables: from what management has set at the end ports. A real router
//! asks the subnet administration of each of its subnets for the same, and other routers for what
//! is behind them. The prefixes of the subnets differ. A router knows the subnets of its own ports,
//! and by the next router on a shortest way those behind other routers. Adds to [`Managed`].

use super::Managed;
use super::subnets::{Attached, Subnets};
use crate::fabric::{Kind, NodeId};
use crate::port::{Identity, LINK_LOCAL, Port};
use crate::router::Route;
use crate::state::Logical;
use std::collections::{BTreeMap, VecDeque};

/// Whether packets for other subnets may go to an end port, or come from it.
fn is_routed(port: &Port) -> bool {
    let Identity { lid, prefix, .. } = port.settings().identity;
    lid != 0 && prefix != LINK_LOCAL
}

impl Managed {
    /// An end port has another LID or prefix, or the link of a router has gone down or come up.
    pub(super) fn teach_routers(&mut self) {
        let ids = (0..self.fabric.len() as u32).map(NodeId);
        let routers: Vec<NodeId> = ids.filter(|id| self.is_router(*id)).collect();
        let subnets = self.subnets_of_routers(&routers);
        if self.subnets != subnets {
            self.subnets.clone_from(&subnets);
            self.router_changes += 1;
        }
        for id in routers {
            let (routes, neighbours) = (routes(&subnets, id), self.neighbours_of(&subnets, id));
            let known = self.fabric.node(id).map(|node| node.kind());
            if matches!(known, Some(Kind::Router(old)) if old.routes == routes && old.neighbours == neighbours) {
                continue;
            }
            if let Some(router) = self.fabric.router_mut(id) {
                (router.routes, router.neighbours) = (routes, neighbours);
            }
        }
    }

    /// Whether a node is a router.
    pub(super) fn is_router(&self, id: NodeId) -> bool {
        self.fabric.node(id).is_some_and(|node| matches!(node.kind(), Kind::Router(_)))
    }

    /// The ports of routers whose links are up.
    fn subnets_of_routers(&self, routers: &[NodeId]) -> Subnets {
        let mut subnets = Subnets::new();
        for end in self.ends().filter(|end| routers.contains(&end.node)) {
            let port = self.fabric.port(end).filter(|port| is_routed(port) && port.logical() != Logical::Down);
            if let Some(Identity { prefix, lid, .. }) = port.map(|port| &port.settings().identity) {
                let attached = Attached { router: end.node, port: end.port, lid: *lid };
                subnets.entry(*prefix).or_default().push(attached);
            }
        }
        subnets
    }

    /// The LIDs of the ports in the subnets of a router, by its port and their GUIDs.
    fn neighbours_of(&self, subnets: &Subnets, router: NodeId) -> BTreeMap<(u8, u64), u16> {
        let mut neighbours = BTreeMap::new();
        for own in self.ends().filter_map(|end| self.fabric.port(end)).filter(|port| is_routed(port)) {
            let Identity { guid, prefix, lid, .. } = own.settings().identity;
            let here = subnets.get(&prefix).into_iter().flatten().filter(|at| at.router == router);
            neighbours.extend(here.map(|at| ((at.port, guid), lid)));
        }
        neighbours
    }
}

/// The routes of a router to all subnets, each by the fewest routers.
fn routes(subnets: &Subnets, router: NodeId) -> Vec<Route> {
    let route = |prefix: u64, port, via| Route { prefix: u128::from(prefix) << 64, len: 64, port, via };
    let of = |router: NodeId| {
        let ports = subnets.iter().flat_map(|(prefix, all)| all.iter().map(move |at| (*prefix, *at)));
        ports.filter(move |(_, at)| at.router == router)
    };
    let mut routes: BTreeMap<u64, Route> = BTreeMap::new();
    let mut next = VecDeque::new();
    for (prefix, at) in of(router) {
        routes.entry(prefix).or_insert_with(|| {
            next.push_back(prefix);
            route(prefix, at.port, None)
        });
    }
    while let Some(prefix) = next.pop_front() {
        let Some(Route { port, via, .. }) = routes.get(&prefix).copied() else { continue };
        for beyond in subnets.get(&prefix).into_iter().flatten().filter(|at| at.router != router) {
            for (other, _) in of(beyond.router) {
                routes.entry(other).or_insert_with(|| {
                    next.push_back(other);
                    route(other, port, via.or(Some(beyond.lid)))
                });
            }
        }
    }
    routes.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(router: u32, port: u8, lid: u16) -> Attached {
        Attached { router: NodeId(router), port, lid }
    }

    fn found(subnets: &Subnets, router: u32) -> Vec<(u64, u8, Option<u16>)> {
        let routes = routes(subnets, NodeId(router)).into_iter();
        routes.map(|route| ((route.prefix >> 64) as u64, route.port, route.via)).collect()
    }

    #[test]
    fn a_row_of_routers_leads_to_all_subnets() {
        let subnets = Subnets::from([
            (1, vec![at(7, 1, 10)]),
            (2, vec![at(7, 2, 20), at(8, 1, 21)]),
            (3, vec![at(8, 2, 30), at(9, 1, 31)]),
            (4, vec![at(9, 2, 40)]),
        ]);
        assert_eq!(found(&subnets, 7), [(1, 1, None), (2, 2, None), (3, 2, Some(21)), (4, 2, Some(21))]);
        assert_eq!(found(&subnets, 8), [(1, 1, Some(20)), (2, 1, None), (3, 2, None), (4, 2, Some(31))]);
        assert_eq!(found(&subnets, 9), [(1, 1, Some(30)), (2, 1, Some(30)), (3, 1, None), (4, 2, None)]);
    }

    #[test]
    fn a_circle_of_routers_has_the_shortest_ways() {
        let subnets = Subnets::from([
            (1, vec![at(7, 1, 10), at(9, 2, 11)]),
            (2, vec![at(7, 2, 20), at(8, 1, 21)]),
            (3, vec![at(8, 2, 30), at(9, 1, 31)]),
        ]);
        assert_eq!(found(&subnets, 7), [(1, 1, None), (2, 2, None), (3, 1, Some(11))]);
        assert_eq!(found(&subnets, 8), [(1, 1, Some(20)), (2, 1, None), (3, 2, None)]);
        assert!(found(&subnets, 5).is_empty(), "no port of this router is up");
    }
}
