//! Ports of several agents with one IP address or one GID. Each [`AddressConflict`] is logged once.
//! Which ports other agents name is in [`super::remotes`]. Adds to [`Mads`].

use serde_json::{Value, json};

use super::Mads;
use super::conflict::{AddressConflict, MOST, PortAddresses, between};
use super::trace::name;
use super::travel::{find_port, port_of};
use crate::world::World;

impl Mads {
    /// The conflicts between this agent's ports, which come first, and those of other agents.
    fn conflicts(&self, world: &World) -> Vec<AddressConflict> {
        let Some(fabric) = &self.fabric else { return Vec::new() };
        let own = fabric.ends.iter().filter_map(|(at, end)| {
            let port = port_of(world, *at)?;
            let gid = port.gids.entry(0)?.gid;
            Some(PortAddresses { ip: port.address, gid, elsewhere: None, port: name(&fabric.managed, *end) })
        });
        let is_own = |lid| find_port(world, |port| port.lid.is_some_and(|own| own.all().contains(&lid))).is_some();
        let others = fabric.remotes.links.values().flat_map(|(peer, all)| all.iter().map(move |one| (peer.ip(), one)));
        // In a circle of agents, others name this agent's ports.
        let others = others.filter(|(_, one)| !is_own(one.lid)).map(|(peer, one)| {
            let agent = one.address.unwrap_or(peer);
            let port = format!("LID {} of the agent at {agent}", one.lid);
            PortAddresses { ip: one.ip, gid: one.gid, elsewhere: Some((one.lid, agent)), port }
        });
        between(&own.chain(others).collect::<Vec<_>>())
    }

    /// Logs the conflicts that have not been logged.
    pub(super) fn log_conflicts(&mut self, world: &World) {
        let conflicts = self.conflicts(world);
        let Some(fabric) = &mut self.fabric else { return };
        for conflict in conflicts {
            let logged = &mut fabric.remotes.logged;
            if logged.len() < MOST && logged.insert(conflict.clone()) {
                let last = if logged.len() == MOST { "; further ones are not logged" } else { "" };
                tracing::warn!("{conflict}; `softhca subnet` lists such addresses{last}");
            }
        }
    }

    /// The conflicts, for `softhca subnet`.
    pub(super) fn conflicts_for_operator(&self, world: &World) -> Value {
        let told =
            |AddressConflict { kind, value, port, other }| json!({ (kind): value, "port": port, "other": other });
        self.conflicts(world).into_iter().map(told).collect()
    }
}
