//! The tables of a router, and what it makes of a packet. A router joins subnets: it takes packets
//! with a GRH, finds the egress port by the destination GID, and writes a new LRH. The IBA does not
//! define these tables; they are softhca's. Not the moving of packets ([`crate::fabric`]).
//! Principal type: [`Router`].

use crate::counters::Cause;
use crate::port::LINK_LOCAL;
use crate::switch::Ports;
use std::collections::BTreeMap;
use wire::grh::{Grh, is_beyond_subnet, multicast_scope};

/// A route to a subnet, or to several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The GIDs that the route is for, by their first `len` bits.
    pub prefix: u128,
    /// How many bits of the prefix count.
    pub len: u8,
    /// The egress port.
    pub port: u8,
    /// The LID of the next router. `None`: the destination is in the subnet of the port.
    pub via: Option<u16>,
}

/// The packets of a multicast group. The ports of all routers that have it form a tree of subnets.
/// So no packet comes back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// The ports that packets may come in by. Others drop them.
    pub ingress: Ports,
    /// A copy for each egress port. None goes back to the port that the packet came in by.
    pub copies: Vec<Copy>,
}

/// The tables of a router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Router {
    /// Routes; the one with the longest matching prefix counts.
    pub routes: Vec<Route>,
    /// The LID of each port of a subnet, by egress port and port GUID.
    pub neighbours: BTreeMap<(u8, u64), u16>,
    /// What to do with the packets of each multicast GID.
    pub groups: BTreeMap<u128, Group>,
    /// The service level for each value of the upper half of the traffic class.
    pub sl_of_class: [u8; 16],
}

/// A copy that a router sends: the egress port, the DLID and the service level.
pub type Copy = (u8, u16, u8);

impl Router {
    /// Whether the GRH alone forbids to forward the packet.
    ///
    /// # Errors
    /// The hop limit is used up, or an address is link-local.
    pub fn admits(grh: &Grh) -> Result<(), Cause> {
        let is_local = |gid: &[u8; 16]| match multicast_scope(gid) {
            Some(scope) => !is_beyond_subnet(scope),
            None => gid[..8] == LINK_LOCAL.to_be_bytes(),
        };
        if is_local(&grh.sgid) || is_local(&grh.dgid) {
            Err(Cause::LinkLocal)
        } else if grh.hop_limit <= 1 {
            Err(Cause::HopLimit)
        } else {
            Ok(())
        }
    }

    /// Where a packet that came in by port `ingress` goes.
    ///
    /// # Errors
    /// Why the router drops it.
    pub fn forward(&self, grh: &Grh, ingress: u8) -> Result<Vec<Copy>, Cause> {
        Router::admits(grh)?;
        let sl = self.sl_of_class[usize::from(grh.traffic_class >> 4)];
        let dgid = u128::from_be_bytes(grh.dgid);
        if grh.dgid[0] == 0xff {
            let group = self.groups.get(&dgid).filter(|group| group.ingress.has(ingress)).ok_or(Cause::NoSubnet)?;
            let copies: Vec<Copy> = group.copies.iter().copied().filter(|(port, ..)| *port != ingress).collect();
            return if copies.is_empty() { Err(Cause::NoSubnet) } else { Ok(copies) };
        }
        let matches = |route: &&Route| {
            (dgid ^ route.prefix).checked_shr(128_u32.saturating_sub(u32::from(route.len))).unwrap_or(0) == 0
        };
        let route = self.routes.iter().filter(matches).max_by_key(|route| route.len).ok_or(Cause::NoSubnet)?;
        let neighbour = || self.neighbours.get(&(route.port, dgid as u64)).copied();
        let dlid = route.via.or_else(neighbour).ok_or(Cause::NoSubnet)?;
        Ok(vec![(route.port, dlid, sl)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUBNET: u128 = 0xfd00_0000_0000_0002 << 64;

    fn grh(dgid: u128, hop_limit: u8) -> Grh {
        let sgid = (0xfd00_0000_0000_0001_u128 << 64 | 1).to_be_bytes();
        Grh { hop_limit, traffic_class: 0x30, dgid: dgid.to_be_bytes(), sgid, ..Grh::default() }
    }

    #[test]
    fn l40_the_longest_prefix_counts() {
        let route = |prefix, len, port, via| Route { prefix, len, port, via };
        let mut router = Router {
            routes: vec![route(0, 0, 1, Some(9)), route(SUBNET, 64, 2, None), route(SUBNET | 7, 128, 3, Some(5))],
            ..Router::default()
        };
        router.sl_of_class[3] = 6;
        router.neighbours.insert((2, 8), 77);
        assert_eq!(router.forward(&grh(SUBNET | 8, 2), 1), Ok(vec![(2, 77, 6)]));
        assert_eq!(router.forward(&grh(SUBNET | 7, 2), 1), Ok(vec![(3, 5, 6)]));
        assert_eq!(router.forward(&grh(1, 2), 2), Ok(vec![(1, 9, 6)]));
        assert_eq!(router.forward(&grh(SUBNET | 9, 2), 1), Err(Cause::NoSubnet), "no LID known");
    }

    #[test]
    fn l40_a_group_has_ports_to_come_in_by_and_others_to_leave_by() {
        let mgid = 0xff15_u128 << 112 | 7;
        let group = Group { ingress: Ports::of([1, 2]), copies: vec![(2, 0xc001, 4), (3, 0xc002, 0)] };
        let router = Router { groups: BTreeMap::from([(mgid, group)]), ..Router::default() };
        assert_eq!(router.forward(&grh(mgid, 2), 1), Ok(vec![(2, 0xc001, 4), (3, 0xc002, 0)]));
        assert_eq!(router.forward(&grh(mgid, 2), 2), Ok(vec![(3, 0xc002, 0)]), "not back");
        assert_eq!(router.forward(&grh(mgid, 2), 3), Err(Cause::NoSubnet), "not from there");
        assert_eq!(router.forward(&grh(mgid, 1), 1), Err(Cause::HopLimit));
        assert_eq!(router.forward(&grh(mgid + 1, 2), 1), Err(Cause::NoSubnet), "another group");
    }

    #[test]
    fn l40_hop_limit_and_link_local_addresses_stop_a_packet() {
        let fe80 = u128::from(LINK_LOCAL) << 64;
        let multicast = |scope: u128| 0xff10 << 112 | scope << 112 | 1;
        for (dgid, hops, cause) in [
            (SUBNET, 0, Cause::HopLimit),
            (SUBNET, 1, Cause::HopLimit),
            (SUBNET, 2, Cause::NoSubnet),
            (fe80 | 1, 9, Cause::LinkLocal),
            (multicast(2), 9, Cause::LinkLocal),
            (multicast(5), 9, Cause::NoSubnet),
        ] {
            assert_eq!(Router::default().forward(&grh(dgid, hops), 1), Err(cause), "{dgid:x} {hops}");
        }
    }
}
