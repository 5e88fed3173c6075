//! SwitchInfo: the tables that a switch has, and its options. Not the tables. IBA 14.2.5.4.
//! Principal type: [`SwitchInfo`].

use crate::layout::layout;

layout! {
    /// SwitchInfo.
    pub struct SwitchInfo[20] = 0x0012 {
        /// Entries of the linear forwarding table.
        0, 16 => linear_cap: u16, Component 0;
        /// Entries of the random forwarding table; 0 without one.
        16, 16 => random_cap: u16, Component 1;
        /// Entries of the multicast forwarding table.
        32, 16 => multicast_cap: u16, Component 2;
        /// The last LID of the linear forwarding table that is in use.
        48, 16 => linear_top: u16, Component 3;
        /// With a random forwarding table: the port of unknown LIDs.
        64, 8 => default_port: u8, Component 4;
        /// The port of unknown multicast LIDs.
        72, 8 => default_multicast_primary: u8, Component 5;
        /// The port of unknown multicast LIDs that arrive at the primary one.
        80, 8 => default_multicast_other: u8, Component 6;
        /// How long a packet may stay in the switch: 4.096 µs × 2^n; above 19 it is unlimited.
        88, 5 => life_time: u8, Component 7;
        /// The state of a port has changed. A Set with this bit clears it.
        93, 1 => port_state_change: bool, Component 8;
        /// How many SL-to-VL tables a Set may change at once.
        94, 2 => optimized_sl_to_vl: u8, Component 9;
        /// With a random forwarding table: LIDs that a port may have.
        96, 16 => lids_per_port: u16, Component 10;
        /// Entries of a P_Key table of an external port.
        112, 16 => enforcement_cap: u16, Component 11;
        /// It can check the P_Keys of packets that come in.
        128, 1 => enforces_inbound: bool, Component 12;
        /// It can check the P_Keys of packets that go out.
        129, 1 => enforces_outbound: bool, Component 13;
        /// It can drop raw packets that come in.
        130, 1 => filters_raw_inbound: bool, Component 14;
        /// It can drop raw packets that go out.
        131, 1 => filters_raw_outbound: bool, Component 15;
        /// Port 0 is an end port like that of a channel adapter.
        132, 1 => enhanced_port_0: bool, Component 16;
        /// The last multicast LID of the multicast forwarding table that is in use.
        144, 16 => multicast_top: u16, Component 18;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::tests::{agrees, round_trip};

    #[test]
    fn literal_bytes_both_ways() {
        let bytes = [0xc0, 0, 0, 0, 4, 0, 0, 9, 1, 2, 3, 0x96, 0, 1, 0, 32, 0xc8, 0, 0xc0, 0x10];
        let info = SwitchInfo {
            linear_cap: 0xc000,
            multicast_cap: 0x400,
            linear_top: 9,
            default_port: 1,
            default_multicast_primary: 2,
            default_multicast_other: 3,
            life_time: 18,
            port_state_change: true,
            optimized_sl_to_vl: 2,
            lids_per_port: 1,
            enforcement_cap: 32,
            enforces_inbound: true,
            enforces_outbound: true,
            enhanced_port_0: true,
            multicast_top: 0xc010,
            ..SwitchInfo::default()
        };
        assert_eq!(SwitchInfo::parse(&bytes), info);
        let mut emitted = [0xff; SwitchInfo::LEN];
        info.emit(&mut emitted);
        assert_eq!(emitted, bytes);
        round_trip::<SwitchInfo>();
    }

    #[test]
    fn positions_are_those_of_libibmad() {
        agrees::<SwitchInfo>(&[
            ("LinearFdbCap", 0, 16),
            ("RandomFdbCap", 16, 16),
            ("McastFdbCap", 32, 16),
            ("LinearFdbTop", 48, 16),
            ("DefPort", 64, 8),
            ("DefMcastPrimPort", 72, 8),
            ("DefMcastNotPrimPort", 80, 8),
            ("LifeTime", 88, 5),
            ("StateChange", 93, 1),
            ("OptSLtoVLMapping", 94, 2),
            ("LidsPerPort", 96, 16),
            ("PartEnforceCap", 112, 16),
            ("InboundPartEnf", 128, 1),
            ("OutboundPartEnf", 129, 1),
            ("FilterRawInbound", 130, 1),
            ("FilterRawOutbound", 131, 1),
            ("EnhancedPort0", 132, 1),
            ("MulticastFDBTop", 144, 16),
        ]);
    }
}
