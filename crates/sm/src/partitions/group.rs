//! The multicast groups of a partition: that of IPoIB broadcasts, and those that the file names.
//! They exist without members. Principal type: [`PartitionGroup`].

use super::Partition;
use wire::cm::Gid;
use wire::grh::{LINK_LOCAL_SCOPE, is_beyond_subnet};
use wire::pkey::FULL;
use wire::sa::McMemberRecord;

/// Codes of a group that names none: 2048 bytes, 10 Gb/s, 4.096 µs × 2^18.
const MTU: u8 = 4;
const RATE: u8 = 3;
const LIFE: u8 = 18;
/// The queue key of the groups of IPoIB.
const IPOIB_QKEY: u32 = 0x0b1b;
/// The hop limit of groups beyond the subnet.
const FAR: u8 = 255;
/// The selector of an exact value.
const EXACTLY: u8 = 2;

/// What the members of a group share. Nothing: the usual value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shared {
    /// The code of the MTU.
    pub mtu: Option<u8>,
    /// The code of the rate.
    pub rate: Option<u8>,
    /// The service level.
    pub sl: Option<u8>,
    /// A bit for each scope; there is a group for each.
    pub scopes: u16,
    /// The queue key.
    pub qkey: Option<u32>,
    /// The traffic class.
    pub traffic_class: u8,
    /// The flow label.
    pub flow_label: u32,
}

/// A multicast group that the file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionGroup {
    /// Its GID.
    pub mgid: Gid,
    /// What its members share.
    pub shared: Shared,
}

/// Whether a GID is one of IPoIB, by its signature. RFC 4391.
pub(super) fn is_of_ip(mgid: &Gid) -> bool {
    matches!(mgid[2..4], [0x40 | 0x60, 0x1b])
}

/// The broadcast GID of IPoIB in a partition.
fn broadcast(pkey: u16) -> Gid {
    let [high, low] = (pkey | FULL).to_be_bytes();
    [0xff, 0x12, 0x40, 0x1b, high, low, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]
}

impl Partition {
    /// The records of its groups, one for each scope.
    #[must_use]
    pub fn records(&self) -> Vec<McMemberRecord> {
        let broadcast = PartitionGroup { mgid: broadcast(self.pkey), shared: self.shared };
        let all = self.ipoib.then_some(broadcast).into_iter().chain(self.groups.iter().copied());
        all.flat_map(|group| {
            let scopes = if group.shared.scopes == 0 { 1 << LINK_LOCAL_SCOPE } else { group.shared.scopes };
            (1..16).filter(move |scope| scopes & 1 << scope != 0).map(move |scope| self.record(group, scope))
        })
        .collect()
    }

    fn record(&self, PartitionGroup { mut mgid, shared }: PartitionGroup, scope: u8) -> McMemberRecord {
        mgid[1] = mgid[1] & 0xf0 | scope;
        let qkey = shared.qkey.unwrap_or(if is_of_ip(&mgid) { IPOIB_QKEY } else { 0 });
        McMemberRecord {
            mgid,
            qkey,
            mtu_selector: EXACTLY,
            mtu: shared.mtu.unwrap_or(MTU),
            rate_selector: EXACTLY,
            rate: shared.rate.unwrap_or(RATE),
            life_selector: EXACTLY,
            life: LIFE,
            pkey: self.pkey | FULL,
            sl: shared.sl.unwrap_or(0),
            traffic_class: shared.traffic_class,
            flow_label: shared.flow_label,
            hop_limit: if is_beyond_subnet(scope) { FAR } else { 0 },
            scope,
            ..McMemberRecord::default()
        }
    }
}
