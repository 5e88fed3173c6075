//! The fabric of a topology, to whose ports the agent's devices are attached: datagrams pass
//! through its links and switches, and what a subnet manager sets there changes the devices. Adds
//! to [`Mads`]. The principal type is [`Fabric`].
//!
//! The fabric's clock is the time since the agent began, but up to [`AHEAD`] early. So a datagram
//! and its answer pass within one call, and only what takes longer (the training of a link, a
//! repeated trap) needs a timer.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use mad::sma::NodeEvent;
use mad::topology::Topology;
use subnet::fabric::End;
use subnet::managed::{self, Delivered, Managed, Output, Unbuildable};
use subnet::state::Logical;
use wire::mad::CLASS_CM;
use wire::smp::{Capability, PortInfo};

use super::Mads;
use super::bad_links::BadLinks;
use super::managed::{change_of, change_of_link};
use super::packet::{PortPacket, packet_of};
use super::remote_lids::Remotes;
use super::travel::{find_port, inner, port_of};
use super::way::{Datagram, PortId, Way};
use crate::device::Device;
use crate::management::ReceivedMad;
use crate::port_change::PortChange;
use crate::world::World;

/// How early things happen in the fabric.
const AHEAD: Duration = Duration::from_millis(1);
/// After so many events in the fabric, the agent does other work first. A step of opensm's sweep
/// has some hundreds.
const EVENTS: u64 = 10_000;

/// The fabric, and which of its ports are ports of devices.
#[derive(Debug)]
pub(super) struct Fabric {
    pub(super) managed: Managed,
    pub(super) ends: BTreeMap<PortId, End>,
    ports: HashMap<End, PortId>,
    /// The epoch of the paths that are shown to engines.
    pub(super) shown: Option<u64>,
    /// What the groups of routers were found by ([`super::routed_groups`]).
    pub(super) routed: Vec<u64>,
    /// What other agents have said.
    pub(super) remotes: Remotes,
    /// The fault rules about links.
    pub(super) bad_links: BadLinks,
}

impl Fabric {
    /// Builds the fabric, and attaches the devices to the nodes with their names.
    pub(super) fn new(topology: &Topology, world: &World) -> Result<Self, Unbuildable> {
        let managed = Managed::new(topology)?;
        let remotes = Remotes::default();
        let (ends, ports) = (BTreeMap::new(), HashMap::new());
        let bad_links = BadLinks::default();
        let mut fabric = Self { managed, ends, ports, shown: None, routed: Vec::new(), remotes, bad_links };
        world.devices.iter().for_each(|device| fabric.attach(device));
        Ok(fabric)
    }

    /// Attaches a device to the node with its name.
    fn attach(&mut self, device: &Device) {
        let Some(node) = self.managed.id(&device.name) else { return };
        for port in 1..=device.ports.len() as u8 {
            let (at, end) = (PortId { device: device.index, port }, End { node, port });
            if self.managed.attach(end).is_ok() {
                self.ends.insert(at, end);
                self.ports.insert(end, at);
                let address = device.port(port.into()).ok().and_then(|port| port.address);
                address.into_iter().for_each(|ip| self.managed.set_address(end, ip));
            }
        }
    }

    /// A device is added: its node is there again, with its cables.
    pub(super) fn add(&mut self, device: &Device) {
        let is_attached = self.ends.contains_key(&PortId { device: device.index, port: 1 });
        if !is_attached && let Some(node) = self.managed.id(&device.name) {
            self.attach(device);
            self.managed.power_on(node);
        }
    }

    /// A device is removed: its node is away, and what takes the device's index is not attached.
    pub(super) fn remove(&mut self, device: usize) {
        let ports = PortId { device, port: 0 }..=PortId { device, port: u8::MAX };
        for (_, end) in self.ends.extract_if(ports, |_, _| true) {
            self.ports.remove(&end);
            self.managed.detach(end);
            self.managed.power_off(end.node);
        }
    }

    /// When something happens, on the agent's clock.
    pub(super) fn next(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.managed.next_event()? / 1000).saturating_sub(AHEAD))
    }

    /// The port of a device that is attached here.
    pub(super) fn port_at(&self, end: End) -> Option<PortId> {
        self.ports.get(&end).copied()
    }

    /// PortInfo of a device's port.
    fn info(&self, at: PortId) -> Option<PortInfo> {
        self.managed.port_info(*self.ends.get(&at)?)
    }
}

impl Mads {
    /// Sends a datagram into the fabric. Returns false if its port is not attached to one.
    pub(super) fn send_into_fabric(&mut self, world: &World, datagram: &Datagram) -> bool {
        let Some(fabric) = &mut self.fabric else { return false };
        let Some(end) = fabric.ends.get(&datagram.at).copied() else { return false };
        let Some(port) = port_of(world, datagram.at) else { return false };
        let packet = packet_of(port, datagram);
        fabric.managed.show_datagrams(world.captures.watchers().root().is_on());
        if let Err(why) = fabric.managed.send(end, &packet) {
            tracing::debug!(device = datagram.at.device, port = datagram.at.port, "a datagram is dropped: {why}");
        }
        if world.captures.watchers().have_users()
            && let Some(frame) = packet.to_frame()
        {
            self.show_to_user(world, datagram.owner, &PortPacket { at: datagram.at, sent: true, frame: &frame });
        }
        true
    }

    /// Lets the fabric go on, and takes what comes out of it. If too much happens there, the rest
    /// is left for the next piece of work, and the fabric's clock is late.
    pub(super) fn advance_fabric(&mut self, world: &mut World) {
        let ahead = u64::try_from((self.now() + AHEAD).as_nanos() * 1000).unwrap_or(u64::MAX);
        let Some(first) = self.fabric.as_ref().map(|fabric| fabric.managed.fabric().processed()) else { return };
        let is_watched = world.captures.watchers().root().is_on();
        while let Some(Fabric { managed, .. }) = &mut self.fabric {
            managed.show_datagrams(is_watched);
            let until = ahead.max(managed.now());
            let next = managed.next_event().filter(|time| *time <= until);
            let outputs = managed.advance(next.unwrap_or(until));
            let is_late = managed.fabric().processed() - first > EVENTS;
            for output in outputs {
                match output {
                    Output::Datagram(delivered) => self.come_out(world, &delivered),
                    Output::Seen { end, sent, frame } => self.show_seen(world, end, sent, &frame),
                    Output::Changed { end, event } => self.follow_setting(world, end, event),
                    Output::Violation { end, key } => {
                        let at = self.fabric.as_ref().and_then(|fabric| fabric.port_at(end));
                        self.count_in_fabric(world, at, key);
                    }
                    Output::Asked { end } => self.show_violations(world, end),
                    Output::Link { end, state } => self.follow_link(world, end, state),
                    Output::Tunnel { peer, bytes } => self.results.tunnelled.push((peer, bytes)),
                    Output::Count => self.count_traffic(world),
                    Output::Passed { far, passed } => self.count_passed(far, &passed),
                    Output::Reach { far, peer, reached } => self.learn_reach(far, peer, reached),
                    Output::Packet(delivery) => self.deliver_copy(world, &delivery),
                }
            }
            let asks = self.run_manager();
            if is_late || next.is_none() && !asks {
                return;
            }
        }
    }

    /// Lets the agent's own subnet managers do what is due. Returns false if they sent nothing.
    fn run_manager(&mut self) -> bool {
        self.route_groups();
        let now = self.now();
        let Some(fabric) = &mut self.fabric else { return false };
        let mut asks = false;
        for (subnet, manager) in self.managers.iter_mut().enumerate() {
            asks |= manager.run(&mut fabric.managed, now);
            if let (Some(given), Some(kept)) = (manager.take_lids(), &mut self.kept_lids) {
                kept.learn(subnet, given, now);
            }
        }
        if let Some(kept) = &mut self.kept_lids {
            kept.try_again(now);
        }
        asks
    }

    /// Offers a datagram to the agent's own subnet managers.
    fn manager_takes(&mut self, delivered: &Delivered) -> bool {
        let now = self.now();
        self.managers.iter_mut().any(|manager| manager.takes(delivered, now))
    }

    /// A datagram that the agents of the fabric do not serve has reached a device's port.
    fn come_out(&mut self, world: &mut World, delivered: &Delivered) {
        let Some(fabric) = &mut self.fabric else { return };
        let Some(at) = fabric.ports.get(&delivered.end).copied() else {
            if !self.manager_takes(delivered)
                && let Some(fabric) = &mut self.fabric
            {
                fabric.managed.refuse(delivered);
            }
            return;
        };
        let Some(port) = port_of(world, at) else { return };
        let managed::Datagram { source_qp, dest_qp, slid, dlid, sl, pkey, qkey, grh, mad } = &delivered.datagram;
        let from = Way {
            lid: *slid,
            gid: grh.map_or([0; 16], |grh| grh.sgid),
            qpn: *source_qp,
            qkey: *qkey,
            sl: *sl,
            path_bits: port.lid.map_or(0, |lid| (dlid & ((1 << lid.lmc) - 1)) as u8),
            hop_limit: grh.map_or(0, |grh| grh.hop_limit),
            traffic_class: grh.map_or(0, |grh| grh.traffic_class),
            flow_label: grh.map_or(0, |grh| grh.flow_label),
            pkey_index: port.pkeys.index_of(*pkey).unwrap_or(0),
            gid_index: 0,
        };
        if world.captures.watchers().have_users()
            && let Some(frame) = delivered.datagram.to_frame()
        {
            let uid = self.reader(at, *dest_qp, mad);
            self.show_to_user(world, uid, &PortPacket { at, sent: false, frame: &frame });
        }
        if *dest_qp == 1 && wire::mad::Header::of(mad).class == CLASS_CM {
            let sender = find_port(world, |port| port.lid.is_some_and(|lid| lid.all().contains(slid)));
            let gid = |port: Option<&crate::device::Port>| port?.gids.entry(0).map(|entry| entry.gid);
            let elsewhere = || self.fabric.as_ref()?.remotes.gid(*slid);
            let Some(to) = gid(Some(port)) else { return };
            // The LID of a datagram from another subnet is that of the router.
            let routed = grh.filter(|grh| grh.sgid[..8] != to[..8]);
            let from = match routed {
                Some(grh) => Some(grh.sgid),
                None => gid(sender.and_then(|at| port_of(world, at))).or_else(elsewhere),
            };
            let router = routed.map_or((0, 0), |_| (*slid, *sl));
            let arrived = from.and_then(|from| inner(from, to, *pkey, mad));
            self.results.for_manager.extend(arrived.map(|arrived| ReceivedMad { router, ..arrived }));
            return;
        }
        if !self.hand_over(at, *dest_qp, from, mad)
            && !self.manager_takes(delivered)
            && let Some(fabric) = &mut self.fabric
        {
            fabric.managed.refuse(delivered);
        }
    }

    /// A subnet manager has set something at a device's port.
    fn follow_setting(&mut self, world: &mut World, end: End, event: NodeEvent) {
        let Some(fabric) = &self.fabric else { return };
        if let (Some(key), Some(at)) = (event.cleared(), fabric.port_at(end)) {
            return world.clear_violations(at, key);
        }
        // The states of links come as such.
        if matches!(event, NodeEvent::Active | NodeEvent::Inactive | NodeEvent::Link(_)) {
            return;
        }
        let Some(port) = fabric.managed.node(end.node).and_then(|node| node.port(end.port)) else { return };
        let change = change_of(port, &[event]);
        self.change_port(world, end, &change);
    }

    /// The state of a device's link has changed.
    fn follow_link(&mut self, world: &mut World, end: End, state: Logical) {
        let Some(info) = self.fabric.as_ref().and_then(|fabric| fabric.managed.port_info(end)) else { return };
        self.change_port(world, end, &change_of_link(&info, state));
    }

    fn change_port(&mut self, world: &mut World, end: End, change: &PortChange) {
        let Some(at) = self.fabric.as_ref().and_then(|fabric| fabric.ports.get(&end).copied()) else { return };
        match world.change_port(at.device, at.port.into(), change) {
            Ok(_) => self.results.ports_changed = true,
            Err(error) => tracing::warn!(device = at.device, port = at.port, "the subnet manager's values: {error}"),
        }
    }

    /// Says at a port of the fabric whether a subnet manager runs there. Returns false if the port
    /// is not attached to one.
    pub(super) fn show_manager_in_fabric(&mut self, at: PortId, has_manager: bool) -> bool {
        let Some(fabric) = &mut self.fabric else { return false };
        let (Some(end), Some(info)) = (fabric.ends.get(&at).copied(), fabric.info(at)) else { return false };
        let others = info.capability_mask & !Capability::SM;
        let mask = if has_manager { others | Capability::SM } else { others };
        fabric.managed.set_capability(end, mask).is_ok()
    }
}
