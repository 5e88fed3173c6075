//! Notices and subscriptions to them: what a trap or a report says, and InformInfo. Not when a
//! notice is sent. IBA 13.4.8.2, 13.4.8.3 and 14.2.5.1. Principal types: [`Notice`],
//! [`InformInfo`].
//!
//! A generic notice has a number, and the number decides the layout of its details: one struct for
//! each layout, with [`Notice::details`] and [`Notice::with`] between them.

use crate::cm::Gid;
use crate::layout::{Layout, layout};

layout! {
    /// A notice. A report of subnet administration continues with the issuer's GID.
    pub struct Notice[80] = 0x0002 {
        /// The IBA defines the notice; otherwise the vendor does.
        0, 1 => generic: bool;
        /// How urgent it is: one of the constants of this type.
        1, 7 => kind: u8;
        /// The type of the node that it concerns, or the vendor.
        8, 24 => producer: u32;
        /// Its number, or the vendor's device.
        32, 16 => number: u16;
        /// The port that issued it.
        48, 16 => issuer_lid: u16;
        /// Changes when a Get has read the notice.
        64, 1 => toggle: bool;
        /// Notices that wait.
        65, 15 => count: u16;
        /// The details, in a layout of the number.
        80, 432 => details: [u8; 54];
        /// The port that issued it; only in reports of subnet administration.
        512, 128 => issuer_gid: Gid;
    }
}

/// The kinds of notices, the producers, and the numbers of the generic notices.
impl Notice {
    /// Bytes of a notice outside of subnet administration.
    pub const SHORT: usize = 64;
    /// Fatal.
    pub const FATAL: u8 = 0;
    /// Urgent.
    pub const URGENT: u8 = 1;
    /// A matter of security.
    pub const SECURITY: u8 = 2;
    /// For subnet management.
    pub const SUBNET: u8 = 3;
    /// For information.
    pub const INFO: u8 = 4;
    /// No notice.
    pub const EMPTY: u8 = 0x7f;

    /// The producer of notices of a class manager, such as subnet administration.
    pub const BY_CLASS_MANAGER: u32 = 4;

    /// A port can be reached: [`GidNotice`].
    pub const GID_IN_SERVICE: u16 = 64;
    /// A port can no longer be reached: [`GidNotice`].
    pub const GID_OUT_OF_SERVICE: u16 = 65;
    /// A multicast group was created: [`GidNotice`].
    pub const GROUP_CREATED: u16 = 66;
    /// A multicast group was deleted: [`GidNotice`].
    pub const GROUP_DELETED: u16 = 67;
    /// A port of a switch changed its state: [`SwitchNotice`].
    pub const LINK_STATE: u16 = 128;
    /// Too many physical errors: [`PortNotice`].
    pub const LINK_INTEGRITY: u16 = 129;
    /// Too many buffer overruns: [`PortNotice`].
    pub const BUFFER_OVERRUN: u16 = 130;
    /// Flow control stopped: [`PortNotice`].
    pub const FLOW_CONTROL: u16 = 131;
    /// The capability mask or something else at the port changed: [`ChangeNotice`].
    pub const LOCAL_CHANGE: u16 = 144;
    /// The system's GUID changed: [`SystemNotice`].
    pub const SYSTEM_GUID: u16 = 145;
    /// A datagram with a wrong management key: [`MKeyNotice`].
    pub const BAD_MKEY: u16 = 256;
    /// A packet with a wrong P_Key: [`KeyNotice`].
    pub const BAD_PKEY: u16 = 257;
    /// A packet with a wrong Q_Key: [`KeyNotice`].
    pub const BAD_QKEY: u16 = 258;
    /// A packet with a wrong P_Key at a switch: [`SwitchPKeyNotice`].
    pub const SWITCH_BAD_PKEY: u16 = 259;

    /// A generic notice with these details.
    #[must_use]
    pub fn with<T: Layout>(kind: u8, producer: u32, number: u16, issuer_lid: u16, details: T) -> Notice {
        let mut notice = Notice { generic: true, kind, producer, number, issuer_lid, ..Notice::default() };
        details.write(&mut notice.details);
        notice
    }

    /// The details. The caller knows by the number that they have this layout.
    #[must_use]
    pub fn details<T: Layout + Default>(&self) -> T {
        T::read(&self.details).unwrap_or_default()
    }
}

layout! {
    /// Details of notices about a port or a group.
    pub struct GidNotice[22] {
        /// The port or the group.
        48, 128 => gid: Gid;
    }
}

layout! {
    /// Details of a notice about a switch.
    pub struct SwitchNotice[2] {
        /// The switch.
        0, 16 => lid: u16;
    }
}

layout! {
    /// Details of a notice about one port.
    pub struct PortNotice[5] {
        /// The node's LID.
        16, 16 => lid: u16;
        /// Its port.
        32, 8 => port: u8;
    }
}

layout! {
    /// Details of a notice about a change at a port.
    pub struct ChangeNotice[14] {
        /// The port.
        16, 16 => lid: u16;
        /// The flags are valid.
        47, 1 => other: bool;
        /// The capability mask now.
        48, 32 => capability_mask: u32;
        /// The second capability mask changed.
        90, 1 => mask2_changed: bool;
        /// The hierarchy changed.
        91, 1 => hierarchy_changed: bool;
        /// The priority of the subnet manager changed.
        92, 1 => priority_changed: bool;
        /// The speeds that may be used changed.
        93, 1 => speed_changed: bool;
        /// The widths that may be used changed.
        94, 1 => width_changed: bool;
        /// The description of the node changed.
        95, 1 => description_changed: bool;
        /// The second capability mask now.
        96, 16 => capability_mask2: u16;
    }
}

layout! {
    /// Details of a notice about a system's GUID.
    pub struct SystemNotice[14] {
        /// The port.
        16, 16 => lid: u16;
        /// The GUID now.
        48, 64 => guid: u64;
    }
}

layout! {
    /// Details of a notice about a management key.
    pub struct MKeyNotice[54] {
        /// The port.
        16, 16 => lid: u16;
        /// The LID at which the directed part of the datagram's route began.
        32, 16 => dr_slid: u16;
        /// The datagram's method.
        48, 8 => method: u8;
        /// Its attribute.
        64, 16 => attribute: u16;
        /// Its modifier.
        80, 32 => modifier: u32;
        /// Its key.
        112, 64 => mkey: u64;
        /// It had a directed route.
        184, 1 => directed: bool;
        /// The route here is not complete.
        185, 1 => truncated: bool;
        /// Hops of the route.
        186, 6 => hops: u8;
        /// The return path.
        192, 240 => path: [u8; 30];
    }
}

layout! {
    /// Details of a notice about a P_Key or Q_Key.
    pub struct KeyNotice[50] {
        /// The sender of the packet.
        16, 16 => lid1: u16;
        /// Its receiver.
        32, 16 => lid2: u16;
        /// The key.
        48, 32 => key: u32;
        /// The packet's service level.
        80, 4 => sl: u8;
        /// The sender's queue pair.
        88, 24 => qp1: u32;
        /// The receiver's queue pair.
        120, 24 => qp2: u32;
        /// The sender.
        144, 128 => gid1: Gid;
        /// The receiver.
        272, 128 => gid2: Gid;
    }
}

layout! {
    /// Details of a notice of a switch about a P_Key.
    pub struct SwitchPKeyNotice[53] {
        /// Which of the fields are valid, as a mask.
        0, 16 => valid: u16;
        /// The sender of the packet.
        16, 16 => lid1: u16;
        /// Its receiver.
        32, 16 => lid2: u16;
        /// The P_Key.
        48, 16 => pkey: u16;
        /// The packet's service level.
        64, 4 => sl: u8;
        /// The sender's queue pair.
        72, 24 => qp1: u32;
        /// The receiver's queue pair.
        104, 24 => qp2: u32;
        /// The sender.
        128, 128 => gid1: Gid;
        /// The receiver.
        256, 128 => gid2: Gid;
        /// The switch.
        384, 16 => switch_lid: u16;
        /// Its port.
        400, 8 => port: u8;
    }
}

/// The bits of [`SwitchPKeyNotice::valid`]. The first field has the highest bit.
impl SwitchPKeyNotice {
    /// Both LIDs.
    pub const LIDS: u16 = 1 << 15 | 1 << 14;
    /// The P_Key.
    pub const PKEY: u16 = 1 << 13;
    /// The service level.
    pub const SL: u16 = 1 << 12;
    /// The sender's queue pair.
    pub const QP1: u16 = 1 << 11;
    /// The receiver's queue pair.
    pub const QP2: u16 = 1 << 10;
    /// Both GIDs.
    pub const GIDS: u16 = 1 << 9 | 1 << 8;
}

layout! {
    /// InformInfo: a subscription to notices, or its end.
    pub struct InformInfo[36] = 0x0003 {
        /// Notices about this port only; or zero.
        0, 128 => gid: Gid, Component 0;
        /// Notices about these LIDs only: the first, or 0xffff for all.
        128, 16 => lid_begin: u16, Component 1;
        /// The last LID, or 0.
        144, 16 => lid_end: u16, Component 2;
        /// Generic notices: 1; or those of a vendor: 0.
        176, 8 => generic: u8, Component 4;
        /// Subscribe: 1; or unsubscribe: 0.
        184, 8 => subscribe: u8, Component 5;
        /// The kind of notices, or 0xffff for all.
        192, 16 => kind: u16, Component 6;
        /// The number of the notices or the vendor's device, or 0xffff for all.
        208, 16 => number: u16, Component 7;
        /// The subscriber's queue pair; in an Unsubscribe.
        224, 24 => qpn: u32, Component 8;
        /// The time in which the subscriber answers: 4.096 µs × 2^n.
        251, 5 => response_time: u8, Component 10;
        /// The type of the producers or the vendor, or 0xffffff for all.
        264, 24 => producer: u32, Component 12;
    }
}

#[cfg(test)]
mod tests;
