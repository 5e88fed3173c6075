//! What the nodes of a topology are before a manager has seen them: their links, GUIDs, and the
//! values of NodeInfo, SwitchInfo and PortInfo that adapters and switches of today have. Not their
//! state later ([`super::mirror`]). Principal function: [`build`].

use super::guids::{self, Guids, Unbuildable};
use super::tunnels::{Tunnels, outward};
use crate::fabric::{End, Fabric, NodeId, Unconnectable};
use crate::port::{LINK_LOCAL, Settings};
use crate::rate::{Codes, Time};
use mad::node;
use mad::sma::RESPONSE_TIME;
use mad::topology::{self, Topology};
use std::collections::HashMap;
use wire::smp::{Capability, NodeInfo, NodeType, PhysState, PortInfo, PortLink, PortVls, SwitchInfo};

/// The delay of a cable: 5 m.
const CABLE: Time = 25_000;
/// The vendor and the device of a node if the file names none. Switches are like a common one.
/// Adapters are softhca's: programs see the same numbers (`vendor_id`, `vendor_part_id`).
const SWITCH: (u32, u16) = (0x2c9, 0xcb20);
const ADAPTER: (u32, u16) = (0x53_4843, 1);
/// The code of 8 data lanes.
const EIGHT_LANES: u8 = 4;
/// A time code that means no limit.
const FOR_EVER: u8 = 20;

/// The parts of a managed fabric.
pub(super) struct Built {
    pub(super) fabric: Fabric,
    pub(super) nodes: Vec<node::Node>,
    pub(super) names: Vec<Box<str>>,
    pub(super) ids: HashMap<Box<str>, NodeId>,
    pub(super) tunnels: Tunnels,
}

/// Builds the nodes and links of a topology. Node ids are in the order of the file. Nodes that
/// stand for those of other agents come last, and have no agent here.
pub(super) fn build(topology: &Topology) -> Result<Built, Unbuildable> {
    let (fabric, tunnels) = (Fabric::new(), Tunnels::default());
    let mut built = Built { fabric, nodes: Vec::new(), names: Vec::new(), ids: HashMap::new(), tunnels };
    for (node, guids) in topology.nodes.iter().zip(guids::assign(topology)?) {
        let id = match node.kind {
            NodeType::Ca => built.fabric.add_hca(guids.node, node.ports),
            NodeType::Switch => built.fabric.add_switch(guids.node, node.ports),
            NodeType::Router => built.fabric.add_router(guids.node, node.ports),
        };
        set_ports(&mut built.fabric, id, node, &guids);
        built.nodes.push(agent(node, &guids, &built.fabric, id));
        built.names.push(node.name.as_str().into());
        if built.ids.insert(node.name.as_str().into(), id).is_some() {
            return Err(Unbuildable::Name(node.name.clone()));
        }
    }
    for (node, id) in topology.nodes.iter().zip(0..) {
        for link in &node.links {
            let own = End { node: NodeId(id), port: link.port };
            let failed = |cause| Unbuildable::Link { node: node.name.clone(), port: link.port, cause };
            if let Some(outward) = outward(&mut built.fabric, &node.name, own, link) {
                built.fabric.connect(own, outward.far, CABLE).map_err(failed)?;
                // The peer is not there yet.
                built.fabric.set_enabled(outward.far, false);
                built.names.push(link.peer.as_str().into());
                built.tunnels.all.push(outward);
                continue;
            }
            let peer = *built.ids.get(link.peer.as_str()).ok_or_else(|| failed(Unconnectable::NoPort))?;
            let peer = End { node: peer, port: link.peer_port };
            if built.fabric.peer(own) != Some(peer) {
                built.fabric.connect(own, peer, CABLE).map_err(failed)?;
            }
        }
    }
    Ok(built)
}

/// Settings of the model.
fn set_ports(fabric: &mut Fabric, id: NodeId, node: &topology::TopologyNode, guids: &Guids) {
    if let Some(own) = fabric.node_mut(id) {
        own.system_guid = system_guid(node, guids);
    }
    if let Some(switch) = fabric.switch_mut(id) {
        let info = switch_info();
        (switch.life, switch.top) = (info.life_time, info.linear_top);
    }
    for link in &node.links {
        let Some(settings) = fabric.settings_mut(End { node: id, port: link.port }) else { continue };
        let Settings { widths, widths_enabled, speeds, speeds_enabled, .. } = settings;
        if let Some(width) = link.width {
            *widths = topology::Width::X1.code() | width.code();
        }
        if let Some(speed) = link.speed {
            *speeds = up_to(speed);
        }
        (*widths_enabled, *speeds_enabled) = (*widths, *speeds);
    }
    if node.kind != NodeType::Switch {
        for (port, guid) in (1..=node.ports).zip(&guids.ports) {
            if let Some(settings) = fabric.settings_mut(End { node: id, port }) {
                settings.identity.guid = *guid;
            }
        }
    }
}

/// A speed and all slower ones, as the model codes them.
fn up_to(speed: topology::Speed) -> Codes {
    let found = topology::Speed::ALL.iter().find(|(own, ..)| *own == speed);
    let code = found.map_or(1, |(.., ordinary, extended)| if *extended == 0 { *ordinary } else { extended << 3 });
    code | (code - 1)
}

fn system_guid(node: &topology::TopologyNode, guids: &Guids) -> u64 {
    node.system_guid.filter(|guid| *guid != 0).unwrap_or(guids.node)
}

/// What the agent of a node knows.
fn agent(node: &topology::TopologyNode, guids: &Guids, fabric: &Fabric, id: NodeId) -> node::Node {
    let is_switch = node.kind == NodeType::Switch;
    let (usual_vendor, usual_device) = if is_switch { SWITCH } else { ADAPTER };
    let info = NodeInfo {
        ports: node.ports,
        system_guid: system_guid(node, guids),
        node_guid: guids.node,
        partition_cap: if is_switch { 8 } else { 128 },
        revision: 1,
        device_id: node.device_id.unwrap_or(usual_device),
        vendor_id: node.vendor_id.unwrap_or(usual_vendor),
        ..NodeInfo::default()
    };
    let description = node.description.as_deref().unwrap_or(&node.name);
    let mut agent = node::Node::new(node.kind, info, description, &PortInfo::default(), switch_info());
    for (number, port) in (0..=node.ports).zip(&mut agent.ports) {
        let settings = fabric.port(End { node: id, port: number }).map(|port| port.settings());
        port.info = port_info(is_switch, number, settings);
        if let Some(guid) = guids.ports.get(usize::from(number).wrapping_sub(1)).filter(|_| !is_switch) {
            port.guid = *guid;
            port.guids = vec![*guid];
        }
    }
    agent
}

/// A switch whose tables are empty: it drops what no table has an entry for.
fn switch_info() -> SwitchInfo {
    SwitchInfo {
        linear_cap: 0xc000,
        multicast_cap: 0x1000,
        default_port: 0,
        default_multicast_primary: 255,
        default_multicast_other: 255,
        life_time: 18,
        enforcement_cap: 32,
        enforces_inbound: true,
        enforces_outbound: true,
        filters_raw_inbound: true,
        filters_raw_outbound: true,
        multicast_top: 0xbfff,
        ..SwitchInfo::default()
    }
}

/// The GUIDs that a port of an adapter or router has room for (GUIDCap of PortInfo). Behind the
/// subnet prefix, they are its GIDs, so its GID table has this length.
pub const ADAPTER_GUIDS: u8 = 64;

/// The capability mask of an adapter's port, without that of a subnet manager.
pub const ADAPTER_CAPABILITIES: u32 = capabilities(false);

const fn capabilities(is_switch: bool) -> u32 {
    let both = Capability::TRAP
        | Capability::SL_MAPPING
        | Capability::SYSTEM_GUID
        | Capability::EXTENDED_SPEEDS
        | Capability::CHANGE_NOTICE
        | Capability::CLIENT_REREGISTER
        | Capability::OTHER_CHANGES_NOTICE;
    both | if is_switch { Capability::MULTICAST_TOP } else { Capability::AUTOMATIC_MIGRATION | Capability::CM }
}

fn port_info(is_switch: bool, number: u8, settings: Option<&Settings>) -> PortInfo {
    let external = is_switch && number != 0;
    let (widths, speeds) = settings.map_or((0, 0), |settings| (settings.widths, settings.speeds));
    let link = PortLink {
        width_enabled: widths,
        width_supported: widths,
        width_active: topology::Width::X4.code(),
        speed_supported: speeds & 7,
        speed_enabled: speeds & 7,
        speed_active: 1,
        extended_supported: speeds >> 3,
        extended_enabled: speeds >> 3,
        state: if is_switch && number == 0 { 4 } else { 1 },
        phys_state: if is_switch && number == 0 { PhysState::LinkUp } else { PhysState::Polling } as u8,
        down_default: PhysState::Polling as u8,
        neighbor_mtu: settings.map_or(0, |settings| settings.mtu as u8),
        mtu_cap: settings.map_or(0, |settings| settings.mtu_cap as u8),
        local_phys_errors: 8,
        overrun_errors: 8,
        ..PortLink::default()
    };
    let vls = PortVls {
        cap: EIGHT_LANES,
        operational: EIGHT_LANES,
        arbitration_high_cap: 8,
        arbitration_low_cap: 8,
        head_of_queue_life: FOR_EVER,
        ..PortVls::default()
    };
    // What belongs to the node as an end of paths is zero at the external ports of a switch.
    if external {
        return PortInfo { link, vls, ..PortInfo::default() };
    }
    PortInfo {
        gid_prefix: LINK_LOCAL,
        capability_mask: capabilities(is_switch),
        link,
        vls,
        guid_cap: if is_switch { 1 } else { ADAPTER_GUIDS },
        subnet_timeout: 18,
        response_time: RESPONSE_TIME,
        ..PortInfo::default()
    }
}

/// How many data lanes a code of PortInfo means.
pub(super) const fn lanes(code: u8) -> u8 {
    match code {
        0 | 1 => 1,
        2 => 2,
        3 => 4,
        4 => 8,
        _ => 15,
    }
}
