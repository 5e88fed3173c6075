//! Chooses for each LID one of the links that lead closer to its switch. Principal type:
//! [`Spread`].

use super::approach::{Approach, Direction, FAR, NO_ROUTE};
use super::graph::{Graph, Link};
use super::order::Order;
use crate::config::Engine;

/// The tables as they are filled.
pub(super) struct Spread<'a> {
    graph: &'a Graph,
    engine: Engine,
    order: Option<&'a Order>,
    /// The linear tables by switch.
    pub(super) tables: Vec<Vec<u8>>,
    /// The LIDs that leave by each port, by switch.
    used: Vec<Vec<u32>>,
    /// By how much the number of a destination is divided at each level of a fat tree.
    divisors: Vec<usize>,
    /// The destinations that were numbered.
    counted: usize,
}

impl<'a> Spread<'a> {
    pub(super) fn new(graph: &'a Graph, engine: Engine, order: Option<&'a Order>) -> Spread<'a> {
        let len = usize::from(graph.top) + 1;
        let count = graph.switches.len();
        let divisors = order.filter(|_| engine == Engine::FatTree).map(|order| divisors(graph, order));
        Spread {
            graph,
            engine,
            order,
            tables: vec![vec![NO_ROUTE; len]; count],
            used: vec![vec![0; 256]; count],
            divisors: divisors.unwrap_or_default(),
            counted: 0,
        }
    }

    /// Adds the LIDs of one switch to all tables.
    pub(super) fn add(&mut self, destination: usize, approach: &Approach) {
        let ends = &self.graph.switches[destination].ends;
        for (lid, port) in ends {
            self.tables[destination][usize::from(*lid)] = *port;
            self.used[destination][usize::from(*port)] += 1;
        }
        let mut links = Vec::new();
        for at in 0..self.graph.switches.len() {
            if at == destination || approach.cost[at] == FAR {
                continue;
            }
            links.clear();
            links.extend(self.graph.switches[at].links.iter().filter(|link| self.leads(approach, at, link)));
            if self.engine == Engine::DimensionOrder {
                let first = links.iter().map(|link: &Link| link.peer).next();
                links.retain(|link| Some(link.peer) == first);
            }
            for (nth, (lid, _)) in ends.iter().enumerate() {
                if let Some(port) = self.choose(at, &links, self.counted + nth) {
                    self.tables[at][usize::from(*lid)] = port;
                    self.used[at][usize::from(port)] += 1;
                }
            }
        }
        // Port 0 is no destination of a tree's traffic.
        self.counted += ends.iter().filter(|(_, port)| *port != 0).count();
    }

    fn leads(&self, approach: &Approach, at: usize, link: &Link) -> bool {
        let nearer = approach.cost[link.peer].checked_add(1) == Some(approach.cost[at]);
        let above = || self.order.is_some_and(|order| order.is_above(link.peer, at));
        nearer
            && match approach.way[at] {
                Direction::Any => true,
                Direction::Up => above(),
                Direction::Down => !above() && approach.way[link.peer] == Direction::Down,
            }
    }

    fn choose(&self, at: usize, links: &[Link], number: usize) -> Option<u8> {
        if let Some(divisor) = self.order.and_then(|order| self.divisors.get(usize::from(order.rank[at]))) {
            return links.get(number / divisor % links.len().max(1)).map(|link| link.port);
        }
        let used = &self.used[at];
        links.iter().map(|link| link.port).min_by_key(|port| used[usize::from(*port)])
    }
}

/// By rank: the product of the links up of all lower levels. Neighbouring destinations then take
/// different ways up, and all packets to one destination come down by one way.
fn divisors(graph: &Graph, order: &Order) -> Vec<usize> {
    let ranks = usize::from(order.rank.iter().copied().max().unwrap_or(0)) + 1;
    let mut up = vec![1usize; ranks];
    for (at, switch) in graph.switches.iter().enumerate() {
        let links = switch.links.iter().filter(|link| order.is_above(link.peer, at)).count();
        let most = &mut up[usize::from(order.rank[at])];
        *most = links.max(*most);
    }
    let mut product = 1usize;
    let mut divisors = vec![1; ranks];
    for rank in (0..ranks).rev() {
        divisors[rank] = product;
        product = product.saturating_mul(up[rank]);
    }
    divisors
}
