//! The multicast trees of the previous manager. A manager that takes over does not know the groups:
//! it asks the clients to register again. Until they have done so, the ports at the ends of the old
//! trees stay members. The new trees include them, because an old tree and a new one together could
//! contain a loop. Principal type: [`Inherited`].

use super::Manager;
use super::asker::{SmpRequest, What};
use crate::inventory::{Inventory, Member, Node, PortId};
use crate::routing::multicast::FIRST;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::layout::Layout;
use wire::sa::McMemberRecord;
use wire::smp::MulticastTable;

/// How long clients have to register again.
const GRACE: Duration = Duration::from_secs(30);
/// LIDs in a block of the multicast table.
const ROWS: u16 = 32;

/// What is left of the manager before.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    groups: BTreeMap<u16, Vec<Member>>,
    /// When it ends.
    pub(super) until: Option<Duration>,
}

impl Manager {
    /// The switches that may have tables: one without a LID has none.
    pub(super) fn with_trees(&self) -> VecDeque<u64> {
        let has_lid = |node: &Node| node.ports.get(&0).is_some_and(|port| port.info.lid != 0);
        let nodes = self.inventory.nodes.iter();
        nodes.filter(|(_, node)| node.switch.is_some() && has_lid(node)).map(|(guid, _)| *guid).collect()
    }

    /// The first block, for all ports.
    pub(super) fn tree_requests(&self, guid: u64) -> Vec<SmpRequest> {
        let Some(node) = self.inventory.nodes.get(&guid) else { return Vec::new() };
        (0..=node.info.ports / 16).filter_map(|position| get(node, guid, 0, position)).collect()
    }

    /// A block has arrived. One that is in use may not be the last one in use.
    pub(super) fn tree_found(&mut self, what: What, data: &[u8; 64]) {
        let What::Multicast(guid, block, position) = what else { return };
        let is_used = MulticastTable::read(data).is_some_and(|table| table.masks.iter().any(|mask| *mask != 0));
        let next = self.inventory.nodes.get(&guid).and_then(|node| get(node, guid, block + 1, position));
        if let Some(request) = next.filter(|_| is_used) {
            self.asker.push(request);
        }
    }

    /// The tables are read.
    pub(super) fn inherit(&mut self) {
        let groups = ends(&self.inventory);
        let until = (!groups.is_empty()).then(|| self.now.saturating_add(GRACE));
        self.inherited = Inherited { groups, until };
    }

    /// The members of all groups, with those of the manager before.
    pub(super) fn members(&self) -> BTreeMap<u16, Vec<Member>> {
        let mut groups = self.wishes.groups.clone();
        for (mlid, members) in &self.inherited.groups {
            groups.entry(*mlid).or_default().extend(members);
        }
        groups
    }

    /// Clients have had their time.
    pub(super) fn end_inheritance(&mut self) {
        if self.inherited.until.is_some_and(|until| until <= self.now) {
            self.inherited = Inherited::default();
            self.wishes.changed = true;
        }
    }
}

fn get(node: &Node, guid: u64, block: u16, position: u8) -> Option<SmpRequest> {
    let cap = node.switch.as_ref()?.info.multicast_cap;
    let modifier = u32::from(block) | u32::from(position) << 28;
    let what = What::Multicast(guid, block, position);
    (block.checked_mul(ROWS)? < cap).then(|| SmpRequest::get(what, MulticastTable::ATTRIBUTE, modifier, &node.route))
}

/// The end ports that the tables lead to. A switch in a tree that leads to none may be the way of a
/// port that only sends.
fn ends(inventory: &Inventory) -> BTreeMap<u16, Vec<Member>> {
    let mut groups: BTreeMap<u16, Vec<Member>> = BTreeMap::new();
    for (guid, node) in &inventory.nodes {
        let Some(switch) = &node.switch else { continue };
        for (row, mask) in switch.multicast.iter().filter(|(_, mask)| **mask != [0; 32]) {
            let is_set = |number: u8| mask[usize::from(number / 8)] & 1 << (number % 8) != 0;
            let end = |number: &u8| match node.ports.get(number)?.peer {
                _ if *number == 0 => Some(PortId { node: *guid, port: 0 }),
                peer => peer.filter(|peer| inventory.nodes.get(&peer.node).is_some_and(|node| node.switch.is_none())),
            };
            let ports: Vec<PortId> = node.ports.keys().filter(|number| is_set(**number)).filter_map(end).collect();
            let group = groups.entry(FIRST.saturating_add(*row)).or_default();
            group.extend(ports.iter().map(|port| Member { port: *port, join_state: McMemberRecord::FULL }));
            if ports.is_empty() {
                let port = PortId { node: *guid, port: 0 };
                group.push(Member { port, join_state: McMemberRecord::SEND_ONLY_NON });
            }
        }
    }
    groups
}
