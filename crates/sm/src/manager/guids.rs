//! The GUID tables of ports: the blocks whose alias GUIDs differ from those that subnet
//! administration has given.

use super::Manager;
use super::asker::{SmpRequest, What};
use crate::inventory::{Port, PortId};
use std::collections::VecDeque;
use wire::smp::GuidInfo;

/// GUIDs in a block.
const GUIDS: usize = 8;

impl Manager {
    /// The nodes whose ports may have aliases.
    pub(super) fn with_aliases(&self) -> VecDeque<u64> {
        let mut nodes: VecDeque<u64> = VecDeque::new();
        for (id, _) in self.wishes.aliases.iter().filter(|(_, aliases)| !aliases.is_empty()) {
            if nodes.back() != Some(&id.node) {
                nodes.push_back(id.node);
            }
        }
        nodes
    }

    /// Sets of the blocks that differ. Index 0 is the port's own GUID, which it does not take.
    pub(super) fn guid_requests(&self, guid: u64) -> Vec<SmpRequest> {
        let Some(node) = self.inventory.nodes.get(&guid) else { return Vec::new() };
        let ports = node.ports.iter().map(|(number, port)| (PortId { node: guid, port: *number }, port));
        ports.flat_map(|(id, port)| self.guid_blocks(id, port)).collect()
    }

    fn guid_blocks(&self, id: PortId, port: &Port) -> Vec<SmpRequest> {
        let aliases = self.wishes.aliases.get(&id).map(Vec::as_slice).unwrap_or_default();
        let mut requests = Vec::new();
        for (nth, guids) in (0u8..).zip(aliases.chunks(GUIDS)) {
            let mut block = GuidInfo::default();
            block.guids[..guids.len()].copy_from_slice(guids);
            if nth == 0 {
                block.guids[0] = port.guid;
            }
            let from = usize::from(nth) * GUIDS;
            let now = port.guids.get(from..from + GUIDS).unwrap_or(&[0; GUIDS]);
            if now != block.guids {
                let attribute = (GuidInfo::ATTRIBUTE, nth.into());
                requests.push(SmpRequest::set(What::Guids(id, nth), attribute, &self.route(id), block));
            }
        }
        requests
    }
}
