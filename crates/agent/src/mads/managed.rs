//! What subnet management and performance management see of a device, and how a device changes when
//! they change it. The device's own state is the truth; a [`Node`] keeps only what a device has no
//! place for (the management key, mapping tables). The principal type is [`ManagedDevice`].

use std::time::Duration;

use abi::device::{link_layer, port_state};
use mad::key::Key;
use mad::node::Node;
use mad::sma::{self, Handled, NodeEvent};
use subnet::state::{Logical, Physical};
use wire::mad::STATUS_INVALID;
use wire::smp::{LinkState, NodeInfo, NodeType, PhysState, PortInfo, PortLink, PortVls, Smp, SwitchInfo};

use super::way::PortId;
use crate::config::{Guid, PortState};
use crate::device::Device;
use crate::port_change::PortChange;
use crate::rate::Rate;
use crate::subnet_settings::SubnetSettings;
use crate::world::World;

/// The code of one virtual lane.
const ONE_LANE: u8 = 1;
/// 1X and 4X.
const WIDTHS: u8 = 1 | 2;
/// SDR, DDR and QDR.
const SPEEDS: u8 = 1 | 2 | 4;
/// FDR, EDR, HDR and NDR.
const EXTENDED_SPEEDS: u8 = 1 | 2 | 4 | 8;

/// A device as a node of its subnet.
#[derive(Debug)]
pub(super) struct ManagedDevice {
    pub(super) node: Node,
}

/// What a request to the agent of subnet management led to.
pub(super) struct SmpOutcome {
    pub(super) handled: Handled,
    /// Ports of the device have changed.
    pub(super) changed: bool,
}

impl ManagedDevice {
    /// The node of a device.
    pub(super) fn new(device: &Device) -> Self {
        let ports = u8::try_from(device.ports.len()).unwrap_or(u8::MAX);
        let partitions = device.ports.iter().map(|port| port.pkeys.length()).max().unwrap_or(1);
        let info = NodeInfo {
            ports,
            system_guid: device.system_guid.0,
            node_guid: device.node_guid.0,
            partition_cap: partitions as u16,
            device_id: device.part_id as u16,
            revision: 1,
            vendor_id: device.vendor_id,
            ..NodeInfo::default()
        };
        let node = Node::new(NodeType::Ca, info, &device.name, &constants(), SwitchInfo::default());
        let mut managed = Self { node };
        managed.refresh(device);
        managed
    }

    /// Takes over what the device and its ports are now.
    pub(super) fn refresh(&mut self, device: &Device) {
        self.node.info.system_guid = device.system_guid.0;
        for (number, port) in (1..).zip(&device.ports) {
            let Ok(facts) = device.port_attributes(u32::from(number)) else { continue };
            let Some(seen) = self.node.port_mut(number) else { continue };
            (seen.guid, seen.guids[0]) = (port.guid.0, port.guid.0);
            seen.pkeys.clear();
            seen.pkeys.extend_from_slice(port.pkeys.entries());
            let info = &mut seen.info;
            info.gid_prefix = port.gids.entry(0).map_or(0, |entry| u64::from_be_bytes(upper(&entry.gid)));
            (info.lid, info.lmc) = (facts.lid, facts.lmc);
            (info.master_sm_lid, info.master_sm_sl) = (facts.sm_lid, facts.sm_sl);
            info.capability_mask = facts.port_cap_flags;
            (info.subnet_timeout, info.init_type_reply) = (facts.subnet_timeout, facts.init_type_reply);
            let link = &mut info.link;
            (link.state, link.phys_state) = (facts.state, facts.phys_state);
            (link.neighbor_mtu, link.mtu_cap) = (facts.active_mtu, facts.max_mtu);
            (link.width_active, link.speed_active, link.extended_active) = codes(port.rate);
        }
    }

    /// Carries out a request of a subnet manager that arrived at a port. If the device cannot have
    /// a value, nothing changes, and the answer says so.
    pub(super) fn manage(
        &mut self,
        world: &mut World,
        device: usize,
        port: u8,
        smp: &Smp,
        now: Duration,
    ) -> SmpOutcome {
        if let Some(present) = world.devices.get(device) {
            self.refresh(present);
        }
        let asked = if smp.modifier as u8 == 0 { port } else { smp.modifier as u8 };
        if smp.attribute == PortInfo::ATTRIBUTE
            && let Some(asked_port) = self.node.port_mut(asked)
        {
            for key in Key::ALL {
                *key.violations(&mut asked_port.info) = world.violations(device, asked.into())[key as usize];
            }
        }
        let before = self.node.clone();
        let mut handled = sma::handle(&mut self.node, port, smp, now);
        let mut changed = false;
        for (port, key) in handled.events.iter().filter_map(|(port, event)| Some((*port, event.cleared()?))) {
            world.clear_violations(PortId { device, port }, key);
        }
        handled.events.retain(|(_, event)| event.cleared().is_none());
        let mut ports: Vec<u8> = handled.events.iter().map(|(port, _)| *port).collect();
        ports.dedup();
        for number in ports {
            let events = handled.events.iter().filter(|(at, _)| *at == number).map(|(_, event)| *event);
            let events: Vec<NodeEvent> = events.collect();
            let Some(present) = self.node.port(number) else { continue };
            // Without a topology, the MTU is that of the configuration and of the interfaces.
            let change = PortChange { mtu: None, ..change_of(present, &events) };
            match world.change_port(device, u32::from(number), &change) {
                Ok(_) => changed = true,
                Err(error) => {
                    tracing::info!(device, port = number, "the subnet manager's request is refused: {error}");
                    self.node = before;
                    if let Some(answer) = &mut handled.answer {
                        answer.status = STATUS_INVALID;
                    }
                    break;
                }
            }
        }
        SmpOutcome { handled, changed }
    }
}

/// What events change at a port.
pub fn change_of(port: &mad::node::Port, events: &[NodeEvent]) -> PortChange {
    let mut change = PortChange::default();
    let info = &port.info;
    for event in events {
        let subnet = &mut change.subnet;
        match event {
            NodeEvent::Lid => (subnet.lid, subnet.lmc) = (Some(info.lid), Some(info.lmc)),
            NodeEvent::SmLid => (subnet.sm_lid, subnet.sm_sl) = (Some(info.master_sm_lid), Some(info.master_sm_sl)),
            NodeEvent::PKeys => change.pkeys = Some(used(&port.pkeys)),
            NodeEvent::Gids => {
                change.subnet_prefix = Some(Guid(info.gid_prefix));
                change.guids = Some(port.guids.iter().skip(1).copied().map(Guid).collect());
            }
            NodeEvent::ClientReregister => change.reregister = true,
            NodeEvent::Active => change.state = Some(PortState::Active),
            NodeEvent::Link(PhysState::Disabled | PhysState::Sleep) => change.state = Some(PortState::Down),
            // The link comes up again at once.
            NodeEvent::Link(_) => change.state = Some(PortState::Active),
            NodeEvent::Settings => {
                change.mtu = abi::device::mtu_bytes(info.link.neighbor_mtu);
                subnet.timeout = Some(info.subnet_timeout);
                subnet.init_type_reply = Some(info.init_type_reply);
            }
            // No link trains here, and an adapter forwards nothing. Violations are no setting.
            NodeEvent::Inactive | NodeEvent::LinkSettings | NodeEvent::Forwarding => {}
            NodeEvent::Cleared(_) => {}
        }
    }
    if change.subnet != SubnetSettings::default() {
        change.subnet.timeout = Some(info.subnet_timeout);
        change.subnet.init_type_reply = Some(info.init_type_reply);
    }
    change
}

/// What the state of a link changes at a port.
pub fn change_of_link(info: &PortInfo, state: Logical) -> PortChange {
    let state = match state {
        Logical::Down if info.link.phys_state == Physical::Disabled as u8 => PortState::Down,
        Logical::Down => PortState::Polling,
        Logical::Init => PortState::Init,
        Logical::Armed => PortState::Armed,
        Logical::Active | Logical::ActiveDefer => PortState::Active,
    };
    let mtu = abi::device::mtu_bytes(info.link.neighbor_mtu);
    PortChange { state: Some(state), rate: Some(rate_of(&info.link)), mtu, ..PortChange::default() }
}

/// The entries of a P_Key table up to the last one that is in use, but at least one.
fn used(pkeys: &[u16]) -> Vec<u16> {
    let last = pkeys.iter().rposition(|pkey| *pkey != 0).unwrap_or(0);
    pkeys.iter().copied().take(last + 1).collect()
}

fn upper(gid: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|at| gid[at])
}

/// Width, speed and extended speed of a link in PortInfo. A speed from FDR on counts as QDR there.
fn codes(rate: Rate) -> (u8, u8, u8) {
    match rate.speed {
        speed @ (1 | 2 | 4) => (rate.width, speed, 0),
        8 => (rate.width, 4, 0),
        speed => (rate.width, 4, speed >> 4),
    }
}

/// The rate of a link in PortInfo.
fn rate_of(link: &PortLink) -> Rate {
    let speed = if link.extended_active == 0 { link.speed_active } else { link.extended_active << 4 };
    Rate { width: link.width_active, speed }
}

/// What every port has.
fn constants() -> PortInfo {
    PortInfo {
        link: PortLink {
            width_enabled: WIDTHS,
            width_supported: WIDTHS,
            speed_supported: SPEEDS,
            speed_enabled: SPEEDS,
            extended_supported: EXTENDED_SPEEDS,
            extended_enabled: EXTENDED_SPEEDS,
            state: LinkState::Active as u8,
            phys_state: PhysState::LinkUp as u8,
            down_default: PhysState::Polling as u8,
            ..PortLink::default()
        },
        vls: PortVls { cap: ONE_LANE, operational: ONE_LANE, ..PortVls::default() },
        guid_cap: 1,
        response_time: sma::RESPONSE_TIME,
        ..PortInfo::default()
    }
}

/// Whether a port belongs to an InfiniBand subnet, and so has QP 0.
pub(super) fn has_subnet_management(world: &World, device: usize, port: u8) -> bool {
    let port = world.devices.get(device).and_then(|device| device.port_attributes(u32::from(port)).ok());
    port.is_some_and(|facts| facts.link_layer == link_layer::INFINIBAND)
}

/// Whether datagrams pass a port.
pub(super) fn is_up(world: &World, device: usize, port: u8) -> bool {
    let port = world.devices.get(device).and_then(|device| device.port(u32::from(port)).ok());
    port.is_some_and(|port| port.state != port_state::DOWN)
}

#[cfg(test)]
mod tests {
    use wire::smp::Capability;

    use super::*;
    use crate::config::{DeviceConfig, LinkLayer, PortConfig};

    #[test]
    fn what_a_manager_sets_besides_the_lids_reaches_the_port() {
        let info = PortInfo { subnet_timeout: 12, init_type_reply: 3, ..constants() };
        let mut node =
            Node::new(NodeType::Ca, NodeInfo { ports: 1, ..NodeInfo::default() }, "", &info, SwitchInfo::default());
        let port = node.port_mut(1).expect("port 1");
        port.info.link.neighbor_mtu = 1;
        let change = change_of(port, &[NodeEvent::Settings]);
        assert_eq!((change.mtu, change.subnet.timeout, change.subnet.init_type_reply), (Some(256), Some(12), Some(3)));
        assert_eq!((change.state, change.subnet.lid), (None, None));
    }

    #[test]
    fn programs_and_managers_see_the_configured_capability_mask() {
        let mask = Capability::CM | Capability::DEVICE_MANAGEMENT;
        let port = |capability_mask| PortConfig {
            capability_mask,
            link_layer: LinkLayer::Infiniband,
            ..PortConfig::default()
        };
        let config = DeviceConfig { ports: vec![port(None), port(Some(mask))], ..DeviceConfig::default() };
        let device = Device::new(0, &config, "here");
        let shown = ManagedDevice::new(&device);
        let masks = [1, 2].map(|number| {
            let facts = device.port_attributes(number).expect("a port");
            (facts.port_cap_flags, shown.node.port(number as u8).expect("a port").info.capability_mask)
        });
        let usual = Capability::CM | Capability::SYSTEM_GUID | Capability::CLIENT_REREGISTER;
        assert_eq!(masks, [(usual, usual), (mask, mask)]);
    }
}
