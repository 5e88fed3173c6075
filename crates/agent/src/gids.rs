//! The GID table of one port. This file makes no system calls.
//!
//! Index 0 is always valid and never changes by itself, so it works between clients of one agent
//! even without a network. On an Ethernet port it is the link-local IPv6 address that the port's
//! interface has when the port appears, as on other RoCE adapters; see [`GidTable::adopt`].
//! Otherwise, it is the port's subnet prefix with the port GUID; the default prefix is fe80::/64.
//! One RoCEv2 entry per other address follows, with IPv4 in its `::ffff:a.b.c.d` form: IPv4 before
//! IPv6, link-local addresses last. An address that stays keeps its index through every change. A
//! freed index goes to the next new address. Alias GUIDs of a subnet manager are GIDs at their own
//! indices, without an interface. Loopback addresses are used only if the host has no other, or if
//! they are configured. [`crate::addresses`] reads the host's addresses. The principal type is
//! [`GidTable`].

use std::net::{IpAddr, Ipv6Addr};

use crate::config::Guid;

/// How many entries a port's table has; the board has room for as many.
pub const GID_TABLE_LEN: usize = subnet::managed::ADAPTER_GUIDS as usize;
/// The subnet prefix of ports without another one (IBA 4.1.1).
pub const LINK_LOCAL: Guid = Guid(0xfe80 << 48);
/// Bytes of a RoCEv2 packet besides its payload: IPv6, UDP, BTH, the longest extended headers and
/// the ICRC.
const OVERHEAD: u32 = 80;

/// An address of the host and its interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostAddress {
    /// The address.
    pub ip: IpAddr,
    /// Its interface's index.
    pub ifindex: u32,
    /// Its interface's MTU in bytes.
    pub mtu: u32,
    /// The prefix length of its subnet.
    pub prefix: u8,
}

impl HostAddress {
    /// Whether it reaches only this host.
    pub fn is_loopback(&self) -> bool {
        self.ip.is_loopback()
    }

    /// Whether it is valid on its link only.
    fn is_link_local(&self) -> bool {
        match self.ip {
            IpAddr::V4(v4) => v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        }
    }

    /// Its order in a new table: the addresses that most programs want come first.
    fn rank(&self) -> (bool, bool, bool) {
        (self.is_link_local(), self.is_loopback(), self.ip.is_ipv6())
    }
}

/// One valid entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// In network order.
    pub gid: [u8; 16],
    /// The interface, or 0 if it has none.
    pub ifindex: u32,
    /// The code of the largest IB MTU that fits into the interface's packets, or 0 if none fits.
    pub mtu: u8,
    /// The prefix length of the address's subnet.
    pub prefix: u8,
    /// The host has this address now. Other entries are made of a GUID.
    pub is_address: bool,
}

impl GidEntry {
    /// A GID that is not an address of the host.
    const fn without_address(gid: [u8; 16], ifindex: u32) -> Self {
        Self { gid, ifindex, mtu: 0, prefix: 0, is_address: false }
    }

    /// The GID as an address. An entry of a GUID looks like one, too.
    pub fn ip(&self) -> IpAddr {
        ip_of(&self.gid)
    }

    /// Whether it is an address that leads out of this host.
    pub(crate) fn leads_out(&self) -> bool {
        self.is_address && !self.ip().is_loopback()
    }

    fn is_of(&self, address: &HostAddress) -> bool {
        self.gid == gid_of(address.ip) && self.ifindex == address.ifindex
    }
}

impl From<&HostAddress> for GidEntry {
    fn from(address: &HostAddress) -> Self {
        let HostAddress { ip, ifindex, mtu, prefix } = *address;
        Self { gid: gid_of(ip), ifindex, mtu: largest_ib_mtu(mtu), prefix, is_address: true }
    }
}

/// The GIDs of one port, by index.
#[derive(Debug, Clone)]
pub struct GidTable {
    entries: [Option<GidEntry>; GID_TABLE_LEN],
    /// The interface whose link-local address is index 0.
    adopted_from: Option<u32>,
    /// Index 0 is still to be chosen.
    is_undecided: bool,
    /// Index 0 was chosen, and nobody has seen it.
    is_new: bool,
}

impl GidTable {
    /// A table with only index 0: the subnet prefix and the GUID of the port.
    pub fn new(prefix: Guid, port: Guid) -> Self {
        let mut entries = [None; GID_TABLE_LEN];
        entries[0] = Some(GidEntry::without_address(first_gid(prefix, port), 0));
        Self { entries, adopted_from: None, is_undecided: false, is_new: false }
    }

    /// The same table, whose index 0 is still to be chosen.
    pub(crate) fn undecided(self) -> Self {
        Self { is_undecided: true, ..self }
    }

    /// Whether index 0 was still to be chosen; it is not any more.
    pub(crate) fn decide(&mut self) -> bool {
        std::mem::take(&mut self.is_undecided)
    }

    /// Makes a link-local address index 0. It stays there even if the host loses it; then it works
    /// between clients of one agent. The host may get it later: an address is not usable before
    /// duplicate address detection ends. [`GidTable::follow`] notices both.
    pub fn adopt(&mut self, address: &HostAddress) {
        self.entries[0] = Some(GidEntry::without_address(gid_of(address.ip), 0));
        self.adopted_from = Some(address.ifindex);
        self.is_new = true;
    }

    /// Empties the table.
    pub(crate) fn clear(&mut self) {
        self.entries.fill(None);
    }

    /// Makes index 0 of a subnet prefix and the port GUID, and returns whether it has changed. An
    /// address of the host that was there gets another index.
    pub fn set_prefix(&mut self, prefix: Guid, port: Guid) -> bool {
        let gid = first_gid(prefix, port);
        self.adopted_from = None;
        let [Some(first), others @ ..] = &mut self.entries else { return false };
        if let Some(free) = others.iter_mut().find(|slot| slot.is_none()).filter(|_| first.is_address) {
            *free = Some(*first);
        }
        let before = std::mem::replace(first, GidEntry::without_address(gid, first.ifindex));
        before.gid != gid
    }

    /// Sets the alias GUIDs, from index 1 on; 0 is an empty entry.
    pub(crate) fn set_aliases(&mut self, prefix: Guid, guids: &[Guid]) {
        let guids = guids.iter().copied().chain(std::iter::repeat(Guid(0)));
        for (slot, guid) in self.entries[1..].iter_mut().zip(guids) {
            if guid.0 != 0 {
                *slot = Some(GidEntry::without_address(first_gid(prefix, guid), 0));
            } else if slot.is_some_and(|entry| !entry.is_address) {
                *slot = None;
            }
        }
    }

    /// Updates the table from the host's addresses. New addresses are added in their order;
    /// loopback addresses only if `loopbacks`. `loopback` is the index of the loopback interface.
    /// Returns true if something changed.
    pub fn follow(&mut self, host: &[HostAddress], loopbacks: bool, loopback: u32) -> bool {
        let before = self.entries;
        if let Some(first) = &mut self.entries[0] {
            let is_first =
                |address: &&HostAddress| self.adopted_from == Some(address.ifindex) && gid_of(address.ip) == first.gid;
            let none = GidEntry::without_address(first.gid, loopback);
            *first = host.iter().find(is_first).map_or(none, GidEntry::from);
        }
        for slot in &mut self.entries[1..] {
            if let Some(entry) = slot.filter(|entry| entry.is_address) {
                *slot = host.iter().find(|address| entry.is_of(address)).map(GidEntry::from);
            }
        }
        for newcomer in host.iter().filter(|address| loopbacks || !address.is_loopback()) {
            if self.entries.iter().flatten().any(|entry| entry.is_address && entry.is_of(newcomer)) {
                continue;
            }
            let Some(slot) = self.entries[1..].iter_mut().find(|slot| slot.is_none()) else {
                tracing::warn!(address = %newcomer.ip, "the GID table is full, this address gets no entry");
                break;
            };
            *slot = Some(newcomer.into());
        }
        std::mem::take(&mut self.is_new) || self.entries != before
    }

    /// The smallest MTU code of the entries that lead to other hosts, if there is one.
    pub fn smallest_mtu(&self) -> Option<u8> {
        let outward = self.entries.iter().flatten().filter(|entry| entry.leads_out());
        outward.map(|entry| entry.mtu).filter(|mtu| *mtu != 0).min()
    }

    /// The entry at `index`; `None` if the index is out of range or empty.
    pub fn entry(&self, index: u32) -> Option<GidEntry> {
        self.entries.get(usize::try_from(index).ok()?).copied().flatten()
    }

    /// Every valid entry with its index.
    pub fn iter(&self) -> impl Iterator<Item = (usize, GidEntry)> + '_ {
        self.entries.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?)))
    }
}

/// The addresses in the order in which they become GIDs, and whether loopback addresses may be
/// among them. They may if no other address leads out of this host.
pub fn by_rank(host: &[HostAddress]) -> (Vec<HostAddress>, bool) {
    let mut ordered = host.to_vec();
    ordered.sort_by_key(HostAddress::rank);
    let outward = host.iter().any(|address| !address.is_loopback() && !address.is_link_local());
    (ordered, !outward)
}

/// The first link-local IPv6 address of the interface that leads out of this host, unless it is one
/// of the GIDs `taken`.
pub(crate) fn first_link_local(host: &[HostAddress], taken: &[[u8; 16]]) -> Option<HostAddress> {
    let outward: Vec<HostAddress> = by_rank(host).0.into_iter().filter(|address| !address.is_loopback()).collect();
    let is_wanted = |address: &&HostAddress| {
        address.ifindex == outward[0].ifindex && address.ip.is_ipv6() && address.is_link_local()
    };
    outward.iter().find(is_wanted).copied().filter(|address| !taken.contains(&gid_of(address.ip)))
}

/// The code of the largest IB MTU whose packets fit into an interface's packets: 1024 bytes for
/// 1500, 4096 for 9000.
pub fn largest_ib_mtu(netdev: u32) -> u8 {
    (1..=5).rev().find(|code| (128 << code) + OVERHEAD <= netdev).unwrap_or(0)
}

/// An address as a GID.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A GID as an address.
pub(crate) fn ip_of(gid: &[u8; 16]) -> IpAddr {
    Ipv6Addr::from(*gid).to_canonical()
}

/// The GID at index 0 of a port.
fn first_gid(prefix: Guid, port: Guid) -> [u8; 16] {
    ((u128::from(prefix.0) << 64) | u128::from(port.0)).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, ifindex: u32) -> HostAddress {
        HostAddress { ip: text.parse().expect(text), ifindex, mtu: 1500, prefix: 24 }
    }

    fn shown(table: &GidTable) -> Vec<String> {
        table.iter().skip(1).map(|(_, entry)| entry.ip().to_string()).collect()
    }

    #[test]
    fn index_zero_is_the_port_guid_and_always_there() {
        let mut table = GidTable::new(LINK_LOCAL, Guid(0x0200_c0ff_ee00_0001));
        assert!(table.follow(&[], true, 1));
        assert!(!table.follow(&[], true, 1));
        let first = table.entry(0).expect("always valid");
        assert_eq!(Ipv6Addr::from(first.gid).to_string(), "fe80::200:c0ff:ee00:1");
        assert_eq!(table.iter().count(), 1);
        assert_eq!(table.entry(64), None);
    }

    #[test]
    fn an_adopted_address_stays_at_index_zero_and_is_on_the_network_while_the_host_has_it() {
        let mut table = GidTable::new(LINK_LOCAL, Guid(7));
        let (own, global) = (address("fe80::1", 2), address("10.0.0.1", 2));
        table.adopt(&own);
        let first = |table: &GidTable| table.entry(0).map(|entry| (entry.ip(), entry.is_address, entry.ifindex));
        assert_eq!(first(&table), Some((own.ip, false, 0)));
        assert!(table.follow(&[global], false, 1), "its duplicate address detection runs");
        assert_eq!((first(&table), shown(&table)), (Some((own.ip, false, 1)), vec!["10.0.0.1".to_owned()]));
        assert!(table.follow(&[global, own, address("fe80::1", 3)], false, 1));
        assert_eq!(first(&table), Some((own.ip, true, 2)));
        assert_eq!(shown(&table), ["10.0.0.1", "fe80::1"], "only that of another interface has an index of its own");
        assert!(!table.follow(&[global, own, address("fe80::1", 3)], false, 1));
        assert_eq!(table.smallest_mtu(), Some(3));
        assert!(table.follow(&[global], false, 1));
        assert_eq!(first(&table), Some((own.ip, false, 1)));
    }

    #[test]
    fn a_prefix_moves_the_adopted_address_to_another_index() {
        let mut table = GidTable::new(LINK_LOCAL, Guid(7));
        let own = address("fe80::1", 2);
        table.adopt(&own);
        table.follow(&[own], false, 1);
        assert!(table.set_prefix(Guid(0xfec0 << 48), Guid(7)));
        assert_eq!(
            (table.entry(0).map(|entry| entry.is_address), shown(&table)),
            (Some(false), vec!["fe80::1".into()])
        );
        table.follow(&[own], false, 1);
        assert_eq!(shown(&table), ["fe80::1"]);
    }

    #[test]
    fn addresses_that_stay_keep_their_index() {
        let mut table = GidTable::new(LINK_LOCAL, Guid(1));
        let (a, b, c, d) =
            (address("10.0.0.1", 1), address("fd00::1", 1), address("10.0.0.2", 2), address("10.0.0.3", 2));
        assert!(table.follow(&[a, b, c], true, 1));
        assert!(table.follow(&[b, c, d], true, 1), "one went, one came");
        assert_eq!(shown(&table), ["10.0.0.3", "fd00::1", "10.0.0.2"]);
        assert!(!table.clone().follow(&[d, c, b, b], true, 1), "order and repetition do not matter");
    }

    #[test]
    fn global_addresses_precede_local_ones_in_the_gid_table() {
        let host = ["fe80::7", "127.0.0.1", "::1", "fd00::2", "192.0.2.2"].map(|text| address(text, 1));
        let (ordered, loopbacks) = by_rank(&host);
        let mut table = GidTable::new(LINK_LOCAL, Guid(1));
        table.follow(&ordered, loopbacks, 1);
        assert_eq!(shown(&table), ["192.0.2.2", "fd00::2", "fe80::7"]);
    }

    #[test]
    fn loopback_comes_in_where_nothing_else_is_and_stays_when_something_comes() {
        let lonely = ["fe80::7", "::1", "127.0.0.1"].map(|text| address(text, 1));
        let (ordered, loopbacks) = by_rank(&lonely);
        let mut table = GidTable::new(LINK_LOCAL, Guid(1));
        table.follow(&ordered, loopbacks, 1);
        assert_eq!(shown(&table), ["127.0.0.1", "::1", "fe80::7"]);
        let connected = [lonely[0], lonely[1], lonely[2], address("10.0.0.1", 2)];
        let (ordered, loopbacks) = by_rank(&connected);
        assert!(table.follow(&ordered, loopbacks, 1));
        assert_eq!(shown(&table), ["127.0.0.1", "::1", "fe80::7", "10.0.0.1"]);
        let (ordered, loopbacks) = by_rank(&connected[1..]);
        assert!(table.follow(&ordered[1..], loopbacks, 1), "one that goes is gone for good");
        assert!(!table.follow(&ordered[1..], loopbacks, 1));
    }

    #[test]
    fn the_interface_that_leads_out_has_the_first_link_local_address() {
        let host = [address("fe80::3", 3), address("::1", 1), address("fe80::2", 2), address("10.0.0.1", 2)];
        let first = |host: &[HostAddress], taken: &[[u8; 16]]| {
            first_link_local(host, taken).map(|address| address.ip.to_string())
        };
        assert_eq!(first(&host, &[]).as_deref(), Some("fe80::2"));
        assert_eq!(first(&host[..3], &[]).as_deref(), Some("fe80::3"), "without another address");
        assert_eq!(first(&host, &[gid_of(host[2].ip)]), None, "another port has it");
        assert_eq!(first(&host[1..2], &[]), None, "loopback does not lead out");
        assert_eq!(first(&[address("169.254.0.1", 2)], &[]), None, "only IPv6 addresses look like a GID");
        assert_eq!(first(&[], &[]), None);
    }

    #[test]
    fn the_mtu_leaves_room_for_the_headers_and_is_followed() {
        for (netdev, code) in
            [(0, 0), (335, 0), (336, 1), (1400, 3), (1500, 3), (4175, 4), (4176, 5), (9000, 5), (65536, 5)]
        {
            assert_eq!(largest_ib_mtu(netdev), code, "{netdev}");
        }
        let mut table = GidTable::new(LINK_LOCAL, Guid(1));
        assert_eq!(table.smallest_mtu(), None);
        let lo = HostAddress { mtu: 65536, ..address("127.0.0.1", 1) };
        let mut eth = HostAddress { mtu: 9000, ..address("10.0.0.1", 2) };
        table.follow(&[lo, eth], true, 1);
        assert_eq!((table.entry(1).map(|entry| entry.mtu), table.smallest_mtu()), (Some(5), Some(5)));
        eth.mtu = 1500;
        assert!(table.follow(&[lo, eth], true, 1));
        assert_eq!((table.entry(2).map(|entry| entry.mtu), table.smallest_mtu()), (Some(3), Some(3)));
    }

    #[test]
    fn a_full_table_keeps_what_it_has() {
        let mut table = GidTable::new(LINK_LOCAL, Guid(1));
        let many: Vec<_> = (0..100).map(|n| address(&format!("10.0.0.{n}"), 1)).collect();
        assert!(table.follow(&many, true, 1));
        assert_eq!(table.iter().count(), GID_TABLE_LEN);
    }

    #[test]
    fn alias_guids_keep_their_indices_beside_addresses() {
        let mut table = GidTable::new(LINK_LOCAL, Guid(7));
        table.follow(&[address("10.0.0.1", 3)], true, 1);
        table.set_aliases(LINK_LOCAL, &[Guid(0), Guid(0), Guid(8)]);
        assert_eq!(table.entry(3).map(|entry| entry.gid[15]), Some(8));
        assert!(!table.follow(&[address("10.0.0.1", 3)], true, 1), "they are no addresses that went away");
        table.set_aliases(LINK_LOCAL, &[]);
        assert_eq!((table.entry(3), table.iter().count()), (None, 2));
    }
}
