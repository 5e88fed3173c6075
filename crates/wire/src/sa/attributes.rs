//! Records that hold an attribute of subnet management, with the port that it belongs to. IBA
//! 15.2.5. Principal types: [`NodeRecord`], [`PortInfoRecord`].

use crate::cm::Gid;
use crate::layout::layout;
use crate::notice::InformInfo;
use crate::smp::{
    GuidInfo, LinearTable, MulticastTable, NodeDescription, NodeInfo, PKeyTable, PortInfo, SlToVl, SmInfo, SwitchInfo,
    VlArbitration,
};

layout! {
    /// NodeRecord.
    pub struct NodeRecord[108] = 0x0011 {
        /// A LID of the node.
        0, 16 => lid: u16, Component LID 0;
        /// The node.
        32, 320 => info: NodeInfo, Component 2;
        /// Its description.
        352, 512 => description: NodeDescription, Component 14;
    }
}

/// Components inside of the node's attribute.
impl NodeRecord {
    /// The component of the node's type.
    pub const NODE_TYPE: u64 = 1 << 4;
    /// The component of the system's GUID.
    pub const SYSTEM_GUID: u64 = 1 << 6;
    /// The component of the node's GUID.
    pub const NODE_GUID: u64 = 1 << 7;
    /// The component of the port's GUID.
    pub const PORT_GUID: u64 = 1 << 8;
    /// The component of the description.
    pub const DESCRIPTION: u64 = 1 << 14;
}

layout! {
    /// PortInfoRecord.
    pub struct PortInfoRecord[68] = 0x0012 {
        /// The LID of the port; of a switch, that of its port 0.
        0, 16 => lid: u16, Component LID 0;
        /// The port.
        16, 8 => port: u8, Component PORT 1;
        /// The bit 0x80 asks for the extended form.
        24, 8 => options: u8, Component OPTIONS 2;
        /// The port's attribute.
        32, 512 => info: PortInfo, Component 3;
    }
}

/// Components inside of the port's attribute.
impl PortInfoRecord {
    /// The component of the base LID.
    pub const BASE_LID: u64 = 1 << 5;
    /// The component of the capability mask.
    pub const CAPABILITY_MASK: u64 = 1 << 7;
}

layout! {
    /// SLtoVLMappingTableRecord.
    pub struct SlToVlRecord[16] = 0x0013 {
        /// The LID of the port; of a switch, that of its port 0.
        0, 16 => lid: u16, Component LID 0;
        /// The ingress port of a switch.
        16, 8 => in_port: u8, Component IN_PORT 1;
        /// The egress port of a switch.
        24, 8 => out_port: u8, Component OUT_PORT 2;
        /// The table.
        64, 64 => table: SlToVl;
    }
}

layout! {
    /// SwitchInfoRecord.
    pub struct SwitchInfoRecord[24] = 0x0014 {
        /// The switch.
        0, 16 => lid: u16, Component LID 0;
        /// Its attribute.
        32, 160 => info: SwitchInfo, Component 2;
    }
}

layout! {
    /// LinearForwardingTableRecord.
    pub struct LinearTableRecord[72] = 0x0015 {
        /// The switch.
        0, 16 => lid: u16, Component LID 0;
        /// The block.
        16, 16 => block: u16, Component BLOCK 1;
        /// The egress ports.
        64, 512 => table: LinearTable;
    }
}

layout! {
    /// MulticastForwardingTableRecord.
    pub struct MulticastTableRecord[72] = 0x0017 {
        /// The switch.
        0, 16 => lid: u16, Component LID 0;
        /// Which 16 ports.
        16, 4 => position: u8, Component POSITION 1;
        /// The block.
        23, 9 => block: u16, Component BLOCK 3;
        /// The masks.
        64, 512 => table: MulticastTable;
    }
}

layout! {
    /// SMInfoRecord.
    pub struct SmInfoRecord[25] = 0x0018 {
        /// The LID of the manager's port.
        0, 16 => lid: u16, Component LID 0;
        /// The manager.
        32, 168 => info: SmInfo, Component 2;
    }
}

layout! {
    /// GUIDInfoRecord.
    pub struct GuidInfoRecord[72] = 0x0030 {
        /// The port.
        0, 16 => lid: u16, Component LID 0;
        /// The block.
        16, 8 => block: u8, Component BLOCK 1;
        /// The GUIDs.
        64, 512 => table: GuidInfo, Component 4;
    }
}

layout! {
    /// P_KeyTableRecord.
    pub struct PKeyTableRecord[72] = 0x0033 {
        /// The LID of the port; of a switch, that of its port 0.
        0, 16 => lid: u16, Component LID 0;
        /// The block.
        16, 16 => block: u16, Component BLOCK 1;
        /// The port of a switch.
        32, 8 => port: u8, Component PORT 2;
        /// The P_Keys.
        64, 512 => table: PKeyTable;
    }
}

layout! {
    /// VLArbitrationTableRecord.
    pub struct VlArbitrationRecord[72] = 0x0036 {
        /// The LID of the port; of a switch, that of its port 0.
        0, 16 => lid: u16, Component LID 0;
        /// The egress port of a switch.
        16, 8 => port: u8, Component PORT 1;
        /// The block, 1 to 4.
        24, 8 => block: u8, Component BLOCK 2;
        /// The entries.
        64, 512 => table: VlArbitration;
    }
}

layout! {
    /// InformInfoRecord.
    pub struct InformInfoRecord[60] = 0x00f3 {
        /// The subscriber.
        0, 128 => subscriber: Gid, Component SUBSCRIBER 0;
        /// The number of his subscription.
        128, 16 => number: u16, Component NUMBER 1;
        /// The subscription.
        192, 288 => info: InformInfo, Component 3;
    }
}
