//! Routes: the forwarding tables of all switches, computed from the inventory. Not how they are
//! written. The functions are [`unicast`] and [`multicast::trees`].
//!
//! ```text
//!   Inventory ─► graph::Graph ─► one Approach for each destination switch ─► spread ─► tables
//!                                 (which links lead nearer)         (which of them a LID takes)
//! ```
//! The engines differ in the first step and in the last one:
//!
//! | engine | links that may be used | choice among them |
//! |---|---|---|
//! | min-hop | those of shortest paths | the port with the fewest LIDs |
//! | up/down | up, and never up again after down | the port with the fewest LIDs |
//! | fat-tree | as up/down, with the levels of the tree | by the number of the destination |
//! | dimension order | those of shortest paths | the neighbour behind the lowest port |
//!
//! All of it works on dense numbers. The work is that of one breadth-first search for each switch,
//! and of one choice for each entry of a table.

mod approach;
pub mod graph;
pub mod multicast;
mod order;
mod shortest;
mod spread;
mod up_down;

use crate::config::{Engine, Routing};
use crate::inventory::Inventory;
use approach::FAR;
pub use approach::NO_ROUTE;
use graph::Graph;
use std::collections::HashMap;

/// The tables of all switches.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The linear tables by the switch's node GUID. All have the same length.
    pub linear: HashMap<u64, Vec<u8>>,
    /// The engine that was used.
    pub engine: Engine,
    /// Why it is not the one that was asked for.
    pub fallback: Option<String>,
    /// Pairs of switches without a path.
    pub unreachable: usize,
}

/// Computes the linear tables of all switches. LIDs and links are those of the inventory.
#[must_use]
pub fn unicast(inventory: &Inventory, routing: &Routing) -> Tables {
    let graph = Graph::new(inventory);
    let mut fallback = None;
    let mut engine = routing.engine;
    let mut order = None;
    if engine == Engine::FatTree {
        match order::levels(&graph, &routing.roots) {
            Ok(levels) => order = Some(levels),
            Err(why) => {
                fallback = Some(format!("{why}; up/down is used"));
                engine = Engine::UpDown;
            }
        }
    }
    if engine == Engine::UpDown {
        order = Some(order::ranks(&graph, &routing.roots));
    }
    let mut tables = spread::Spread::new(&graph, engine, order.as_ref());
    let mut unreachable = 0;
    for destination in 0..graph.switches.len() {
        let approach = match &order {
            Some(order) => up_down::approach(&graph, order, destination),
            None => shortest::approach(&graph, destination),
        };
        unreachable += approach.cost.iter().filter(|cost| **cost == FAR).count();
        tables.add(destination, &approach);
    }
    let linear = graph.switches.iter().zip(tables.tables).map(|(switch, table)| (switch.guid, table)).collect();
    Tables { linear, engine, fallback, unreachable }
}
