//! What a subnet manager knows of its subnet: nodes, ports, links and the tables that it has read
//! or set. Not how it learns them, and not what it does with them. Principal type: [`Inventory`].

use std::collections::BTreeMap;
use wire::sa::McMemberRecord;
use wire::smp::{NodeDescription, NodeInfo, NodeType, PortInfo, SlToVl, SmInfo, SwitchInfo, VlWeight};

/// A port: the GUID of its node, and its number. Port 0 is that of a switch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortId {
    /// The node's GUID.
    pub node: u64,
    /// The port's number.
    pub port: u8,
}

/// A subnet as its manager knows it.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// The nodes by their GUIDs.
    pub nodes: BTreeMap<u64, Node>,
    /// The end port of each LID, by LID: all LIDs of a port, and not only its base LID.
    pub lids: Vec<Option<PortId>>,
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// NodeInfo, as the port answered that was found first.
    pub info: NodeInfo,
    /// NodeDescription.
    pub description: NodeDescription,
    /// The ports that were found, by number. A switch has port 0 and all others. Of an adapter or
    /// router, these are the ports in this subnet.
    pub ports: BTreeMap<u8, Port>,
    /// What only switches have.
    pub switch: Option<Box<Switch>>,
    /// The directed route from the manager: the egress port at each node on the way.
    pub route: Box<[u8]>,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// The GUID; all ports of a switch have that of port 0.
    pub guid: u64,
    /// PortInfo, as read or set last.
    pub info: PortInfo,
    /// The port at the other end of the link.
    pub peer: Option<PortId>,
    /// The P_Key table.
    pub pkeys: Vec<u16>,
    /// The tables of SL to VL that are known, by ingress port. An adapter has one, at 0.
    pub sl_to_vl: BTreeMap<u8, SlToVl>,
    /// The arbitration table of high priority.
    pub arbitration_high: Vec<VlWeight>,
    /// The arbitration table of low priority.
    pub arbitration_low: Vec<VlWeight>,
    /// The GUID table of an end port.
    pub guids: Vec<u64>,
    /// The manager that runs here. Of this manager itself, as it was at the end of the last sweep.
    pub sm: Option<SmInfo>,
}

/// What only switches have.
#[derive(Clone, Debug)]
pub struct Switch {
    /// SwitchInfo.
    pub info: SwitchInfo,
    /// The linear forwarding table as set: the egress port of each LID, 255 for none.
    pub linear: Vec<u8>,
    /// The multicast forwarding table as set, by LID minus 0xc000: a bit for each port, port 0 in
    /// the lowest bit of the first byte.
    pub multicast: BTreeMap<u16, [u8; 32]>,
}

/// A member of a multicast group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// The port.
    pub port: PortId,
    /// The bits of the join state: [`McMemberRecord::FULL`] and the others.
    pub join_state: u8,
}

impl Member {
    /// Whether packets of the group are delivered to this port.
    #[must_use]
    pub const fn receives(&self) -> bool {
        self.join_state & (McMemberRecord::FULL | McMemberRecord::NON) != 0
    }
}

impl Inventory {
    /// A port.
    #[must_use]
    pub fn port(&self, id: PortId) -> Option<&Port> {
        self.nodes.get(&id.node)?.ports.get(&id.port)
    }

    /// A port, to change it.
    pub fn port_mut(&mut self, id: PortId) -> Option<&mut Port> {
        self.nodes.get_mut(&id.node)?.ports.get_mut(&id.port)
    }

    /// The end port that has a LID.
    #[must_use]
    pub fn by_lid(&self, lid: u16) -> Option<PortId> {
        *self.lids.get(usize::from(lid))?
    }

    /// The ports that can have a LID: those of adapters and routers, and port 0 of switches.
    pub fn end_ports(&self) -> impl Iterator<Item = (PortId, &Node, &Port)> {
        self.nodes.iter().flat_map(|(guid, node)| {
            let is_switch = node.info.node_type == NodeType::Switch as u8;
            let ports = node.ports.iter().filter(move |(number, _)| !is_switch || **number == 0);
            ports.map(move |(number, port)| (PortId { node: *guid, port: *number }, node, port))
        })
    }
}
