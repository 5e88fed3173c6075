//! Multicast: ATTACH_MCAST and DETACH_MCAST of a UD QP.

record! {
    /// ATTACH_MCAST (30) and DETACH_MCAST (31), request; no answer.
    pub struct AttachMcast[24] {
        /// Multicast GID, network byte order.
        0 => gid: [u8; 16],
        /// Handle of the QP; only UD.
        16 => qp_handle: u32,
        /// Multicast LID (ignored on RoCE).
        20 => mlid: u16,
        /// 0.
        22 => reserved: u16,
    }
}

/// DETACH_MCAST has the same layout.
pub type DetachMcast = AttachMcast;
