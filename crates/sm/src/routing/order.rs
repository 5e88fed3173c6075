//! Which of two switches is above the other. Up/down needs any order; a fat tree needs its levels.
//! The functions are [`ranks`] and [`levels`].

use super::approach::FAR;
use super::graph::Graph;
use super::shortest::{distances, search};
use std::collections::VecDeque;

/// An order of all switches.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// The links to the nearest root.
    pub(crate) rank: Vec<u16>,
    /// All switches, the highest first.
    pub(crate) sorted: Vec<usize>,
}

impl Order {
    fn new(rank: Vec<u16>) -> Order {
        let mut sorted: Vec<usize> = (0..rank.len()).collect();
        sorted.sort_by_key(|at| (rank[*at], *at));
        Order { rank, sorted }
    }

    /// Whether the first switch is above the second. Of equal ranks, the lower GUID is above, so
    /// that no circle goes only up.
    pub(crate) fn is_above(&self, one: usize, other: usize) -> bool {
        (self.rank[one], one) < (self.rank[other], other)
    }
}

/// The ranks for up/down. Without roots that are given, the roots are the switches that are
/// farthest from adapters, if all adapters are below each of them. Otherwise there is one root, in
/// the centre: an adapter below one root only could not reach an adapter below another without
/// going up after it has gone down.
pub(crate) fn ranks(graph: &Graph, roots: &[u64]) -> Order {
    let given: Vec<usize> = roots.iter().filter_map(|guid| graph.index.get(guid)).copied().collect();
    if !given.is_empty() {
        return below(graph, given);
    }
    let farthest = find_roots(graph);
    let order = below(graph, farthest.clone());
    let reaches_all = |root: &usize| {
        let mut cost = vec![FAR; graph.switches.len()];
        cost[*root] = 0;
        search(graph, &mut cost, VecDeque::from([*root]), |from, to| order.is_above(from, to));
        (0..cost.len()).all(|at| cost[at] != FAR || graph.switches[at].adapters == 0)
    };
    if farthest.iter().all(reaches_all) { order } else { below(graph, centre(graph)) }
}

/// The ranks with these roots.
fn below(graph: &Graph, mut found: Vec<usize>) -> Order {
    let mut rank = from(graph, &found);
    // A part of the subnet without a root has its own.
    while let Some(at) = rank.iter().position(|rank| *rank == FAR) {
        found.push(at);
        rank = from(graph, &found);
    }
    Order::new(rank)
}

/// The links from each switch to the nearest of these.
fn from(graph: &Graph, switches: &[usize]) -> Vec<u16> {
    let mut cost = vec![FAR; graph.switches.len()];
    switches.iter().for_each(|at| cost[*at] = 0);
    search(graph, &mut cost, VecDeque::from(switches.to_vec()), |_, _| true);
    cost
}

/// The links from each switch to the nearest one with adapters.
fn heights(graph: &Graph) -> Vec<u16> {
    let leaves: Vec<usize> = (0..graph.switches.len()).filter(|at| graph.switches[*at].adapters > 0).collect();
    from(graph, &leaves)
}

fn find_roots(graph: &Graph) -> Vec<usize> {
    let heights = heights(graph);
    let top = heights.iter().copied().filter(|height| *height != FAR).max().unwrap_or(0);
    if top > 0 {
        return (0..heights.len()).filter(|at| heights[*at] == top).collect();
    }
    centre(graph)
}

/// The switch whose farthest switch is nearest, if there are switches.
fn centre(graph: &Graph) -> Vec<usize> {
    let widest = |at: &usize| distances(graph, *at).into_iter().filter(|cost| *cost != FAR).max();
    (0..graph.switches.len()).min_by_key(|at| (widest(at), *at)).into_iter().collect()
}

/// The levels of a fat tree, or why the subnet is none: adapters are at the lowest level only, and
/// each link joins two neighbouring levels.
pub(crate) fn levels(graph: &Graph, roots: &[u64]) -> Result<Order, String> {
    let given: Vec<usize> = roots.iter().filter_map(|guid| graph.index.get(guid)).copied().collect();
    let order = if given.is_empty() {
        let heights = heights(graph);
        let top = heights.iter().copied().max().unwrap_or(0);
        Order::new(heights.into_iter().map(|height| if height == FAR { FAR } else { top - height }).collect())
    } else {
        Order::new(from(graph, &given))
    };
    let lowest = order.rank.iter().copied().max().unwrap_or(0);
    for (at, switch) in graph.switches.iter().enumerate() {
        let guid = switch.guid;
        if order.rank[at] == FAR {
            return Err(format!("switch {guid:#x} has no link to the tree"));
        }
        if switch.adapters > 0 && order.rank[at] != lowest {
            return Err(format!("switch {guid:#x} has adapters above the lowest level of the tree"));
        }
        if let Some(link) = switch.links.iter().find(|link| order.rank[link.peer].abs_diff(order.rank[at]) != 1) {
            let peer = graph.switches[link.peer].guid;
            return Err(format!("the link between switches {guid:#x} and {peer:#x} joins no neighbouring levels"));
        }
    }
    Ok(order)
}
