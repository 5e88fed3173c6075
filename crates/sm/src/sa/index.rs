//! The end ports by their GUIDs, and their alias GUIDs. Not who may change them
//! ([`super::aliases`]). Principal type: [`Index`].

use crate::inventory::{Inventory, PortId};
use std::collections::BTreeMap;
use wire::cm::Gid;

/// The first half of a GID that is valid in every subnet.
const LINK_LOCAL: u64 = 0xfe80 << 48;

/// The end ports by their GUIDs.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    guids: BTreeMap<u64, PortId>,
    /// The alias GUIDs of each end port, by their index in the port's table. Index 0 is for the
    /// port's own GUID.
    tables: BTreeMap<PortId, Vec<u64>>,
}

impl Index {
    /// Follows a change of the inventory. Ports that are new keep the aliases that they have; an
    /// alias is the GUID of one port only.
    pub(super) fn follow(&mut self, inventory: &Inventory) {
        let before = std::mem::take(&mut self.tables);
        self.guids.clear();
        for (id, _, port) in inventory.end_ports().filter(|(.., port)| port.guid != 0) {
            self.guids.entry(port.guid).or_insert(id);
        }
        for (id, _, port) in inventory.end_ports() {
            self.tables.insert(id, Vec::new());
            let aliases = before.get(&id).unwrap_or(&port.guids).iter().take(port.info.guid_cap.into());
            for (at, guid) in aliases.enumerate().skip(1) {
                self.set(id, at, *guid);
            }
        }
    }

    /// The end port of a GID.
    pub(super) fn find(&self, prefix: u64, gid: Gid) -> Option<PortId> {
        is_of_subnet(prefix, gid).then(|| self.owner(guid(gid))).flatten()
    }

    /// The end port of a GUID.
    pub(super) fn owner(&self, guid: u64) -> Option<PortId> {
        self.guids.get(&guid).copied()
    }

    /// The alias GUID of a port at an index; 0 for none.
    pub(super) fn alias(&self, id: PortId, at: usize) -> u64 {
        self.tables.get(&id).and_then(|table| table.get(at)).copied().unwrap_or(0)
    }

    /// Sets an alias of a port, or removes it with 0. Returns whether there is something new: the
    /// GUID of a port or another alias is left where it is.
    pub(super) fn set(&mut self, id: PortId, at: usize, guid: u64) -> bool {
        let Some(table) = self.tables.get_mut(&id) else { return false };
        let old = table.get(at).copied().unwrap_or(0);
        if old == guid || guid != 0 && self.guids.contains_key(&guid) {
            return false;
        }
        if table.len() <= at {
            table.resize(at + 1, 0);
        }
        table[at] = guid;
        self.guids.remove(&old);
        if guid != 0 {
            self.guids.insert(guid, id);
        }
        true
    }

    /// The aliases of all end ports.
    pub(super) const fn tables(&self) -> &BTreeMap<PortId, Vec<u64>> {
        &self.tables
    }
}

/// The GUID in a GID.
pub(super) fn guid(gid: Gid) -> u64 {
    (u128::from_be_bytes(gid) & u128::from(u64::MAX)) as u64
}

/// Whether a GID is one of a port in another subnet, which routers may know. The subnet must have a
/// prefix that routers forward.
pub(super) fn is_beyond(prefix: u64, gid: Gid) -> bool {
    prefix != LINK_LOCAL && gid[0] != 0xff && gid[..8] != [0; 8] && !is_of_subnet(prefix, gid)
}

/// Whether a GID has the prefix of the subnet.
pub(super) fn is_of_subnet(prefix: u64, gid: Gid) -> bool {
    u64::try_from(u128::from_be_bytes(gid) >> 64).is_ok_and(|own| own == prefix || own == LINK_LOCAL)
}
