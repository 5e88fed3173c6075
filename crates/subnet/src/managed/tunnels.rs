//! Links to ports of other agents: each ends at a node that stands for the other agent's, and a
//! [`Tunnel`] carries what reaches it. If the peer is there, that end of the link is on, and the
//! link trains with the widths and speeds that the peer has. Principal type: [`Tunnels`].

use super::timers::Timer;
use super::{Managed, Output};
use crate::fabric::{Delivery, End, Fabric};
use crate::rate::{MICROSECOND, Mtu, Time};
use crate::state::{Logical, Physical};
use crate::tunnel::passed::Passed;
use crate::tunnel::reach::{MOST_TUNNELS, Reached};
use crate::tunnel::{self, Change, HELLO, Ignored, Offer, Received, Tunnel};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// A link to a port of another agent.
#[derive(Debug)]
pub(super) struct Outward {
    /// The own port.
    pub(super) near: End,
    /// The end of the link that stands for the peer's port.
    pub(super) far: End,
    pub(super) peer: SocketAddr,
    pub(super) names: [Box<str>; 2],
    /// Open, if the owner has a socket.
    pub(super) tunnel: Option<Tunnel>,
    /// The own port will go down, and not by itself.
    pub(super) follows: bool,
    /// Packets and words that programs have sent past the tunnel, and of which the peer does not
    /// know yet, by LID, service level and the number of tunnels before.
    pub(super) passed: BTreeMap<(u16, u8, u8), (u64, u64)>,
    /// The version of the peer's datagrams, if that is another one.
    pub(super) refused: Option<u8>,
}

/// The most LIDs and service levels whose packets are counted for a peer at once.
const MOST_PASSED: usize = 1024;
/// How long changes of paths are collected before they are sent to the peers.
const COLLECT: Time = 10_000 * MICROSECOND;

/// All links to other agents.
#[derive(Debug, Default)]
pub(super) struct Tunnels {
    pub(super) all: Vec<Outward>,
    /// The IP addresses of own ports, which the peers learn.
    addresses: BTreeMap<End, IpAddr>,
    /// The epoch of the paths that the peers know, or will know when the timer has expired.
    told: Option<u64>,
    /// The timer runs after which the peers are told.
    collects: bool,
}

impl Tunnels {
    fn find(&mut self, is: impl Fn(&Outward) -> bool) -> Option<(usize, &mut Outward)> {
        self.all.iter_mut().enumerate().find(|(_, outward)| is(outward))
    }
}

/// What a port can be.
fn offer(fabric: &Fabric, near: End) -> Option<(bool, Offer)> {
    let port = fabric.port(near)?;
    let own = port.settings();
    let on = port.physical() != Physical::Disabled && !port.is_cut();
    let (widths, speeds) = (own.widths & own.widths_enabled, own.speeds & own.speeds_enabled);
    Some((on, Offer { widths, speeds, mtu: own.mtu_cap }))
}

impl Managed {
    /// The ports with links to other agents, each with the address of that agent.
    pub fn tunnels(&self) -> impl Iterator<Item = (End, SocketAddr)> + '_ {
        self.tunnels.all.iter().map(|outward| (outward.near, outward.peer))
    }

    /// Whether this end of a link stands for a port of another agent.
    #[must_use]
    pub fn leads_out(&self, end: End) -> bool {
        self.tunnels.all.iter().any(|outward| outward.far == end)
    }

    /// The connection manager finds a port by this IP address. Other agents learn it.
    pub fn set_address(&mut self, end: End, ip: IpAddr) {
        self.tunnels.addresses.insert(end, ip);
    }

    /// Opens the tunnel of a port, which can send packets of this MTU. Nobody may guess `cookie`.
    pub fn open_tunnel(&mut self, near: End, cookie: u64, mtu: Mtu) {
        let Some((index, outward)) = self.tunnels.find(|outward| outward.near == near) else { return };
        let [own, peer] = outward.names.clone();
        for end in [near, outward.far] {
            if let Some(settings) = self.fabric.settings_mut(end) {
                (settings.mtu_cap, settings.mtu) = (mtu, mtu);
            }
        }
        if let Some(port) = self.port_mut(near) {
            (port.info.link.mtu_cap, port.info.link.neighbor_mtu) = (mtu as u8, mtu as u8);
        }
        let Some((_, offer)) = offer(&self.fabric, near) else { return };
        self.tunnels.all[index].tunnel = Some(Tunnel::new(cookie, &own, &peer, offer));
        self.timers.insert((self.fabric.now(), Timer::Tunnel(index)));
    }

    /// Takes a datagram of a tunnel.
    ///
    /// # Errors
    /// It does not count.
    pub fn tunnel_arrived(&mut self, from: SocketAddr, bytes: &[u8]) -> Result<(), Ignored> {
        let now = self.fabric.now();
        if let Some(version) = tunnel::other_version(bytes) {
            return self.refuse_version(from, version);
        }
        let is_for = |outward: &Outward| {
            outward.peer == from && outward.tunnel.as_ref().is_some_and(|tunnel| tunnel.is_for(bytes))
        };
        let (index, outward) = self.tunnels.find(is_for).ok_or(Ignored::Names)?;
        let far = outward.far;
        let Some(tunnel) = &mut outward.tunnel else { return Ok(()) };
        let received = tunnel.handle(bytes, now)?;
        outward.refused = None;
        match received {
            Received::Link(change) => self.change_tunnel(index, change),
            // A packet that the link drops is lost, as any.
            Received::Packet(frame) => drop(self.fabric.inject(far, frame)),
            Received::Reach(Some(reached)) => {
                self.outputs.push(Output::Reach { far, peer: from, reached });
                // It may also be reached from the other tunnels.
                self.collect_reach();
            }
            Received::Reach(None) => {}
            Received::Passed(passed) => self.outputs.push(Output::Passed { far, passed }),
        }
        self.send_hellos(index);
        Ok(())
    }

    /// A peer may be another release of softhca. That is an error once, until its datagrams count,
    /// also if it says another version each time.
    fn refuse_version(&mut self, from: SocketAddr, version: u8) -> Result<(), Ignored> {
        let mut refuses = false;
        for outward in self.tunnels.all.iter_mut().filter(|outward| outward.peer == from) {
            refuses |= outward.refused.replace(version).is_none();
        }
        if refuses { Err(Ignored::Version(version)) } else { Ok(()) }
    }

    /// Tells all peers that this agent ends.
    pub fn close_tunnels(&mut self) -> Vec<(SocketAddr, Vec<u8>)> {
        let outwards = self.tunnels.all.iter_mut();
        outwards.filter_map(|outward| Some((outward.peer, outward.tunnel.as_mut()?.close()?))).collect()
    }

    /// A hello may be due.
    pub(super) fn tunnel_time(&mut self, index: usize) {
        let now = self.fabric.now();
        let Some(tunnel) = self.tunnels.all.get_mut(index).and_then(|outward| outward.tunnel.as_mut()) else { return };
        let change = tunnel.handle_timeout(now);
        self.timers.insert((now + HELLO, Timer::Tunnel(index)));
        self.change_tunnel(index, change);
        self.tunnel_follows(index);
        if index == 0 {
            self.outputs.push(Output::Count);
        }
    }

    /// Programs have sent packets past the tunnel of a link, from this fabric or through it. The
    /// peer learns it with [`Managed::tell_passed`].
    pub fn pass(&mut self, far: End, Passed { dlid, sl, tunnels, packets, words }: Passed) {
        // What has passed more goes round in a circle of agents.
        if tunnels > MOST_TUNNELS {
            return;
        }
        let Some((_, outward)) = self.tunnels.find(|outward| outward.far == far) else { return };
        let key = (dlid, sl, tunnels);
        if outward.passed.len() < MOST_PASSED || outward.passed.contains_key(&key) {
            let sum = outward.passed.entry(key).or_default();
            *sum = (sum.0.saturating_add(packets), sum.1.saturating_add(words));
        }
    }

    /// Tells the peers what has passed since the last time.
    pub fn tell_passed(&mut self) {
        for outward in self.tunnels.all.iter_mut().filter(|outward| !outward.passed.is_empty()) {
            let passed = std::mem::take(&mut outward.passed).into_iter().map(|(key, (packets, words))| {
                let (dlid, sl, tunnels) = key;
                Passed { dlid, sl, tunnels, packets, words }
            });
            let passed: Vec<Passed> = passed.collect();
            let datagrams = outward.tunnel.as_ref().map(|tunnel| tunnel.passed(&passed)).unwrap_or_default();
            self.outputs.extend(datagrams.into_iter().map(|bytes| Output::Tunnel { peer: outward.peer, bytes }));
        }
    }

    /// The far end of the link follows the peer's port.
    fn change_tunnel(&mut self, index: usize, change: Option<Change>) {
        let (Some(change), Some(outward)) = (change, self.tunnels.all.get_mut(index)) else { return };
        let (near, far, peer) = (outward.near, outward.far, outward.peer);
        if outward.tunnel.as_ref().is_none_or(Tunnel::knows_nothing) {
            self.outputs.push(Output::Reach { far, peer, reached: Vec::new() });
        }
        // What goes down now does not do so by itself.
        outward.follows |= self.fabric.port(near).is_some_and(|port| port.logical() != Logical::Down);
        self.fabric.set_enabled(far, false);
        let Change::Up(Offer { widths, speeds, .. }) = change else { return };
        if let Some(settings) = self.fabric.settings_mut(far) {
            (settings.widths, settings.widths_enabled) = (widths, widths);
            (settings.speeds, settings.speeds_enabled) = (speeds, speeds);
        }
        self.fabric.set_enabled(far, true);
    }

    /// The tunnel learns what the own port is now.
    fn tunnel_follows(&mut self, index: usize) {
        let Some(outward) = self.tunnels.all.get_mut(index) else { return };
        if let (Some(tunnel), Some((on, offer))) = (&mut outward.tunnel, offer(&self.fabric, outward.near)) {
            tunnel.set_port(on, offer);
        }
        self.send_hellos(index);
    }

    /// All tunnels learn what their ports are now.
    pub(super) fn tunnels_follow(&mut self) {
        (0..self.tunnels.all.len()).for_each(|index| self.tunnel_follows(index));
    }

    /// The state of a port has changed.
    pub(super) fn tunnel_state(&mut self, near: End, state: Logical) {
        let Some((index, outward)) = self.tunnels.find(|outward| outward.near == near) else { return };
        if state == Logical::Down
            && !std::mem::take(&mut outward.follows)
            && let Some(tunnel) = &mut outward.tunnel
        {
            tunnel.restart();
        }
        self.tunnel_follows(index);
    }

    /// Paths may have changed: the changes are sent to the peers soon.
    pub(super) fn watch_reach(&mut self) {
        let epoch = Some(self.fabric.epoch());
        if !self.tunnels.all.is_empty() && std::mem::replace(&mut self.tunnels.told, epoch) != epoch {
            self.collect_reach();
        }
    }

    /// Tells the peers soon what they reach here: once for all changes until then.
    fn collect_reach(&mut self) {
        if !std::mem::replace(&mut self.tunnels.collects, true) {
            self.timers.insert((self.fabric.now() + COLLECT, Timer::Reach));
        }
    }

    /// Tells the peers what their packets reach here.
    pub(super) fn tell_reach(&mut self) {
        self.tunnels.collects = false;
        self.tunnels.told = Some(self.fabric.epoch());
        for index in 0..self.tunnels.all.len() {
            let far = self.tunnels.all[index].far;
            let mut reached = self.reached_from(far);
            reached.extend(self.reached_through(index));
            if let Some(tunnel) = &mut self.tunnels.all[index].tunnel {
                tunnel.set_reach(&reached);
            }
            self.send_hellos(index);
        }
    }

    /// The LIDs of attached adapters that packets reach which come in by a tunnel.
    fn reached_from(&self, far: End) -> Vec<Reached> {
        let mut ends: Vec<End> = self.attached.iter().filter(|end| end.port != 0).copied().collect();
        ends.sort_unstable();
        let lids = ends.into_iter().flat_map(|end| {
            let identity = self.fabric.port(end).map(|port| &port.settings().identity);
            let range = identity.map_or(0..0, |own| own.lid..own.lid.saturating_add(1 << own.lmc.min(7)));
            let gid = identity.map_or([0; 16], |own| own.gid());
            range.map(move |lid| (end, lid, gid))
        });
        lids.filter_map(|(end, lid, gid)| {
            let (levels, path) = self.fabric.service_levels(far, lid).ok().filter(|(_, path)| path.end == end)?;
            let keys = self.port(end)?.pkeys.iter().copied();
            let pkeys = keys.filter(|key| *key != 0 && self.fabric.partition_passes(&path, *key)).collect();
            let ip = self.tunnels.addresses.get(&end).copied();
            Some(Reached { lid, levels, mtu: path.mtu, pkeys, address: None, tunnels: 0, gid, ip })
        })
        .collect()
    }

    /// The LIDs of other agents that packets reach which come in by a tunnel and leave by another
    /// one.
    fn reached_through(&self, index: usize) -> Vec<Reached> {
        let far = self.tunnels.all[index].far;
        let others = self.tunnels.all.iter().filter(|other| other.far != far);
        let known = others.flat_map(|other| {
            let reached = other.tunnel.iter().flat_map(Tunnel::reached);
            reached.map(move |reached| (other, reached))
        });
        known
            .filter(|(_, reached)| reached.tunnels < MOST_TUNNELS)
            .filter_map(|(other, reached)| {
                let passage = self.fabric.service_levels(far, reached.lid).ok();
                let (levels, path) = passage.filter(|(_, path)| path.end == other.far)?;
                let keys = reached.pkeys.iter().copied();
                Some(Reached {
                    lid: reached.lid,
                    levels: levels & reached.levels,
                    mtu: path.mtu.min(reached.mtu),
                    pkeys: keys.filter(|key| self.fabric.partition_passes(&path, *key)).collect(),
                    address: Some(reached.address.unwrap_or(other.peer.ip())),
                    tunnels: reached.tunnels + 1,
                    gid: reached.gid,
                    ip: reached.ip,
                })
            })
            .collect()
    }

    fn send_hellos(&mut self, index: usize) {
        let now = self.fabric.now();
        let Some(outward) = self.tunnels.all.get_mut(index) else { return };
        let peer = outward.peer;
        while let Some(bytes) = outward.tunnel.as_mut().and_then(|tunnel| tunnel.poll_transmit(now)) {
            self.outputs.push(Output::Tunnel { peer, bytes });
        }
    }

    /// A packet has reached the end of a link that stands for a port of another agent. Returns the
    /// packet if this is another end.
    pub(super) fn leave_by_tunnel(&mut self, delivery: Delivery) -> Option<Delivery> {
        let Some((_, outward)) = self.tunnels.find(|outward| outward.far == delivery.end) else {
            return Some(delivery);
        };
        let bytes = outward.tunnel.as_ref().and_then(|tunnel| tunnel.packet(&delivery.frame));
        self.outputs.extend(bytes.map(|bytes| Output::Tunnel { peer: outward.peer, bytes }));
        None
    }
}

/// The address of the peer of a link, and the names of both ports.
pub(super) fn outward(fabric: &mut Fabric, node: &str, near: End, link: &mad::topology::Link) -> Option<Outward> {
    let outside = link.outside()?;
    let far = End { node: fabric.add_outside(link.peer_port), port: link.peer_port };
    let peer = SocketAddr::new(outside.address, outside.udp_port.unwrap_or(tunnel::UDP_PORT));
    let names = [format!("{node}[{}]", near.port).into(), format!("{}[{}]", outside.node, link.peer_port).into()];
    Some(Outward { near, far, peer, names, tunnel: None, follows: false, passed: BTreeMap::new(), refused: None })
}
