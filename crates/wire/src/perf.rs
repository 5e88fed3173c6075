//! Performance management: datagrams of QP 1 that read and clear the counters of a port. Not the
//! counters themselves. IBA 16.1. Principal types: [`PortCounters`], [`PortCountersExtended`].
//!
//! The data begins at byte 64. The first byte of most attributes is 0, and the second one is the
//! port; port 255 is all ports.

mod details;
mod samples;

pub use details::{
    PortFlowControlCounters, PortOpReceiveCounters, PortReceiveErrorDetails, PortSlCounters, PortXmitDiscardDetails,
};

pub use samples::{PortSamplesControl, PortSamplesResult, SAMPLED};

use crate::layout::layout;

/// The version of this class.
pub const CLASS_VERSION: u8 = 1;
/// Where the data begins.
pub const DATA: usize = 64;
/// The port that stands for all ports.
pub const ALL_PORTS: u8 = 255;

/// In the capability mask of ClassPortInfo: port 255 is understood.
pub const CAP_ALL_PORTS: u16 = 1 << 8;
/// In the capability mask of ClassPortInfo: [`PortCountersExtended`], with counters of unicast and
/// multicast packets.
pub const CAP_EXTENDED: u16 = 1 << 9;
/// In the capability mask of ClassPortInfo: [`PortCounters`] has `xmit_wait`.
pub const CAP_XMIT_WAIT: u16 = 1 << 12;
/// In the capability mask of ClassPortInfo: `qp1_dropped` is counted.
pub const CAP_QP1_DROPPED: u16 = 1 << 15;
/// In the second capability mask: [`PortCountersExtended`] has the counters of errors.
pub const CAP2_EXTENDED_ERRORS: u32 = 1 << 1;

layout! {
    /// PortCounters. Each stops at its end.
    pub struct PortCounters[44] = 0x0012 {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes: bit 0 is the first.
        16, 16 => select: u16;
        /// Symbol errors.
        32, 16 => symbol_errors: u16;
        /// Links that recovered.
        48, 8 => link_recoveries: u8;
        /// Links that went down.
        56, 8 => link_downed: u8;
        /// Packets with errors that came in.
        64, 16 => receive_errors: u16;
        /// Packets that another node has marked as bad.
        80, 16 => remote_physical_errors: u16;
        /// Packets that a switch could not forward.
        96, 16 => switch_relay_errors: u16;
        /// Packets that could not go out.
        112, 16 => xmit_discards: u16;
        /// Packets that a rule kept from going out.
        128, 8 => xmit_constraint_errors: u8;
        /// Packets that a rule kept from coming in.
        136, 8 => receive_constraint_errors: u8;
        /// Which other counters a Set changes.
        144, 8 => select2: u8;
        /// Physical errors above the threshold.
        152, 4 => local_integrity_errors: u8;
        /// Overruns of the buffer above the threshold.
        156, 4 => buffer_overruns: u8;
        /// Packets for QP 1 that were dropped.
        160, 16 => qp1_dropped: u16;
        /// Packets of VL 15 that were dropped.
        176, 16 => vl15_dropped: u16;
        /// Data that went out, in units of 4 bytes.
        192, 32 => xmit_data: u32;
        /// Data that came in, in units of 4 bytes.
        224, 32 => receive_data: u32;
        /// Packets that went out.
        256, 32 => xmit_packets: u32;
        /// Packets that came in.
        288, 32 => receive_packets: u32;
        /// Ticks in which data waited and nothing went out.
        320, 32 => xmit_wait: u32;
    }
}

layout! {
    /// PortCountersExtended: the same with 64 bits, and packets by their kind. The counters of
    /// errors are there if ClassPortInfo says so.
    pub struct PortCountersExtended[184] = 0x001d {
        /// The port.
        8, 8 => port: u8;
        /// Which counters a Set changes: bit 0 is the first.
        16, 16 => select: u16;
        /// Which counters of errors a Set changes: bit 0 is the first.
        32, 32 => select2: u32;
        /// Data that went out, in units of 4 bytes.
        64, 64 => xmit_data: u64;
        /// Data that came in, in units of 4 bytes.
        128, 64 => receive_data: u64;
        /// Packets that went out.
        192, 64 => xmit_packets: u64;
        /// Packets that came in.
        256, 64 => receive_packets: u64;
        /// Unicast packets that went out.
        320, 64 => unicast_xmit_packets: u64;
        /// Unicast packets that came in.
        384, 64 => unicast_receive_packets: u64;
        /// Multicast packets that went out.
        448, 64 => multicast_xmit_packets: u64;
        /// Multicast packets that came in.
        512, 64 => multicast_receive_packets: u64;
        /// Symbol errors.
        576, 64 => symbol_errors: u64;
        /// Links that recovered.
        640, 64 => link_recoveries: u64;
        /// Links that went down.
        704, 64 => link_downed: u64;
        /// Packets with errors that came in.
        768, 64 => receive_errors: u64;
        /// Packets that another node has marked as bad.
        832, 64 => remote_physical_errors: u64;
        /// Packets that a switch could not forward.
        896, 64 => switch_relay_errors: u64;
        /// Packets that could not go out.
        960, 64 => xmit_discards: u64;
        /// Packets that a rule kept from going out.
        1024, 64 => xmit_constraint_errors: u64;
        /// Packets that a rule kept from coming in.
        1088, 64 => receive_constraint_errors: u64;
        /// Physical errors above the threshold.
        1152, 64 => local_integrity_errors: u64;
        /// Overruns of the buffer above the threshold.
        1216, 64 => buffer_overruns: u64;
        /// Packets of VL 15 that were dropped.
        1280, 64 => vl15_dropped: u64;
        /// Ticks in which data waited and nothing went out.
        1344, 64 => xmit_wait: u64;
        /// Packets for QP 1 that were dropped.
        1408, 64 => qp1_dropped: u64;
    }
}

#[cfg(test)]
mod tests;
