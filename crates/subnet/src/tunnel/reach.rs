//! What packets reach that come in by a tunnel: LIDs of this fabric, and those behind its other
//! tunnels, each with the service levels and P_Keys that pass. So the peer knows the rest of its
//! paths. Principal types: [`Reached`], [`Parts`].
//!
//! ```text
//!  part, parts, then for each LID:
//!    LID (2), levels (2), MTU, tunnels, address of the agent (16, or zeros),
//!    GID of the port (16), IP address of the port (16, or zeros), number of keys, keys (2 each)
//! ```

use crate::rate::Mtu;
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The most LIDs that are kept of a peer.
pub const MOST: usize = 256;
/// Entries of one datagram have no more bytes, so that it fits into packets of every network.
const PART: usize = 1024;
/// The most datagrams that say all: each has at least three LIDs.
const MOST_PARTS: u8 = 96;
/// The most keys of a LID.
const MOST_KEYS: usize = 128;
/// The most tunnels on a path. What says more goes round in a circle of agents.
pub const MOST_TUNNELS: u8 = 16;

/// A LID that packets from a tunnel reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The LID.
    pub lid: u16,
    /// Service levels with which packets reach it, as bits.
    pub levels: u16,
    /// The smallest MTU of the path.
    pub mtu: Mtu,
    /// The keys of the port there with which packets pass.
    pub pkeys: Vec<u16>,
    /// The address of the agent that has the LID. `None`: the agent that says this.
    pub address: Option<IpAddr>,
    /// How many tunnels follow until that agent.
    pub tunnels: u8,
    /// The GID of the port that has the LID.
    pub gid: [u8; 16],
    /// The IP address by which the connection manager finds this port.
    pub ip: Option<IpAddr>,
}

fn octets(ip: Option<IpAddr>) -> [u8; 16] {
    let ip = ip.map_or(Ipv6Addr::UNSPECIFIED, |ip| match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    });
    ip.octets()
}

fn ip(octets: [u8; 16]) -> Option<IpAddr> {
    let ip = Ipv6Addr::from(octets);
    (!ip.is_unspecified()).then(|| IpAddr::V6(ip).to_canonical())
}

/// Whether an IP address can be that of one port.
#[must_use]
pub fn is_of_one_port(ip: IpAddr) -> bool {
    let localhost = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
    !ip.is_unspecified() && !ip.is_multicast() && !localhost.contains(&ip)
}

/// Whether an agent can have an IP address. Programs send packets to it.
fn is_of_one_agent(ip: IpAddr) -> bool {
    !ip.is_multicast() && ip != IpAddr::V4(Ipv4Addr::BROADCAST)
}

impl Reached {
    fn emit(&self, out: &mut Vec<u8>) {
        let keys = self.pkeys.get(..MOST_KEYS).unwrap_or(&self.pkeys);
        out.extend(self.lid.to_be_bytes());
        out.extend(self.levels.to_be_bytes());
        out.extend([self.mtu as u8, self.tunnels]);
        out.extend([octets(self.address), self.gid, octets(self.ip)].as_flattened());
        out.push(keys.len() as u8);
        out.extend(keys.iter().flat_map(|key| key.to_be_bytes()));
    }

    fn parse(bytes: &[u8]) -> Option<(Reached, &[u8])> {
        let ([a, b, c, d, mtu, tunnels], rest) = bytes.split_first_chunk()?;
        let (address, rest) = rest.split_first_chunk()?;
        let (gid, rest) = rest.split_first_chunk()?;
        let (own, rest) = rest.split_first_chunk()?;
        let (count, rest) = rest.split_first()?;
        let (keys, rest) = rest.split_at_checked(2 * usize::from(*count))?;
        let (address, own) = (ip(*address), ip(*own).filter(|own| is_of_one_port(*own)));
        if usize::from(*count) > MOST_KEYS
            || *tunnels > MOST_TUNNELS
            || address.is_some_and(|address| !is_of_one_agent(address))
        {
            return None;
        }
        let pkeys = keys.as_chunks().0.iter().map(|key| u16::from_be_bytes(*key)).collect();
        let (lid, levels) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
        let mtu = Mtu::from_code(*mtu)?;
        Some((Reached { lid, levels, mtu, pkeys, address, tunnels: *tunnels, gid: *gid, ip: own }, rest))
    }
}

/// The bodies of the datagrams that say this: at least one.
#[must_use]
pub fn bodies(reached: &[Reached]) -> Vec<Vec<u8>> {
    let mut bodies = vec![vec![0, 0]];
    for one in reached.iter().take(MOST) {
        let mut entry = Vec::new();
        one.emit(&mut entry);
        match bodies.last_mut() {
            Some(last) if last.len() + entry.len() <= PART => last.extend(entry),
            _ => bodies.push([&[0, 0][..], &entry].concat()),
        }
    }
    let parts = bodies.len() as u8;
    (0..).zip(&mut bodies).for_each(|(part, body)| (body[0], body[1]) = (part, parts));
    bodies
}

/// What a peer has said, part by part. Each part is true by itself.
#[derive(Debug, Default)]
pub struct Parts(Vec<Vec<Reached>>);

impl Parts {
    /// Whether the peer has said nothing yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All that the peer reaches, as far as it has said so. If it says several things of a LID, the
    /// first one counts.
    pub fn all(&self) -> impl Iterator<Item = &Reached> {
        let mut seen = BTreeSet::new();
        self.0.iter().flatten().filter(move |one| seen.insert(one.lid)).take(MOST)
    }

    /// Takes a body. Returns all that the peer reaches, if this has changed, or `None` for a body
    /// that is malformed or says nothing new.
    pub fn take(&mut self, body: &[u8]) -> Option<Vec<Reached>> {
        let ([part, parts], mut rest) = body.split_first_chunk()?;
        if part >= parts || *parts > MOST_PARTS || body.len() > PART {
            return None;
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, more) = Reached::parse(rest)?;
            entries.push(entry);
            rest = more;
        }
        let before = self.0.len();
        self.0.resize(usize::from(*parts), Vec::new());
        let place = &mut self.0[usize::from(*part)];
        if *place == entries && before == usize::from(*parts) {
            return None;
        }
        *place = entries;
        Some(self.all().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reached() -> impl Strategy<Value = Reached> {
        let keys = proptest::collection::vec(any::<u16>(), 0..40);
        let address = prop_oneof![
            Just(None),
            (1..0xe000_0000_u32).prop_map(|v4| Some(IpAddr::V4(v4.into()))),
            Just(Some(IpAddr::V6(Ipv6Addr::LOCALHOST))),
        ];
        let path = (1..=5_u8, 0..=MOST_TUNNELS, address);
        let port = (
            any::<[u8; 16]>(),
            proptest::option::of(
                any::<IpAddr>().prop_filter("one port", |ip| is_of_one_port(*ip) && ip.to_canonical() == *ip),
            ),
        );
        let values = (any::<u16>(), any::<u16>(), path, port, keys);
        values.prop_map(|(lid, levels, (mtu, tunnels, address), (gid, ip), pkeys)| Reached {
            lid,
            levels,
            mtu: Mtu::from_code(mtu).unwrap(),
            pkeys,
            address,
            tunnels,
            gid,
            ip,
        })
    }

    /// What is said of several LIDs.
    fn list() -> impl Strategy<Value = Vec<Reached>> {
        proptest::collection::vec(reached(), 0..60).prop_map(|mut all| {
            let mut seen = BTreeSet::new();
            all.retain(|one| seen.insert(one.lid));
            all
        })
    }

    const ONE: Reached = Reached {
        lid: 7,
        levels: 1,
        mtu: Mtu::B2048,
        pkeys: Vec::new(),
        address: Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2))),
        tunnels: 1,
        gid: [3; 16],
        ip: None,
    };

    #[test]
    fn the_first_thing_that_is_said_of_a_lid_counts() {
        let other = Reached { address: Some([10, 0, 0, 3].into()), ..ONE };
        assert_eq!(Parts::default().take(&bodies(&[ONE, other])[0]), Some(vec![ONE]));
    }

    #[test]
    fn a_group_of_hosts_is_not_believed_to_be_an_agent() {
        let group = IpAddr::V6(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1));
        for address in [[224, 0, 0, 1].into(), Ipv4Addr::BROADCAST.into(), group] {
            let one = Reached { address: Some(address), ..ONE };
            assert_eq!(Parts::default().take(&bodies(&[one])[0]), None, "{address}");
        }
    }

    proptest! {
        #[test]
        fn the_peer_learns_all_that_is_said_and_what_is_no_more(
            first in list(),
            second in list(),
        ) {
            let mut parts = Parts::default();
            for list in [first, second] {
                let known = bodies(&list).iter().filter_map(|body| parts.take(body)).last();
                prop_assert!(bodies(&list).iter().all(|body| body.len() <= PART));
                prop_assert_eq!(known.unwrap_or(list.clone()), list.clone());
                prop_assert!(bodies(&list).iter().all(|body| parts.take(body).is_none()), "nothing new");
            }
        }

        #[test]
        fn an_address_that_is_of_no_single_port_is_not_believed(mut one in reached(), which in 0..3_usize) {
            one.ip = Some([IpAddr::V4(Ipv4Addr::LOCALHOST), [224, 0, 0, 1].into(), Ipv6Addr::LOCALHOST.into()][which]);
            let told = Parts::default().take(&bodies(&[one.clone()])[0]);
            prop_assert_eq!(told, Some(vec![Reached { ip: None, ..one }]));
        }

        #[test]
        fn any_bytes_are_taken_or_refused(body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let mut parts = Parts::default();
            let taken = parts.take(&body).unwrap_or_default();
            prop_assert!(taken.len() <= MOST);
        }
    }
}
