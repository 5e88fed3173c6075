//! What engines need of the fabric: between which ports packets pass, by its switches' tables.
//! Packets of queue pairs pass over lanes, and an engine sends only where the model would deliver
//! (`abi::board`). Adds to [`Mads`].

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use subnet::NodeId;
use subnet::fabric::{End, Kind};

use super::Mads;
use super::fabric::Fabric;
use super::travel::port_of;
use super::way::PortId;
use crate::board::Path;
use crate::objects::groups::{At, Reach};
use crate::world::World;

impl Mads {
    /// Shows the paths to engines, if one may have changed.
    pub(super) fn show_paths(&mut self, world: &mut World) {
        let Some(fabric) = self.fabric.as_mut().filter(|fabric| fabric.shown != Some(fabric.managed.epoch())) else {
            return;
        };
        if fabric.shown.is_none() {
            world.board.show_that_paths_matter();
        }
        fabric.shown = Some(fabric.managed.epoch());
        let changed = fabric.show_paths(world) | fabric.show_remotes(world);
        if changed {
            world.announce_ports();
        }
        if world.tables.groups.set_reach(fabric.reach()) {
            world.board.bump_mcast();
        }
    }
}

impl Fabric {
    /// Shows all paths between devices. Returns true if one has changed.
    fn show_paths(&self, world: &World) -> bool {
        let mut changed = false;
        for (from, start) in &self.ends {
            world.board.show_lanes(at(*from), |sl| self.managed.virtual_lane(*start, sl));
            let pkeys: Vec<(u32, u16)> = port_of(world, *from).map_or_else(Vec::new, |port| {
                (0..port.pkeys.length() as u32).filter_map(|slot| Some((slot, port.pkeys.get(slot)?))).collect()
            });
            for (to, end) in &self.ends {
                let info = self.managed.port_info(*end).unwrap_or_default();
                for bits in 0..1 << info.lmc.min(7) {
                    let path = self.path(*start, info.lid, bits, &pkeys);
                    changed |= world.board.show_path(at(*from), at(*to), bits, &path);
                }
            }
        }
        changed
    }

    /// No packet passes from or to these ports any more.
    pub(super) fn hide_paths(&self, removed: RangeInclusive<PortId>, world: &World) {
        for (one, _) in self.ends.range(removed) {
            for other in self.ends.keys() {
                world.board.show_path(at(*one), at(*other), 0, &Path::default());
                world.board.show_path(at(*other), at(*one), 0, &Path::default());
            }
        }
    }

    fn path(&self, from: End, lid: u16, bits: u8, pkeys: &[(u32, u16)]) -> Path {
        let found = (lid != 0).then(|| self.managed.service_levels(from, lid | u16::from(bits)).ok()).flatten();
        let Some((levels, path)) = found else { return Path::default() };
        let passing = pkeys.iter().filter(|(_, pkey)| self.managed.fabric().partition_passes(&path, *pkey));
        let pkeys = passing.fold(0, |bits, (slot, _)| bits | 1_u128.checked_shl(*slot).unwrap_or(0));
        Path { levels, mtu: path.mtu as u8, pkeys }
    }

    /// The ports that multicast packets reach.
    fn reach(&self) -> Reach {
        let fabric = self.managed.fabric();
        let nodes = (0..fabric.len() as u32).filter_map(|id| fabric.node(NodeId(id)));
        let mlids: BTreeSet<u16> = nodes
            .filter_map(|node| match node.kind() {
                Kind::Switch(switch) => Some(switch.multicast.keys().copied()),
                _ => None,
            })
            .flatten()
            .collect();
        let mut reach = BTreeMap::new();
        for (from, start) in &self.ends {
            for mlid in &mlids {
                let ends = fabric.resolve_multicast(*start, *mlid, 0);
                let ports: BTreeSet<At> = ends.into_iter().filter_map(|end| self.port_at(end)).map(at).collect();
                if !ports.is_empty() {
                    reach.insert((at(*from), *mlid), ports);
                }
            }
        }
        reach
    }
}

const fn at(port: PortId) -> At {
    (port.device, port.port)
}
