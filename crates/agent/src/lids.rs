//! The LIDs of InfiniBand ports, assigned again after every change of the GID tables and of the
//! ports. This file makes no system calls.
//!
//! A port has the LIDs that are set ([`crate::subnet_settings`]). If none is set, its LID is the
//! host part of its first IPv4 address whose host part fits, so that other hosts of that subnet can
//! find the port. A port without such an address gets a LID from the end of the range, which only
//! this agent's programs can reach. No two ports of an agent have a LID in common
//! (docs/decisions/0019-lids-without-a-fabric.md). The principal type is [`Lid`].

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use abi::event::{AsyncRecord, kind};
use abi::lid::{NO_GRH, Subnet, UNICAST_MAX};
use abi::qp::Dest;

use crate::device::Port;
use crate::devices::Devices;

/// The LID of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lid {
    /// The base LID: 1 to 0xbfff.
    pub number: u16,
    /// The port has 2^n LIDs.
    pub lmc: u8,
    /// The index of the GID whose subnet LIDs stand for; 0 if there is none.
    pub index: u32,
    /// The mask of that address's host part.
    pub hosts: u32,
}

impl Lid {
    /// All LIDs of the port.
    pub fn all(&self) -> RangeInclusive<u16> {
        self.number..=self.number | ((1 << self.lmc) - 1)
    }
}

/// Gives every InfiniBand port its LIDs. Returns the events of the ports whose LIDs have changed,
/// by device: LID_CHANGE, and SM_CHANGE where the port itself is named as the subnet manager's.
pub fn assign(devices: &mut Devices) -> Vec<(usize, AsyncRecord)> {
    let ports = devices.iter().flat_map(|device| &device.ports);
    let mut taken: BTreeSet<u16> = ports.filter_map(|port| port.subnet.lids()).flatten().collect();
    let mut events = Vec::new();
    let mut changed = Vec::new();
    for device in &*devices {
        for (number, port) in (1..).zip(&device.ports).filter(|(_, port)| port.is_infiniband()) {
            let lid = match port.subnet.lid {
                Some(number) if port.managed => of_manager(port, number),
                Some(number) => of_settings(port, number),
                None if port.managed => continue,
                None => of_address(port, &taken).unwrap_or_else(|| of_nothing(&taken)),
            };
            taken.insert(lid.number);
            if port.lid != Some(lid) {
                changed.push((device.index, number, lid));
            }
        }
    }
    for (index, number, lid) in changed {
        let Some(port) = devices[index].ports.get_mut(number as usize - 1) else { continue };
        let old_sm = port.sm_lid();
        let old = port.lid.replace(lid);
        let found = [
            (old.map(|old| old.all()) != Some(lid.all()), kind::LID_CHANGE),
            (old_sm != port.sm_lid(), kind::SM_CHANGE),
        ];
        let raised = found.into_iter().filter(|(is_so, _)| *is_so);
        events.extend(raised.map(|(_, event_type)| (index, AsyncRecord { element: number, event_type, reserved: 0 })));
    }
    events
}

/// Adds the GID of a path's LID, if the path has no GRH. The engine does the same (`engine::lid`).
pub fn directed(devices: &Devices, from: usize, path: &Dest) -> Dest {
    if path.is_global != 0 {
        return *path;
    }
    let (dgid, sgid_index) = route_to(devices, from, path).unwrap_or_default();
    Dest { dgid, sgid_index, flow_label: 0, traffic_class: 0, hop_limit: NO_GRH, is_global: 1, ..*path }
}

fn route_to(devices: &Devices, from: usize, path: &Dest) -> Option<([u8; 16], u8)> {
    let ports = devices.iter().flat_map(|device| &device.ports);
    let mut named = ports.filter(|port| port.lid.is_some_and(|lid| lid.all().contains(&path.dlid)));
    if let Some(port) = named.next() {
        return Some((port.gids.entry(0)?.gid, 0));
    }
    let port = devices.get(from)?.port(u32::from(path.port_num)).ok()?;
    Some((port.subnet()?.gid(path.dlid)?, port.lid?.index as u8))
}

/// The LIDs that are set. Those of other hosts are in the subnet of the port's first address.
fn of_settings(port: &Port, number: u16) -> Lid {
    let lid = of_address(port, &BTreeSet::new()).unwrap_or(Lid { number, lmc: 0, index: 0, hosts: 0 });
    Lid { number, lmc: port.subnet.lmc(), ..lid }
}

/// In a subnet with a manager, LIDs stand for no addresses. The port sends to other hosts from its
/// first address.
fn of_manager(port: &Port, number: u16) -> Lid {
    let index = port.gids.iter().nth(1).map_or(0, |(index, _)| index as u32);
    Lid { number, lmc: port.subnet.lmc(), index, hosts: 0 }
}

/// From the address of the current LID, if the port still has this address; otherwise from the
/// first address whose host part is not taken.
fn of_address(port: &Port, taken: &BTreeSet<u16>) -> Option<Lid> {
    let kept = port.lid.map_or(0, |lid| lid.index);
    let mut addresses: Vec<_> = port.gids.iter().skip(1).collect();
    addresses.sort_by_key(|(index, _)| *index as u32 != kept);
    addresses.into_iter().find_map(|(index, entry)| {
        let hosts = u32::MAX.checked_shr(u32::from(entry.prefix)).unwrap_or(0);
        let number = Subnet::around(&entry.gid, hosts)?.lid(&entry.gid)?;
        (!taken.contains(&number)).then_some(Lid { number, lmc: 0, index: index as u32, hosts })
    })
}

fn of_nothing(taken: &BTreeSet<u16>) -> Lid {
    // There are more LIDs than an agent can have ports.
    let number = (1..=UNICAST_MAX).rev().find(|number| !taken.contains(number)).unwrap_or(UNICAST_MAX);
    Lid { number, lmc: 0, index: 0, hosts: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{DeviceConfig, LinkLayer, PortConfig};
    use crate::device::Device;
    use crate::gids::HostAddress;

    fn devices(count: usize) -> Devices {
        let port = PortConfig { link_layer: LinkLayer::Infiniband, ..PortConfig::default() };
        let config = DeviceConfig { ports: vec![port], ..DeviceConfig::default() };
        (0..count).map(|index| Device::new(index, &config, "test")).collect()
    }

    fn address(text: &str, prefix: u8) -> HostAddress {
        HostAddress { ip: text.parse().expect(text), ifindex: 1, mtu: 1500, prefix }
    }

    fn lid_at(devices: &mut Devices, host: &[HostAddress]) -> (u16, u32) {
        for device in devices.iter_mut() {
            device.ports[0].follow(host, true, 1);
        }
        assign(devices);
        let lid = devices[0].ports[0].lid.expect("a LID");
        (lid.number, lid.index)
    }

    #[test]
    fn devices_whose_lids_stay_have_not_changed() {
        let mut two = devices(2);
        assign(&mut two);
        let before = [0, 1].map(|index| two.version(index));
        two[1].ports[0].subnet.lid = Some(9);
        let changed = two.version(1);
        assert_eq!(assign(&mut two).len(), 2, "LID_CHANGE and SM_CHANGE");
        assert_eq!(two.version(0), before[0]);
        assert!(two.version(1) != changed);
    }

    #[test]
    fn the_first_fitting_address_gives_the_lid() {
        let mut one = devices(1);
        assert_eq!(lid_at(&mut one, &[]), (0xbfff, 0), "no address at all");
        for (host, expected) in [
            (vec![address("10.0.0.5", 24)], (5, 1)),
            (vec![address("10.0.2.5", 16)], (0x0205, 1)),
            (vec![address("127.0.0.1", 8)], (1, 1)),
            (vec![address("10.0.0.5", 32)], (0xbfff, 0)),
            (vec![address("172.16.255.1", 16)], (0xbfff, 0)),
            (vec![address("fd00::5", 64)], (0xbfff, 0)),
            (vec![address("10.9.9.9", 32), address("fd00::5", 64), address("10.0.0.7", 24)], (7, 3)),
        ] {
            let mut fresh = devices(1);
            assert_eq!(lid_at(&mut fresh, &host), expected, "{host:?}");
        }
    }

    #[test]
    fn ports_of_one_agent_have_different_lids() {
        let mut three = devices(3);
        lid_at(&mut three, &[address("10.0.0.5", 24)]);
        let numbers: Vec<u16> = three.iter().filter_map(|device| device.ports[0].lid).map(|lid| lid.number).collect();
        assert_eq!(numbers, [5, 0xbfff, 0xbffe]);
        lid_at(&mut three, &[address("10.0.0.5", 24), address("10.0.0.6", 24)]);
        let numbers: Vec<u16> = three.iter().filter_map(|device| device.ports[0].lid).map(|lid| lid.number).collect();
        assert_eq!(numbers, [5, 6, 0xbfff]);
    }

    #[test]
    fn a_lid_stays_as_long_as_its_address_and_changes_are_told() {
        let mut one = devices(1);
        let (a, b) = (address("10.0.0.5", 24), address("10.0.0.6", 24));
        assert_eq!(lid_at(&mut one, &[a, b]), (5, 1));
        assert_eq!(lid_at(&mut one, &[b]), (6, 2));
        one[0].ports[0].follow(&[a, b], true, 1);
        assert!(assign(&mut one).is_empty(), "what has come back is no better than what was there");
        one[0].ports[0].follow(&[a], true, 1);
        let told = |one: &mut Devices| -> Vec<(u64, u32)> {
            assign(one).into_iter().map(|(_, event)| (event.element, event.event_type)).collect()
        };
        assert_eq!(told(&mut one), [(1, kind::LID_CHANGE), (1, kind::SM_CHANGE)]);
        one[0].ports[0].subnet.sm_lid = Some(1);
        one[0].ports[0].follow(&[b], true, 1);
        assert_eq!(told(&mut one), [(1, kind::LID_CHANGE)], "the subnet manager stays where it is");
    }

    #[test]
    fn a_path_by_lid_is_one_by_gid() {
        let mut two = devices(2);
        lid_at(&mut two, &[address("10.0.0.5", 24)]);
        let gid = |text: &str| crate::gids::gid_of(text.parse().expect(text));
        let to = |dlid| {
            let garbage = Dest { dlid, dgid: [7; 16], sgid_index: 60, hop_limit: 9, port_num: 1, ..Dest::default() };
            let dest = directed(&two, 1, &garbage);
            assert_eq!((dest.hop_limit, dest.is_global, dest.dlid), (NO_GRH, 1, dlid));
            (dest.dgid, dest.sgid_index)
        };
        assert_eq!(to(5), (two[0].ports[0].gids.entry(0).expect("always").gid, 0), "a port of the agent");
        assert_eq!(to(0xbfff), (two[1].ports[0].gids.entry(0).expect("always").gid, 0));
        assert_eq!(to(6), ([0; 16], 0), "the second port has no subnet");
        let from_first = directed(&two, 0, &Dest { dlid: 6, port_num: 1, ..Dest::default() });
        assert_eq!((from_first.dgid, from_first.sgid_index), (gid("10.0.0.6"), 1));
        let global = Dest { dlid: 6, dgid: [7; 16], sgid_index: 2, is_global: 1, port_num: 1, ..Dest::default() };
        assert_eq!(directed(&two, 0, &global), global);
    }

    #[test]
    fn ethernet_ports_have_none() {
        let mut device = Devices::from_iter([Device::new(0, &DeviceConfig::default(), "test")]);
        assert!(assign(&mut device).is_empty());
        assert_eq!(device[0].ports[0].lid, None);
    }
}
