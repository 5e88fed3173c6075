//! The switches and their links, with dense numbers. Not the routes. Principal type: [`Graph`].

use crate::inventory::{Inventory, PortId};
use std::collections::HashMap;
use wire::smp::NodeType;

/// The switches of a subnet. They are in the order of their GUIDs.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// The switches.
    pub switches: Vec<SwitchVertex>,
    /// The number of each node GUID.
    pub index: HashMap<u64, usize>,
    /// The last LID in use.
    pub top: u16,
}

/// A switch.
#[derive(Clone, Debug, Default)]
pub struct SwitchVertex {
    /// The node's GUID.
    pub guid: u64,
    /// The links to other switches, by port.
    pub links: Vec<Link>,
    /// The LIDs behind a port, and the port: those of end ports, and of the switch itself at port
    /// 0.
    pub ends: Vec<(u16, u8)>,
    /// Ports with adapters or routers.
    pub adapters: usize,
}

/// A link to another switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// The port.
    pub port: u8,
    /// The number of the other switch.
    pub peer: usize,
    /// Its port.
    pub peer_port: u8,
}

impl Graph {
    /// The graph of an inventory.
    #[must_use]
    pub fn new(inventory: &Inventory) -> Graph {
        let is_switch = |guid: &u64| inventory.nodes.get(guid).is_some_and(|node| node.switch.is_some());
        let guids: Vec<u64> = inventory.nodes.keys().copied().filter(is_switch).collect();
        let index: HashMap<u64, usize> = guids.iter().enumerate().map(|(nth, guid)| (*guid, nth)).collect();
        let mut graph = Graph { index, ..Graph::default() };
        for guid in guids {
            let switch = graph.switch(inventory, guid);
            graph.switches.push(switch);
        }
        let ends = graph.switches.iter().flat_map(|switch| &switch.ends);
        graph.top = ends.map(|(lid, _)| *lid).max().unwrap_or(0);
        graph
    }

    fn switch(&self, inventory: &Inventory, guid: u64) -> SwitchVertex {
        let mut switch = SwitchVertex { guid, ..SwitchVertex::default() };
        let Some(node) = inventory.nodes.get(&guid) else { return switch };
        for (number, port) in &node.ports {
            if *number == 0 {
                switch.ends.extend(lids(inventory, PortId { node: guid, port: 0 }).map(|lid| (lid, 0)));
                continue;
            }
            let Some(peer) = port.peer else { continue };
            match self.index.get(&peer.node) {
                // A cable from a switch to itself leads nowhere.
                Some(_) if peer.node == guid => {}
                Some(nth) => switch.links.push(Link { port: *number, peer: *nth, peer_port: peer.port }),
                None => {
                    switch.adapters += 1;
                    switch.ends.extend(lids(inventory, peer).map(|lid| (lid, *number)));
                }
            }
        }
        switch
    }
}

/// All LIDs of an end port.
fn lids(inventory: &Inventory, id: PortId) -> impl Iterator<Item = u16> + use<> {
    let info = inventory.port(id).map(|port| port.info).unwrap_or_default();
    let count = if info.lid == 0 { 0 } else { 1u16 << info.lmc.min(7) };
    (0..count).map_while(move |bits| info.lid.checked_add(bits).filter(|lid| *lid <= crate::lids::LAST))
}

/// Whether a node is a switch.
#[must_use]
pub const fn is_switch(node_type: u8) -> bool {
    node_type == NodeType::Switch as u8
}
