//! Where programs of the benchmark run that need other agents than the probes do: between hosts,
//! and on the nodes of a subnet. The principal type is [`Venue`].

use harness::{Dist, Hosts, Room};

use super::probes::Group;
use super::{CLIENT, SERVER};
use crate::bench::{ipoib, iwarp, subnet, wire};

/// Where the programs of such a group run.
pub(super) enum Venue {
    /// Two hosts with a link of an MTU.
    Wire(u32, Hosts),
    /// Two hosts with iWARP devices.
    Iwarp(u32, Hosts),
    /// Two hosts with InfiniBand ports.
    Ipoib(Hosts),
    /// Nodes of a subnet, and a port alone.
    Subnet(subnet::SubnetRooms),
}

impl Venue {
    /// The venues of a group. None: it has probes, or it needs root.
    pub(super) fn of(group: Group, dist: &Dist) -> Result<Vec<Self>, String> {
        let of_mtus = |links: Vec<(u32, Hosts)>, venue: fn(u32, Hosts) -> Self| {
            links.into_iter().map(|(mtu, hosts)| venue(mtu, hosts)).collect()
        };
        Ok(match group {
            Group::Wire => of_mtus(wire::links(dist)?, Self::Wire),
            Group::Iwarp => of_mtus(iwarp::links(dist)?, Self::Iwarp),
            Group::Ipoib => ipoib::hosts(dist)?.map(Self::Ipoib).into_iter().collect(),
            Group::Subnet => vec![Self::Subnet(subnet::SubnetRooms::new(dist)?)],
            _ => Vec::new(),
        })
    }

    /// The rooms, each with its agent.
    pub(super) fn rooms(&self) -> [&Room; 2] {
        match self {
            Self::Wire(_, hosts) | Self::Iwarp(_, hosts) | Self::Ipoib(hosts) => {
                [hosts.left.room(), hosts.right.room()]
            }
            Self::Subnet(rooms) => [&rooms.switched, &rooms.alone],
        }
    }

    /// Runs each program once, and returns the figures by their names.
    pub(super) fn run(&self) -> Result<Vec<(String, f64)>, String> {
        let (figures, mtu) = match self {
            Self::Wire(mtu, hosts) => (wire::run(hosts, *mtu)?, Some(*mtu)),
            Self::Iwarp(mtu, hosts) => (iwarp::run(hosts)?, Some(*mtu)),
            Self::Ipoib(hosts) => (ipoib::run(hosts)?, None),
            Self::Subnet(rooms) => (rooms.run(SERVER, CLIENT)?, None),
        };
        let named = |name: &str| mtu.map_or_else(|| name.to_owned(), |mtu| wire::named(name, mtu));
        Ok(figures.into_iter().map(|(name, figure)| (named(name), figure)).collect())
    }
}
