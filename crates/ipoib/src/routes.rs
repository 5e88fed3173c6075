//! Where the host's packets go: the addresses of the interface, and the routes that lead out of it.
//! Not how a next hop is found on the link. Principal type: [`Routes`].

use std::net::{IpAddr, Ipv4Addr};

/// An address of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAddress {
    /// The address.
    pub ip: IpAddr,
    /// The bits of its network.
    pub prefix: u8,
}

/// A route of the host that leads out of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The network that it leads to.
    pub to: IpAddr,
    /// The bits of the network.
    pub prefix: u8,
    /// The router; `None` if the network is on the link.
    pub gateway: Option<IpAddr>,
    /// Of two routes to a network, the one with the lower metric counts.
    pub metric: u32,
}

/// Where a packet goes on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hop {
    /// To everybody.
    Broadcast,
    /// To a group.
    Group(IpAddr),
    /// To the owner of this address.
    Neighbour(IpAddr),
}

/// The addresses and the routes of an interface.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    own: Vec<OwnAddress>,
    /// The longest prefix first, of equal ones the lowest metric.
    routes: Vec<Route>,
}

impl Routes {
    pub(crate) fn new(own: Vec<OwnAddress>, mut routes: Vec<Route>) -> Self {
        routes.sort_by_key(|route| (u8::MAX - route.prefix, route.metric));
        Self { own, routes }
    }

    pub(crate) fn own(&self) -> &[OwnAddress] {
        &self.own
    }

    pub(crate) fn is_own(&self, ip: IpAddr) -> bool {
        self.own.iter().any(|own| own.ip == ip)
    }

    /// An own address from which `peer` is asked for: one of its network, else any of its family.
    pub(crate) fn source_for(&self, peer: IpAddr) -> Option<IpAddr> {
        let family = || self.own.iter().filter(|own| own.ip.is_ipv4() == peer.is_ipv4());
        let near = family().find(|own| is_in(peer, own.ip, own.prefix));
        near.or_else(|| family().next()).map(|own| own.ip)
    }

    /// The next hop to a destination. If no route is known, the destination is on the link, because
    /// the host has chosen this interface.
    pub(crate) fn hop(&self, destination: IpAddr) -> Hop {
        if self.is_broadcast(destination) {
            return Hop::Broadcast;
        }
        if destination.is_multicast() {
            return Hop::Group(destination);
        }
        let route = self.routes.iter().find(|route| is_in(destination, route.to, route.prefix));
        Hop::Neighbour(route.and_then(|route| route.gateway).unwrap_or(destination))
    }

    fn is_broadcast(&self, destination: IpAddr) -> bool {
        let IpAddr::V4(destination) = destination else { return false };
        destination == Ipv4Addr::BROADCAST
            || self.own.iter().any(|own| match own.ip {
                IpAddr::V4(ip) if own.prefix < 31 => ip.to_bits() | u32::MAX >> own.prefix == destination.to_bits(),
                _ => false,
            })
    }
}

/// Whether an address is in a network.
fn is_in(ip: IpAddr, network: IpAddr, prefix: u8) -> bool {
    match (ip, network) {
        (IpAddr::V4(ip), IpAddr::V4(network)) => {
            let differ = ip.to_bits() ^ network.to_bits();
            differ.leading_zeros() >= u32::from(prefix.min(32))
        }
        (IpAddr::V6(ip), IpAddr::V6(network)) => {
            let differ = ip.to_bits() ^ network.to_bits();
            differ.leading_zeros() >= u32::from(prefix.min(128))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Hop, OwnAddress, Route, Routes};
    use std::net::IpAddr;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect(text)
    }

    #[test]
    fn the_longest_prefix_and_then_the_lowest_metric_decide() {
        let route =
            |to, prefix, gateway: Option<&str>, metric| Route { to: ip(to), prefix, gateway: gateway.map(ip), metric };
        let own = vec![OwnAddress { ip: ip("10.0.0.1"), prefix: 24 }, OwnAddress { ip: ip("fe80::1"), prefix: 64 }];
        let routes = Routes::new(
            own,
            vec![
                route("0.0.0.0", 0, Some("10.0.0.254"), 100),
                route("0.0.0.0", 0, Some("10.0.0.253"), 50),
                route("10.0.0.0", 24, None, 0),
                route("10.9.0.0", 16, Some("fe80::9"), 0),
            ],
        );
        for (destination, hop) in [
            ("10.0.0.7", Hop::Neighbour(ip("10.0.0.7"))),
            ("10.9.1.1", Hop::Neighbour(ip("fe80::9"))),
            ("192.0.2.1", Hop::Neighbour(ip("10.0.0.253"))),
            ("fd00::5", Hop::Neighbour(ip("fd00::5"))),
            ("10.0.0.255", Hop::Broadcast),
            ("255.255.255.255", Hop::Broadcast),
            ("239.1.1.1", Hop::Group(ip("239.1.1.1"))),
            ("ff02::1", Hop::Group(ip("ff02::1"))),
        ] {
            assert_eq!(routes.hop(ip(destination)), hop, "{destination}");
        }
        assert_eq!(routes.source_for(ip("10.9.9.9")), Some(ip("10.0.0.1")));
        assert_eq!(routes.source_for(ip("fd00::5")), Some(ip("fe80::1")));
    }
}
