//! The forwarding tables of one switch: the blocks that differ.

use super::Manager;
use super::asker::{SmpRequest, What};
use crate::event::Problem;
use crate::inventory::Switch;
use crate::routing::NO_ROUTE;
use crate::routing::multicast::{FIRST, trees};
use wire::smp::{Capability, LinearTable, MulticastTable, SwitchInfo};

/// LIDs in a block of the linear table.
const LIDS: usize = 64;
/// LIDs in a block of the multicast table.
const ROWS: u16 = 32;

impl Manager {
    /// SwitchInfo and the linear table.
    pub(super) fn switch_requests(&mut self, guid: u64) -> Vec<SmpRequest> {
        let mut requests = Vec::new();
        let Some(table) = self.plan.linear.remove(&guid) else { return requests };
        let Some(node) = self.inventory.nodes.get(&guid) else { return requests };
        let Some(switch) = &node.switch else { return requests };
        let (info, top) = (switch.info, u16::try_from(table.len().saturating_sub(1)).unwrap_or(u16::MAX));
        if top >= info.linear_cap {
            self.sweep.errors += 1;
            self.problem(Problem::LinearCap { node: guid, cap: info.linear_cap, top });
            return requests;
        }
        // The bit is written as it is: a Set with it clears it.
        if info.linear_top != top || info.port_state_change {
            let wanted = SwitchInfo { linear_top: top, ..info };
            let attribute = (SwitchInfo::ATTRIBUTE, 0);
            requests.push(SmpRequest::set(What::Switch(guid), attribute, &node.route, wanted));
        }
        for (nth, ports) in (0u16..).zip(table.chunks(LIDS)) {
            let mut block = LinearTable { ports: [NO_ROUTE; LIDS] };
            block.ports[..ports.len()].copy_from_slice(ports);
            let from = usize::from(nth) * LIDS;
            if switch.linear.get(from..from + LIDS).is_none_or(|own| own != block.ports) {
                let attribute = (LinearTable::ATTRIBUTE, u32::from(nth));
                requests.push(SmpRequest::set(What::Linear(guid, nth), attribute, &node.route, block));
            }
        }
        requests
    }

    /// Computes the trees of all groups.
    pub(super) fn compute_trees(&mut self) {
        let groups = self.members();
        self.plan.multicast = trees(&self.inventory, &groups);
        let last = groups.keys().copied().filter(|mlid| (FIRST..0xffff).contains(mlid)).max();
        self.plan.multicast_end = last.map_or(0, |last| last - FIRST + 1);
    }

    /// The multicast table, and its end.
    pub(super) fn multicast_requests(&mut self, guid: u64) -> Vec<SmpRequest> {
        let mut requests = Vec::new();
        let Some(node) = self.inventory.nodes.get(&guid) else { return requests };
        let Some(switch) = &node.switch else { return requests };
        let end = self.plan.multicast_end.min(switch.info.multicast_cap);
        let mask = node.ports.get(&0).map_or(0, |port| port.info.capability_mask);
        let top = FIRST + end - 1;
        if mask & Capability::MULTICAST_TOP != 0 && switch.info.multicast_top != top {
            // The change of a port stays to be seen.
            let wanted = SwitchInfo { multicast_top: top, port_state_change: false, ..switch.info };
            requests.push(SmpRequest::set(What::Switch(guid), (SwitchInfo::ATTRIBUTE, 0), &node.route, wanted));
        }
        // Blocks that were set, and may have rows of groups that have gone.
        let known = switch.multicast.last_key_value().map_or(0, |(last, _)| last + 1);
        for block in 0..end.max(known).div_ceil(ROWS) {
            for position in 0..=node.info.ports / 16 {
                if let Some(table) = self.multicast_block(guid, switch, block, position) {
                    let modifier = u32::from(block) | u32::from(position) << 28;
                    let what = What::Multicast(guid, block, position);
                    requests.push(SmpRequest::set(what, (MulticastTable::ATTRIBUTE, modifier), &node.route, table));
                }
            }
        }
        requests
    }

    /// A block of the multicast table, if it differs. A row that was never set is unknown.
    fn multicast_block(&self, guid: u64, switch: &Switch, block: u16, position: u8) -> Option<MulticastTable> {
        let rows = self.plan.multicast.get(&guid);
        let at = usize::from(position) * 2;
        let mut table = MulticastTable::default();
        let mut differs = false;
        for (mask, row) in table.masks.iter_mut().zip(block * ROWS..) {
            let wanted = rows.and_then(|rows| rows.get(&row)).map_or([0; 2], |row| [row[at], row[at + 1]]);
            let own = switch.multicast.get(&row).map(|row| [row[at], row[at + 1]]);
            differs |= own != Some(wanted);
            *mask = u16::from_le_bytes(wanted);
        }
        differs.then_some(table)
    }
}
