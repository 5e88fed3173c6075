//! The addresses of this agent, and the GID through which each is reached. This file makes no
//! system calls.
//!
//! Every address of the host belongs to an agent's device. An address is reached through its own
//! GID if it has one, and otherwise through the first useful GID. If the agent was told its
//! addresses, the host's other addresses are not its own; they may belong to another agent. The
//! principal type is [`Locals`].

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use abi::device::port_state;
use abi::lid::{self, Subnet};
use wire::pkey;

use crate::devices::Devices;
use crate::dscp::DscpTable;
use crate::gids::{GidEntry, HostAddress, gid_of, ip_of};
use crate::objects::elsewhere::Elsewhere;
use crate::pkeys::PkeyTable;
use crate::priority::PriorityTable;
use crate::rnic::StartUp;

/// The device, port and GID to which an id is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attachment {
    /// The device, by index.
    pub(crate) device: usize,
    /// Its port, from 1.
    pub(crate) port: u8,
    /// The GID's index.
    pub(crate) index: u8,
    /// The GID is an address of the host.
    pub(crate) is_address: bool,
    /// The GID.
    pub(crate) gid: [u8; 16],
    /// The interface of the GID, or 0 if it has none.
    pub(crate) ifindex: u32,
    /// The MTU code towards other hosts, or 0 if other hosts cannot be reached.
    pub(crate) outward_mtu: u8,
    /// The MTU code of the port.
    pub(crate) port_mtu: u8,
    /// The DSCP of the port's service levels.
    pub(crate) dscp: DscpTable,
    /// The priority of the port's service levels.
    pub(crate) priority: PriorityTable,
    /// The rate of the port's link (`enum ibv_rate`).
    pub(crate) rate: u8,
    /// The port's LID, 0 on Ethernet.
    pub(crate) lid: u16,
    /// The addresses to which LIDs map there.
    pub(crate) subnet: Option<Subnet>,
    /// The P_Key of connections that name none.
    pub(crate) pkey: u16,
    /// The port is a port of a topology.
    pub(crate) fabric: Option<InFabric>,
    /// How connections from here begin, if they are of iWARP.
    pub(crate) iwarp: Option<StartUp>,
}

/// What a port of a topology knows of its subnet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InFabric {
    /// Whether the port is active.
    pub(crate) is_active: bool,
    /// The LID of the subnet manager; 0 as long as there is none.
    pub(crate) sm_lid: u16,
    /// The service level of datagrams to the manager.
    pub(crate) sm_sl: u8,
}

impl Attachment {
    /// The LID of a GID, as seen from here; 0 on Ethernet, and if no LID maps to it.
    pub(crate) fn lid_of(&self, gid: &[u8; 16]) -> u16 {
        match self.lid {
            0 => 0,
            _ if gid[0] == 0xff => lid::of_group(gid),
            own if *gid == self.gid => own,
            _ => self.subnet.and_then(|subnet| subnet.lid(gid)).unwrap_or(0),
        }
    }
}

/// The addresses of this agent.
#[derive(Debug, Default)]
pub(crate) struct Locals {
    pub(super) attachments: Vec<Attachment>,
    /// The partitions of each port, by device and number.
    pkeys: BTreeMap<(usize, u8), PkeyTable>,
    /// The addresses of the nodes of a topology, with their ports.
    pub(super) nodes: BTreeMap<IpAddr, (usize, u8)>,
    /// The ports of other agents' nodes.
    pub(super) elsewhere: Elsewhere,
    /// The host's addresses that belong to this agent.
    own: BTreeSet<(IpAddr, u32)>,
    /// Whether 127.0.0.0/8 and ::1 belong to this agent.
    loopback: bool,
    /// The agent has only the addresses that it was told.
    is_named: bool,
}

impl Locals {
    /// Collects the addresses from the host's addresses, the configured ones (`named`), and the
    /// devices' GIDs. `elsewhere`: the addresses are not this machine's.
    pub(crate) fn new(host: &[HostAddress], named: &[IpAddr], elsewhere: bool, devices: &Devices) -> Self {
        let (mut attachments, mut pkeys, mut nodes) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        for device in devices {
            for (number, port) in (1..).zip(&device.ports) {
                let here = |(index, entry): (usize, GidEntry)| Attachment {
                    device: device.index,
                    port: number,
                    index: index as u8,
                    gid: entry.gid,
                    ifindex: entry.ifindex,
                    is_address: entry.is_address,
                    outward_mtu: if entry.is_address && port.state == port_state::ACTIVE { entry.mtu } else { 0 },
                    port_mtu: port.active_mtu,
                    dscp: port.service_levels.dscp,
                    priority: port.service_levels.priority,
                    rate: port.rate.code(),
                    lid: port.lid.map_or(0, |lid| lid.number),
                    subnet: port.subnet(),
                    pkey: port.pkeys.usual(),
                    fabric: port.address.map(|_| InFabric {
                        is_active: port.state == port_state::ACTIVE,
                        sm_lid: port.sm_lid(),
                        sm_sl: port.subnet.sm_sl(),
                    }),
                    iwarp: device.is_iwarp().then_some(device.iwarp),
                };
                nodes.extend(port.address.map(|ip| (ip, (device.index, number))));
                pkeys.insert((device.index, number), port.pkeys.clone());
                attachments.extend(port.gids.iter().map(here));
            }
        }
        let mut own: BTreeSet<(IpAddr, u32)> = BTreeSet::new();
        if named.is_empty() {
            own.extend(host.iter().map(|address| (address.ip, address.ifindex)));
        } else {
            let there = |ip: &IpAddr| host.iter().find(|address| address.ip == *ip).map_or(0, |found| found.ifindex);
            own.extend(named.iter().map(|ip| (*ip, there(ip))));
        }
        let loopback = elsewhere || !named.iter().any(IpAddr::is_loopback);
        let elsewhere = Elsewhere::default();
        Self { attachments, pkeys, nodes, elsewhere, own, loopback, is_named: !named.is_empty() }
    }

    /// Whether an address belongs to this agent.
    pub(crate) fn is_own(&self, ip: IpAddr, scope: u32) -> bool {
        if self.has_nodes() {
            return self.is_of_node(ip) || ip.is_loopback();
        }
        let exact = |interface: u32| self.own.contains(&(ip, interface));
        let known = match scope {
            0 => self.own.range((ip, 0)..=(ip, u32::MAX)).next().is_some(),
            scope => exact(scope) || exact(0),
        };
        known || (self.loopback && ip.is_loopback())
    }

    /// Whether a node of a topology has this address.
    pub(crate) fn is_of_node(&self, ip: IpAddr) -> bool {
        self.nodes.contains_key(&ip)
    }

    /// The attachment through which an own address is reached.
    pub(crate) fn find(&self, ip: IpAddr, scope: u32) -> Option<Attachment> {
        if !self.is_own(ip, scope) {
            return None;
        }
        let gid = gid_of(ip);
        let same = |at: &&Attachment| at.is_address && at.gid == gid && (scope == 0 || at.ifindex == scope);
        self.attachments.iter().find(same).or_else(|| self.first(ip.is_ipv4())).copied()
    }

    /// The attachment with this GID. An address may belong to a RoCE port and to an iWARP port.
    /// Only RoCE is addressed by GIDs.
    pub(crate) fn with_gid(&self, gid: &[u8; 16]) -> Option<Attachment> {
        let all = || self.attachments.iter().filter(|at| at.gid == *gid);
        all().find(|at| at.iwarp.is_none()).or(all().next()).copied()
    }

    /// The attachment of an iWARP port that has an own address.
    pub(crate) fn on_iwarp(&self, ip: IpAddr) -> Option<Attachment> {
        let gid = gid_of(ip);
        let all = || self.attachments.iter().filter(|at| at.iwarp.is_some() && at.is_address);
        let of_family = |at: &&Attachment| ip_of(&at.gid).is_ipv4() == ip.is_ipv4();
        let any = || all().find(of_family).or_else(|| all().next());
        let is_loopback = self.is_own(ip, 0) && ip.is_loopback();
        all().find(|at| at.gid == gid).or_else(|| if is_loopback { any() } else { None }).copied()
    }

    /// The TCP addresses at which an id with the address `local` listens for iWARP; none without an
    /// iWARP device that has the address.
    pub(crate) fn listening_addresses(&self, local: SocketAddr) -> Vec<SocketAddr> {
        let ports = || self.attachments.iter().filter(|at| at.iwarp.is_some() && at.is_address);
        let of_family = |at: &&Attachment| !local.is_ipv4() || ip_of(&at.gid).is_ipv4();
        match local.ip().is_unspecified() {
            true if ports().next().is_none() => Vec::new(),
            true if !self.is_named => vec![local],
            true => ports().filter(of_family).map(|at| SocketAddr::new(ip_of(&at.gid), local.port())).collect(),
            false => self.on_iwarp(local.ip().to_canonical()).map(|_| local).into_iter().collect(),
        }
    }

    /// The P_Key table of an attachment's port.
    fn pkeys(&self, at: &Attachment) -> Option<&PkeyTable> {
        self.pkeys.get(&(at.device, at.port))
    }

    /// The index of a partition at an attachment's port; `None` if the port does not belong to it.
    pub(crate) fn pkey_index(&self, at: &Attachment, pkey: u16) -> Option<u16> {
        self.pkeys(at)?.index_of(pkey)
    }

    /// The attachment in the partition that an address of the family AF_IB names: `None` if its
    /// port does not belong to this partition. 0 and 0xffff stand for any partition.
    pub(crate) fn in_partition(&self, at: Attachment, pkey: u16) -> Option<Attachment> {
        let table = self.pkeys(&at)?;
        match table.index_of(pkey).and_then(|index| table.get(u32::from(index))) {
            Some(pkey) => Some(Attachment { pkey, ..at }),
            None => matches!(pkey, 0 | pkey::DEFAULT).then_some(at),
        }
    }

    /// Whether the management QPs of the port with the GID `to` accept a datagram with this P_Key.
    /// A GID that is not here is not judged.
    pub(crate) fn accepts(&self, to: &[u8; 16], pkey: u16) -> bool {
        let table = self.with_gid(to).and_then(|at| self.pkeys(&at));
        table.is_none_or(|table| pkey::is_in_table(table.entries(), pkey))
    }

    /// The first address that programs can use, with its attachment.
    pub(crate) fn usual(&self, v4: bool) -> Option<(IpAddr, Attachment)> {
        let loopback: IpAddr = if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        let of_use = |at: &&Attachment| at.is_address && ip_of(&at.gid).is_ipv4() == v4;
        match self.by_preference().find(of_use) {
            Some(at) => Some((ip_of(&at.gid), *at)),
            None => self.find(loopback, 0).map(|at| (loopback, at)),
        }
    }

    /// An own address from which another host may be reached, if the host's choice is not an own
    /// address.
    pub(crate) fn outward(&self, to: IpAddr) -> Option<(IpAddr, Attachment)> {
        let usable = |at: &&Attachment| {
            let ip = ip_of(&at.gid);
            at.outward_mtu != 0 && ip.is_ipv4() == to.is_ipv4() && ip.is_loopback() == to.is_loopback()
        };
        self.by_preference().find(usable).map(|at| (ip_of(&at.gid), *at))
    }

    /// The attachments in the order in which programs get them that name none: those of index 0,
    /// whose addresses are link-local, come last.
    fn by_preference(&self) -> impl Iterator<Item = &Attachment> {
        let is_first = |at: &&Attachment| at.index == 0;
        self.attachments.iter().filter(move |at| !is_first(at)).chain(self.attachments.iter().filter(is_first))
    }

    fn first(&self, v4: bool) -> Option<&Attachment> {
        let out = |at: &&Attachment| at.outward_mtu != 0;
        let family = |at: &&Attachment| out(at) && ip_of(&at.gid).is_ipv4() == v4;
        let all = || self.by_preference();
        all()
            .find(family)
            .or_else(|| all().find(out))
            .or_else(|| all().find(|at| at.is_address))
            .or_else(|| self.attachments.first())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::DeviceConfig;
    use crate::device::Device;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    fn locals(gids: &[&str], host: &[&str], named: &[&str]) -> Locals {
        let address = |text: &&str| HostAddress { ip: ip(text), ifindex: 2, mtu: 1500, prefix: 24 };
        let mut device = Device::new(0, &DeviceConfig::default(), "test");
        device.ports[0].gids.follow(&gids.iter().map(address).collect::<Vec<_>>(), true, 1);
        let named: Vec<IpAddr> = named.iter().map(|text| ip(text)).collect();
        Locals::new(&host.iter().map(address).collect::<Vec<_>>(), &named, false, &Devices::from_iter([device]))
    }

    #[test]
    fn every_address_of_the_host_has_a_place() {
        let locals = locals(&["10.0.0.1", "fd00::1"], &["127.0.0.1", "::1", "10.0.0.1", "fd00::1"], &[]);
        let gid = |text: &str| locals.find(ip(text), 0).map(|at| ip_of(&at.gid).to_string());
        assert_eq!(gid("10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(gid("127.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(gid("127.9.9.9").as_deref(), Some("10.0.0.1"));
        assert_eq!(gid("::1").as_deref(), Some("fd00::1"));
        assert_eq!(gid("10.0.0.2"), None);
        assert_eq!(locals.find(ip("10.0.0.1"), 7), None, "an address of another interface");
        assert_eq!(locals.usual(true).map(|(ip, _)| ip), Some(ip("10.0.0.1")));
    }

    #[test]
    fn an_agent_with_addresses_of_its_own_has_no_others() {
        let locals = locals(&["127.0.0.2"], &["127.0.0.1", "10.0.0.1"], &["127.0.0.2"]);
        assert!(locals.is_own(ip("127.0.0.2"), 0));
        for other in ["127.0.0.1", "127.0.0.3", "10.0.0.1", "::1"] {
            assert!(!locals.is_own(ip(other), 0), "{other}");
        }
        assert_eq!(locals.outward(ip("127.0.0.3")).map(|(ip, _)| ip), Some(ip("127.0.0.2")));
        assert_eq!(locals.outward(ip("10.0.0.9")), None);
    }

    #[test]
    fn a_host_without_addresses_still_talks_to_itself() {
        let locals = locals(&[], &[], &[]);
        let at = locals.find(ip("127.0.0.1"), 0).expect("loopback");
        assert_eq!((at.index, at.outward_mtu), (0, 0));
        assert_eq!(locals.usual(true).map(|(ip, _)| ip), Some(ip("127.0.0.1")));
    }
}
