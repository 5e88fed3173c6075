//! ClassPortInfo: which version of a class a port serves, and where. All classes have it. IBA
//! 13.4.8.1. Principal type: [`ClassPortInfo`].

use crate::cm::Gid;
use crate::layout::layout;

layout! {
    /// ClassPortInfo.
    pub struct ClassPortInfo[72] = 0x0001 {
        /// The base version: 1.
        0, 8 => base_version: u8;
        /// The version of the class.
        8, 8 => class_version: u8;
        /// What the class supports; bits 8 to 15 belong to the class.
        16, 16 => capability_mask: u16;
        /// What else the class supports.
        32, 27 => capability_mask2: u32;
        /// The time in which the port answers: 4.096 µs × 2^n.
        59, 5 => response_time: u8;
        /// Where requests shall go instead.
        64, 256 => redirect: Endpoint;
        /// Where traps shall go.
        320, 256 => trap: Endpoint;
    }
}

layout! {
    /// A queue pair and the way to it.
    pub struct Endpoint[32] {
        /// The port's GID.
        0, 128 => gid: Gid;
        /// Traffic class.
        128, 8 => traffic_class: u8;
        /// Service level.
        136, 4 => sl: u8;
        /// Flow label.
        140, 20 => flow_label: u32;
        /// The port's LID.
        160, 16 => lid: u16;
        /// The partition.
        176, 16 => pkey: u16;
        /// Hop limit; of traps only.
        192, 8 => hop_limit: u8;
        /// The queue pair.
        200, 24 => qpn: u32;
        /// Its queue key.
        224, 32 => qkey: u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};

    #[test]
    fn class_port_info_is_parsed_from_literal_bytes() {
        let mut bytes = [0; ClassPortInfo::LEN];
        bytes[..8].copy_from_slice(&[1, 2, 0x12, 0x34, 0, 0, 0, 0x32]);
        bytes[56..72].copy_from_slice(&[7, 0x51, 0x23, 0x45, 0, 9, 0xff, 0xff, 64, 0, 0, 1, 0x80, 1, 0, 0]);
        let trap = Endpoint {
            traffic_class: 7,
            sl: 5,
            flow_label: 0x12345,
            lid: 9,
            pkey: 0xffff,
            hop_limit: 64,
            qpn: 1,
            qkey: 0x8001_0000,
            ..Endpoint::default()
        };
        let info = ClassPortInfo {
            base_version: 1,
            class_version: 2,
            capability_mask: 0x1234,
            capability_mask2: 1,
            response_time: 18,
            trap,
            ..ClassPortInfo::default()
        };
        assert_eq!(ClassPortInfo::parse(&bytes), info);
        round_trip::<ClassPortInfo>();
    }

    #[test]
    fn positions_are_those_of_libibmad() {
        agrees::<ClassPortInfo>(&[
            ("BaseVersion", 0, 8),
            ("ClassVersion", 8, 8),
            ("CapabilityMask", 16, 16),
            ("CapabilityMask2", 32, 27),
            ("RespTimeVal", 59, 5),
            ("RedirectGID", 64, 128),
            ("RedirectTC", 192, 8),
            ("RedirectSL", 200, 4),
            ("RedirectFL", 204, 20),
            ("RedirectLID", 224, 16),
            ("RedirectPKey", 240, 16),
            ("RedirectQP", 264, 24),
            ("RedirectQKey", 288, 32),
            ("TrapGID", 320, 128),
            ("TrapTC", 448, 8),
            ("TrapSL", 456, 4),
            ("TrapFL", 460, 20),
            ("TrapLID", 480, 16),
            ("TrapPKey", 496, 16),
            ("TrapHL", 512, 8),
            ("TrapQP", 520, 24),
            ("TrapQKey", 544, 32),
        ]);
    }
}
