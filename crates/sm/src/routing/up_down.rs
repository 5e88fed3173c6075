//! Paths that go up and then down, and never up again. A packet that has gone down once finds at
//! each switch a way down, because a switch with a way down always takes it. So no circle of
//! channels is possible. The function is [`approach`].

use super::approach::{Approach, Direction, FAR};
use super::graph::Graph;
use super::order::Order;
use super::shortest::search;
use std::collections::VecDeque;

/// How all switches reach `destination`.
pub(super) fn approach(graph: &Graph, order: &Order, destination: usize) -> Approach {
    let mut cost = vec![FAR; graph.switches.len()];
    let mut way = vec![Direction::Any; cost.len()];
    cost[destination] = 0;
    // The switches above the destination have a way down.
    search(graph, &mut cost, VecDeque::from([destination]), |from, to| order.is_above(to, from));
    for (way, _) in way.iter_mut().zip(&cost).filter(|(_, cost)| **cost != FAR) {
        *way = Direction::Down;
    }
    // The others go up. All switches above one are ready before it.
    for &at in &order.sorted {
        if cost[at] != FAR {
            continue;
        }
        let above = graph.switches[at].links.iter().filter(|link| order.is_above(link.peer, at));
        let nearest = above.map(|link| cost[link.peer]).filter(|cost| *cost != FAR).min();
        if let Some(nearest) = nearest {
            cost[at] = nearest.saturating_add(1);
            way[at] = Direction::Up;
        }
    }
    // From one root to another there may be no way but down and up. No adapter's packet takes it:
    // its first switch reaches the other root by going up.
    let known: VecDeque<usize> = (0..cost.len()).filter(|at| cost[*at] != FAR).collect();
    if known.len() < cost.len() {
        let mut sorted: Vec<usize> = known.into();
        sorted.sort_by_key(|at| cost[*at]);
        search(graph, &mut cost, sorted.into(), |_, _| true);
    }
    Approach { cost, way }
}
