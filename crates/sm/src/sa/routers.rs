//! The groups whose packets routers forward, and the ports of routers as their members. The caller
//! chooses these ports. Adds to [`Sa`].

use super::Sa;
use super::members::cap;
use crate::groups::{Group, Joiner, Routed};
use crate::inventory::{Inventory, PortId};
use std::collections::BTreeMap;
use std::time::Duration;
use wire::grh::{is_beyond_subnet, multicast_scope};
use wire::notice::Notice;
use wire::sa::McMemberRecord;
use wire::smp::NodeType;

/// The bits that keep a group alive.
const KEEPS: u8 = McMemberRecord::FULL | McMemberRecord::SEND_ONLY_FULL;
/// The bits with which packets are delivered.
const RECEIVES: u8 = McMemberRecord::FULL | McMemberRecord::NON;

impl Sa {
    /// The groups whose packets routers forward.
    pub fn routed(&self, inventory: &Inventory) -> impl Iterator<Item = Routed> {
        let leaves = |group: &&Group| multicast_scope(&group.record.mgid).is_some_and(is_beyond_subnet);
        self.groups.iter().filter(leaves).filter_map(|group| {
            let others = group.members.iter().filter(|(who, _)| !is_router(inventory, who.port));
            let bits = others.map(|(_, bits)| *bits).reduce(|all, bits| all | bits)?;
            Some(Routed { record: group.record, receives: bits & RECEIVES != 0, lives: bits & KEEPS != 0 })
        })
    }

    /// The groups that routers are members of.
    pub fn groups_of_routers(&self, inventory: &Inventory) -> impl Iterator<Item = McMemberRecord> {
        let has_router = |group: &&Group| group.members.keys().any(|who| is_router(inventory, who.port));
        self.groups.iter().filter(has_router).map(|group| group.record)
    }

    /// The record of a group.
    #[must_use]
    pub fn group(&self, mgid: &wire::cm::Gid) -> Option<McMemberRecord> {
        self.groups.find(mgid).map(|group| group.record)
    }

    /// Makes ports of routers, by their GUIDs, the members of a group with these join states, and
    /// no other router. If the group is not there, it is made like `record`. Returns its record;
    /// `None`: it is not there, or is one of another partition or Q_Key.
    pub fn join_routers(
        &mut self,
        inventory: &Inventory,
        record: &McMemberRecord,
        states: &BTreeMap<u64, u8>,
        now: Duration,
    ) -> Option<McMemberRecord> {
        let mgid = record.mgid;
        let owner = |guid: &u64| self.index.owner(*guid).filter(|id| is_router(inventory, *id));
        let states = states.iter().filter_map(|(guid, bits)| Some((Joiner { port: owner(guid)?, guid: *guid }, *bits)));
        let states: BTreeMap<Joiner, u8> = states.collect();
        let created = self.groups.find(&mgid).is_none();
        if created {
            if states.is_empty() {
                return None;
            }
            self.groups.create(*record, false, cap(inventory))?;
        }
        let known = self.groups.find(&mgid)?.record;
        let fits = (known.pkey ^ record.pkey) & 0x7fff == 0 && known.qkey == record.qkey;
        let states = if fits { states } else { BTreeMap::new() };
        let (changed, deleted) = self.groups.set(&mgid, |id| is_router(inventory, id), &states)?;
        if changed || created || deleted {
            self.tell(super::SaEvent::GroupsChanged);
        }
        if created {
            self.group_notice(inventory, Notice::GROUP_CREATED, mgid, now);
        }
        if deleted {
            self.group_notice(inventory, Notice::GROUP_DELETED, mgid, now);
        }
        (fits && !deleted).then_some(known)
    }
}

fn is_router(inventory: &Inventory, id: PortId) -> bool {
    inventory.nodes.get(&id.node).is_some_and(|node| node.info.node_type == NodeType::Router as u8)
}
