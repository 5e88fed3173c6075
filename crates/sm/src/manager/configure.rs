//! What a sweep wants to be set, and the requests of each phase for one node. A request is made
//! only where the inventory differs. Principal type: [`Plan`].

use super::asker::{SmpRequest, What};
use super::{Manager, Phase};
use crate::config::{Config, Engine};
use crate::event::{Event, Problem};
use crate::inventory::{Node, Port, PortId};
use crate::lids;
use crate::partitions::{Keys, table};
use crate::routing::multicast::Rows;
use crate::routing::{self, graph::is_switch};
use std::collections::{BTreeMap, HashMap};
use wire::smp::{LinkState, PKeyTable, PortInfo, SwitchInfo};

/// What the sweep wants.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// The base LID and LMC of each end port.
    pub(super) lids: BTreeMap<PortId, (u16, u8)>,
    /// The LID of the manager.
    pub(super) sm_lid: u16,
    pub(super) keys: Keys,
    /// The linear tables that were not made into requests yet.
    pub(super) linear: HashMap<u64, Vec<u8>>,
    pub(super) engine: Engine,
    pub(super) multicast: Rows,
    /// The multicast LIDs in use end before 0xc000 plus this.
    pub(super) multicast_end: u16,
    /// Only groups or aliases have changed.
    pub(super) partial: bool,
    /// The tables that may still be read.
    pub(super) reads_left: usize,
}

impl Manager {
    /// The manager is the master and knows the subnet: it begins to set.
    pub(super) fn configure(&mut self) {
        self.plan = Plan { keys: Keys::new(&self.config.partitions), ..Plan::default() };
        self.assign_lids();
        self.enter(if self.role.takeover { Phase::Inherit } else { Phase::PKeys });
    }

    fn assign_lids(&mut self) {
        let own = self.own.unwrap_or_default();
        if self.role.from_standby {
            // The running subnet counts, and not what the map has from before.
            let ports = self.inventory.end_ports().filter(|(.., port)| port.info.lid != 0);
            let guids: Vec<u64> = ports.map(|(.., port)| port.guid).collect();
            guids.iter().for_each(|guid| {
                self.lids.remove(guid);
            });
        }
        let Config { lmc, reassign_lids, .. } = self.config;
        let reassign = reassign_lids && self.role.takeover;
        let found = lids::assign(&self.inventory, own, &self.lids, lmc, reassign);
        found.duplicates.iter().for_each(|(port, lid)| self.problem(Problem::DuplicateLid { port: *port, lid: *lid }));
        found.without.iter().for_each(|port| self.problem(Problem::NoLid(*port)));
        self.plan.sm_lid = found.of.get(&own).map_or(0, |(lid, _)| *lid);
        self.plan.lids = found.of;
        self.remember_lids();
    }

    /// Keeps the map of LIDs, without LIDs of ports that are away and that others have now.
    fn remember_lids(&mut self) {
        let mut map = self.lids.clone();
        let now: HashMap<u64, u16> = self
            .inventory
            .end_ports()
            .filter_map(|(id, _, port)| Some((port.guid, self.plan.lids.get(&id)?.0)))
            .collect();
        let taken: std::collections::HashSet<u16> = now.values().copied().collect();
        map.retain(|guid, lid| now.contains_key(guid) || !taken.contains(lid));
        map.extend(now);
        if map != self.lids {
            self.lids = map.clone();
            self.event(Event::Lids(map));
        }
    }

    /// Computes the routes, now that all ports have their LIDs.
    pub(super) fn compute_routes(&mut self) {
        self.inventory.index_lids();
        let tables = routing::unicast(&self.inventory, &self.config.routing);
        if let Some(why) = tables.fallback {
            self.problem(Problem::Fallback(why));
        }
        if tables.unreachable > 0 {
            self.problem(Problem::Unreachable(tables.unreachable));
        }
        self.plan.engine = tables.engine;
        self.plan.linear = tables.linear;
    }

    /// The requests of the phase for one node.
    pub(super) fn requests(&mut self, guid: u64) -> Vec<SmpRequest> {
        let phase = self.sweep.phase;
        match phase {
            Phase::Light => self.check(guid),
            Phase::Switches => self.switch_requests(guid),
            Phase::Multicast => self.multicast_requests(guid),
            Phase::Inherit => self.tree_requests(guid),
            Phase::PKeys => self.pkey_requests(guid),
            Phase::Guids => self.guid_requests(guid),
            Phase::Lanes => self.lane_requests(guid),
            Phase::Idle | Phase::Discover | Phase::Handover => Vec::new(),
            Phase::Ports | Phase::Qos | Phase::Arm | Phase::Activate => {
                let Some(node) = self.inventory.nodes.get(&guid) else { return Vec::new() };
                let ports = node.ports.iter().map(|(number, port)| (PortId { node: guid, port: *number }, port));
                let requests = ports.flat_map(|(id, port)| match phase {
                    Phase::Ports => self.port_request(id, node, port).into_iter().collect(),
                    Phase::Qos => self.qos_requests(id, node, port),
                    Phase::Arm => self.state_request(id, port, LinkState::Init, LinkState::Armed),
                    _ => self.state_request(id, port, LinkState::Armed, LinkState::Active),
                });
                requests.collect()
            }
        }
    }

    fn check(&self, guid: u64) -> Vec<SmpRequest> {
        let Some(node) = self.inventory.nodes.get(&guid) else { return Vec::new() };
        vec![SmpRequest::get(What::Check(guid), SwitchInfo::ATTRIBUTE, 0, &node.route)]
    }

    /// Takes a link one state up.
    fn state_request(&self, id: PortId, port: &Port, from: LinkState, to: LinkState) -> Vec<SmpRequest> {
        if port.info.link.state != from as u8 || port.peer.is_none() {
            return Vec::new();
        }
        let mut info = port.info;
        (info.link.state, info.link.phys_state) = (to as u8, 0);
        vec![self.set_port(id, info)]
    }

    pub(super) fn set_port(&self, id: PortId, info: PortInfo) -> SmpRequest {
        SmpRequest::set(What::Port(id), (PortInfo::ATTRIBUTE, id.port.into()), &self.route(id), info)
    }

    /// The P_Keys that an end port shall have.
    pub(super) fn keys_of(&self, id: PortId) -> Option<Vec<u16>> {
        let node = self.inventory.nodes.get(&id.node)?;
        let port = node.ports.get(&id.port)?;
        Some(self.plan.keys.of(port.guid, node.info.node_type, self.own == Some(id)))
    }

    /// The keys that a switch shall check at a port: those of the adapter or router behind it.
    pub(super) fn enforced(&self, node: &Node, port: &Port) -> Option<(Vec<u16>, u16)> {
        let switch = node.switch.as_ref().filter(|_| self.config.enforce_partitions)?;
        let peer = port.peer.filter(|_| switch.info.enforces_inbound && switch.info.enforces_outbound)?;
        let behind = self.inventory.nodes.get(&peer.node)?;
        let keys = self.keys_of(peer).filter(|_| !is_switch(behind.info.node_type))?;
        Some((keys, switch.info.enforcement_cap))
    }

    fn pkey_requests(&mut self, guid: u64) -> Vec<SmpRequest> {
        let (mut requests, mut problems) = (Vec::new(), Vec::new());
        let Some(node) = self.inventory.nodes.get(&guid) else { return requests };
        for (number, port) in &node.ports {
            let id = PortId { node: guid, port: *number };
            let is_end = node.switch.is_none() || *number == 0;
            let wanted = if is_end {
                self.keys_of(id).map(|keys| (keys, node.info.partition_cap))
            } else {
                self.enforced(node, port)
            };
            let Some((keys, cap)) = wanted else { continue };
            match table(&keys, &port.pkeys, cap.into()) {
                Some(table) => self.pkey_blocks(id, port, &table, !is_end, &mut requests),
                None => problems.push(Problem::PKeys { port: id, wanted: keys.len(), cap: cap.into() }),
            }
        }
        problems.into_iter().for_each(|problem| self.problem(problem));
        requests
    }

    /// Blocks of a P_Key table that differ. Of a switch's port, what was not set is unknown.
    fn pkey_blocks(&self, id: PortId, port: &Port, table: &[u16], is_external: bool, requests: &mut Vec<SmpRequest>) {
        let is_switch = is_external || id.port == 0;
        for (nth, keys) in (0u16..).zip(table.chunks(32)) {
            let mut block = PKeyTable::default();
            block.pkeys[..keys.len()].copy_from_slice(keys);
            let from = usize::from(nth) * 32;
            if port.pkeys.get(from..from + 32).is_some_and(|own| own == block.pkeys) {
                continue;
            }
            let number = if is_switch { id.port } else { 0 };
            let modifier = u32::from(nth) | u32::from(number) << 16;
            let what = What::PKeys(id, nth);
            requests.push(SmpRequest::set(what, (PKeyTable::ATTRIBUTE, modifier), &self.route(id), block));
        }
    }
}
