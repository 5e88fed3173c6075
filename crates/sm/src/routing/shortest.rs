//! Shortest paths to a switch. The function is [`approach`].

use super::approach::{Approach, Direction, FAR};
use super::graph::Graph;
use std::collections::VecDeque;

/// How all switches reach `destination` with the fewest links.
pub(super) fn approach(graph: &Graph, destination: usize) -> Approach {
    let cost = distances(graph, destination);
    Approach { way: vec![Direction::Any; cost.len()], cost }
}

/// The links between each switch and one of them.
pub(super) fn distances(graph: &Graph, from: usize) -> Vec<u16> {
    let mut cost = vec![FAR; graph.switches.len()];
    if let Some(first) = cost.get_mut(from) {
        *first = 0;
        search(graph, &mut cost, VecDeque::from([from]), |_, _| true);
    }
    cost
}

/// A breadth-first search from switches whose cost is known. `allowed(from, to)` says whether the
/// search goes on from one switch to its neighbour.
pub(super) fn search(
    graph: &Graph,
    cost: &mut [u16],
    mut open: VecDeque<usize>,
    allowed: impl Fn(usize, usize) -> bool,
) {
    while let Some(at) = open.pop_front() {
        for link in &graph.switches[at].links {
            if cost[link.peer] == FAR && allowed(at, link.peer) {
                cost[link.peer] = cost[at].saturating_add(1);
                open.push_back(link.peer);
            }
        }
    }
}
