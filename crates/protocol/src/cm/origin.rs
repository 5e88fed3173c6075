//! Where datagrams come from and go to; not how they are sent. Principal types: [`Path`],
//! [`Origin`].

use wire::cm::{Gid, PathInfo};

/// What stands in a message instead of a LID on RoCE.
const NO_LID: u16 = 0xffff;

/// A path between two ports, as seen from this side: from `sgid` to `dgid`. IBA 15.2.5.16 (path
/// record).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// Our port.
    pub sgid: Gid,
    /// The other port.
    pub dgid: Gid,
    /// The LID of our port; 0 on Ethernet.
    pub slid: u16,
    /// The LID of the other port; 0 on Ethernet.
    pub dlid: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// The partition.
    pub pkey: u16,
    /// The path MTU's code: 1 for 256 bytes to 5 for 4096.
    pub mtu: u8,
    /// The static rate's code; 0 is the port's own rate.
    pub rate: u8,
    /// The packet life time: a code of 5 bits.
    pub packet_life: u8,
}

impl Path {
    /// Whether the path has LIDs and needs no router, so that packets need no GRH.
    #[must_use]
    pub fn is_subnet_local(&self) -> bool {
        self.dlid != 0 && self.hop_limit <= 1
    }

    /// The path as our REQ or LAP describes it. LIDs are all ones on RoCE, which has none, and if
    /// routers are on the path: our LIDs mean nothing in the peer's subnet.
    #[must_use]
    pub fn info(&self, ack_timeout: u8) -> PathInfo {
        let lid = |lid: u16| if self.is_subnet_local() { lid } else { NO_LID };
        PathInfo {
            local_lid: lid(self.slid),
            remote_lid: lid(self.dlid),
            local_gid: self.sgid,
            remote_gid: self.dgid,
            flow_label: self.flow_label,
            rate: self.rate,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            subnet_local: self.is_subnet_local(),
            ack_timeout,
        }
    }

    /// The origin that the receiver sees for datagrams on this path.
    #[must_use]
    pub fn origin(&self) -> Origin {
        Origin {
            source: self.sgid,
            destination: self.dgid,
            pkey: self.pkey,
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            sl: self.sl,
            router: 0,
        }
    }

    /// The reverse of a path that the peer's REQ or LAP describes. The packet life time is half of
    /// the peer's acknowledgement timeout.
    #[must_use]
    pub fn back(info: &PathInfo, pkey: u16, mtu: u8) -> Path {
        let lid = |lid: u16| if lid == NO_LID { 0 } else { lid };
        Path {
            sgid: info.remote_gid,
            dgid: info.local_gid,
            slid: lid(info.remote_lid),
            dlid: lid(info.local_lid),
            flow_label: info.flow_label,
            traffic_class: info.traffic_class,
            hop_limit: info.hop_limit,
            sl: info.sl,
            pkey,
            mtu,
            rate: info.rate,
            packet_life: info.ack_timeout.saturating_sub(1),
        }
    }
}

/// Where a datagram came from, as its network header claims.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The sender's port.
    pub source: Gid,
    /// The port that received the datagram: one of ours.
    pub destination: Gid,
    /// The partition.
    pub pkey: u16,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Traffic class.
    pub traffic_class: u8,
    /// The remaining hops.
    pub hop_limit: u8,
    /// Service level.
    pub sl: u8,
    /// The LID of the router that has sent the datagram on in our subnet; 0 if none has.
    pub router: u16,
}

impl Origin {
    /// The path in a REQ as it is in our subnet: if it has routers, the peer names no LIDs, and
    /// packets go back to the router that the REQ came from.
    pub(super) fn seen_here(&self, info: &PathInfo) -> PathInfo {
        if info.subnet_local || info.local_lid != NO_LID || self.router == 0 {
            return *info;
        }
        PathInfo { local_lid: self.router, sl: self.sl, ..*info }
    }

    /// The path back to the sender.
    #[must_use]
    pub fn back(&self) -> Path {
        Path {
            sgid: self.destination,
            dgid: self.source,
            dlid: self.router,
            flow_label: self.flow_label,
            traffic_class: self.traffic_class,
            hop_limit: 64,
            sl: self.sl,
            pkey: self.pkey,
            ..Path::default()
        }
    }
}
