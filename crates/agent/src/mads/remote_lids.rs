//! What other agents have said of their LIDs, and the LIDs' entries on the board. Who learns and
//! shows them is in [`super::remotes`]. Principal type: [`Remotes`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use subnet::fabric::End;
use subnet::tunnel::reach::Reached;

use super::conflict::AddressConflict;

/// What other agents have said.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    /// By the end of the link that stands for the agent.
    pub(super) links: BTreeMap<End, (SocketAddr, Vec<Reached>)>,
    /// The entry of each LID on the board, which it keeps: connections know the LID's address, and
    /// continue when packets pass again.
    pub(super) slots: BTreeMap<u16, u32>,
    /// The conflicts that are in the log.
    pub(super) logged: BTreeSet<AddressConflict>,
}

impl Remotes {
    /// What the agents have said of each LID.
    pub(super) fn all(&self) -> impl Iterator<Item = &Reached> {
        self.links.values().flat_map(|(_, all)| all)
    }

    /// The GID of the port that has a LID.
    pub(super) fn gid(&self, lid: u16) -> Option<[u8; 16]> {
        self.all().find(|one| one.lid == lid).map(|one| one.gid)
    }

    /// The entry of a LID. `None`: too many LIDs have been seen, and all still have paths.
    pub(super) fn slot(&mut self, lid: u16) -> Option<u32> {
        if let Some(slot) = self.slots.get(&lid) {
            return Some(*slot);
        }
        let count = self.slots.len() as u32;
        let slot = if count < abi::board::REMOTE_MAX { Some(count) } else { self.reclaim() }?;
        self.slots.insert(lid, slot);
        Some(slot)
    }

    /// The entry of a LID that no agent names any more.
    fn reclaim(&mut self) -> Option<u32> {
        let named = |lid: &u16| self.all().any(|one| one.lid == *lid);
        let unnamed = self.slots.keys().copied().find(|lid| !named(lid))?;
        self.slots.remove(&unnamed)
    }
}
