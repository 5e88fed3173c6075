//! GIDs: the addresses of ports, in the format of IPv6 addresses. Principal type: [`Gid`].

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use crate::error::{Error, Result};

/// Maximum number of entries in a GID table.
pub(crate) const GIDS: u8 = 64;

/// The address of a port, or a multicast group. An IPv4 address is `::ffff:a.b.c.d`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The GID as an IP address.
    #[must_use]
    pub fn ip(self) -> IpAddr {
        let address = Ipv6Addr::from(self.0);
        address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
    }

    /// Whether the GID is empty: all zeros.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }

    /// Whether the GID names a multicast group, of either address family.
    #[must_use]
    pub fn is_multicast(self) -> bool {
        self.ip().is_multicast()
    }
}

impl From<IpAddr> for Gid {
    fn from(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => Self(address.to_ipv6_mapped().octets()),
            IpAddr::V6(address) => Self(address.octets()),
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ipv6Addr::from(self.0).fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Gid {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let address: IpAddr = text
            .parse()
            .map_err(|_| Error::malformed(format!("{text:?} is not a valid GID, for example fe80::1 or 10.0.0.1")))?;
        Ok(address.into())
    }
}
