//! Multicast groups and their members. The principal type is [`Groups`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv6Addr;

use wire::cm::Gid;

use crate::ids::ContextId;

/// All groups of all devices, by GID; a member is a context and its QP's handle.
#[derive(Debug, Default)]
pub struct Groups {
    members: BTreeMap<Gid, BTreeSet<(ContextId, u32)>>,
    /// How many members each user has in each group.
    of_users: BTreeMap<(u32, Gid), usize>,
}

/// A port: the index of its device, and its number.
pub(crate) type At = (usize, u8);

impl Groups {
    /// The engines that have members, each once.
    pub fn engines(&self, gid: &Gid) -> BTreeSet<ContextId> {
        self.members.get(gid).into_iter().flatten().map(|(context, _)| *context).collect()
    }

    /// The members of a group: contexts and handles of QPs.
    pub(crate) fn members(&self, gid: &Gid) -> impl Iterator<Item = (ContextId, u32)> + '_ {
        self.members.get(gid).into_iter().flatten().copied()
    }

    /// Every group with its number of members.
    pub fn iter(&self) -> impl Iterator<Item = (Gid, usize)> + '_ {
        self.members.iter().map(|(gid, members)| (*gid, members.len()))
    }

    /// How many groups there are.
    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// How many members a group has.
    pub(crate) fn len_of(&self, gid: &Gid) -> usize {
        self.members.get(gid).map_or(0, BTreeSet::len)
    }

    /// In how many groups a user has members.
    pub(crate) fn groups_of(&self, uid: u32) -> usize {
        self.of_users.range((uid, [0; 16])..=(uid, [u8::MAX; 16])).count()
    }

    /// How many members of a group belong to a user.
    pub(crate) fn members_of(&self, uid: u32, gid: &Gid) -> usize {
        self.of_users.get(&(uid, *gid)).copied().unwrap_or(0)
    }

    pub(crate) fn join(&mut self, gid: Gid, member: (ContextId, u32), uid: u32) {
        if self.members.entry(gid).or_default().insert(member) {
            *self.of_users.entry((uid, gid)).or_default() += 1;
        }
    }

    pub(crate) fn leave(&mut self, gid: &Gid, member: (ContextId, u32), uid: u32) -> bool {
        let Some(members) = self.members.get_mut(gid) else { return false };
        let was_in = members.remove(&member);
        if members.is_empty() {
            self.members.remove(gid);
        }
        if was_in && let Some(count) = self.of_users.get_mut(&(uid, *gid)) {
            *count -= 1;
            if *count == 0 {
                self.of_users.remove(&(uid, *gid));
            }
        }
        was_in
    }
}

/// An IPv6 multicast address, or an IPv4 one in its IPv6 form.
pub fn is_multicast(gid: &Gid) -> bool {
    let address = Ipv6Addr::from(*gid);
    address.is_multicast() || address.to_ipv4_mapped().is_some_and(|v4| v4.is_multicast())
}
