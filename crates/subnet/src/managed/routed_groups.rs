//! How routers learn what to do with multicast packets. The owner knows the groups of each subnet
//! from its subnet administration. It asks which ports of routers must join which groups
//! ([`Managed::plan_group`]), joins them, and tells the LIDs ([`Managed::route_groups`]). The ports
//! that forward packets form a tree of subnets and routers, so each member gets one copy. Principal
//! type: [`Duty`].

use super::Managed;
use super::subnets::{Attached, Subnets};
use crate::fabric::{End, Kind, NodeId};
use crate::router::Group;
use crate::switch::Ports;
use std::collections::{BTreeMap, BTreeSet};

/// What the port of a router does for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// The prefix of the port's subnet.
    pub prefix: u64,
    /// The port.
    pub end: End,
    /// It takes packets for other subnets.
    pub takes: bool,
    /// It sends packets of other subnets.
    pub sends: bool,
}

/// A group in one subnet: the multicast LID and the service level.
pub type InSubnet = (u16, u8);

impl Managed {
    /// A number that changes with the ports of routers that are up. Then the plans of all groups
    /// may be others.
    #[must_use]
    pub const fn router_changes(&self) -> u64 {
        self.router_changes
    }

    /// Which ports of routers have to do something for a group that has members in these subnets.
    /// `true`: some of them receive; the others only send.
    #[must_use]
    pub fn plan_group(&self, members: &BTreeMap<u64, bool>) -> Vec<Duty> {
        if members.len() < 2 {
            return Vec::new();
        }
        duties(&tree(&self.subnets), members)
    }

    /// Gives the routers their tables: what each port does for a group, and the group in the
    /// subnets where the ports have joined it.
    pub fn route_groups(&mut self, groups: &BTreeMap<u128, (Vec<Duty>, BTreeMap<u64, InSubnet>)>) {
        let lids = groups
            .iter()
            .flat_map(|(mgid, (_, subnets))| subnets.iter().map(|(prefix, (mlid, _))| ((*prefix, *mlid), *mgid)));
        self.routed = lids.collect();
        let mut tables: BTreeMap<NodeId, BTreeMap<u128, Group>> = BTreeMap::new();
        for (mgid, (duties, subnets)) in groups {
            for duty in duties {
                let Some((mlid, sl)) = subnets.get(&duty.prefix) else { continue };
                let group = tables.entry(duty.end.node).or_default().entry(*mgid).or_default();
                if duty.takes {
                    group.ingress = Ports::of(group.ingress.iter().chain([duty.end.port]));
                }
                if duty.sends {
                    group.copies.push((duty.end.port, *mlid, *sl));
                }
            }
        }
        let ids = (0..self.fabric.len() as u32).map(NodeId);
        for id in ids.filter(|id| self.is_router(*id)).collect::<Vec<_>>() {
            let groups = tables.remove(&id).unwrap_or_default();
            let known = self.fabric.node(id).map(|node| node.kind());
            if !matches!(known, Some(Kind::Router(old)) if old.groups == groups)
                && let Some(router) = self.fabric.router_mut(id)
            {
                router.groups = groups;
            }
        }
    }

    /// The group with a LID in the subnet of a port, if routers forward its packets.
    #[must_use]
    pub fn routed_group(&self, from: End, mlid: u16) -> Option<u128> {
        let prefix = self.fabric.port(from)?.settings().identity.prefix;
        self.routed.get(&(prefix, mlid)).copied()
    }

    /// Whether there are routers.
    #[must_use]
    pub fn has_routers(&self) -> bool {
        !self.subnets.is_empty()
    }
}

/// The ports of routers on a tree that reaches every subnet which any of them reaches: that of the
/// fewest routers from the first subnet.
fn tree(subnets: &Subnets) -> Subnets {
    let (mut tree, mut seen, mut routers) = (Subnets::new(), BTreeSet::new(), BTreeSet::new());
    for first in subnets.keys() {
        let mut next = std::collections::VecDeque::new();
        if seen.insert(*first) {
            next.push_back(*first);
        }
        while let Some(prefix) = next.pop_front() {
            for at in subnets.get(&prefix).into_iter().flatten() {
                if !routers.insert(at.router) {
                    continue;
                }
                tree.entry(prefix).or_default().push(*at);
                for (beyond, ports) in subnets {
                    if let Some(port) = ports.iter().find(|port| port.router == at.router)
                        && seen.insert(*beyond)
                    {
                        tree.entry(*beyond).or_default().push(*port);
                        next.push_back(*beyond);
                    }
                }
            }
        }
    }
    tree
}

/// What the ports of a tree do for a group: a port takes packets if others of its router send them,
/// and sends if there are receivers behind it.
fn duties(tree: &Subnets, members: &BTreeMap<u64, bool>) -> Vec<Duty> {
    let edges: Vec<(u64, Attached)> =
        tree.iter().flat_map(|(prefix, ports)| ports.iter().map(|at| (*prefix, *at))).collect();
    // Whether there are members behind each port, and whether any of them receives.
    let behind: Vec<(bool, bool)> = edges
        .iter()
        .map(|(prefix, at)| {
            let subnets = subnets_behind(&edges, *prefix, at.router);
            let found = || subnets.iter().filter_map(|prefix| members.get(prefix));
            (found().next().is_some(), found().any(|receives| *receives))
        })
        .collect();
    let mut duties = Vec::new();
    for (index, (prefix, at)) in edges.iter().enumerate() {
        let others = || (0..edges.len()).filter(|other| *other != index && edges[*other].1.router == at.router);
        let takes = behind[index].0 && others().any(|other| behind[other].1);
        let sends = behind[index].1 && others().any(|other| behind[other].0);
        if takes || sends {
            duties.push(Duty { prefix: *prefix, end: End { node: at.router, port: at.port }, takes, sends });
        }
    }
    duties
}

/// The subnets of a tree that a router reaches by its port in one of them.
fn subnets_behind(edges: &[(u64, Attached)], first: u64, router: NodeId) -> BTreeSet<u64> {
    let (mut found, mut next) = (BTreeSet::from([first]), vec![(first, router)]);
    while let Some((prefix, from)) = next.pop() {
        for (_, at) in edges.iter().filter(|(of, at)| *of == prefix && at.router != from) {
            for (beyond, _) in edges.iter().filter(|(of, to)| *of != prefix && to.router == at.router) {
                if found.insert(*beyond) {
                    next.push((*beyond, at.router));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(router: u32, port: u8) -> Attached {
        Attached { router: NodeId(router), port, lid: 1 }
    }

    /// Each as router, port, takes, sends.
    fn found(subnets: &Subnets, members: &[(u64, bool)]) -> Vec<(u32, u8, bool, bool)> {
        let duties = duties(&tree(subnets), &members.iter().copied().collect());
        duties.iter().map(|duty| (duty.end.node.0, duty.end.port, duty.takes, duty.sends)).collect()
    }

    fn row() -> Subnets {
        Subnets::from([(1, vec![at(7, 1)]), (2, vec![at(7, 2), at(8, 1)]), (3, vec![at(8, 2)])])
    }

    #[test]
    fn l40_a_group_passes_a_subnet_without_members() {
        let both = |router, port| (router, port, true, true);
        assert_eq!(found(&row(), &[(1, true), (3, true)]), [both(7, 1), both(7, 2), both(8, 1), both(8, 2)]);
        assert_eq!(found(&row(), &[(1, true), (2, true)]), [both(7, 1), both(7, 2)], "not to the third");
        let one_way = [(7, 1, true, false), (7, 2, false, true), (8, 1, true, false), (8, 2, false, true)];
        assert_eq!(found(&row(), &[(1, false), (3, true)]), one_way, "the first one only sends");
        assert!(found(&row(), &[(1, false), (3, false)]).is_empty(), "nobody receives");
        assert!(found(&row(), &[(2, true)]).is_empty(), "in one subnet");
    }

    #[test]
    fn l40_a_circle_and_parallel_routers_have_one_way_for_groups() {
        let circle = Subnets::from([
            (1, vec![at(7, 1), at(9, 2)]),
            (2, vec![at(7, 2), at(8, 1)]),
            (3, vec![at(8, 2), at(9, 1)]),
        ]);
        let ports: Vec<_> = found(&circle, &[(1, true), (2, true), (3, true)]).iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(ports, [(7, 1), (9, 2), (7, 2), (9, 1)], "the third router is no way");
        let parallel = Subnets::from([(1, vec![at(7, 1), at(8, 1)]), (2, vec![at(7, 2), at(8, 2)])]);
        let ports: Vec<_> = found(&parallel, &[(1, true), (2, true)]).iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(ports, [(7, 1), (7, 2)]);
    }
}
