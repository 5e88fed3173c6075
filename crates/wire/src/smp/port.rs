//! PortInfo: the state of a port, in three tables over the same 64 bytes. Not its P_Keys and
//! arbitration. IBA 14.2.5.6. Principal type: [`PortInfo`].

use crate::layout::layout;

layout! {
    /// PortInfo. The modifier is the port's number. The components are those of a PortInfoRecord,
    /// from its fourth on.
    pub struct PortInfo[64] = 0x0015 {
        /// The management key; 0 protects nothing.
        0, 64 => mkey: u64, Component 0;
        /// The prefix of the subnet's GIDs.
        64, 64 => gid_prefix: u64, Component 1;
        /// The base LID.
        128, 16 => lid: u16, Component 2;
        /// The LID of the subnet's master manager.
        144, 16 => master_sm_lid: u16, Component 3;
        /// What the port supports: [`Capability`].
        160, 32 => capability_mask: u32, Component 4;
        /// The vendor's diagnostic code.
        192, 16 => diag_code: u16, Component 5;
        /// How long the management key stays after a violation, in seconds; 0 is forever.
        208, 16 => mkey_lease: u16, Component 6;
        /// The port at which the datagram arrived.
        224, 8 => local_port: u8, Component 7;
        /// The link.
        0, 512 => link: PortLink, Component 0;
        /// What a requester without the management key may do, 0 to 3.
        272, 2 => mkey_protect: u8, Component 15;
        /// The port has 2^n LIDs.
        277, 3 => lmc: u8, Component 17;
        /// The service level of datagrams to the master manager.
        292, 4 => master_sm_sl: u8, Component 21;
        /// The virtual lanes, and what is checked on them.
        0, 512 => vls: PortVls, Component 0;
        /// What the port asks of the manager when it starts.
        300, 4 => init_type: u8, Component 23;
        /// What the manager did of it.
        328, 4 => init_type_reply: u8, Component 27;
        /// Datagrams with a wrong management key; counts to its end.
        352, 16 => mkey_violations: u16, Component 36;
        /// Packets with a wrong P_Key; counts to its end.
        368, 16 => pkey_violations: u16, Component 37;
        /// Packets with a wrong Q_Key; counts to its end.
        384, 16 => qkey_violations: u16, Component 38;
        /// Entries of the GUID table.
        400, 8 => guid_cap: u8, Component 39;
        /// Clients shall register again with subnet administration.
        408, 1 => client_reregister: bool, Component 40;
        /// Traps for P_Keys of multicast packets are not sent.
        409, 2 => multicast_pkey_trap_suppression: u8;
        /// The longest time to any port, and the shortest between traps: 4.096 µs × 2^n.
        411, 5 => subnet_timeout: u8, Component 42;
        /// The time in which the port answers: 4.096 µs × 2^n.
        419, 5 => response_time: u8, Component 44;
        /// What else the port supports: [`Capability2`].
        480, 16 => capability_mask2: u16, Component 50;
    }
}

layout! {
    /// The link of a port.
    pub struct PortLink[64] {
        /// The widths that may be used: bits of 1X, 4X, 8X, 12X and 2X.
        232, 8 => width_enabled: u8, Component 8;
        /// The widths that the port can have.
        240, 8 => width_supported: u8, Component 9;
        /// The width.
        248, 8 => width_active: u8, Component 10;
        /// The speeds that the port can have: bits of 2.5, 5 and 10 Gb/s.
        256, 4 => speed_supported: u8, Component 11;
        /// [`LinkState`].
        260, 4 => state: u8, Component 12;
        /// [`PhysState`].
        264, 4 => phys_state: u8, Component 13;
        /// What the port does when it is down: sleep or poll.
        268, 4 => down_default: u8, Component 14;
        /// The speed.
        280, 4 => speed_active: u8, Component 18;
        /// The speeds that may be used.
        284, 4 => speed_enabled: u8, Component 19;
        /// The MTU of packets to the neighbour: a code.
        288, 4 => neighbor_mtu: u8, Component 20;
        /// The largest MTU of the port: a code.
        332, 4 => mtu_cap: u8, Component 28;
        /// How many physical errors cause a trap.
        424, 4 => local_phys_errors: u8, Component 45;
        /// How many buffer overruns cause a trap.
        428, 4 => overrun_errors: u8, Component 46;
        /// The most credits that the port was seen to need.
        432, 16 => max_credit_hint: u16, Component 47;
        /// The latency of the link, in units of 4 ns.
        456, 24 => round_trip_latency: u32, Component 49;
        /// The speed, if it is one of the extended ones; or 0.
        496, 4 => extended_active: u8, Component 51;
        /// The extended speeds that the port can have: bits of FDR, EDR, HDR and NDR.
        500, 4 => extended_supported: u8, Component 52;
        /// The extended speeds that may be used.
        507, 5 => extended_enabled: u8, Component 54;
    }
}

layout! {
    /// The virtual lanes of a port, and what is checked on them.
    pub struct PortVls[64] {
        /// The virtual lanes that the port can have: a code.
        296, 4 => cap: u8, Component 22;
        /// How much of high priority goes before low priority, in units of 4096 bytes.
        304, 8 => high_limit: u8, Component 24;
        /// Entries of the arbitration table of high priority.
        312, 8 => arbitration_high_cap: u8, Component 25;
        /// Entries of the arbitration table of low priority.
        320, 8 => arbitration_low_cap: u8, Component 26;
        /// After how many packets that waited too long a lane drops all.
        336, 3 => stall_count: u8, Component 29;
        /// How long a packet may wait at the head of a queue: 4.096 µs × 2^n; above 19, forever.
        339, 5 => head_of_queue_life: u8, Component 30;
        /// The virtual lanes in use: a code.
        344, 4 => operational: u8, Component 31;
        /// A switch checks the P_Keys of packets that come in here.
        348, 1 => enforce_inbound: bool, Component 32;
        /// A switch checks the P_Keys of packets that go out here.
        349, 1 => enforce_outbound: bool, Component 33;
        /// A switch drops raw packets that come in here.
        350, 1 => filter_raw_inbound: bool, Component 34;
        /// A switch drops raw packets that go out here.
        351, 1 => filter_raw_outbound: bool, Component 35;
    }
}

/// The states of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LinkState {
    /// Nothing passes.
    #[default]
    Down = 1,
    /// Datagrams of subnet management pass.
    Init = 2,
    /// Data may also come in.
    Armed = 3,
    /// Everything passes.
    Active = 4,
    /// The link recovers from an error, and nothing passes.
    ActiveDefer = 5,
}

impl LinkState {
    /// The state with this number.
    #[must_use]
    pub const fn from_u8(number: u8) -> Option<LinkState> {
        Some(match number {
            1 => LinkState::Down,
            2 => LinkState::Init,
            3 => LinkState::Armed,
            4 => LinkState::Active,
            5 => LinkState::ActiveDefer,
            _ => return None,
        })
    }
}

/// The physical states of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the IBA's own names")]
#[repr(u8)]
pub enum PhysState {
    Sleep = 1,
    Polling = 2,
    Disabled = 3,
    Training = 4,
    LinkUp = 5,
    ErrorRecovery = 6,
    PhyTest = 7,
}

/// The bits of a port's capability mask.
#[derive(Clone, Copy, Debug)]
pub struct Capability;

impl Capability {
    /// A subnet manager is at this port.
    pub const SM: u32 = 1 << 1;
    /// The port keeps notices that a Get can fetch.
    pub const NOTICE: u32 = 1 << 2;
    /// The port sends traps.
    pub const TRAP: u32 = 1 << 3;
    /// Connections migrate by themselves.
    pub const AUTOMATIC_MIGRATION: u32 = 1 << 5;
    /// The port has an SL-to-VL table.
    pub const SL_MAPPING: u32 = 1 << 6;
    /// The subnet manager at this port is disabled.
    pub const SM_DISABLED: u32 = 1 << 10;
    /// NodeInfo has a system GUID.
    pub const SYSTEM_GUID: u32 = 1 << 11;
    /// Speeds above 10 Gb/s.
    pub const EXTENDED_SPEEDS: u32 = 1 << 14;
    /// [`Capability2`] is valid.
    pub const MASK2: u32 = 1 << 15;
    /// Communication management.
    pub const CM: u32 = 1 << 16;
    /// Device management.
    pub const DEVICE_MANAGEMENT: u32 = 1 << 19;
    /// Vendor classes.
    pub const VENDOR_CLASS: u32 = 1 << 20;
    /// The port sends a trap when this mask changes.
    pub const CHANGE_NOTICE: u32 = 1 << 22;
    /// The link's latency is measured.
    pub const LINK_LATENCY: u32 = 1 << 24;
    /// The manager may ask clients to register again.
    pub const CLIENT_REREGISTER: u32 = 1 << 25;
    /// The port sends a trap for other local changes.
    pub const OTHER_CHANGES_NOTICE: u32 = 1 << 26;
    /// SwitchInfo has the last multicast LID in use.
    pub const MULTICAST_TOP: u32 = 1 << 30;
}

/// The bits of a port's second capability mask.
#[derive(Clone, Copy, Debug)]
pub struct Capability2;

impl Capability2 {
    /// NodeDescription may be set.
    pub const SET_NODE_DESCRIPTION: u16 = 1 << 0;
    /// The width 2X.
    pub const WIDTH_2X: u16 = 1 << 4;
    /// The speed HDR.
    pub const HDR: u16 = 1 << 5;
    /// The speed NDR.
    pub const NDR: u16 = 1 << 10;
}

#[cfg(test)]
mod tests;
