//! Multicast trees: the multicast tables of all switches. Not the groups, which subnet
//! administration has. The function is [`trees`].

use super::approach::FAR;
use super::graph::Graph;
use super::shortest::{distances, search};
use crate::inventory::{Inventory, Member, PortId};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// The first multicast LID.
pub const FIRST: u16 = 0xc000;

/// The rows of the multicast tables that are not empty: by switch, and by LID minus 0xc000.
pub type Rows = HashMap<u64, BTreeMap<u16, [u8; 32]>>;

/// Computes the trees of all groups. Each is a spanning tree whose root has the members near. A
/// member that only sends has a way into the tree, and gets nothing.
#[must_use]
pub fn trees(inventory: &Inventory, groups: &BTreeMap<u16, Vec<Member>>) -> Rows {
    let graph = Graph::new(inventory);
    let mut rows = Rows::new();
    // Distances from each switch that has members, for all groups.
    let mut known: HashMap<usize, Vec<u16>> = HashMap::new();
    for (mlid, members) in groups.iter().filter(|(mlid, _)| (FIRST..0xffff).contains(mlid)) {
        let places = places(inventory, &graph, members);
        for at in places.keys() {
            known.entry(*at).or_insert_with(|| distances(&graph, *at));
        }
        if let Some(root) = root(&graph, &places, &known) {
            tree(&graph, *mlid - FIRST, root, &places, &mut rows);
        }
    }
    rows
}

/// The members at one switch: the ports of receivers, and whether there are any members.
#[derive(Default)]
struct Place {
    receivers: Vec<u8>,
}

fn places(inventory: &Inventory, graph: &Graph, members: &[Member]) -> BTreeMap<usize, Place> {
    let mut places: BTreeMap<usize, Place> = BTreeMap::new();
    for member in members {
        let Some(port) = inventory.port(member.port) else { continue };
        let own = graph.index.contains_key(&member.port.node).then_some(PortId { port: 0, ..member.port });
        let Some(at) = own.or(port.peer) else { continue };
        let Some(switch) = graph.index.get(&at.node) else { continue };
        let place = places.entry(*switch).or_default();
        if member.receives() && !place.receivers.contains(&at.port) {
            place.receivers.push(at.port);
        }
    }
    places
}

/// The switch whose farthest member is nearest.
fn root(graph: &Graph, places: &BTreeMap<usize, Place>, known: &HashMap<usize, Vec<u16>>) -> Option<usize> {
    let far = |at: usize| {
        let all = places.keys().filter_map(|place| known.get(place)).map(|distances| distances[at]);
        // Members that cannot be reached do not count, if others can.
        let reached = all.clone().filter(|far| *far != FAR).count();
        (std::cmp::Reverse(reached), all.filter(|far| *far != FAR).max().unwrap_or(0))
    };
    if places.len() == 1 {
        return places.keys().next().copied();
    }
    (0..graph.switches.len()).filter(|_| !places.is_empty()).min_by_key(|at| (far(*at), *at))
}

fn tree(graph: &Graph, row: u16, root: usize, places: &BTreeMap<usize, Place>, rows: &mut Rows) {
    let mut cost = vec![FAR; graph.switches.len()];
    cost[root] = 0;
    search(graph, &mut cost, VecDeque::from([root]), |_, _| true);
    // From the farthest member to the root: receivers below each switch.
    let mut below: HashMap<usize, usize> = HashMap::new();
    let reached = places.iter().filter(|(at, _)| cost[**at] != FAR);
    let total: usize = reached.clone().map(|(_, place)| place.receivers.len()).sum();
    let mut open: std::collections::BTreeSet<(std::cmp::Reverse<u16>, usize)> = Default::default();
    for (at, place) in reached {
        below.insert(*at, place.receivers.len());
        open.insert((std::cmp::Reverse(cost[*at]), *at));
        for port in &place.receivers {
            set(rows, graph.switches[*at].guid, row, *port);
        }
    }
    while let Some((_, at)) = open.pop_first() {
        let Some(&receivers) = below.get(&at).filter(|_| at != root) else { continue };
        let nearer = |link: &&super::graph::Link| cost[link.peer].checked_add(1) == Some(cost[at]);
        // Groups take different links, so that they share the fabric.
        let links: Vec<_> = graph.switches[at].links.iter().filter(nearer).collect();
        let peer = links.get(usize::from(row) % links.len().max(1)).copied();
        let Some(link) = peer else { continue };
        if total > receivers {
            set(rows, graph.switches[at].guid, row, link.port);
        }
        if receivers > 0 {
            set(rows, graph.switches[link.peer].guid, row, link.peer_port);
        }
        *below.entry(link.peer).or_default() += receivers;
        open.insert((std::cmp::Reverse(cost[link.peer]), link.peer));
    }
}

fn set(rows: &mut Rows, guid: u64, row: u16, port: u8) {
    let mask = rows.entry(guid).or_default().entry(row).or_insert([0; 32]);
    mask[usize::from(port / 8)] |= 1 << (port % 8);
}
