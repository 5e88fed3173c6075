//! The connection manager of a topology: its messages go through the switches ([`crate::outward`]).
//! Adds to [`Manager`].

use std::collections::VecDeque;
use std::net::IpAddr;

use protocol::cm::{Mad, Path};

use super::Manager;
use super::locals::Attachment;
use crate::ids::PortId;
use crate::management::CaptureNote;
use crate::outward::{GrhFields, Outward, OutwardKind};

impl Manager {
    /// Takes the datagrams for the switches of a topology.
    pub(crate) fn take_outward(&mut self) -> VecDeque<Outward> {
        self.mail.fabric.take()
    }

    /// Whether there are some.
    pub(crate) fn has_outward(&self) -> bool {
        !self.mail.fabric.is_empty()
    }

    /// Sends a message through the switches. A path without LIDs, as that of an answer without a
    /// connection, leads to the port with its GID.
    pub(super) fn send_into_fabric(&mut self, at: &Attachment, path: &Path, mad: &Mad, told: &CaptureNote<'_>) {
        let known = || match self.locals.with_gid(&path.dgid) {
            Some(to) => to.lid,
            None => self.locals.elsewhere.lid(&path.dgid).unwrap_or(0),
        };
        let Path { dgid, hop_limit, traffic_class, flow_label, .. } = *path;
        let is_beyond = at.gid[..8] != dgid[..8];
        let route = (is_beyond && hop_limit > 1).then_some(GrhFields { dgid, hop_limit, traffic_class, flow_label });
        // Behind a router, the LID of the port means nothing.
        let lid = if path.dlid == 0 && !is_beyond { known() } else { path.dlid };
        let outward = Outward {
            from: PortId { device: at.device, port: at.port },
            path_bits: if path.slid == 0 { 0 } else { (path.slid.wrapping_sub(at.lid) & 0x7f) as u8 },
            lid,
            sl: path.sl,
            pkey: path.pkey,
            route,
            mad: *mad,
            kind: OutwardKind::Message(told.owner),
        };
        if lid == 0 || !self.mail.fabric.push(outward) {
            self.counts.not_sent += 1;
            return;
        }
        // Captures see it at its port.
        self.counts.sent += 1;
    }
}

/// The MGID of an IP multicast address in a partition, as IPoIB has it (RFC 4391). `by_programs`:
/// the group of Linux's connection manager, which no network interface has. An IPv6 address that
/// is such an MGID is one.
pub(super) fn mgid(group: IpAddr, pkey: u16, by_programs: bool) -> [u8; 16] {
    /// The second byte of the signature.
    const OF_INTERFACES: u8 = 0x1b;
    const OF_PROGRAMS: u8 = 0x01;
    /// A transient group of the link-local scope.
    const FLAGS: u8 = 0x12;
    let [high, low] = (pkey | 0x8000).to_be_bytes();
    let mut mgid = [0; 16];
    let second = if by_programs { OF_PROGRAMS } else { OF_INTERFACES };
    match group {
        IpAddr::V4(group) => {
            mgid[..6].copy_from_slice(&[0xff, FLAGS, 0x40, second, high, low]);
            mgid[12..].copy_from_slice(&group.octets());
            mgid[12] &= 0x0f;
        }
        IpAddr::V6(group) => {
            let octets = group.octets();
            if matches!(octets, [0xff, flags, 0xa0, 0x1b, ..] if flags & 0xf0 == 0x10) {
                return octets;
            }
            mgid.copy_from_slice(&octets);
            mgid[..6].copy_from_slice(&[0xff, FLAGS, 0x60, second, high, low]);
        }
    }
    mgid
}

#[cfg(test)]
mod tests {
    use super::mgid;
    use std::net::Ipv6Addr;

    #[test]
    fn groups_have_the_mgids_of_linux() {
        let of = |text: &str, pkey, by_programs| {
            Ipv6Addr::from(mgid(text.parse().expect(text), pkey, by_programs)).to_string()
        };
        assert_eq!(of("239.1.2.3", 0xffff, true), "ff12:4001:ffff::f01:203");
        assert_eq!(of("239.1.2.3", 0x8001, false), "ff12:401b:8001::f01:203");
        assert_eq!(of("ff02::1:5", 0x7fff, true), "ff12:6001:ffff::1:5");
        assert_eq!(of("ff12:a01b:fe80::9", 0xffff, true), "ff12:a01b:fe80::9");
    }
}
