//! Connections by address, for tasks: the types of [`cm`](crate::cm) under the same names, with
//! async methods where those wait. Principal types: [`Listener`], [`Connector`], [`Connection`].
//!
//! Dropping a future cancels its operation: the peer of an unfinished connection is told.
//! [`Listener::accept`] loses no request, and [`Connection::closed`] loses nothing.

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use ::cm::EventKind;

use crate::aio::datagram::DatagramQp;
use crate::aio::queue_pair::Qp;
use crate::builder::QpBuilder;
use crate::cm;
use crate::cm::Tie;
use crate::connected::Reliable;
use crate::context::Context;
use crate::error::Result;
use crate::message::Message;
use crate::rejected::Rejected;

/// Receives requests for connections at an address; see [`cm::Listener`]. Several tasks may accept.
#[derive(Debug)]
pub struct Listener(cm::Listener);

impl Listener {
    /// Listens at an address of the host, or at all of them; port 0 chooses a port.
    ///
    /// # Errors
    /// The errors of [`cm::Listener::bind`].
    pub fn bind(device: &Context, address: SocketAddr) -> Result<Self> {
        cm::Listener::bind(device, address).map(Self)
    }

    /// The address that the listener is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Waits for the next request. No request is lost when the future is dropped.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub async fn accept(&self) -> Result<Request> {
        self.0.accepted().await.map(Request)
    }
}

/// Converts a listener that was built with other options.
impl From<cm::Listener> for Listener {
    fn from(listener: cm::Listener) -> Self {
        Self(listener)
    }
}

/// A peer that wants to connect; see [`cm::Request`], which it dereferences to. Dropping it rejects
/// the peer.
#[derive(Debug)]
pub struct Request(cm::Request);

impl Request {
    /// Creates the queue pair for the connection.
    ///
    /// # Errors
    /// The errors of [`cm::Request::prepare`].
    pub fn prepare(self, qp: QpBuilder<'_, Reliable>) -> Result<Incoming> {
        self.0.prepare(qp).map(Incoming)
    }

    /// Rejects the peer, with up to 148 bytes for it.
    ///
    /// # Errors
    /// The errors of [`cm::Request::reject`].
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.0.reject(private_data)
    }
}

impl Deref for Request {
    type Target = cm::Request;

    fn deref(&self) -> &cm::Request {
        &self.0
    }
}

/// A queue pair for a peer that has asked; see [`cm::Incoming`].
#[derive(Debug)]
pub struct Incoming(cm::Incoming);

impl Incoming {
    /// Adds a receive buffer to the queue; the connection's [`message`](Qp::message) returns the
    /// message that fills it.
    ///
    /// # Errors
    /// The errors of [`Qp::post_receive`].
    pub fn post_receive(&self, into: impl Into<Message>) -> Result<(), Rejected> {
        self.0.receive(0, into)
    }

    /// Accepts the peer, with up to 196 bytes for it, and waits until the peer confirms. Dropping
    /// the future ends the connection.
    ///
    /// # Errors
    /// The errors of [`cm::Incoming::accept`]; EINVAL outside of a runtime.
    pub async fn accept(self, private_data: &[u8]) -> Result<Connection> {
        let ends = self.0.answer(private_data)?;
        self.0.prepared.id.expected(EventKind::ESTABLISHED).await?;
        Connection::new(self.0.established(ends))
    }
}

/// Resolves the address of a peer; see [`cm::Connector`].
#[derive(Clone, Copy, Debug)]
#[must_use = "a connector does nothing until it is told where to"]
pub struct Connector<'a>(cm::Connector<'a>);

impl<'a> Connector<'a> {
    /// A connector for connections of this device.
    pub fn new(device: &'a Context) -> Self {
        Self(cm::Connector::new(device))
    }

    /// Uses this source address of the host; port 0 chooses a port. By default the host's routes
    /// choose the address.
    pub fn source(self, address: SocketAddr) -> Self {
        Self(self.0.source(address))
    }

    /// Sets the type of service (IPv4) or traffic class (IPv6) of the packets.
    pub fn type_of_service(self, value: u8) -> Self {
        Self(self.0.type_of_service(value))
    }

    /// Sets the time limit (default 2 seconds), for the address and for the path.
    pub fn patience(self, limit: Duration) -> Self {
        Self(self.0.patience(limit))
    }

    /// Resolves a listener's address and the route to it.
    ///
    /// # Errors
    /// The errors of [`cm::Connector::resolve`].
    pub async fn resolve(self, to: SocketAddr) -> Result<Route> {
        self.0.resolved(to).await.map(Route)
    }

    /// Finds the datagram queue pair that serves an address, so that `qp` can send to it. The
    /// request carries up to 180 bytes.
    ///
    /// # Errors
    /// The errors of [`cm::Connector::find`].
    pub async fn find(self, qp: &DatagramQp, to: SocketAddr, private_data: &[u8]) -> Result<cm::Found> {
        self.0.found(qp.verbs(), to, private_data).await
    }
}

/// Receives the requests of peers that look for a datagram queue pair at an address; see
/// [`cm::DatagramListener`].
#[derive(Debug)]
pub struct DatagramListener(cm::DatagramListener);

impl DatagramListener {
    /// Listens at an address of the host, or at all of them; port 0 chooses a port.
    ///
    /// # Errors
    /// The errors of [`cm::DatagramListener::bind`].
    pub fn bind(device: &Context, address: SocketAddr) -> Result<Self> {
        cm::DatagramListener::bind(device, address).map(Self)
    }

    /// The address that the listener is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.0.local_addr()
    }

    /// Waits for the next request. No request is lost when the future is dropped.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub async fn accept(&self) -> Result<cm::DatagramRequest> {
        self.0.accepted().await
    }
}

/// The route to a peer that this side has not contacted yet; see [`cm::Route`], which it
/// dereferences to.
#[derive(Debug)]
pub struct Route(cm::Route);

impl Route {
    /// Creates the queue pair for the connection.
    ///
    /// # Errors
    /// The errors of [`cm::Route::prepare`].
    pub fn prepare(self, qp: QpBuilder<'_, Reliable>) -> Result<Outgoing> {
        self.0.prepare(qp).map(Outgoing)
    }
}

impl Deref for Route {
    type Target = cm::Route;

    fn deref(&self) -> &cm::Route {
        &self.0
    }
}

/// A queue pair for a peer that this side will ask; see [`cm::Outgoing`].
#[derive(Debug)]
pub struct Outgoing(cm::Outgoing);

impl Outgoing {
    /// Adds a receive buffer to the queue; the connection's [`message`](Qp::message) returns the
    /// message that fills it.
    ///
    /// # Errors
    /// The errors of [`Qp::post_receive`].
    pub fn post_receive(&self, into: impl Into<Message>) -> Result<(), Rejected> {
        self.0.receive(0, into)
    }

    /// Asks the peer for a connection, with up to 56 bytes for it, and waits for the answer.
    /// Dropping the future cancels the request.
    ///
    /// # Errors
    /// The errors of [`cm::Outgoing::connect`]; EINVAL outside of a runtime.
    pub async fn connect(self, private_data: &[u8]) -> Result<Connection> {
        self.0.ask(private_data)?;
        let answer = self.0.prepared.id.expected(EventKind::CONNECT_RESPONSE).await?;
        Connection::new(self.0.answered(&answer)?)
    }
}

/// A connected queue pair of a runtime, whose peer was found by its address. It dereferences to
/// [`Qp`], which has the operations.
///
/// Dropping the connection disconnects. When the peer disconnects or dies, awaited operations end
/// with errors.
pub struct Connection {
    // Dropped first: the peer is told before the queue pair is gone.
    tie: Tie,
    qp: Qp<Reliable>,
}

impl Connection {
    /// Attaches a connection to the current runtime.
    ///
    /// # Errors
    /// EINVAL outside of a runtime.
    ///
    /// # Panics
    /// In a runtime without `enable_io`.
    pub fn new(connection: cm::Connection) -> Result<Self> {
        let cm::Connection { tie, qp } = connection;
        Ok(Self { tie, qp: Qp::new(qp)? })
    }

    /// Address and port of this side.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.tie.ends.local
    }

    /// Address and port of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.tie.ends.peer
    }

    /// The private data that the peer sent when it connected or accepted. Zeros follow it, up to
    /// the size of the message's field.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.tie.private_data
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.tie.id.mailbox.is_closed()
    }

    /// Waits until the connection has ended: until the peer disconnects or dies, or confirms that
    /// this side has disconnected. Several tasks may wait.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub async fn closed(&self) -> Result<()> {
        self.tie.id.mailbox.closed().await
    }

    /// Ends the connection on both sides: awaited operations end with errors. The call does not
    /// wait for the peer.
    ///
    /// # Errors
    /// EIO when the agent is gone. Then the connection has ended already.
    pub fn disconnect(&self) -> Result<()> {
        self.tie.disconnect()
    }
}

impl Deref for Connection {
    type Target = Qp<Reliable>;

    fn deref(&self) -> &Qp<Reliable> {
        &self.qp
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aio::Connection({} to {}, {:?})", self.local_addr(), self.peer_addr(), self.qp)
    }
}
