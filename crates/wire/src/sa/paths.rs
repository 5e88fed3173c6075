//! Records of paths and links. Not how a path is found. IBA 15.2.5.13, 15.2.5.16 and 15.2.5.20.
//! Principal types: [`PathRecord`], [`MultiPathRecord`], [`LinkRecord`].

use crate::cm::Gid;
use crate::layout::layout;

/// The most GIDs of a [`MultiPathRecord`].
pub const MAX_GIDS: usize = 10;

layout! {
    /// LinkRecord: two ports and the link between them.
    pub struct LinkRecord[6] = 0x0020 {
        /// A node.
        0, 16 => from_lid: u16, Component FROM_LID 0;
        /// Its port.
        16, 8 => from_port: u8, Component FROM_PORT 1;
        /// The port of the other node.
        24, 8 => to_port: u8, Component TO_PORT 2;
        /// The other node.
        32, 16 => to_lid: u16, Component TO_LID 3;
    }
}

layout! {
    /// PathRecord: a path from a source to a destination.
    pub struct PathRecord[64] = 0x0035 {
        /// The service for which the path is; it is two components.
        0, 64 => service_id: u64, Component SERVICE_ID_HIGH 0;
        /// The destination.
        64, 128 => dgid: Gid, Component DGID 2;
        /// The source.
        192, 128 => sgid: Gid, Component SGID 3;
        /// The destination's LID.
        320, 16 => dlid: u16, Component DLID 4;
        /// The source's LID.
        336, 16 => slid: u16, Component SLID 5;
        /// A path for raw packets.
        352, 1 => raw: bool, Component RAW 6;
        /// Flow label.
        356, 20 => flow_label: u32, Component FLOW_LABEL 8;
        /// Hop limit.
        376, 8 => hop_limit: u8, Component HOP_LIMIT 9;
        /// Traffic class.
        384, 8 => traffic_class: u8, Component TRAFFIC_CLASS 10;
        /// The way back is a path too.
        392, 1 => reversible: bool, Component REVERSIBLE 11;
        /// How many paths are wanted.
        393, 7 => number: u8, Component NUMBER 12;
        /// The partition.
        400, 16 => pkey: u16, Component PKEY 13;
        /// Class of service.
        416, 12 => qos_class: u16, Component QOS_CLASS 14;
        /// Service level.
        428, 4 => sl: u8, Component SL 15;
        /// How the MTU is compared.
        432, 2 => mtu_selector: u8, Selector MTU_SELECTOR 16;
        /// The smallest MTU of the path: a code.
        434, 6 => mtu: u8, Selected MTU 17;
        /// How the rate is compared.
        440, 2 => rate_selector: u8, Selector RATE_SELECTOR 18;
        /// The smallest rate of the path: a code.
        442, 6 => rate: u8, SelectedRate RATE 19;
        /// How the time is compared.
        448, 2 => life_selector: u8, Selector LIFE_SELECTOR 20;
        /// The longest time on the path: 4.096 µs × 2^n.
        450, 6 => life: u8, Selected LIFE 21;
        /// The order in which paths should be used; 0 first.
        456, 8 => preference: u8;
    }
}

layout! {
    /// MultiPathRecord: a request for paths between sources and destinations.
    pub struct MultiPathRecord[184] = 0x003a {
        /// A path for raw packets.
        0, 1 => raw: bool, Component RAW 0;
        /// Flow label.
        4, 20 => flow_label: u32, Component FLOW_LABEL 2;
        /// Hop limit.
        24, 8 => hop_limit: u8, Component HOP_LIMIT 3;
        /// Traffic class.
        32, 8 => traffic_class: u8, Component TRAFFIC_CLASS 4;
        /// The way back is a path too.
        40, 1 => reversible: bool, Component REVERSIBLE 5;
        /// How many paths are wanted.
        41, 7 => number: u8, Component NUMBER 6;
        /// The partition.
        48, 16 => pkey: u16, Component PKEY 7;
        /// Class of service.
        64, 12 => qos_class: u16, Component QOS_CLASS 8;
        /// Service level.
        76, 4 => sl: u8, Component SL 9;
        /// How the MTU is compared.
        80, 2 => mtu_selector: u8, Selector MTU_SELECTOR 10;
        /// The smallest MTU of the path: a code.
        82, 6 => mtu: u8, Selected MTU 11;
        /// How the rate is compared.
        88, 2 => rate_selector: u8, Selector RATE_SELECTOR 12;
        /// The smallest rate of the path: a code.
        90, 6 => rate: u8, SelectedRate RATE 13;
        /// How the time is compared.
        96, 2 => life_selector: u8, Selector LIFE_SELECTOR 14;
        /// The longest time on the path: 4.096 µs × 2^n.
        98, 6 => life: u8, Selected LIFE 15;
        /// The upper 8 bits of the service id.
        104, 8 => service_id_high: u8, Component SERVICE_ID_HIGH 16;
        /// The paths shall fail independently: 2, or 1 for by component, or 0.
        112, 2 => independence: u8, Component INDEPENDENCE 17;
        /// How many of the GIDs are sources.
        120, 8 => sources: u8, Component SOURCES 19;
        /// How many are destinations.
        128, 8 => destinations: u8, Component DESTINATIONS 20;
        /// The lower 56 bits of the service id.
        136, 56 => service_id_low: u64, Component SERVICE_ID_LOW 21;
        /// The sources, then the destinations; 10 at most.
        192, 1280 => gids: [Gid; MAX_GIDS];
    }
}
