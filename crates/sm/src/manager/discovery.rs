//! The first phase of a heavy sweep: a breadth-first search on directed routes. Each node is asked
//! what it is, and each port that is not down is asked for its neighbour. Not what is set later.

use super::asker::{SmpRequest, What};
use super::store::store;
use super::{Manager, Phase};
use crate::event::Problem;
use crate::inventory::{Inventory, Node, Port, PortId, Switch};
use crate::routing::graph::is_switch;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use wire::layout::Layout;
use wire::smp::{
    Capability, GuidInfo, LinkState, MAX_HOPS, NodeDescription, NodeInfo, NodeType, PKeyTable, PortInfo, SmInfo, Smp,
    SwitchInfo,
};

/// Ports of a switch; 255 is no route.
const MOST_PORTS: u8 = 254;

impl Manager {
    /// Begins at the own port.
    pub(super) fn discover(&mut self) {
        self.found = Inventory::default();
        self.own = None;
        self.asker.push(SmpRequest::get(What::Node(None), NodeInfo::ATTRIBUTE, 0, &[]));
    }

    /// An attribute has arrived in this phase.
    pub(super) fn discovered(&mut self, what: What, smp: &Smp) {
        if let What::Node(via) = what {
            let info = NodeInfo::read(&smp.data).unwrap_or_default();
            return self.node_found(via, info);
        }
        store(&mut self.found, what, &smp.data);
        match what {
            What::Port(id) => self.port_found(id),
            What::PKeys(id, block) => {
                let last = PKeyTable::read(&smp.data).unwrap_or_default().pkeys[31];
                self.more_pkeys(id, block, last);
            }
            _ => {}
        }
    }

    fn node_found(&mut self, via: Option<PortId>, info: NodeInfo) {
        let is_switch = is_switch(info.node_type);
        let id = PortId { node: info.node_guid, port: info.local_port };
        let valid = (NodeType::Ca as u8..=NodeType::Router as u8).contains(&info.node_type)
            && info.node_guid != 0
            && (1..=MOST_PORTS).contains(&info.ports)
            && id.port <= info.ports
            && (id.port != 0 || (is_switch && via.is_none()));
        if !valid {
            self.sweep.errors += 1;
            return self.problem(Problem::Impossible(via.unwrap_or_default()));
        }
        let known = self.found.nodes.get(&id.node);
        let limit = self.config.most_nodes;
        if known.is_none() && self.found.nodes.len() >= limit {
            return self.problem(Problem::TooManyNodes(limit));
        }
        if known.is_some_and(|node| (node.info.node_type, node.info.ports) != (info.node_type, info.ports)) {
            return self.problem(Problem::DuplicateGuid { guid: id.node, port: id.port });
        }
        let is_new = known.is_none();
        if is_new {
            let route = via.map(|via| self.route_through(via)).unwrap_or_default();
            self.found.nodes.insert(id.node, node(info, route));
        }
        let has_new_port = self.add_port(id, &info, is_new);
        match via {
            None => self.own = Some(PortId { port: if is_switch { 0 } else { id.port }, ..id }),
            Some(via) => self.connect(via, id),
        }
        if is_new {
            self.ask_about(id.node);
        } else if has_new_port {
            // After it is connected: the answer has the number of the port that the request came by.
            self.ask_port(id);
        }
    }

    /// The ports of a new switch, or one more port of an adapter. Returns whether it is the latter.
    fn add_port(&mut self, id: PortId, info: &NodeInfo, is_new: bool) -> bool {
        let Some(node) = self.found.nodes.get_mut(&id.node) else { return false };
        if node.switch.is_some() {
            if is_new {
                node.ports = (0..=info.ports).map(|number| (number, port(info.port_guid))).collect();
            }
            return false;
        }
        let Entry::Vacant(place) = node.ports.entry(id.port) else { return false };
        place.insert(port(info.port_guid));
        true
    }

    fn connect(&mut self, one: PortId, other: PortId) {
        for (from, to) in [(one, other), (other, one)] {
            let Some(port) = self.found.port_mut(from) else { continue };
            if port.peer.is_some_and(|peer| peer != to) {
                self.sweep.errors += 1;
                return self.problem(Problem::DuplicateGuid { guid: from.node, port: from.port });
            }
            port.peer = Some(to);
        }
    }

    fn ask_about(&mut self, guid: u64) {
        let Some(node) = self.found.nodes.get(&guid) else { return };
        let route = node.route.clone();
        let ports: Vec<u8> = node.ports.keys().copied().collect();
        let is_switch = node.switch.is_some();
        self.asker.push(SmpRequest::get(What::Description(guid), NodeDescription::ATTRIBUTE, 0, &route));
        if is_switch {
            self.asker.push(SmpRequest::get(What::Switch(guid), SwitchInfo::ATTRIBUTE, 0, &route));
        }
        ports.into_iter().for_each(|port| self.ask_port(PortId { node: guid, port }));
    }

    fn ask_port(&mut self, id: PortId) {
        let route = self.route(id);
        self.asker.push(SmpRequest::get(What::Port(id), PortInfo::ATTRIBUTE, id.port.into(), &route));
    }

    fn port_found(&mut self, id: PortId) {
        let Some((node, port)) = self.found.nodes.get(&id.node).zip(self.found.port(id)) else { return };
        let is_switch = node.switch.is_some();
        let (info, hops, peer) = (port.info, node.route.len(), port.peer);
        let is_down = info.link.state <= LinkState::Down as u8;
        let is_cable = id.port != 0;
        let leads_on = is_switch || self.own == Some(id);
        if is_cable && leads_on && !is_down && peer.is_none() && hops < usize::from(MAX_HOPS) {
            let route = self.route_through(id);
            self.asker.push(SmpRequest::get(What::Node(Some(id)), NodeInfo::ATTRIBUTE, 0, &route));
        }
        if is_switch && id.port != 0 {
            return;
        }
        let route = self.route(id);
        self.ask_pkeys(id, 0);
        if info.guid_cap > 1 {
            self.asker.push(SmpRequest::get(What::Guids(id, 0), GuidInfo::ATTRIBUTE, 0, &route));
        }
        if info.capability_mask & Capability::SM != 0 && self.own != Some(id) {
            self.asker.push(SmpRequest::get(What::Manager(id), SmInfo::ATTRIBUTE, 0, &route));
        }
    }

    fn ask_pkeys(&mut self, id: PortId, block: u16) {
        let route = self.route(id);
        let what = What::PKeys(id, block);
        self.asker.push(SmpRequest::get(what, PKeyTable::ATTRIBUTE, block.into(), &route));
    }

    /// A block whose last entry is used may not be the last one in use.
    fn more_pkeys(&mut self, id: PortId, block: u16, last: u16) {
        let cap = self.found.nodes.get(&id.node).map_or(0, |node| node.info.partition_cap);
        if last != 0 && block.saturating_add(1).saturating_mul(32) < cap {
            self.ask_pkeys(id, block + 1);
        }
    }

    /// The directed route to a port: that of a switch, or through the port's own link.
    pub(super) fn route(&self, id: PortId) -> Vec<u8> {
        let inventory = if self.sweep.phase == Phase::Discover { &self.found } else { &self.inventory };
        let Some(node) = inventory.nodes.get(&id.node) else { return Vec::new() };
        if node.switch.is_some() || self.own == Some(id) {
            return node.route.to_vec();
        }
        let peer = inventory.port(id).and_then(|port| port.peer);
        match peer.and_then(|peer| Some((inventory.nodes.get(&peer.node)?, peer.port))) {
            Some((switch, port)) => [&switch.route[..], &[port]].concat(),
            None => node.route.to_vec(),
        }
    }

    /// The directed route to the neighbour of a port.
    fn route_through(&self, id: PortId) -> Box<[u8]> {
        let route = self.found.nodes.get(&id.node).map(|node| &node.route[..]).unwrap_or_default();
        [route, &[id.port]].concat().into()
    }
}

fn node(info: NodeInfo, route: Box<[u8]>) -> Node {
    let switch = is_switch(info.node_type).then(|| {
        let (linear, multicast) = (Vec::new(), BTreeMap::new());
        Box::new(Switch { info: SwitchInfo::default(), linear, multicast })
    });
    Node { info, description: NodeDescription::default(), ports: BTreeMap::new(), switch, route }
}

fn port(guid: u64) -> Port {
    Port {
        guid,
        info: PortInfo::default(),
        peer: None,
        pkeys: Vec::new(),
        sl_to_vl: BTreeMap::new(),
        arbitration_high: Vec::new(),
        arbitration_low: Vec::new(),
        guids: Vec::new(),
        sm: None,
    }
}
