//! A port, and the way from it to a peer, as the header of a user MAD tells it. The principal type
//! is [`Way`].

use std::cmp::Ordering;

use abi::umad::UserMad;
use wire::mad::{GSI_QKEY, Mad};

pub(crate) use crate::ids::PortId;

/// Where a datagram goes, or where it came from.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Way {
    /// The peer's LID; 0 on Ethernet.
    pub(crate) lid: u16,
    /// The peer's GID, or zeros without a GRH.
    pub(crate) gid: [u8; 16],
    /// The index of the own GID.
    pub(crate) gid_index: u8,
    /// The peer's QP.
    pub(crate) qpn: u32,
    pub(crate) qkey: u32,
    pub(crate) sl: u8,
    /// The lower bits of the own LID.
    pub(crate) path_bits: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    /// The index of the partition at the own port.
    pub(crate) pkey_index: u16,
}

/// A datagram that leaves a port.
#[derive(Debug)]
pub(crate) struct Datagram {
    /// The port that it leaves.
    pub(crate) at: PortId,
    /// The queue pair, 0 or 1.
    pub(crate) qpn: u32,
    pub(crate) to: Way,
    pub(crate) mad: Mad,
    /// The user whose program sends it, or 0.
    pub(crate) owner: u32,
}

impl Way {
    /// The way that the header of a datagram asks for. Headers without a P_Key index mean index 0.
    pub(crate) fn of(header: &UserMad) -> Self {
        Self {
            lid: u16::from_be(header.lid),
            gid: if header.grh_present == 0 { [0; 16] } else { header.gid },
            gid_index: header.gid_index,
            qpn: u32::from_be(header.qpn),
            qkey: u32::from_be(header.qkey),
            sl: header.sl,
            path_bits: header.path_bits,
            hop_limit: header.hop_limit,
            traffic_class: header.traffic_class,
            flow_label: u32::from_be(header.flow_label),
            pkey_index: header.pkey_index,
        }
    }

    /// The way to the peer of queue pair `qpn` with this LID.
    pub(crate) fn to_lid(lid: u16, qpn: u32) -> Self {
        Self { lid, qpn, qkey: if qpn == 0 { 0 } else { GSI_QKEY }, ..Self::default() }
    }

    /// The header of a datagram that came this way.
    pub(crate) fn header(&self) -> UserMad {
        UserMad {
            qpn: self.qpn.to_be(),
            qkey: self.qkey.to_be(),
            lid: self.lid.to_be(),
            sl: self.sl,
            path_bits: self.path_bits,
            grh_present: u8::from(self.has_grh()),
            gid_index: self.gid_index,
            hop_limit: self.hop_limit,
            traffic_class: self.traffic_class,
            gid: self.gid,
            flow_label: self.flow_label.to_be(),
            pkey_index: self.pkey_index,
            ..UserMad::default()
        }
    }

    /// Whether the peer is named by its GID.
    pub(crate) fn has_grh(&self) -> bool {
        self.gid != [0; 16]
    }

    fn peer(&self) -> (u16, [u8; 16]) {
        (self.lid, self.gid)
    }
}

/// Two ways are equal if they lead to the same peer: segments of one message and their
/// acknowledgements belong together, whatever their service level is.
impl PartialEq for Way {
    fn eq(&self, other: &Self) -> bool {
        self.peer() == other.peer()
    }
}

impl Eq for Way {}

impl PartialOrd for Way {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Way {
    fn cmp(&self, other: &Self) -> Ordering {
        self.peer().cmp(&other.peer())
    }
}
