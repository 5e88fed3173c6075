//! The active side: a [`Connector`] resolves an address, and a [`Route`] is the result.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use ::cm::{Address, EventKind, PortSpace, QpKind, SetOption};

use crate::builder::QpBuilder;
use crate::cm::id::{Ends, Id};
use crate::cm::prepared::{Outgoing, Prepared, kind};
use crate::cm::service::Service;
use crate::connected::{Connected, Reliable};
use crate::context::Context;
use crate::error::Result;

/// Default time limit for resolving an address or a path.
const PATIENCE: Duration = Duration::from_secs(2);

/// Resolves the address of a peer.
#[derive(Clone, Copy, Debug)]
#[must_use = "a connector does nothing until it is told where to"]
pub struct Connector<'a> {
    device: &'a Context,
    source: Option<SocketAddr>,
    type_of_service: Option<u8>,
    patience: Duration,
}

impl<'a> Connector<'a> {
    /// A connector for connections of this device.
    pub fn new(device: &'a Context) -> Self {
        Self { device, source: None, type_of_service: None, patience: PATIENCE }
    }

    /// Uses this source address of the host; port 0 chooses a port. By default the host's routes
    /// choose the address.
    pub fn source(self, address: SocketAddr) -> Self {
        Self { source: Some(address), ..self }
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of the packets.
    pub fn type_of_service(self, value: u8) -> Self {
        Self { type_of_service: Some(value), ..self }
    }

    /// Sets the time limit (default 2 seconds), for the address and for the path.
    pub fn patience(self, limit: Duration) -> Self {
        Self { patience: limit, ..self }
    }

    /// Resolves a listener's address and the route to it (`rdma_resolve_addr(3)`,
    /// `rdma_resolve_route(3)`).
    ///
    /// # Errors
    /// EADDRNOTAVAIL, ENETUNREACH, ENODEV or ETIMEDOUT when there is no route.
    pub fn resolve(self, to: SocketAddr) -> Result<Route> {
        let id = self.start(to, PortSpace::TCP, QpKind::RC)?;
        id.expect(EventKind::ADDR_RESOLVED)?;
        self.go_on(&id)?;
        id.expect(EventKind::ROUTE_RESOLVED)?;
        Route::new(id)
    }

    #[cfg(feature = "tokio")]
    pub(crate) async fn resolved(self, to: SocketAddr) -> Result<Route> {
        let id = self.start(to, PortSpace::TCP, QpKind::RC)?;
        id.expected(EventKind::ADDR_RESOLVED).await?;
        self.go_on(&id)?;
        id.expected(EventKind::ROUTE_RESOLVED).await?;
        Route::new(id)
    }

    /// Resolves a GID and the route to it, from another GID (AF_IB). The connection is of the
    /// service of the queue pair that the route gets.
    ///
    /// # Errors
    /// The errors of [`Connector::resolve`].
    pub fn resolve_service<S: Connected>(self, from: &Service, to: &Service) -> Result<Route<S>> {
        let id = self.begin(to.address(), Some(from.address()), PortSpace::IB, kind::<S>())?;
        id.expect(EventKind::ADDR_RESOLVED)?;
        self.go_on(&id)?;
        id.expect(EventKind::ROUTE_RESOLVED)?;
        Route::new(id)
    }

    pub(super) fn start(&self, to: SocketAddr, space: PortSpace, kind: QpKind) -> Result<Id> {
        self.begin(to.into(), self.source.map(Into::into), space, kind)
    }

    fn begin(&self, to: Address, source: Option<Address>, space: PortSpace, kind: QpKind) -> Result<Id> {
        let id = Id::new(&self.device.inner, space, kind)?;
        let (channel, number) = id.command()?;
        if let Some(value) = self.type_of_service {
            channel.set_option(number, SetOption::TypeOfService(value))?;
        }
        channel.resolve_addr(number, source.as_ref(), &to, self.milliseconds())?;
        Ok(id)
    }

    pub(super) fn go_on(&self, id: &Id) -> Result<()> {
        let (channel, number) = id.command()?;
        Ok(channel.resolve_route(number, self.milliseconds())?)
    }

    fn milliseconds(&self) -> u32 {
        u32::try_from(self.patience.as_millis()).unwrap_or(u32::MAX).max(1)
    }
}

/// The route to a peer that this side has not contacted yet.
pub struct Route<S = Reliable> {
    id: Id,
    ends: Ends,
    service: PhantomData<fn() -> S>,
}

impl<S: Connected> Route<S> {
    fn new(id: Id) -> Result<Self> {
        let ends = id.ends()?;
        Ok(Self { id, ends, service: PhantomData })
    }

    /// The local address of the route.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.ends.local
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.ends.peer
    }

    /// Creates the queue pair for the connection. Address, MTU and timeout come from the route; the
    /// builder's values are ignored.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits, or for a builder of another open device.
    pub fn prepare(self, qp: QpBuilder<'_, S>) -> Result<Outgoing<S>> {
        Ok(Outgoing { prepared: Prepared::new(self.id, self.ends, &qp)? })
    }
}

impl<S> fmt::Debug for Route<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Route({} to {})", self.ends.local, self.ends.peer)
    }
}
