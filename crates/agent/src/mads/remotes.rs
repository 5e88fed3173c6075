//! The LIDs of other agents, to which links of the fabric lead, and which packets pass to them.
//! Each agent knows the paths inside its own fabric. It tells the peer of each link what packets
//! reach that come in there. So both together know the paths from end to end. The packets of queue
//! pairs then go from host to host as those of RoCEv2, and not through the agents. Adds to
//! [`Mads`].

use std::collections::BTreeMap;
use std::net::SocketAddr;

use subnet::fabric::{self, End, Probe};
use subnet::tunnel::reach::Reached;

use super::Mads;
use super::fabric::Fabric;
use super::travel::port_of;
use crate::gids::gid_of;
use crate::objects::paths::Path;
use crate::world::World;

impl Mads {
    /// Another agent has said what packets reach that leave by the link to it.
    pub(super) fn learn_reach(&mut self, far: End, peer: SocketAddr, reached: Vec<Reached>) {
        let Some(fabric) = &mut self.fabric else { return };
        fabric.remotes.links.insert(far, (peer, reached));
        // The paths are shown again.
        fabric.shown = fabric.shown.map(|epoch| epoch.wrapping_sub(1));
    }
}

impl Fabric {
    /// Shows the paths to the LIDs of other agents. Returns true if one has changed.
    pub(super) fn show_remotes(&mut self, world: &World) -> bool {
        let links: Vec<(End, SocketAddr, Reached)> = self
            .remotes
            .links
            .iter()
            .flat_map(|(far, (peer, all))| all.iter().map(|one| (*far, *peer, one.clone())))
            .collect();
        let mut paths: BTreeMap<u32, (End, Reached)> = BTreeMap::new();
        let mut changed = false;
        for (far, peer, reached) in links {
            // Where several links lead to the LID, one carries it: that of the own tables.
            let leads = self.ends.values().any(|start| self.way_out(*start, far, reached.lid).is_some());
            // Only such a LID gets an entry, for a peer names what it likes.
            let Some(slot) = leads.then(|| self.remotes.slot(reached.lid)).flatten() else { continue };
            changed |= world.board.show_remote(slot, reached.lid, &gid_of(reached.address.unwrap_or(peer.ip())));
            paths.insert(slot, (far, reached));
        }
        let slots: Vec<u32> = self.remotes.slots.values().copied().collect();
        for (from, start) in &self.ends {
            for slot in &slots {
                let path =
                    paths.get(slot).map(|(far, reached)| self.remote_path(world, *from, (*start, *far), reached));
                let at = (from.device, from.port);
                changed |= world.board.show_remote_path(at, *slot, &path.unwrap_or_default());
            }
        }
        changed
    }

    /// The service levels with which packets to a LID leave by a link to another agent, and their
    /// path up to it.
    fn way_out(&self, start: End, far: End, lid: u16) -> Option<(u16, fabric::Path)> {
        let to = Probe { dlid: lid, ..Probe::default() };
        self.managed.passage(start, &to).found.ok().filter(|(_, path)| path.end == far)
    }

    /// What passes here and there.
    fn remote_path(&self, world: &World, at: super::PortId, (start, far): (End, End), reached: &Reached) -> Path {
        let found = self.way_out(start, far, reached.lid);
        let (Some((levels, path)), Some(port)) = (found, port_of(world, at)) else { return Path::default() };
        let passes = |pkey: u16| {
            wire::pkey::is_in_table(&reached.pkeys, pkey) && self.managed.fabric().partition_passes(&path, pkey)
        };
        let slots = (0..port.pkeys.length() as u32).filter(|slot| port.pkeys.get(*slot).is_some_and(passes));
        let pkeys = slots.fold(0, |bits, slot| bits | 1_u128.checked_shl(slot).unwrap_or(0));
        Path { levels: levels & reached.levels, mtu: (path.mtu as u8).min(reached.mtu as u8), pkeys, ..Path::default() }
    }
}
