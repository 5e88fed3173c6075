//! The agent's own subnet managers, so that the subnets of a topology come up by themselves.
//! Routers separate subnets: each has a manager, and a prefix of its own. A manager sits at port 0
//! of a switch, as that of a managed switch does. Without a switch, it sits at an adapter. Crate
//! `sm` has the manager. Principal type: [`OwnManager`].
//!
//! Unless its settings say other, it has the lowest priority. So a manager on a node with a higher
//! one becomes the master.

use std::collections::BTreeSet;
use std::time::Duration;

use sm::address::Address;
use sm::config::{Config, Timing};
use sm::event::Event;
use sm::lids::LidMap;
use sm::sa::Peer;
use sm::service::{Outgoing, Service};
use sm::{Manager, Problem};
use subnet::fabric::{End, Kind};
use subnet::managed::{self, Delivered};
use subnet::{Managed, NodeId};
use wire::mad::{CLASS_SA, CLASS_SUBN_DIRECTED, CLASS_SUBN_LID, GSI_QKEY, Header, Mad};
use wire::pkey::DEFAULT;
use wire::smp::{Capability, PERMISSIVE_LID};

use crate::kept_lids::KeptLids;
use crate::world::World;

/// It asks the master this often, and takes over after so many polls without an answer.
const POLL: (Duration, u32) = (Duration::from_secs(1), 3);

/// The prefix of GIDs that no router forwards: that of a subnet without routers. Subnets between
/// routers have numbers behind the other prefix, from 1.
const LINK_LOCAL: u64 = subnet::port::LINK_LOCAL;
const SITE_LOCAL: u64 = 0xfec0 << 48;

/// A subnet manager, and its port.
#[derive(Debug)]
pub struct OwnManager {
    service: Service,
    end: End,
    /// The LIDs of ports, if they have changed.
    given: Option<LidMap>,
}

impl OwnManager {
    /// What it does where the settings do not say other.
    pub(super) fn usual() -> Config {
        let (poll_interval, poll_retries) = POLL;
        Config { timing: Timing { poll_interval, poll_retries, ..Timing::default() }, ..Config::default() }
    }

    /// A manager with these choices for each subnet of a fabric that has a port for one. Ports have
    /// the LIDs that were kept.
    pub(super) fn of_all(net: &mut Managed, world: &World, choices: &Config, kept: &mut Option<KeptLids>) -> Vec<Self> {
        let transaction = || world.system.chance().map_or(1, |mut chance| chance().into());
        let subnets = subnets(net);
        let is_routed = subnets.len() > 1;
        let guids: Vec<BTreeSet<u64>> = subnets.iter().map(|nodes| guids_in(net, nodes)).collect();
        let places = subnets.iter().zip(&guids).filter_map(|(nodes, own)| {
            let end = place(net, nodes)?;
            let are_elsewhere = |guid| !own.contains(&guid) && guids.iter().any(|guids| guids.contains(&guid));
            Some((end, kept.as_mut().map_or_else(LidMap::new, |kept| kept.share(are_elsewhere))))
        });
        let places: Vec<(End, LidMap)> = places.collect();
        let prefix = |nth: u64| if is_routed { SITE_LOCAL + nth } else { LINK_LOCAL };
        let config = |nth| Config { subnet_prefix: prefix(nth), ..choices.clone() };
        let begin = |(nth, (end, share))| Self::at(net, end, (config(nth), share), transaction());
        (1..).zip(places).filter_map(begin).collect()
    }

    /// A manager with this configuration, and with the number of its first transaction, for a
    /// fabric that is one subnet. `None` if it has no port for one.
    pub fn with(net: &mut Managed, config: Config, transaction: u64) -> Option<Self> {
        let end = place(net, &subnets(net).concat())?;
        Self::at(net, end, (config, LidMap::new()), transaction)
    }

    fn at(net: &mut Managed, end: End, (config, kept): (Config, LidMap), transaction: u64) -> Option<Self> {
        // The end of an adapter may be attached already, which changes nothing.
        let _ = net.attach(end);
        let node = net.node(end.node)?;
        let guid = node.port(end.port).map_or(node.info.node_guid, |port| port.guid);
        let mask = net.port_info(end).map_or(0, |info| info.capability_mask);
        let _ = net.set_capability(end, mask | Capability::SM);
        let mut manager = Manager::new(config, guid, transaction);
        manager.set_lids(kept);
        Some(Self { service: Service::new(manager), end, given: None })
    }

    /// When it has something to do, on the fabric's clock.
    pub fn next(&self) -> Option<Duration> {
        self.service.next_timeout()
    }

    /// Does what is due, and sends what the manager asks. Returns false if it sent nothing.
    pub fn run(&mut self, net: &mut Managed, now: Duration) -> bool {
        let Self { service, end, given } = self;
        if service.next_timeout().is_some_and(|next| next <= now) {
            service.handle_timeout(now);
        }
        let slid = net.port_info(*end).map_or(0, |info| info.lid);
        let mut asks = false;
        while let Some(outgoing) = service.poll_transmit() {
            if let Err(why) = net.send(*end, &datagram(slid, &outgoing)) {
                tracing::debug!("a datagram of the subnet manager is dropped: {why}");
            }
            asks = true;
        }
        while let Some(event) = service.poll_event() {
            log(&event);
            if let Event::Lids(lids) = event {
                *given = Some(lids);
            }
        }
        asks
    }

    /// The LIDs of ports, if they have changed since the last call.
    pub fn take_lids(&mut self) -> Option<LidMap> {
        self.given.take()
    }

    /// The prefix of its subnet.
    pub fn prefix(&self) -> u64 {
        self.service.manager().config().subnet_prefix
    }

    /// The manager and subnet administration.
    pub const fn service(&self) -> &Service {
        &self.service
    }

    /// The same, to change the members of groups.
    pub const fn service_mut(&mut self) -> &mut Service {
        &mut self.service
    }

    /// Gives the manager a datagram that has come out at its port. Returns false if it is for
    /// somebody else.
    pub fn takes(&mut self, delivered: &Delivered, now: Duration) -> bool {
        let Self { service, end, .. } = self;
        let managed::Datagram { source_qp, dest_qp, slid, sl, pkey, grh, mad, .. } = &delivered.datagram;
        if delivered.end != *end {
            return false;
        }
        match (*dest_qp, Header::of(mad).class) {
            (0, CLASS_SUBN_DIRECTED) => service.receive_management(Address::Directed, mad, now),
            (0, CLASS_SUBN_LID) => {
                service.receive_management(Address::Lid { lid: *slid, sl: *sl, qp: *source_qp }, mad, now);
            }
            (1, CLASS_SA) if service.sa().is_some() => {
                let gid = grh.map(|grh| grh.sgid);
                let peer = Peer { lid: *slid, qpn: *source_qp, pkey: *pkey, sl: *sl, gid };
                service.receive_administration(peer, mad, now);
            }
            _ => return false,
        }
        true
    }
}

/// The GUIDs of a node's ports.
fn port_guids(net: &Managed, id: NodeId) -> Vec<u64> {
    net.node(id).map_or_else(Vec::new, |node| node.ports.iter().map(|port| port.guid).collect())
}

/// The GUIDs of the ports in a subnet with these nodes: theirs, and those of routers at their
/// cables.
fn guids_in(net: &Managed, nodes: &[NodeId]) -> BTreeSet<u64> {
    let ports = |node: NodeId| 1..=net.fabric().node(node).map_or(0, subnet::fabric::Node::ports);
    let ends = nodes.iter().flat_map(|node| ports(*node).map(|port| End { node: *node, port }));
    let peers = ends.filter_map(|end| net.fabric().peer(end));
    let at_cables = peers.filter_map(|peer| Some(net.node(peer.node)?.port(peer.port)?.guid));
    nodes.iter().flat_map(|id| port_guids(net, *id)).chain(at_cables).collect()
}

/// The nodes of each subnet, without routers. Without a router, all nodes count as one subnet.
fn subnets(net: &Managed) -> Vec<Vec<NodeId>> {
    let fabric = net.fabric();
    let ids = || (0..fabric.len() as u32).map(NodeId);
    let is_router = |id: NodeId| fabric.node(id).is_some_and(|node| matches!(node.kind(), Kind::Router(_)));
    let neighbours = |node: NodeId| {
        let ports = (1..=fabric.node(node).map_or(0, subnet::fabric::Node::ports)).map(move |port| End { node, port });
        ports.filter_map(move |end| Some(fabric.peer(end)?.node))
    };
    if !ids().any(is_router) {
        return vec![ids().collect()];
    }
    let (mut subnets, mut seen) = (Vec::new(), BTreeSet::new());
    for first in ids().filter(|id| is_router(*id)).flat_map(neighbours).filter(|id| !is_router(*id)) {
        let mut nodes = Vec::new();
        let mut next: Vec<NodeId> = if seen.insert(first) { vec![first] } else { Vec::new() };
        while let Some(node) = next.pop() {
            nodes.push(node);
            next.extend(neighbours(node).filter(|id| !is_router(*id) && seen.insert(*id)));
        }
        subnets.extend((!nodes.is_empty()).then_some(nodes));
    }
    subnets
}

/// The port of a subnet's manager: of the switch with the highest GUID, because of managers with
/// equal priority that with the lowest GUID is the master. Without a switch, of the first adapter.
fn place(net: &Managed, nodes: &[NodeId]) -> Option<End> {
    let nodes = || nodes.iter().filter_map(|id| Some((*id, net.fabric().node(*id)?)));
    let guid = |id| net.node(id).map_or(0, |node| node.info.node_guid);
    let switches = nodes().filter(|(_, node)| matches!(node.kind(), Kind::Switch(_)));
    let switch = switches.max_by_key(|(id, _)| guid(*id)).map(|(id, _)| End { node: id, port: 0 });
    let linked = |(node, it): (NodeId, &subnet::fabric::Node)| {
        (1..=it.ports()).map(|port| End { node, port }).find(|end| net.fabric().peer(*end).is_some())
    };
    switch.or_else(|| nodes().find_map(linked))
}

/// The datagram on the link.
fn datagram(slid: u16, outgoing: &Outgoing) -> managed::Datagram {
    let link = |qp: u32, to: (u16, u32), sl: u8, (pkey, qkey): (u16, u32), mad: &Mad| managed::Datagram {
        source_qp: qp,
        dest_qp: to.1,
        slid,
        dlid: to.0,
        sl,
        pkey,
        qkey,
        grh: None,
        mad: *mad,
    };
    match outgoing {
        Outgoing::Management(Address::Directed, mad) => {
            managed::Datagram { slid: PERMISSIVE_LID, ..link(0, (PERMISSIVE_LID, 0), 0, (DEFAULT, 0), mad) }
        }
        Outgoing::Management(Address::Lid { lid, sl, qp }, mad) => link(0, (*lid, *qp), *sl, (DEFAULT, 0), mad),
        Outgoing::Administration(peer, mad) => link(1, (peer.lid, peer.qpn), peer.sl, (peer.pkey, GSI_QKEY), mad),
    }
}

fn log(event: &Event) {
    match event {
        Event::Up(up) => tracing::info!("{up}"),
        Event::State(state) => tracing::info!(?state, "the subnet manager"),
        // A cable that is cut is no fault of the manager.
        Event::Problem(Problem::Unanswered(what)) => tracing::debug!("no answer: {what}"),
        Event::Problem(problem) => tracing::warn!("{problem}"),
        Event::Violation(violation) => tracing::warn!("{violation}"),
        Event::Changed | Event::Lids(_) | Event::Notice(_) => {}
    }
}
