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

/// Who is a member: a port by its own GUID, or by an alias. Several guests share a port, and each
/// joins and leaves with an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Joiner {
    /// The port.
    pub port: PortId,
    /// The GUID.
    pub guid: u64,
}

/// A group.
#[derive(Clone, Debug)]
pub struct Group {
    /// What all members share.
    pub record: McMemberRecord,
    /// The group stays without members.
    pub permanent: bool,
    /// The bits of each member's join state.
    pub members: BTreeMap<Joiner, u8>,
    /// The members that only others have joined.
    pub proxies: BTreeSet<Joiner>,
}

impl Group {
    /// Whether a port is a member, by any of its GUIDs.
    #[must_use]
    pub fn has_port(&self, port: PortId) -> bool {
        let first = Joiner { port, guid: 0 };
        self.members.range(first..).next().is_some_and(|(joiner, _)| joiner.port == port)
    }

    /// The members by their ports, with the bits of all GUIDs of a port.
    fn ports(&self) -> Vec<Member> {
        let mut ports: Vec<Member> = Vec::new();
        for (joiner, bits) in &self.members {
            match ports.last_mut().filter(|last| last.port == joiner.port) {
                Some(last) => last.join_state |= bits,
                None => ports.push(Member { port: joiner.port, join_state: *bits }),
            }
        }
        ports
    }
}

/// A group whose scope is larger than the subnet, with members other than routers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The group.
    pub record: McMemberRecord,
    /// Packets are delivered to some of the members.
    pub receives: bool,
    /// Some of the members keep the group alive.
    pub lives: bool,
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
        self.groups.values().map(|group| (group.record.mlid, group.ports())).collect()
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

    /// Adds bits to a join state, by the port itself or by another port as its proxy. Returns the
    /// bits now.
    pub fn join(&mut self, mgid: &Gid, who: Joiner, bits: u8, by_proxy: bool) -> Option<u8> {
        let group = self.groups.get_mut(mgid)?;
        if !by_proxy {
            group.proxies.remove(&who);
        } else if !group.members.contains_key(&who) {
            group.proxies.insert(who);
        }
        let state = group.members.entry(who).or_default();
        *state |= bits;
        Some(*state)
    }

    /// Takes bits from a join state. Returns the bits that are left, and whether the group was
    /// deleted; `None` if the member does not have the bits.
    pub fn leave(&mut self, mgid: &Gid, who: Joiner, bits: u8) -> Option<(u8, bool)> {
        let group = self.groups.get_mut(mgid)?;
        let state = group.members.get_mut(&who).filter(|state| bits != 0 && **state & bits == bits)?;
        *state &= !bits;
        let left = *state;
        if left == 0 {
            group.members.remove(&who);
            group.proxies.remove(&who);
        }
        Some((left, self.delete_if_empty(mgid)))
    }

    /// Sets the join states of the members for which `of` holds, and of no others. Returns whether
    /// anything has changed, and whether the group was deleted; `None` if there is no such group.
    pub fn set(
        &mut self,
        mgid: &Gid,
        of: impl Fn(PortId) -> bool,
        states: &BTreeMap<Joiner, u8>,
    ) -> Option<(bool, bool)> {
        let group = self.groups.get_mut(mgid)?;
        let before = group.members.clone();
        group.members.retain(|who, _| !of(who.port));
        group.members.extend(states);
        let changed = before != group.members;
        Some((changed, self.delete_if_empty(mgid)))
    }

    /// Removes ports that no longer exist. Returns whether there were any, and the groups that were
    /// deleted.
    pub fn retain(&mut self, exists: impl Fn(PortId) -> bool) -> (bool, Vec<Gid>) {
        let mut changed = Vec::new();
        for (mgid, group) in &mut self.groups {
            let before = group.members.len();
            group.members.retain(|who, _| exists(who.port));
            group.proxies.retain(|who| exists(who.port));
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
