//! An interface: takes packets from both sides and says what becomes of them. Messages that find
//! neighbours are in `discovery.rs`. Principal type: [`Interface`].

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use wire::cm::Gid;

use crate::address::LinkAddress;
use crate::connections::{ConnectionStep, Connections, Way};
use crate::event::{Event, Loss, Outgoing, Target};
use crate::group::Partition;
use crate::groups::{GroupStep, Groups};
use crate::header::{self, EtherType};
use crate::icmp::{self, Error};
use crate::ip::{self, Packet};
use crate::ndisc;
use crate::neighbours::{ASK, Neighbours};
use crate::routes::{Hop, OwnAddress, Route, Routes};
use crate::segments::HostPacket;
use crate::time::Time;

/// The groups of every host: all hosts, all nodes.
const EVERY_HOST: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(224, 0, 0, 1)), IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1))];

/// What an interface is.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The own address.
    pub link: LinkAddress,
    /// The partition, and the scope of its groups.
    pub partition: Partition,
    /// The longest packet of a datagram: the MTU of the link without the header.
    pub mtu: usize,
    /// Connected mode: neighbours that take connections of this service get packets on them.
    pub connected: Option<Connect>,
}

/// The service of connections in connected mode. RFC 4755 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connect {
    /// Reliable connections (RC).
    Reliable,
    /// Unreliable connections (UC).
    Unreliable,
}

impl Connect {
    /// The flag of an address whose interface takes these connections.
    #[must_use]
    pub fn flag(self) -> u8 {
        match self {
            Self::Reliable => LinkAddress::RC,
            Self::Unreliable => LinkAddress::UC,
        }
    }
}

/// How many packets an interface has handled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that the host sent.
    pub outgoing: u64,
    /// Packets that the host received.
    pub incoming: u64,
    /// Packets of the host that were lost.
    pub lost: u64,
    /// Datagrams that are no valid packets.
    pub malformed: u64,
    /// Questions for the host's addresses that were answered.
    pub answered: u64,
}

/// IP over InfiniBand for one interface of a host. See the [crate's page](crate).
#[derive(Debug)]
pub struct Interface {
    pub(crate) config: Config,
    pub(crate) routes: Routes,
    pub(crate) neighbours: Neighbours,
    groups: Groups,
    connections: Connections,
    events: VecDeque<Event>,
    pub(crate) counters: Counters,
    /// The groups that the host's programs have joined.
    host_groups: Vec<IpAddr>,
    is_up: bool,
    /// When the addresses are announced once more: an announcement can be lost.
    announce: Option<Time>,
    next_tick: Time,
}

impl Interface {
    /// An interface that begins to join its broadcast group.
    #[must_use]
    pub fn new(config: Config, now: Time) -> Self {
        let mut interface = Self {
            config,
            routes: Routes::default(),
            neighbours: Neighbours::default(),
            groups: Groups::default(),
            connections: Connections::default(),
            events: VecDeque::new(),
            counters: Counters::default(),
            host_groups: Vec::new(),
            is_up: false,
            announce: None,
            next_tick: now + ASK,
        };
        interface.want_groups(now);
        interface
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Interface::tick`] has something to do.
    #[must_use]
    pub fn timeout(&self) -> Option<Time> {
        let idle = self.neighbours.is_empty() && self.groups.is_empty();
        (!idle).then_some(self.next_tick)
    }

    /// Does what is due.
    pub fn tick(&mut self, now: Time) {
        if now < self.next_tick {
            return;
        }
        self.next_tick = now + ASK;
        let mut steps = Vec::new();
        self.neighbours.tick(now, &mut steps);
        self.follow(steps, now);
        let mut steps = Vec::new();
        self.groups.tick(now, &mut steps);
        self.follow_groups(steps);
        let mut steps = Vec::new();
        self.connections.tick(now, &mut steps);
        self.follow_connections(steps, now);
        if self.announce.take_if(|due| *due <= now).is_some() {
            self.announce_all(now);
        }
    }

    /// Whether the broadcast group is joined. Before, no packet passes.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// How many neighbours, groups and connections are known.
    #[must_use]
    pub fn sizes(&self) -> (usize, usize, usize) {
        (self.neighbours.len(), self.groups.len(), self.connections.len())
    }

    /// The host's addresses of this interface, and its routes out of it. New addresses are
    /// announced to all neighbours.
    pub fn set_routes(&mut self, own: Vec<OwnAddress>, routes: Vec<Route>, now: Time) {
        let before = std::mem::replace(&mut self.routes, Routes::new(own, routes));
        let new: Vec<IpAddr> = self.routes.own().iter().map(|own| own.ip).filter(|ip| !before.is_own(*ip)).collect();
        self.want_groups(now);
        if self.is_up {
            if !new.is_empty() {
                self.announce = Some(now + ASK);
            }
            new.into_iter().for_each(|ip| self.announce(ip, now));
        }
    }

    /// The groups that the host's programs have joined.
    pub fn set_groups(&mut self, groups: Vec<IpAddr>, now: Time) {
        self.host_groups = groups;
        self.want_groups(now);
    }

    /// The longest packet of a datagram has changed.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.config.mtu = mtu;
    }

    /// The subnet has changed: another manager, which knows no members, or other LIDs. Joins every
    /// group again, asks for all paths again, and announces the addresses: neighbours then ask for
    /// the path to this port. Until the answers come, the old ones are used.
    pub fn rejoin(&mut self, now: Time) {
        let mut steps = Vec::new();
        self.groups.rejoin(&mut steps);
        self.follow_groups(steps);
        self.events.extend(self.neighbours.links().into_iter().map(Event::Resolve));
        self.announce = Some(now + ASK);
    }

    /// The end of [`Event::Resolve`]: whether there is a path. Returns whether it is still wanted; the
    /// neighbour may have another address by now.
    pub fn resolved(&mut self, link: LinkAddress, found: bool, now: Time) -> bool {
        let mut steps = Vec::new();
        self.neighbours.resolved(link, found, now, &mut steps);
        self.follow(steps, now);
        self.neighbours.has(link)
    }

    /// The end of [`Event::Join`]: whether the interface is a member now. Returns whether the group
    /// is still wanted.
    pub fn joined(&mut self, mgid: &Gid, joined: bool, now: Time) -> bool {
        let mut steps = Vec::new();
        self.groups.joined(mgid, joined, now, &mut steps);
        self.follow_groups(steps);
        if joined && !self.is_up && *mgid == self.config.partition.broadcast() {
            self.is_up = true;
            self.want_groups(now);
            self.announce = Some(now + ASK);
            self.announce_all(now);
        }
        self.groups.is_known(mgid)
    }

    fn announce_all(&mut self, now: Time) {
        let own: Vec<IpAddr> = self.routes.own().iter().map(|own| own.ip).collect();
        own.into_iter().for_each(|ip| self.announce(ip, now));
    }

    /// What becomes of a packet of the host.
    pub fn outgoing(&mut self, packet: &HostPacket<'_>, now: Time) -> Outgoing {
        self.counters.outgoing += 1;
        let outgoing = self.route(packet, now);
        if let Outgoing::Lost(_) = outgoing {
            self.counters.lost += 1;
        }
        outgoing
    }

    fn route(&mut self, packet: &HostPacket<'_>, now: Time) -> Outgoing {
        let Some(Packet { destination, .. }) = Packet::parse(packet.bytes()) else {
            return Outgoing::Lost(Loss::Malformed);
        };
        if !self.is_up {
            return Outgoing::Lost(Loss::Full);
        }
        let mgid = match self.routes.hop(destination) {
            Hop::Neighbour(ip) => return self.route_to_neighbour(ip, packet, now),
            Hop::Broadcast => self.config.partition.broadcast(),
            Hop::Group(group) => self.config.partition.group(group),
        };
        if packet.longest() > self.config.mtu {
            return Outgoing::Lost(Loss::TooBig);
        }
        if ip::is_membership(packet.bytes()) {
            self.events.push_back(Event::GroupsChanged);
        }
        if self.groups.is_joined(&mgid, now) {
            return Outgoing::To(Target::Group(mgid));
        }
        held(packet.payloads().map(|payload| self.hold_for_group(mgid, &payload, now)))
    }

    fn hold_for_group(&mut self, mgid: Gid, payload: &[u8], now: Time) -> bool {
        let mut steps = Vec::new();
        let held = self.groups.hold(mgid, payload, now, &mut steps);
        self.follow_groups(steps);
        held
    }

    /// Sends an own message to a group, which may have to be joined first.
    pub(crate) fn send_to_group(&mut self, group: Ipv6Addr, packet: &[u8], now: Time) {
        let mgid = self.config.partition.group(group.into());
        let payload = [&EtherType::Ipv6.header()[..], packet].concat();
        if self.groups.is_joined(&mgid, now) {
            self.push(Event::Send(Target::Group(mgid), payload));
        } else {
            self.hold_for_group(mgid, &payload, now);
        }
    }

    fn route_to_neighbour(&mut self, ip: IpAddr, packet: &HostPacket<'_>, now: Time) -> Outgoing {
        if let Some(link) = self.neighbours.find(ip, now) {
            return self.route_to_link(link, packet, now);
        }
        // Only a connection takes longer packets, and whether there is one is unknown.
        if packet.longest() > self.config.mtu && self.config.connected.is_none() {
            return self.too_big(packet.bytes(), self.config.mtu);
        }
        held(packet.payloads().map(|payload| self.hold(ip, &payload, now)))
    }

    /// The way of a packet to a neighbour whose path is known.
    fn route_to_link(&mut self, link: LinkAddress, packet: &HostPacket<'_>, now: Time) -> Outgoing {
        let connects = self.config.connected.is_some_and(|service| link.flags & service.flag() != 0);
        let mut steps = Vec::new();
        let way = if connects { self.connections.way(link, now, &mut steps) } else { Way::Datagram };
        self.follow_connections(steps, now);
        match way {
            Way::Connection { mtu } if packet.longest() > mtu => self.too_big(packet.bytes(), mtu),
            Way::Connection { .. } => Outgoing::To(Target::Connection(link)),
            Way::Datagram if packet.longest() > self.config.mtu => self.too_big(packet.bytes(), self.config.mtu),
            Way::Datagram => Outgoing::To(Target::Neighbour(link)),
            Way::Wait => held(packet.payloads().map(|payload| self.connections.hold(&link, &payload))),
        }
    }

    fn too_big(&mut self, packet: &[u8], mtu: usize) -> Outgoing {
        self.events.extend(icmp::answer(packet, Error::TooBig(mtu)).map(Event::Deliver));
        Outgoing::Lost(Loss::TooBig)
    }

    /// A payload of the host has waited, and can be sent now.
    pub(crate) fn send_held(&mut self, link: LinkAddress, payload: Vec<u8>, now: Time) {
        let packet = payload.get(header::LEN..).unwrap_or_default();
        // ARP and neighbour discovery stay on the datagram queue pair.
        let of_host = matches!(header::parse(&payload), Some((EtherType::Ipv4, _)))
            || matches!(header::parse(&payload), Some((EtherType::Ipv6, packet)) if !ndisc::is_one(packet));
        let packet = HostPacket::whole(packet).filter(|_| of_host);
        match packet.map_or(Outgoing::To(Target::Neighbour(link)), |packet| self.route_to_link(link, &packet, now)) {
            Outgoing::To(target) => self.events.push_back(Event::Send(target, payload)),
            Outgoing::Held => {}
            Outgoing::Lost(_) => self.counters.lost += 1,
        }
    }

    /// The end of [`Event::Connect`]: the longest packet that the neighbour takes, or `None` if it
    /// refuses. Returns whether the connection is still wanted.
    pub fn connected(&mut self, link: LinkAddress, mtu: Option<usize>, now: Time) -> bool {
        if mtu.is_none() {
            self.doubt(&link, now);
        }
        let mut steps = Vec::new();
        let wanted = self.connections.set(link, mtu, now, &mut steps);
        self.follow_connections(steps, now);
        wanted
    }

    /// A connection has ended, because the neighbour has ended it or does not answer. The next
    /// packet connects again. A packet that was lost with the connection can be given to
    /// [`Interface::outgoing`] once more.
    pub fn disconnected(&mut self, link: &LinkAddress, now: Time) {
        self.connections.end(link);
        self.doubt(link, now);
    }

    /// Asks who has the addresses of a neighbour that has ended or refused a connection: it may
    /// have started again, with another queue pair.
    fn doubt(&mut self, link: &LinkAddress, now: Time) {
        let mut steps = Vec::new();
        self.neighbours.doubt(link, now, &mut steps);
        self.follow(steps, now);
    }

    pub(crate) fn follow_connections(&mut self, steps: Vec<ConnectionStep>, now: Time) {
        for step in steps {
            match step {
                ConnectionStep::Connect(link) => self.events.push_back(Event::Connect(link)),
                ConnectionStep::Disconnect(link) => self.events.push_back(Event::Disconnect(link)),
                ConnectionStep::Retry(link, payload) => self.send_held(link, payload, now),
            }
        }
    }

    /// Forgets a neighbour, and ends the connection to it.
    pub(crate) fn forget(&mut self, link: LinkAddress, now: Time) {
        let mut steps = Vec::new();
        self.connections.forget(link, &mut steps);
        self.follow_connections(steps, now);
        self.events.push_back(Event::Forget(link));
    }

    /// Sends a payload to a neighbour as soon as it is known. Returns false if a payload is lost.
    pub(crate) fn hold(&mut self, ip: IpAddr, payload: &[u8], now: Time) -> bool {
        let mut steps = Vec::new();
        let held = self.neighbours.hold(ip, payload, now, &mut steps);
        self.follow(steps, now);
        held
    }

    /// The payload of a datagram arrives. Returns the packet that the host receives, if there is
    /// one.
    pub fn incoming<'a>(&mut self, payload: &'a [u8], now: Time) -> Option<&'a [u8]> {
        let Some((kind, packet)) = header::parse(payload) else {
            self.counters.malformed += 1;
            return None;
        };
        match kind {
            EtherType::Arp => self.arp(packet, now),
            EtherType::Rarp => {}
            EtherType::Ipv6 if ndisc::is_one(packet) => self.neighbour_discovery(packet, now),
            EtherType::Ipv4 | EtherType::Ipv6 if EtherType::of_ip(packet) == Some(kind) => {
                self.counters.incoming += 1;
                return Some(packet);
            }
            EtherType::Ipv4 | EtherType::Ipv6 => self.counters.malformed += 1,
        }
        None
    }

    /// Joins the groups that are needed, and leaves the others. Before the interface is up, it
    /// needs only the broadcast group.
    fn want_groups(&mut self, now: Time) {
        let partition = self.config.partition;
        let mut wanted = BTreeSet::from([partition.broadcast()]);
        if self.is_up {
            let asked = self.routes.own().iter().filter_map(|own| match own.ip {
                IpAddr::V6(ip) => Some(IpAddr::V6(ndisc::solicited_node(ip))),
                IpAddr::V4(_) => None,
            });
            let all = EVERY_HOST.into_iter().chain(asked).chain(self.host_groups.iter().copied());
            wanted.extend(all.filter(IpAddr::is_multicast).map(|group| partition.group(group)));
        }
        let mut steps = Vec::new();
        self.groups.want(&wanted, now, &mut steps);
        self.follow_groups(steps);
    }

    fn follow_groups(&mut self, steps: Vec<GroupStep>) {
        self.events.extend(steps.into_iter().map(|step| match step {
            GroupStep::Join(mgid, membership) => Event::Join(mgid, membership),
            GroupStep::Leave(mgid) => Event::Leave(mgid),
            GroupStep::Send(mgid, payload) => Event::Send(Target::Group(mgid), payload),
        }));
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.events.push_back(event);
    }

    /// Tells the host that a packet did not reach its next hop.
    pub(crate) fn refuse(&mut self, payload: &[u8]) {
        self.counters.lost += 1;
        let packet = payload.get(header::LEN..).unwrap_or_default();
        // What waited may be an answer of this interface, which the host did not send.
        if Packet::parse(packet).is_some_and(|packet| self.routes.is_own(packet.source)) && !ndisc::is_one(packet) {
            self.events.extend(icmp::answer(packet, Error::Unreachable).map(Event::Deliver));
        }
    }
}

/// Whether the segments of a packet wait.
fn held(mut segments: impl Iterator<Item = bool>) -> Outgoing {
    if segments.by_ref().fold(true, |all, held| all & held) { Outgoing::Held } else { Outgoing::Lost(Loss::Full) }
}
