//! The ports of other agents' nodes, as the connection manager knows them: by IP address and GID.
//! Those agents have said so ([`crate::mads`]). Principal type: [`Elsewhere`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use subnet::tunnel::reach::Reached;

/// What is known of these ports. It is as much as the links to other agents let them say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    gids: BTreeMap<IpAddr, [u8; 16]>,
    lids: BTreeMap<[u8; 16], u16>,
}

impl Elsewhere {
    /// The GID of the port that has an IP address.
    pub(crate) fn gid(&self, ip: IpAddr) -> Option<[u8; 16]> {
        self.gids.get(&ip).copied()
    }

    /// The first LID of the port that has a GID.
    pub(crate) fn lid(&self, gid: &[u8; 16]) -> Option<u16> {
        self.lids.get(gid).copied()
    }
}

impl<'a> FromIterator<&'a Reached> for Elsewhere {
    /// Of several ports with one address, the first one has it.
    fn from_iter<I: IntoIterator<Item = &'a Reached>>(all: I) -> Self {
        let mut known = Self::default();
        for one in all {
            known.lids.entry(one.gid).or_insert(one.lid);
            one.ip.map(|ip| known.gids.entry(ip).or_insert(one.gid));
        }
        known
    }
}
