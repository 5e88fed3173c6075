//! Datagram queue pairs by address (IBA volume 1, 12.11, service id resolution): one side asks
//! which queue pair serves an address and port, the other side answers. Principal types:
//! [`DatagramListener`], [`DatagramRequest`], [`Found`].
//!
//! There is no connection: the side that has found a peer sends to it, and the side that answered
//! keeps no record. Groups need no connection manager in this crate: [`DatagramQp::join`] takes the
//! group's address.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use ::cm::{ConnParam, Event, EventKind, PortSpace, QpKind};

use crate::cm::connector::Connector;
use crate::cm::hearing::{Asked, BACKLOG, Hearing};
use crate::cm::id::Id;
use crate::context::Context;
use crate::datagram::{DatagramQp, Peer};
use crate::endpoint::DatagramEndpoint;
use crate::error::Result;
use crate::gid::Gid;

/// Receives the requests of peers that look for a datagram queue pair at an address. The ports of
/// datagrams are a separate port space from those of connections.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use softhca::DatagramQp;
/// use softhca::cm::{Connector, DatagramListener};
///
/// let fabric = fabric::Fabric::two_hosts()?; // 10.0.0.1 and 10.0.0.2
/// let (here, there) = (fabric.host(0).open()?, fabric.host(1).open()?);
/// let listener = DatagramListener::bind(&there, "10.0.0.2:7471".parse()?)?;
/// let server = std::thread::spawn(move || -> softhca::Result<()> {
///     let (pd, cq) = (there.pd()?, there.cq(16)?);
///     let qp = pd.datagrams(&cq).build()?;
///     qp.receive(1, pd.buffer(DatagramQp::HEADER + 64)?)?;
///     listener.accept()?.answer(&qp, b"")?;
///     assert_eq!(cq.wait()?.ok()?.data(), b"found you");
///     Ok(())
/// });
///
/// let (pd, cq) = (here.pd()?, here.cq(16)?);
/// let qp = pd.datagrams(&cq).build()?;
/// let found = Connector::new(&here).find(&qp, "10.0.0.2:7471".parse()?, b"")?;
/// qp.send_inline(1, b"found you", found.peer(), None)?;
/// server.join().expect("no panic")?;
/// # Ok(()) }
/// ```
pub struct DatagramListener {
    hearing: Hearing,
}

impl DatagramListener {
    /// Listens at an address of the host, or at all of them (`0.0.0.0` or `::`); port 0 chooses a
    /// port.
    ///
    /// # Errors
    /// The errors of [`Listener::bind`](crate::cm::Listener::bind).
    pub fn bind(device: &Context, address: SocketAddr) -> Result<Self> {
        let id = Id::new(&device.inner, PortSpace::UDP, QpKind::UD)?;
        Ok(Self { hearing: Hearing::begin(id, address, BACKLOG)? })
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
    pub fn accept(&self) -> Result<DatagramRequest> {
        Ok(DatagramRequest { asked: self.hearing.next()? })
    }

    /// Waits for the next request, at most for `limit`.
    ///
    /// # Errors
    /// The errors of [`DatagramListener::accept`].
    pub fn accept_for(&self, limit: Duration) -> Result<Option<DatagramRequest>> {
        Ok(self.hearing.next_for(limit)?.map(|asked| DatagramRequest { asked }))
    }

    #[cfg(feature = "tokio")]
    pub(crate) async fn accepted(&self) -> Result<DatagramRequest> {
        Ok(DatagramRequest { asked: self.hearing.heard().await? })
    }
}

/// A peer's request for a datagram queue pair. Dropping the request answers that there is no queue
/// pair.
pub struct DatagramRequest {
    asked: Asked,
}

impl DatagramRequest {
    /// The local address that the peer asks for.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.asked.ends.local
    }

    /// The address of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.asked.ends.peer
    }

    /// The private data of the peer. Zeros follow it, up to the size of the message's field (180
    /// bytes).
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        self.asked.event.ud().private_data
    }

    /// Answers with a queue pair, which should have receives by now, and up to 136 bytes for the
    /// peer (`rdma_accept(3)`).
    ///
    /// # Errors
    /// EINVAL for too much private data.
    pub fn answer(self, qp: &DatagramQp, private_data: &[u8]) -> Result<()> {
        let (channel, number) = self.asked.id.command()?;
        let (qp_num, qkey) = (qp.number(), qp.endpoint().qkey);
        let parameters = ConnParam { qp_num, qkey, private_data, ..ConnParam::default() };
        Ok(channel.accept(number, self.asked.id.cookie, &parameters)?)
    }

    /// Answers that there is no queue pair, with up to 136 bytes for the peer.
    ///
    /// # Errors
    /// EINVAL for too much private data.
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.asked.reject(private_data)
    }
}

/// A datagram queue pair that was found by its address.
#[derive(Clone, Debug)]
pub struct Found {
    peer: Peer,
    private_data: Vec<u8>,
}

impl Found {
    /// The peer to send to.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// The private data of the answer. Zeros follow it, up to the size of the message's field.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }
}

impl Connector<'_> {
    /// Finds the datagram queue pair that serves an address, so that `qp` can send to it. The
    /// request carries up to 180 bytes.
    ///
    /// # Errors
    /// The errors of [`Connector::resolve`]; [`Declined`](crate::Error::Declined) when nobody
    /// listens, ETIMEDOUT when nobody answers.
    pub fn find(self, qp: &DatagramQp, to: SocketAddr, private_data: &[u8]) -> Result<Found> {
        let id = self.start(to, PortSpace::UDP, QpKind::UD)?;
        id.expect(EventKind::ADDR_RESOLVED)?;
        self.go_on(&id)?;
        id.expect(EventKind::ROUTE_RESOLVED)?;
        ask(&id, qp, private_data)?;
        found(qp, &id.expect(EventKind::ESTABLISHED)?)
    }

    #[cfg(feature = "tokio")]
    pub(crate) async fn found(self, qp: &DatagramQp, to: SocketAddr, private_data: &[u8]) -> Result<Found> {
        let id = self.start(to, PortSpace::UDP, QpKind::UD)?;
        id.expected(EventKind::ADDR_RESOLVED).await?;
        self.go_on(&id)?;
        id.expected(EventKind::ROUTE_RESOLVED).await?;
        ask(&id, qp, private_data)?;
        found(qp, &id.expected(EventKind::ESTABLISHED).await?)
    }
}

fn ask(id: &Id, qp: &DatagramQp, private_data: &[u8]) -> Result<()> {
    // This queue pair cannot use an address of another device.
    id.ends()?;
    let (channel, number) = id.command()?;
    Ok(channel.connect(number, &ConnParam { qp_num: qp.number(), private_data, ..ConnParam::default() })?)
}

fn found(qp: &DatagramQp, event: &Event) -> Result<Found> {
    let answer = event.ud();
    let endpoint = DatagramEndpoint { qpn: answer.qp_num, qkey: answer.qkey, gid: Gid(answer.ah.dgid) };
    Ok(Found { peer: qp.peer_at(&answer.ah, endpoint)?, private_data: answer.private_data.to_vec() })
}

impl fmt::Debug for DatagramListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatagramListener({})", self.hearing.local)
    }
}

impl fmt::Debug for DatagramRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.asked.show("DatagramRequest", f)
    }
}
