//! One path as a REQ describes it, from the view of its sender: *local* is the sender. Not a route.
//! IBA 12.6.5 (REQ, from byte 52 and from byte 96). Principal type: [`PathInfo`].

use crate::number::{be16, be32, put16, put32};

/// A global identifier. For a RoCE port, it is an IPv6 address, or an IPv4 address mapped into one.
pub type Gid = [u8; 16];

/// A path of a REQ, from the view of the REQ's sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathInfo {
    /// The sender's LID. RoCE has no LIDs, so there it is all ones.
    pub local_lid: u16,
    /// The receiver's LID.
    pub remote_lid: u16,
    /// The sender's port.
    pub local_gid: Gid,
    /// The receiver's port.
    pub remote_gid: Gid,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// The static rate, a code of 6 bits; 0 is the port's own rate.
    pub rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Both ports are in one subnet.
    pub subnet_local: bool,
    /// How long the sender's queue pair waits for an acknowledgement: a code of 5 bits.
    pub ack_timeout: u8,
}

impl PathInfo {
    /// Bytes in a REQ.
    pub(super) const LEN: usize = 44;

    /// Parses the path that begins at `at`.
    pub(super) fn parse(mad: &[u8], at: usize) -> PathInfo {
        PathInfo {
            local_lid: be16(mad, at),
            remote_lid: be16(mad, at + 2),
            local_gid: gid(mad, at + 4),
            remote_gid: gid(mad, at + 20),
            flow_label: be32(mad, at + 36) >> 12,
            rate: mad[at + 39] & 0x3f,
            traffic_class: mad[at + 40],
            hop_limit: mad[at + 41],
            sl: mad[at + 42] >> 4,
            subnet_local: mad[at + 42] & 8 != 0,
            ack_timeout: mad[at + 43] >> 3,
        }
    }

    /// Encodes the path at `at`. The caller writes the low three bits of the last byte.
    pub(super) fn emit(&self, mad: &mut [u8], at: usize) {
        put16(mad, at, self.local_lid);
        put16(mad, at + 2, self.remote_lid);
        mad[at + 4..at + 20].copy_from_slice(&self.local_gid);
        mad[at + 20..at + 36].copy_from_slice(&self.remote_gid);
        put32(mad, at + 36, self.flow_label << 12 | u32::from(self.rate & 0x3f));
        mad[at + 40] = self.traffic_class;
        mad[at + 41] = self.hop_limit;
        mad[at + 42] = self.sl << 4 | u8::from(self.subnet_local) << 3;
        mad[at + 43] = self.ack_timeout << 3;
    }

    /// Whether the path is all zeroes: there is no alternate path.
    pub(super) fn is_absent(&self) -> bool {
        self.local_gid == [0; 16] && self.local_lid == 0
    }
}

/// The GID at `at`.
pub(super) fn gid(mad: &[u8], at: usize) -> Gid {
    let mut gid = [0; 16];
    gid.copy_from_slice(&mad[at..at + 16]);
    gid
}
