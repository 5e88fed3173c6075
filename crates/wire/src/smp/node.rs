//! What a node says of itself: NodeInfo and NodeDescription. Not its ports. IBA 14.2.5.2 and
//! 14.2.5.3. Principal types: [`NodeInfo`], [`NodeDescription`].

use crate::layout::layout;
use std::fmt;

layout! {
    /// NodeInfo: the node's type and its identifiers. Read only.
    pub struct NodeInfo[40] = 0x0011 {
        /// The base version of datagrams that the node knows: 1.
        0, 8 => base_version: u8, Component 0;
        /// The version of subnet management that it knows: 1.
        8, 8 => class_version: u8, Component 1;
        /// [`NodeType`].
        16, 8 => node_type: u8, Component 2;
        /// Physical ports; port 0 of a switch is not counted.
        24, 8 => ports: u8, Component 3;
        /// The system, of which several nodes may be parts.
        32, 64 => system_guid: u64, Component 4;
        /// The node.
        96, 64 => node_guid: u64, Component 5;
        /// The port that was asked; of a switch, port 0.
        160, 64 => port_guid: u64, Component 6;
        /// Entries of a P_Key table of this node.
        224, 16 => partition_cap: u16, Component 7;
        /// The vendor's number of the device.
        240, 16 => device_id: u16, Component 8;
        /// The vendor's revision of the device.
        256, 32 => revision: u32, Component 9;
        /// The port at which the datagram arrived.
        288, 8 => local_port: u8, Component 10;
        /// The vendor, an OUI.
        296, 24 => vendor_id: u32, Component 11;
    }
}

layout! {
    /// NodeDescription: a text in UTF-8, padded with zeros.
    pub struct NodeDescription[64] = 0x0010 {
        /// The text.
        0, 512 => text: [u8; 64], Component 0;
    }
}

/// The types of nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum NodeType {
    /// A channel adapter.
    Ca = 1,
    /// A switch.
    Switch = 2,
    /// A router.
    Router = 3,
}

impl NodeDescription {
    /// The description with this text. Longer texts are cut at the end of a character.
    #[must_use]
    pub fn new(text: &str) -> NodeDescription {
        let mut description = NodeDescription::default();
        let end = (0..=description.text.len()).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        for (place, byte) in description.text.iter_mut().zip(text.as_bytes().iter().take(end)) {
            *place = *byte;
        }
        description
    }
}

impl fmt::Display for NodeDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text.split(|byte| *byte == 0).next().unwrap_or_default();
        f.write_str(&String::from_utf8_lossy(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};

    #[test]
    fn node_info_in_literal_bytes() {
        let bytes = [
            1, 1, 2, 36, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 2, 2, 0, 8, 0xb9, 0x24, 0,
            0, 0, 0xa1, 3, 0, 2, 0xc9,
        ];
        let info = NodeInfo {
            base_version: 1,
            class_version: 1,
            node_type: NodeType::Switch as u8,
            ports: 36,
            system_guid: 0x200,
            node_guid: 0x201,
            port_guid: 0x202,
            partition_cap: 8,
            device_id: 0xb924,
            revision: 0xa1,
            local_port: 3,
            vendor_id: 0x2c9,
        };
        assert_eq!(NodeInfo::parse(&bytes), info);
        let mut emitted = [0xff; NodeInfo::LEN];
        info.emit(&mut emitted);
        assert_eq!(emitted, bytes);
        round_trip::<NodeInfo>();
        round_trip::<NodeDescription>();
    }

    #[test]
    fn positions_are_those_of_libibmad() {
        agrees::<NodeInfo>(&[
            ("BaseVers", 0, 8),
            ("ClassVers", 8, 8),
            ("NodeType", 16, 8),
            ("NumPorts", 24, 8),
            ("SystemGuid", 32, 64),
            ("Guid", 96, 64),
            ("PortGuid", 160, 64),
            ("PartCap", 224, 16),
            ("DevId", 240, 16),
            ("Revision", 256, 32),
            ("LocalPort", 288, 8),
            ("VendorId", 296, 24),
        ]);
        agrees::<NodeDescription>(&[("NodeDesc", 0, 512)]);
    }

    #[test]
    fn a_long_description_ends_with_a_whole_character() {
        let long = format!("{}é and more", "x".repeat(63));
        assert_eq!(NodeDescription::new(&long).to_string(), "x".repeat(63));
        assert_eq!(NodeDescription::new("host mlx5_0").to_string(), "host mlx5_0");
        assert_eq!(NodeDescription::new(&"x".repeat(70)).to_string(), "x".repeat(64));
    }
}
