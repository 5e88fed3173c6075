//! Multicast groups: which MGID an IP group has in a partition. RFC 4391 4. Not who is a member.
//! Principal type: [`Partition`].

use std::net::IpAddr;

use wire::cm::Gid;

/// The signatures of groups of IPv4 and IPv6.
const IPV4: u16 = 0x401b;
const IPV6: u16 = 0x601b;
/// The bit of a full member's P_Key, which all groups carry.
const FULL: u16 = 0x8000;

/// The partition and the scope of an interface: together they name an IPoIB link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The P_Key.
    pub pkey: u16,
    /// How far the groups reach: 2 is this subnet.
    pub scope: u8,
}

impl Partition {
    /// The MGID of the broadcast group.
    #[must_use]
    pub fn broadcast(self) -> Gid {
        self.mgid(IPV4, &[0xff; 4])
    }

    /// The MGID of an IP group: the low 28 bits of IPv4, the low 80 bits of IPv6.
    #[must_use]
    pub fn group(self, group: IpAddr) -> Gid {
        match group {
            IpAddr::V4(group) => {
                let [a, b, c, d] = group.octets();
                self.mgid(IPV4, &[a & 0x0f, b, c, d])
            }
            IpAddr::V6(group) => self.mgid(IPV6, &group.octets()[6..]),
        }
    }

    fn mgid(self, signature: u16, group: &[u8]) -> Gid {
        let mut mgid = [0; 16];
        mgid[..2].copy_from_slice(&[0xff, 0x10 | self.scope & 0x0f]);
        mgid[2..4].copy_from_slice(&signature.to_be_bytes());
        mgid[4..6].copy_from_slice(&(self.pkey | FULL).to_be_bytes());
        mgid[16 - group.len()..].copy_from_slice(group);
        mgid
    }
}

#[cfg(test)]
mod tests {
    use super::Partition;
    use std::net::Ipv6Addr;

    #[test]
    fn groups_carry_signature_partition_and_the_low_bits() {
        let partition = Partition { pkey: 0x0001, scope: 2 };
        let shown = |gid| Ipv6Addr::from(gid).to_string();
        assert_eq!(shown(partition.broadcast()), "ff12:401b:8001::ffff:ffff");
        assert_eq!(shown(partition.group([239, 1, 2, 3].into())), "ff12:401b:8001::f01:203");
        let group: Ipv6Addr = "ff05:1:2:3:4:5:6:7".parse().expect("a group");
        assert_eq!(shown(partition.group(group.into())), "ff12:601b:8001:3:4:5:6:7");
        let all: Ipv6Addr = "ff02::1".parse().expect("a group");
        assert_eq!(shown(Partition { pkey: 0xffff, scope: 5 }.group(all.into())), "ff15:601b:ffff::1");
    }
}
