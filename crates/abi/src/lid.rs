//! LIDs: which LIDs name ports, and which address each LID stands for when no subnet manager
//! assigns LIDs.
//!
//! These values are not sent between processes: the agent and the engines compute the same LIDs
//! from the board. A port's [`Subnet`] is the subnet of one of its IPv4 addresses, and a LID is the
//! host part of an address in it (docs/decisions/0019-lids-without-a-fabric.md). IBA 4.1.3.

/// The highest LID that names a port; 0 is no port.
pub const UNICAST_MAX: u16 = 0xbfff;
/// The first LID that names a group.
pub const MULTICAST_MIN: u16 = 0xc000;
/// The hop limit that marks, between hosts, a packet that has no GRH. Such a packet never leaves
/// its subnet, and other hop limits are more common.
pub const NO_GRH: u8 = 254;
/// The first twelve bytes of a GID that stands for an IPv4 address.
const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

/// Whether a LID can name a port.
#[must_use]
pub const fn is_unicast(lid: u16) -> bool {
    lid != 0 && lid <= UNICAST_MAX
}

/// The LID by which a group of this MGID is known: never the permissive one, 0xffff.
#[must_use]
pub fn of_group(mgid: &[u8; 16]) -> u16 {
    let low = u16::from_be_bytes([mgid[14], mgid[15]]) & 0x3fff;
    MULTICAST_MIN | low.min(0x3ffe)
}

/// The addresses that LIDs stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    network: u32,
    hosts: u32,
}

impl Subnet {
    /// The subnet of an IPv4 address in GID form; `hosts` has a bit for every bit of the host part.
    /// `None`: the GID is not an IPv4 address.
    #[must_use]
    pub fn around(gid: &[u8; 16], hosts: u32) -> Option<Self> {
        Some(Self { network: address(gid)? & !hosts, hosts })
    }

    /// The LID of an address. `None`: the address is in another subnet, or its host part is 0, all
    /// ones, or larger than a LID.
    #[must_use]
    pub fn lid(&self, gid: &[u8; 16]) -> Option<u16> {
        let address = address(gid).filter(|address| address & !self.hosts == self.network)?;
        let lid = u16::try_from(address & self.hosts).ok()?;
        (is_unicast(lid) && u32::from(lid) != self.hosts).then_some(lid)
    }

    /// The address of a LID, in GID form. `None`: no address has this LID.
    #[must_use]
    pub fn gid(&self, lid: u16) -> Option<[u8; 16]> {
        if !is_unicast(lid) || u32::from(lid) >= self.hosts {
            return None;
        }
        let mut gid = [0; 16];
        gid[..12].copy_from_slice(&MAPPED);
        gid[12..].copy_from_slice(&(self.network | u32::from(lid)).to_be_bytes());
        Some(gid)
    }
}

/// The IPv4 address that a GID stands for.
fn address(gid: &[u8; 16]) -> Option<u32> {
    let (prefix, address) = gid.split_last_chunk::<4>()?;
    (prefix == MAPPED).then(|| u32::from_be_bytes(*address))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(address: [u8; 4]) -> [u8; 16] {
        let mut gid = [0; 16];
        gid[10..12].fill(0xff);
        gid[12..].copy_from_slice(&address);
        gid
    }

    #[test]
    fn a_lid_is_the_host_part_of_an_address() {
        let subnet = Subnet::around(&gid([10, 1, 2, 3]), 0xff).expect("an IPv4 address");
        for (last, lid) in [(3, Some(3)), (0, None), (1, Some(1)), (254, Some(254)), (255, None)] {
            assert_eq!(subnet.lid(&gid([10, 1, 2, last])), lid, "{last}");
        }
        assert_eq!(subnet.lid(&gid([10, 1, 3, 3])), None, "another subnet");
        assert_eq!(subnet.gid(7), Some(gid([10, 1, 2, 7])));
        for lid in [0, 255, 256, 0xc000, 0xffff] {
            assert_eq!(subnet.gid(lid), None, "{lid}");
        }
    }

    #[test]
    fn of_a_large_subnet_only_the_first_hosts_have_one() {
        let subnet = Subnet::around(&gid([127, 0, 0, 1]), 0xff_ffff).expect("an IPv4 address");
        assert_eq!(subnet.lid(&gid([127, 0, 0xbf, 0xff])), Some(UNICAST_MAX));
        assert_eq!(subnet.lid(&gid([127, 0, 0xc0, 0])), None);
        assert_eq!(subnet.lid(&gid([127, 1, 0, 1])), None);
        assert_eq!(subnet.gid(0xbfff), Some(gid([127, 0, 0xbf, 0xff])));
    }

    #[test]
    fn an_ipv6_address_has_no_lid_subnet() {
        let mut other = gid([10, 0, 0, 1]);
        other[0] = 0xfe;
        assert_eq!(Subnet::around(&other, 0xff), None);
        let alone = Subnet::around(&gid([10, 0, 0, 1]), 0).expect("an IPv4 address");
        assert_eq!((alone.lid(&gid([10, 0, 0, 1])), alone.gid(1)), (None, None), "a subnet of one has no host part");
    }

    #[test]
    fn groups_have_lids_of_their_own() {
        assert_eq!(of_group(&[0xff; 16]), 0xfffe);
        let mut group = [0; 16];
        group[0] = 0xff;
        assert_eq!(of_group(&group), 0xc000);
        group[15] = 5;
        assert_eq!(of_group(&group), 0xc005);
    }
}
