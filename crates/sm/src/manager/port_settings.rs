//! PortInfo, service levels and arbitration: what a port shall have. Not the states of links.

use super::Manager;
use super::asker::{SmpRequest, What};
use crate::config::Qos;
use crate::inventory::{Node, Port, PortId};
use crate::partitions::table;
use crate::routing::graph::is_switch;
use wire::smp::{Capability, PortInfo, SlToVl, VlArbitration, VlWeight};

/// How long a packet may be the first of its lane before a switch drops it: 4.096 µs × 2^n, to
/// another switch and to an adapter. These are the values of opensm.
const LIFE: u8 = 18;
const LEAF_LIFE: u8 = 16;
/// The packets that are dropped in a row before the lane drops all for a time.
const STALL_COUNT: u8 = 7;
/// The lane on which packets are dropped.
const DROP: u8 = 15;

impl Manager {
    /// A Set of PortInfo, if the port differs from what it shall have.
    pub(super) fn port_request(&self, id: PortId, node: &Node, port: &Port) -> Option<SmpRequest> {
        let now = without_states(port.info);
        let mut wanted = now;
        let has_lid = !is_switch(node.info.node_type) || id.port == 0;
        if has_lid {
            self.end_port(id, &mut wanted);
        }
        if id.port != 0 && port.peer.is_some() {
            self.link(node, port, &mut wanted);
        }
        (wanted != now).then(|| self.set_port(id, wanted))
    }

    fn end_port(&self, id: PortId, info: &mut PortInfo) {
        let config = &self.config;
        let Some((lid, lmc)) = self.plan.lids.get(&id) else { return };
        let is_new = info.master_sm_lid != self.plan.sm_lid || self.role.takeover;
        (info.lid, info.lmc) = (*lid, *lmc);
        (info.master_sm_lid, info.master_sm_sl) = (self.plan.sm_lid, config.sm_sl);
        info.gid_prefix = config.subnet_prefix;
        info.subnet_timeout = config.subnet_timeout;
        (info.mkey, info.mkey_protect, info.mkey_lease) = (config.mkey.key, config.mkey.protect, config.mkey.lease);
        // Clients know nothing of this manager yet.
        info.client_reregister = is_new && info.capability_mask & Capability::CLIENT_REREGISTER != 0;
    }

    /// What both ends of a link can do.
    fn link(&self, node: &Node, port: &Port, info: &mut PortInfo) {
        let peer = port.peer.and_then(|peer| self.inventory.port(peer)).map_or(port.info, |peer| peer.info);
        let least = |own: u8, other: u8| if other == 0 { own } else { own.min(other) };
        info.link.neighbor_mtu = least(info.link.mtu_cap, peer.link.mtu_cap);
        info.vls.operational = least(info.vls.cap, peer.vls.cap).min(self.config.most_vls.max(1));
        if let Some(qos) = &self.config.qos {
            info.vls.high_limit = qos.high_limit;
        }
        if let Some(switch) = &node.switch {
            let behind = port.peer.and_then(|peer| self.inventory.nodes.get(&peer.node));
            let is_leaf = behind.is_none_or(|behind| behind.switch.is_none());
            info.vls.head_of_queue_life = if is_leaf { LEAF_LIFE } else { LIFE };
            info.vls.stall_count = STALL_COUNT;
            let enforced = self.enforced(node, port);
            let checks = enforced.is_some_and(|(keys, cap)| table(&keys, &port.pkeys, cap.into()).is_some());
            info.vls.enforce_inbound = checks && switch.info.enforces_inbound;
            info.vls.enforce_outbound = checks && switch.info.enforces_outbound;
        }
    }

    /// Sets of the tables of lanes that differ.
    pub(super) fn qos_requests(&self, id: PortId, node: &Node, port: &Port) -> Vec<SmpRequest> {
        let Some(qos) = &self.config.qos else { return Vec::new() };
        let is_switch = is_switch(node.info.node_type);
        // Port 0 of a switch, and ports without a link, send nothing.
        if port.peer.is_none() || id.port == 0 {
            return Vec::new();
        }
        let lanes = lanes(port.info.vls.operational);
        let route = self.route(id);
        let mut requests = Vec::new();
        let wanted = SlToVl { vls: qos.sl_to_vl.map(|vl| fold(vl, lanes)) };
        let used = |number: &u8| *number == 0 || node.ports.get(number).is_some_and(|port| port.peer.is_some());
        let ingresses: Vec<u8> = if is_switch { node.ports.keys().copied().filter(used).collect() } else { vec![0] };
        if lanes > 1 {
            for ingress in ingresses {
                if port.sl_to_vl.get(&ingress) != Some(&wanted) {
                    let ports = u32::from(ingress) << 8 | u32::from(id.port);
                    let modifier = if is_switch { ports } else { 0 };
                    let what = What::SlToVl(id, ingress);
                    requests.push(SmpRequest::set(what, (SlToVl::ATTRIBUTE, modifier), &route, wanted));
                }
            }
        }
        arbitration(id, port, qos, (lanes, is_switch), &route, &mut requests);
        requests
    }
}

fn arbitration(
    id: PortId,
    port: &Port,
    qos: &Qos,
    (lanes, is_switch): (u8, bool),
    route: &[u8],
    requests: &mut Vec<SmpRequest>,
) {
    let vls = &port.info.vls;
    let tables = [
        (1, &qos.low, vls.arbitration_low_cap, &port.arbitration_low),
        (3, &qos.high, vls.arbitration_high_cap, &port.arbitration_high),
    ];
    for (first, wanted, cap, now) in tables {
        let cap = usize::from(cap).min(64);
        let mut wanted: Vec<VlWeight> = wanted.iter().take(cap).filter(|entry| entry.vl < lanes).copied().collect();
        wanted.resize(cap, VlWeight::default());
        for (nth, entries) in (0u8..).zip(wanted.chunks(32)) {
            let from = usize::from(nth) * 32;
            if now.get(from..from + entries.len()) == Some(entries) {
                continue;
            }
            let mut block = VlArbitration::default();
            block.entries[..entries.len()].copy_from_slice(entries);
            // The only port of an adapter that is asked is that of the route.
            let number = if is_switch { id.port } else { 0 };
            let modifier = u32::from(first + nth) << 16 | u32::from(number);
            let what = What::Arbitration(id, first + nth);
            requests.push(SmpRequest::set(what, (VlArbitration::ATTRIBUTE, modifier), route, block));
        }
    }
}

const fn without_states(mut info: PortInfo) -> PortInfo {
    info.link.state = 0;
    info.link.phys_state = 0;
    info
}

/// The lanes of a code.
pub(super) const fn lanes(code: u8) -> u8 {
    match code {
        0 | 1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        _ => 15,
    }
}

/// A lane that the port has.
const fn fold(vl: u8, lanes: u8) -> u8 {
    if vl == DROP { DROP } else { vl % lanes }
}
