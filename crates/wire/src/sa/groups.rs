//! MCMemberRecord: a multicast group, and a port's membership. Not how groups are made. IBA
//! 15.2.5.17. Principal type: [`McMemberRecord`].

use crate::cm::Gid;
use crate::layout::layout;

layout! {
    /// MCMemberRecord.
    pub struct McMemberRecord[52] = 0x0038 {
        /// The group.
        0, 128 => mgid: Gid, Component MGID 0;
        /// The member.
        128, 128 => port_gid: Gid, Component PORT_GID 1;
        /// The group's queue key.
        256, 32 => qkey: u32, Component QKEY 2;
        /// The group's LID.
        288, 16 => mlid: u16, Component MLID 3;
        /// How the MTU is compared.
        304, 2 => mtu_selector: u8, Selector MTU_SELECTOR 4;
        /// The group's MTU: a code.
        306, 6 => mtu: u8, Selected MTU 5;
        /// Traffic class.
        312, 8 => traffic_class: u8, Component TRAFFIC_CLASS 6;
        /// The partition.
        320, 16 => pkey: u16, Component PKEY 7;
        /// How the rate is compared.
        336, 2 => rate_selector: u8, Selector RATE_SELECTOR 8;
        /// The group's rate: a code.
        338, 6 => rate: u8, SelectedRate RATE 9;
        /// How the time is compared.
        344, 2 => life_selector: u8, Selector LIFE_SELECTOR 10;
        /// The longest time to a member: 4.096 µs × 2^n.
        346, 6 => life: u8, Selected LIFE 11;
        /// Service level.
        352, 4 => sl: u8, Component SL 12;
        /// Flow label.
        356, 20 => flow_label: u32, Component FLOW_LABEL 13;
        /// Hop limit.
        376, 8 => hop_limit: u8, Component HOP_LIMIT 14;
        /// How far the group reaches.
        384, 4 => scope: u8, Component SCOPE 15;
        /// How the port is a member: bits of this type's constants.
        388, 4 => join_state: u8, Component JOIN_STATE 16;
        /// The port was joined by another port.
        392, 1 => proxy: bool, Component PROXY 17;
    }
}

/// The bits of a membership.
impl McMemberRecord {
    /// Sends and receives, and keeps the group alive.
    pub const FULL: u8 = 1;
    /// Sends and receives.
    pub const NON: u8 = 2;
    /// Sends.
    pub const SEND_ONLY_NON: u8 = 4;
    /// Sends, and keeps the group alive.
    pub const SEND_ONLY_FULL: u8 = 8;
}
