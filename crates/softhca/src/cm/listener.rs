//! The passive side: [`Listener`] receives requests, and the program answers a [`Request`] with a
//! queue pair or a rejection.

use std::fmt;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::time::Duration;

use ::cm::{PortSpace, QpKind, SetOption};

use crate::builder::QpBuilder;
use crate::cm::hearing::{Asked, BACKLOG, Hearing};
use crate::cm::id::Id;
use crate::cm::prepared::{Incoming, Prepared, kind};
use crate::cm::service::Service;
use crate::connected::{Connected, Reliable};
use crate::context::Context;
use crate::error::Result;

/// Receives requests for connections at an address. Several threads or tasks may accept.
pub struct Listener<S = Reliable> {
    hearing: Hearing,
    service: PhantomData<fn() -> S>,
}

/// The options of a [`Listener`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder makes nothing until it is told to bind"]
pub struct ListenerBuilder<'a> {
    device: &'a Context,
    backlog: i32,
    reuse: bool,
    family_only: bool,
}

impl Listener {
    /// Listens at an address of the host, or at all of them (`0.0.0.0` or `::`); port 0 chooses a
    /// port (`rdma_bind_addr(3)`, `rdma_listen(3)`).
    ///
    /// # Errors
    /// EADDRINUSE when somebody listens at the address already, EADDRNOTAVAIL for an address that
    /// is not the host's, EOPNOTSUPP for a device that was opened without a connection manager.
    pub fn bind(device: &Context, address: SocketAddr) -> Result<Self> {
        Self::builder(device).bind(address)
    }

    /// A builder for a listener with other options.
    pub fn builder(device: &Context) -> ListenerBuilder<'_> {
        ListenerBuilder { device, backlog: BACKLOG, reuse: false, family_only: false }
    }
}

impl<S: Connected> Listener<S> {
    fn new(hearing: Hearing) -> Self {
        Self { hearing, service: PhantomData }
    }

    /// The address that the listener is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.hearing.local
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn accept(&self) -> Result<Request<S>> {
        Ok(Request::new(self.hearing.next()?))
    }

    /// Waits for the next request, at most for `limit`.
    ///
    /// # Errors
    /// The errors of [`Listener::accept`].
    pub fn accept_for(&self, limit: Duration) -> Result<Option<Request<S>>> {
        Ok(self.hearing.next_for(limit)?.map(Request::new))
    }

    #[cfg(feature = "tokio")]
    pub(crate) async fn accepted(&self) -> Result<Request<S>> {
        Ok(Request::new(self.hearing.heard().await?))
    }
}

impl ListenerBuilder<'_> {
    /// Sets how many requests can wait to be accepted (default 128); more are rejected.
    pub fn backlog(self, requests: u16) -> Self {
        Self { backlog: i32::from(requests).max(1), ..self }
    }

    /// Shares the address with other listeners that set this option (`RDMA_OPTION_ID_REUSEADDR`).
    pub fn reuse_address(self) -> Self {
        Self { reuse: true, ..self }
    }

    /// A listener at `::` does not receive IPv4 requests (`RDMA_OPTION_ID_AFONLY`).
    pub fn only_v6(self) -> Self {
        Self { family_only: true, ..self }
    }

    /// Listens at a GID for a service (AF_IB). Requests for connections of another service than
    /// that of the queue pairs are rejected.
    ///
    /// # Errors
    /// The errors of [`Listener::bind`]. EACCES for a service of IPoIB, if this user is not root.
    pub fn bind_service<S: Connected>(self, service: &Service) -> Result<Listener<S>> {
        let id = Id::new(&self.device.inner, PortSpace::IB, kind::<S>())?;
        Ok(Listener::new(Hearing::begin(id, service.address(), self.backlog)?))
    }

    /// Listens at this address.
    ///
    /// # Errors
    /// The errors of [`Listener::bind`].
    pub fn bind(self, address: SocketAddr) -> Result<Listener> {
        let id = Id::new(&self.device.inner, PortSpace::TCP, QpKind::RC)?;
        let (channel, number) = id.command()?;
        if self.reuse {
            channel.set_option(number, SetOption::ReuseAddress(true))?;
        }
        if self.family_only {
            channel.set_option(number, SetOption::FamilyOnly(true))?;
        }
        Ok(Listener::new(Hearing::begin(id, address, self.backlog)?))
    }
}

/// A peer that wants to connect. Dropping the request rejects the peer.
///
/// ```compile_fail,E0382
/// # fn example(request: softhca::cm::Request, pd: softhca::Pd, cq: softhca::Cq)
/// #     -> softhca::Result<()> {
/// request.reject(b"no")?;
/// request.prepare(pd.reliable(&cq))?; // The request has been answered.
/// # Ok(()) }
/// ```
pub struct Request<S = Reliable> {
    asked: Asked,
    service: PhantomData<fn() -> S>,
}

impl<S: Connected> Request<S> {
    fn new(asked: Asked) -> Self {
        Self { asked, service: PhantomData }
    }

    /// The local address that the peer wants to connect to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.asked.ends.local
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.asked.ends.peer
    }

    /// The private data of the peer. Zeros follow it, up to the size of the message's field (56
    /// bytes).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.asked.event.conn().private_data
    }

    /// Creates the queue pair for the connection. Address, MTU and timeout come from the
    /// connection; the builder's values are ignored.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits, or for a builder of another open device. After
    /// an error the peer is rejected.
    pub fn prepare(self, qp: QpBuilder<'_, S>) -> Result<Incoming<S>> {
        let prepared = Prepared::new(self.asked.id, self.asked.ends, &qp)?;
        Ok(Incoming::new(prepared, &self.asked.event.conn()))
    }

    /// Rejects the peer, with up to 148 bytes for it (`rdma_reject(3)`).
    ///
    /// # Errors
    /// EINVAL when the peer has given up, or for too much private data.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.asked.reject(private_data)
    }
}

impl<S> fmt::Debug for Listener<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.hearing.local)
    }
}

impl<S> fmt::Debug for Request<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked.show("Request", f)
    }
}
