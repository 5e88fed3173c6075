//! The side that is asked: [`Listener`] hears requests, and a [`Request`] is answered by a queue pair or a rejection.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ::cm::{PortSpace, QpKind, SetOption};

use crate::builder::QpBuilder;
use crate::cm::hearing::{Asked, BACKLOG, Hearing};
use crate::cm::id::Id;
use crate::cm::prepared::{Incoming, Prepared};
use crate::connected::Reliable;
use crate::context::Context;
use crate::error::Result;

/// Hears requests for connections at an address. Several threads or tasks may accept.
pub struct Listener {
    hearing: Hearing,
}

/// What a [`Listener`] is to be like.
#[derive(Clone, Copy, Debug)]
#[must_use = "a builder makes nothing until it is told to bind"]
pub struct ListenerBuilder<'a> {
    device: &'a Context,
    backlog: i32,
    reuse: bool,
    family_only: bool,
}

impl Listener {
    /// Listens at an address of the host, or at all of them (`0.0.0.0` or `::`); port 0 chooses one (`rdma_bind_addr(3)`,
    /// `rdma_listen(3)`).
    ///
    /// # Errors
    /// EADDRINUSE when somebody listens there, EADDRNOTAVAIL for an address that is not the host's, EOPNOTSUPP for a device that was
    /// opened without a connection manager.
    pub fn bind(device: &Context, address: SocketAddr) -> Result<Self> {
        Self::builder(device).bind(address)
    }

    /// A listener of one's choice.
    pub fn builder(device: &Context) -> ListenerBuilder<'_> {
        ListenerBuilder { device, backlog: BACKLOG, reuse: false, family_only: false }
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.hearing.local
    }

    /// Waits for the next request.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn accept(&self) -> Result<Request> {
        Ok(Request { asked: self.hearing.next()? })
    }

    /// Waits for the next request, but not longer than `limit`.
    ///
    /// # Errors
    /// As [`Listener::accept`].
    pub fn accept_for(&self, limit: Duration) -> Result<Option<Request>> {
        Ok(self.hearing.next_for(limit)?.map(|asked| Request { asked }))
    }

    #[cfg(feature = "tokio")]
    pub(crate) async fn accepted(&self) -> Result<Request> {
        Ok(Request { asked: self.hearing.heard().await? })
    }
}

impl ListenerBuilder<'_> {
    /// At most so many requests wait to be accepted (128); more are rejected.
    pub fn backlog(self, requests: u16) -> Self {
        Self { backlog: i32::from(requests).max(1), ..self }
    }

    /// Others that want the same may have the address as well (`RDMA_OPTION_ID_REUSEADDR`).
    pub fn reuse_address(self) -> Self {
        Self { reuse: true, ..self }
    }

    /// `::` leaves IPv4 to others (`RDMA_OPTION_ID_AFONLY`).
    pub fn only_v6(self) -> Self {
        Self { family_only: true, ..self }
    }

    /// Listens there.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind(self, address: SocketAddr) -> Result<Listener> {
        let id = Id::new(&self.device.inner, PortSpace::TCP, QpKind::RC)?;
        let (channel, number) = id.command()?;
        if self.reuse {
            channel.set_option(number, SetOption::ReuseAddress(true))?;
        }
        if self.family_only {
            channel.set_option(number, SetOption::FamilyOnly(true))?;
        }
        Ok(Listener { hearing: Hearing::begin(id, address, self.backlog)? })
    }
}

/// A peer that wants to connect. Dropping it rejects the peer.
///
/// ```compile_fail,E0382
/// # fn example(request: softhca::cm::Request, pd: softhca::Pd, cq: softhca::Cq) -> softhca::Result<()> {
/// request.reject(b"no")?;
/// request.prepare(pd.reliable(&cq))?; // It has been answered.
/// # Ok(()) }
/// ```
pub struct Request {
    asked: Asked,
}

impl Request {
    /// Which of our addresses it wants.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.asked.ends.local
    }

    /// Who asks.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.asked.ends.peer
    }

    /// What the peer has sent along. Zeros follow it, up to what the message has room for (56 bytes).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.asked.event.conn().private_data
    }

    /// Makes the queue pair for it. Address, MTU and timeout are those of the connection, whatever the builder says.
    ///
    /// # Errors
    /// EINVAL or ENOMEM beyond the device's limits, or for a builder of another open device; the peer is rejected then.
    pub fn prepare(self, qp: QpBuilder<'_, Reliable>) -> Result<Incoming> {
        let prepared = Prepared::new(self.asked.id, self.asked.ends, &qp)?;
        Ok(Incoming::new(prepared, &self.asked.event.conn()))
    }

    /// Rejects it, with up to 148 bytes for the peer (`rdma_reject(3)`).
    ///
    /// # Errors
    /// EINVAL when the peer has given up, or for too much private data.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.asked.reject(private_data)
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.hearing.local)
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked.show("Request", f)
    }
}
