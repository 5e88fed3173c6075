//! The details of errors, and the counters of each service level. IBA 16.1.4. Principal types:
//! [`PortReceiveErrorDetails`], [`PortXmitDiscardDetails`].

use crate::layout::layout;

layout! {
    /// PortRcvErrorDetails: why packets that came in were wrong.
    pub struct PortReceiveErrorDetails[16] = 0x0015 {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes.
        16, 16 => select: u16;
        /// Wrong checksums, and the like.
        32, 16 => local_physical: u16;
        /// Wrong lengths or headers.
        48, 16 => malformed: u16;
        /// No room in the buffer.
        64, 16 => buffer_overrun: u16;
        /// A LID that the switch does not forward.
        80, 16 => dlid_mapping: u16;
        /// A service level without a virtual lane.
        96, 16 => vl_mapping: u16;
        /// Packets that would go out where they came in.
        112, 16 => looping: u16;
    }
}

layout! {
    /// PortXmitDiscardDetails: why packets did not go out.
    pub struct PortXmitDiscardDetails[12] = 0x0016 {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes.
        16, 16 => select: u16;
        /// The port was not active.
        32, 16 => inactive: u16;
        /// The packet was longer than the neighbour's MTU.
        48, 16 => mtu: u16;
        /// The packet was too long in the switch.
        64, 16 => switch_life_time: u16;
        /// The packet was too long at the head of its queue.
        80, 16 => head_of_queue_life: u16;
    }
}

layout! {
    /// PortOpRcvCounters: what came in with an operation that is counted.
    pub struct PortOpReceiveCounters[12] = 0x0017 {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes.
        16, 16 => select: u16;
        /// Packets.
        32, 32 => packets: u32;
        /// Data, in units of 4 bytes.
        64, 32 => data: u32;
    }
}

layout! {
    /// PortFlowCtlCounters: packets of flow control.
    pub struct PortFlowControlCounters[12] = 0x0018 {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes.
        16, 16 => select: u16;
        /// Those that went out.
        32, 32 => xmit: u32;
        /// Those that came in.
        64, 32 => receive: u32;
    }
}

layout! {
    /// A counter of each service level: PortXmitDataSL (0x36) and PortRcvDataSL (0x37), in units of
    /// 4 bytes.
    pub struct PortSlCounters[68] {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes.
        16, 16 => select: u16;
        /// The counters.
        32, 512 => counters: [u32; 16];
    }
}

impl PortSlCounters {
    /// The id of PortXmitDataSL.
    pub const XMIT: u16 = 0x0036;
    /// The id of PortRcvDataSL.
    pub const RECEIVE: u16 = 0x0037;
}
