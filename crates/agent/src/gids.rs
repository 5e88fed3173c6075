//! One port's GID table: pure bookkeeping, no network interface is asked here.
//!
//! Index 0 is always fe80::/64 with the port GUID and works between clients of one agent, network or not. After it
//! comes one RoCEv2 entry per address of the host, IPv4 in its `::ffff:a.b.c.d` form. An address that stays keeps its
//! index through every change; a freed index goes to the next newcomer. Where addresses come from is
//! [`crate::addresses`]. The principal type is [`GidTable`].

use std::net::{IpAddr, Ipv6Addr};

use crate::config::Guid;

/// How many entries a port's table has; the board has room for as many.
pub const GID_TABLE_LEN: usize = 64;
/// The type of every entry here, in the numbering of `enum ibv_gid_type` on the board: RoCE version 2.
pub const ROCE_V2: u32 = 2;

/// An address of the host and the interface that carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// Its interface's index.
    pub ifindex: u32,
}

/// One valid entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// In network order.
    pub gid: [u8; 16],
    /// The interface, 0 when it belongs to none.
    pub ifindex: u32,
}

/// The GIDs of one port, by index.
#[derive(Debug, Clone)]
pub struct GidTable {
    entries: [Option<GidEntry>; GID_TABLE_LEN],
}

impl GidTable {
    /// A table with index 0 alone.
    pub fn new(port: Guid) -> Self {
        let mut gid = [0; 16];
        gid[0] = 0xfe;
        gid[1] = 0x80;
        gid[8..].copy_from_slice(&port.0.to_be_bytes());
        let mut entries = [None; GID_TABLE_LEN];
        entries[0] = Some(GidEntry { gid, ifindex: 0 });
        Self { entries }
    }

    /// Makes the table say what the host has now. True when something changed.
    pub fn follow(&mut self, host: &[HostAddress], loopback: u32) -> bool {
        let mut changed = false;
        if let Some(first) = &mut self.entries[0] {
            changed |= first.ifindex != loopback;
            first.ifindex = loopback;
        }
        let mut wanted: Vec<GidEntry> = Vec::new();
        for address in host {
            let entry = GidEntry { gid: gid_of(address.ip), ifindex: address.ifindex };
            if !wanted.contains(&entry) {
                wanted.push(entry);
            }
        }
        for slot in &mut self.entries[1..] {
            match slot {
                Some(entry) if !wanted.contains(entry) => {
                    *slot = None;
                    changed = true;
                }
                Some(entry) => {
                    let kept = *entry;
                    wanted.retain(|other| *other != kept);
                }
                None => {}
            }
        }
        for newcomer in wanted {
            let Some(slot) = self.entries[1..].iter_mut().find(|slot| slot.is_none()) else {
                tracing::warn!(gid = %Ipv6Addr::from(newcomer.gid), "the GID table is full, this address gets no entry");
                break;
            };
            *slot = Some(newcomer);
            changed = true;
        }
        changed
    }

    /// The entry at `index`; nothing when the index is out of range or empty.
    pub fn entry(&self, index: u32) -> Option<GidEntry> {
        self.entries.get(usize::try_from(index).ok()?).copied().flatten()
    }

    /// Every valid entry with its index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, GidEntry)> + '_ {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?)))
    }
}

/// An address as a GID.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, ifindex: u32) -> HostAddress {
        HostAddress { ip: text.parse().expect(text), ifindex }
    }

    #[test]
    fn index_zero_is_the_port_guid_and_always_there() {
        let mut table = GidTable::new(Guid(0x0200_c0ff_ee00_0001));
        assert!(table.follow(&[], 1));
        assert!(!table.follow(&[], 1));
        let first = table.entry(0).expect("always valid");
        assert_eq!(Ipv6Addr::from(first.gid).to_string(), "fe80::200:c0ff:ee00:1");
        assert_eq!(table.iter().count(), 1);
        assert_eq!(table.entry(64), None);
    }

    #[test]
    fn addresses_that_stay_keep_their_index() {
        let mut table = GidTable::new(Guid(1));
        let (a, b, c, d) = (address("127.0.0.1", 1), address("::1", 1), address("10.0.0.2", 2), address("10.0.0.3", 2));
        assert!(table.follow(&[a, b, c], 1));
        assert!(table.follow(&[b, c, d], 1), "one went, one came");
        let gid = |index| Ipv6Addr::from(table.entry(index).expect("valid").gid).to_string();
        assert_eq!([gid(1), gid(2), gid(3)], ["::ffff:10.0.0.3", "::1", "::ffff:10.0.0.2"]);
        assert!(!table.clone().follow(&[d, c, b, b], 1), "order and repetition do not matter");
    }

    #[test]
    fn a_full_table_keeps_what_it_has() {
        let mut table = GidTable::new(Guid(1));
        let many: Vec<_> = (0..100).map(|n| address(&format!("10.0.0.{n}"), 1)).collect();
        assert!(table.follow(&many, 1));
        assert_eq!(table.iter().count(), GID_TABLE_LEN);
    }
}
