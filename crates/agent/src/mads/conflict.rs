//! Addresses that several ports name: which port has such an address, and who else names it. Whose
//! ports these are is in `conflicts.rs`. Principal type: [`AddressConflict`].

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};

/// The most conflicts that are listed, and that are logged.
pub(super) const MOST: usize = 64;

/// A port that names an IP address and a GID.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortAddresses {
    pub(super) ip: Option<IpAddr>,
    pub(super) gid: [u8; 16],
    /// The LID, and the address of the agent that has it. `None`: a port of this agent.
    pub(super) elsewhere: Option<(u16, IpAddr)>,
    /// The port's name, or its LID and agent.
    pub(super) port: String,
}

/// An address that two ports name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AddressConflict {
    /// `ip` or `gid`.
    pub(super) kind: &'static str,
    pub(super) value: String,
    /// The port that has it.
    pub(super) port: String,
    /// The port that names it too, and does not get it.
    pub(super) other: String,
}

impl fmt::Display for AddressConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, value, port, other } = self;
        let kind = if *kind == "ip" { "the IP address" } else { "the GID" };
        write!(f, "{kind} {value} belongs to {port}, and {other} names it too, which programs here do not reach by it")
    }
}

/// The conflicts between ports, of which the first one gets the address.
pub(super) fn between(ports: &[PortAddresses]) -> Vec<AddressConflict> {
    let (mut ips, mut gids) = (HashMap::new(), HashMap::new());
    let mut found = BTreeSet::new();
    for port in ports {
        if let Some((ip, first)) = port.ip.and_then(|ip| Some((ip, first_of(&mut ips, ip, port)?)))
            && first.gid != port.gid
        {
            add(&mut found, ("ip", ip.to_string()), (first, port));
        }
        // A port has several LIDs, and is known by several links.
        let is_other = |first: &PortAddresses| match (&first.elsewhere, &port.elsewhere) {
            (Some((lid, agent)), Some((other_lid, other_agent))) => lid != other_lid && agent != other_agent,
            (here, there) => here.is_some() != there.is_some(),
        };
        if let Some(first) = first_of(&mut gids, port.gid, port).filter(|first| is_other(first)) {
            add(&mut found, ("gid", Ipv6Addr::from(port.gid).to_string()), (first, port));
        }
    }
    found.into_iter().collect()
}

/// The first port with an address, if `port` is not.
fn first_of<'a, K: Hash + Eq>(
    known: &mut HashMap<K, &'a PortAddresses>,
    key: K,
    port: &'a PortAddresses,
) -> Option<&'a PortAddresses> {
    let first = *known.entry(key).or_insert(port);
    (!std::ptr::eq(first, port)).then_some(first)
}

fn add(
    found: &mut BTreeSet<AddressConflict>,
    (kind, value): (&'static str, String),
    (first, other): (&PortAddresses, &PortAddresses),
) {
    if found.len() < MOST {
        found.insert(AddressConflict { kind, value, port: first.port.clone(), other: other.port.clone() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(port: &str, ip: u8, gid: u8, elsewhere: Option<(u16, u8)>) -> PortAddresses {
        let ip = (ip != 0).then(|| [127, 9, 9, ip].into());
        PortAddresses {
            ip,
            gid: [gid; 16],
            elsewhere: elsewhere.map(|(lid, agent)| (lid, [10, 0, 0, agent].into())),
            port: port.to_owned(),
        }
    }

    fn told(ports: &[PortAddresses]) -> Vec<String> {
        between(ports)
            .into_iter()
            .map(|AddressConflict { kind, port, other, .. }| format!("{kind}: {port}, {other}"))
            .collect()
    }

    #[test]
    fn two_ports_with_one_address_conflict_and_the_first_one_has_it() {
        let [own, a] = [port("H1", 1, 1, None), port("a", 2, 2, Some((4, 2)))];
        assert!(told(&[own.clone(), a.clone()]).is_empty());
        let same_ip = port("b", 2, 3, Some((5, 3)));
        assert_eq!(told(&[own.clone(), a.clone(), same_ip]), ["ip: a, b"]);
        let own_ip = port("b", 1, 3, Some((5, 3)));
        assert_eq!(told(&[own.clone(), a.clone(), own_ip]), ["ip: H1, b"]);
        let same_gid = port("b", 3, 2, Some((5, 3)));
        assert_eq!(told(&[own.clone(), a.clone(), same_gid]), ["gid: a, b"]);
        let own_gid = port("b", 3, 1, Some((5, 3)));
        assert_eq!(told(&[own, a, own_gid]), ["gid: H1, b"]);
        let text = between(&[port("a", 2, 2, Some((4, 2))), port("b", 2, 3, Some((5, 3)))])[0].to_string();
        assert!(text.starts_with("the IP address 127.9.9.2 belongs to a, and b names it too"), "{text}");
    }

    #[test]
    fn one_port_with_several_lids_or_links_is_no_conflict() {
        let named = |lid, agent| port("a", 2, 2, Some((lid, agent)));
        assert!(told(&[named(4, 2), named(5, 2), named(4, 2), named(4, 7)]).is_empty());
        let nameless = |gid, lid| port("n", 0, gid, Some((lid, 2)));
        assert!(told(&[nameless(7, 8), nameless(8, 9)]).is_empty());
    }

    #[test]
    fn a_peer_does_not_make_the_list_long() {
        let ports: Vec<PortAddresses> =
            (0..=255).map(|number| port(&number.to_string(), 9, number, Some((1, 2)))).collect();
        assert_eq!(between(&ports).len(), MOST);
    }
}
