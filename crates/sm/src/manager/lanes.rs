//! The tables that the manager has not set: those of lanes, and of P_Keys at switches. They are
//! read after the subnet is up, so that subnet administration can show them. A sweep reads a
//! limited number. Adapters are first, as a switch has a table for each pair of ports.

use super::Manager;
use super::asker::{SmpRequest, What};
use super::port_settings::lanes;
use crate::inventory::{Node, Port, PortId};
use std::collections::VecDeque;
use wire::smp::{PKeyTable, SlToVl, VlArbitration};

/// The tables that one sweep reads.
pub(super) const MOST_READ: usize = 8192;

impl Manager {
    /// The nodes whose tables are read.
    pub(super) fn with_lanes(&self) -> VecDeque<u64> {
        let nodes = |switch| self.inventory.nodes.iter().filter(move |(_, node)| node.switch.is_some() == switch);
        nodes(false).chain(nodes(true)).map(|(guid, _)| *guid).collect()
    }

    /// Gets of the tables that are not known, of ports with a link.
    pub(super) fn lane_requests(&mut self, guid: u64) -> Vec<SmpRequest> {
        let Some(node) = self.inventory.nodes.get(&guid) else { return Vec::new() };
        let ports = node.ports.iter().map(|(number, port)| (PortId { node: guid, port: *number }, port));
        let used = ports.filter(|(id, port)| is_used(id.port, port));
        let mut requests: Vec<SmpRequest> = used.flat_map(|(id, port)| self.tables_of(id, node, port)).collect();
        requests.truncate(self.plan.reads_left);
        self.plan.reads_left -= requests.len();
        requests
    }

    fn tables_of(&self, id: PortId, node: &Node, port: &Port) -> Vec<SmpRequest> {
        let mut requests =
            if lanes(port.info.vls.operational) > 1 { self.lanes_of(id, node, port) } else { Vec::new() };
        let has_keys = node.switch.as_ref().is_some_and(|switch| switch.info.enforcement_cap > 0);
        if has_keys && port.pkeys.is_empty() {
            let modifier = u32::from(id.port) << 16;
            requests.push(SmpRequest::get(What::PKeys(id, 0), PKeyTable::ATTRIBUTE, modifier, &self.route(id)));
        }
        requests
    }

    /// A port with one lane has no choice.
    fn lanes_of(&self, id: PortId, node: &Node, port: &Port) -> Vec<SmpRequest> {
        let (is_switch, route, vls) = (node.switch.is_some(), self.route(id), port.info.vls);
        let number = if is_switch { u32::from(id.port) } else { 0 };
        let tables = [
            (1, vls.arbitration_low_cap, port.arbitration_low.len()),
            (3, vls.arbitration_high_cap, port.arbitration_high.len()),
        ];
        let blocks = tables.into_iter().flat_map(|(first, cap, known)| {
            let cap = usize::from(cap.min(64));
            (known.div_ceil(32)..cap.div_ceil(32)).map(move |nth| first + nth as u8)
        });
        let mut requests: Vec<SmpRequest> = blocks
            .map(|block| {
                let modifier = u32::from(block) << 16 | number;
                SmpRequest::get(What::Arbitration(id, block), VlArbitration::ATTRIBUTE, modifier, &route)
            })
            .collect();
        let used = node.ports.iter().filter(|(number, port)| is_used(**number, port)).map(|(number, _)| *number);
        let ingresses = if is_switch { used.collect() } else { vec![0] };
        for ingress in ingresses.into_iter().filter(|ingress| !port.sl_to_vl.contains_key(ingress)) {
            let modifier = if is_switch { u32::from(ingress) << 8 | number } else { 0 };
            requests.push(SmpRequest::get(What::SlToVl(id, ingress), SlToVl::ATTRIBUTE, modifier, &route));
        }
        requests
    }
}

/// Port 0 of a switch has no table of its own, and a port without a link needs none.
const fn is_used(number: u8, port: &Port) -> bool {
    number != 0 && port.peer.is_some()
}
