//! Addresses without IP: a GID, a partition and a service id (AF_IB). Principal type: [`Service`].

use ::cm::{Address, AddressIb};

use crate::gid::Gid;

/// Where a program listens, or from where it connects: for
/// [`Connector::resolve_service`](super::Connector::resolve_service) and
/// [`ListenerBuilder::bind_service`](super::ListenerBuilder::bind_service).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// The port.
    pub gid: Gid,
    /// The partition.
    pub pkey: u16,
    /// The service id. That of a connecting program is 0: the agent chooses one.
    pub id: u64,
}

impl Service {
    pub(crate) fn address(&self) -> Address {
        let Self { gid, pkey, id: service } = *self;
        AddressIb { pkey, gid: gid.0, service, service_mask: u64::MAX, ..AddressIb::default() }.into()
    }
}
