//! Multicast groups and their members. Not the requests that make them. Principal type: [`Groups`].

use crate::inventory::{Member, PortId};
use std::collections::{BTreeMap, BTreeSet};
use wire::cm::Gid;
use wire::sa::McMemberRecord;

/// The first multicast LID.
pub const FIRST_LID: u16 = 0xc000;
/// The most groups, whatever the switches hold.
const MOST_GROUPS: usize = 4096;
/// The bits that keep a group alive.
const KEEPS: u8 = McMemberRecord::FULL | McMemberRecord::SEND_ONLY_FULL;

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// What all members share.
    pub record: McMemberRecord,
    /// The group stays without members.
    pub permanent: bool,
    /// The bits of each member's join state.
    pub members: BTreeMap<PortId, u8>,
    /// The members that only others have joined.
    pub proxies: BTreeSet<PortId>,
}

/// All groups.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    groups: BTreeMap<Gid, Group>,
    lids: BTreeSet<u16>,
}

impl Groups {
    /// The members of each multicast LID.
    #[must_use]
    pub fn members(&self) -> BTreeMap<u16, Vec<Member>> {
        let members = |group: &Group| {
            group.members.iter().map(|(port, join_state)| Member { port: *port, join_state: *join_state }).collect()
        };
        self.groups.values().map(|group| (group.record.mlid, members(group))).collect()
    }

    /// All groups, by their GIDs.
    pub fn iter(&self) -> impl Iterator<Item = &Group> {
        self.groups.values()
    }

    /// The group of a GID.
    #[must_use]
    pub fn find(&self, mgid: &Gid) -> Option<&Group> {
        self.groups.get(mgid)
    }

    /// Makes a group, with the first free LID of the `cap` that the switches hold. `None`: there is
    /// no LID, or the group exists.
    pub fn create(&mut self, mut record: McMemberRecord, permanent: bool, cap: u16) -> Option<u16> {
        if self.groups.contains_key(&record.mgid) || self.groups.len() >= MOST_GROUPS {
            return None;
        }
        let last = FIRST_LID.saturating_add(cap.checked_sub(1)?).min(0xfffe);
        let mlid = (FIRST_LID..=last).find(|lid| !self.lids.contains(lid))?;
        record.mlid = mlid;
        self.lids.insert(mlid);
        self.groups
            .insert(record.mgid, Group { record, permanent, members: BTreeMap::new(), proxies: BTreeSet::new() });
        Some(mlid)
    }

    /// Adds bits to a port's join state, for itself or for another port as its proxy. Returns its
    /// bits now.
    pub fn join(&mut self, mgid: &Gid, port: PortId, bits: u8, by_proxy: bool) -> Option<u8> {
        let group = self.groups.get_mut(mgid)?;
        if !by_proxy {
            group.proxies.remove(&port);
        } else if !group.members.contains_key(&port) {
            group.proxies.insert(port);
        }
        let state = group.members.entry(port).or_default();
        *state |= bits;
        Some(*state)
    }

    /// Takes bits from a port's join state. Returns the bits that are left, and whether the group
    /// was deleted; `None` if the port does not have the bits.
    pub fn leave(&mut self, mgid: &Gid, port: PortId, bits: u8) -> Option<(u8, bool)> {
        let group = self.groups.get_mut(mgid)?;
        let state = group.members.get_mut(&port).filter(|state| bits != 0 && **state & bits == bits)?;
        *state &= !bits;
        let left = *state;
        if left == 0 {
            group.members.remove(&port);
            group.proxies.remove(&port);
        }
        Some((left, self.delete_if_empty(mgid)))
    }

    /// Removes ports that no longer exist. Returns whether there were any, and the groups that were
    /// deleted.
    pub fn retain(&mut self, exists: impl Fn(PortId) -> bool) -> (bool, Vec<Gid>) {
        let mut changed = Vec::new();
        for (mgid, group) in &mut self.groups {
            let before = group.members.len();
            group.members.retain(|port, _| exists(*port));
            group.proxies.retain(|port| exists(*port));
            if group.members.len() != before {
                changed.push(*mgid);
            }
        }
        let any = !changed.is_empty();
        changed.retain(|mgid| self.delete_if_empty(mgid));
        (any, changed)
    }

    fn delete_if_empty(&mut self, mgid: &Gid) -> bool {
        let Some(group) = self.groups.get(mgid) else { return false };
        if group.permanent || group.members.values().any(|state| state & KEEPS != 0) {
            return false;
        }
        self.lids.remove(&group.record.mlid);
        self.groups.remove(mgid).is_some()
    }
}
