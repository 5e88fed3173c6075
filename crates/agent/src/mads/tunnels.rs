//! Links of the fabric to other agents, as the server sees them: datagrams with addresses. Crate
//! `subnet` has the protocol. Adds to [`Mads`].

use std::net::SocketAddr;

use subnet::fabric::End;
use subnet::rate::Mtu;
use subnet::tunnel::Ignored;

use super::{Mads, Tunnelled};
use crate::world::World;

impl Mads {
    /// The addresses of the agents to which links lead. One may occur several times.
    pub(crate) fn tunnel_peers(&self) -> Vec<SocketAddr> {
        self.fabric.iter().flat_map(|fabric| fabric.managed.tunnels()).map(|(_, peer)| peer).collect()
    }

    /// Opens all tunnels. `mtu` is that of the links to a peer. Returns false if the system has no
    /// random numbers, without which strangers could forge datagrams.
    pub(crate) fn open_tunnels(&mut self, world: &World, mtu: impl Fn(SocketAddr) -> Mtu) -> bool {
        let Some(fabric) = &mut self.fabric else { return true };
        let ends: Vec<(End, SocketAddr)> = fabric.managed.tunnels().collect();
        for (near, peer) in ends {
            let cookie = world.system.secret();
            if cookie == 0 {
                return false;
            }
            fabric.managed.open_tunnel(near, cookie, mtu(peer));
        }
        self.find_next();
        true
    }

    /// Takes datagrams of tunnels.
    pub(crate) fn take_tunnelled(&mut self, world: &mut World, datagrams: &[Tunnelled]) {
        self.advance_fabric(world);
        for (from, bytes) in datagrams {
            let Some(fabric) = &mut self.fabric else { return };
            match fabric.managed.tunnel_arrived(*from, bytes) {
                Ok(()) => self.advance_fabric(world),
                // A former peer's, or those of a file that names other ports.
                Err(why @ (Ignored::Cookie | Ignored::Names)) => tracing::debug!(%from, "a tunnel's datagram: {why}"),
                Err(why @ Ignored::Version(_)) => {
                    tracing::warn!(%from, "the link to another agent stays down: a datagram came, but {why}")
                }
                Err(why) => tracing::info!(%from, "a tunnel's datagram is ignored: {why}"),
            }
        }
        self.settle(world);
    }

    /// The agent ends. Returns what it tells the peers.
    pub(crate) fn close_tunnels(&mut self) -> Vec<Tunnelled> {
        self.fabric.as_mut().map_or_else(Vec::new, |fabric| fabric.managed.close_tunnels())
    }
}
