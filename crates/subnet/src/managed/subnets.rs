//! The subnets that routers join, as the routers' ports in them. Not how they are found
//! ([`super::routers`]). Principal type: [`Subnets`].

use crate::fabric::NodeId;
use std::collections::BTreeMap;

/// The port of a router in a subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Attached {
    pub(super) router: NodeId,
    pub(super) port: u8,
    pub(super) lid: u16,
}

/// The ports of routers, by the prefix of their subnet.
pub(super) type Subnets = BTreeMap<u64, Vec<Attached>>;
