//! Connections by IP address and port, as `rdma_cm(7)` makes them: the peers need no socket to
//! exchange their endpoints.
//!
//! The passive side has a [`Listener`], which returns a [`Request`] for each peer that asks. The
//! active side resolves the address with a [`Connector`]. Both create a queue pair for the
//! connection, post its first receives, and then agree ([`Incoming::accept`],
//! [`Outgoing::connect`]). Each side can send a few bytes of private data.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use softhca::cm::{Connector, Listener};
//!
//! let fabric = fabric::Fabric::two_hosts()?; // A program calls softhca::open()?
//! let (here, there) = (fabric.host(0).open()?, fabric.host(1).open()?);
//!
//! let listener = Listener::bind(&there, "10.0.0.2:7471".parse()?)?;
//! let server = std::thread::spawn(move || -> softhca::Result<()> {
//!     let (pd, cq) = (there.pd()?, there.cq(16)?);
//!     let request = listener.accept()?;
//!     assert!(request.private_data().starts_with(b"it is me"));
//!     let incoming = request.prepare(pd.reliable(&cq))?;
//!     incoming.receive(1, pd.buffer(64)?)?; // Before the peer can send anything.
//!     let connection = incoming.accept(b"welcome")?;
//!     assert_eq!(cq.wait()?.ok()?.data(), b"hello");
//!     connection.wait_closed()
//! });
//!
//! let (pd, cq) = (here.pd()?, here.cq(16)?);
//! let route = Connector::new(&here).resolve("10.0.0.2:7471".parse()?)?;
//! let connection = route.prepare(pd.reliable(&cq))?.connect(b"it is me")?;
//! assert!(connection.private_data().starts_with(b"welcome"));
//! connection.send_inline(1, b"hello", None)?; // A connection is a softhca::Qp as well.
//! cq.wait()?.ok()?;
//! connection.disconnect()?;
//! server.join().expect("no panic")?;
//! # Ok(()) }
//! ```
//!
//! Peers without an IP address are found by GID and service id: see [`Service`].
//!
//! Datagram queue pairs are found the same way: see [`DatagramListener`].
//!
//! With the feature `tokio`, the module `aio` has the same types for tasks, under the same names.
//!
//! # Disconnection
//!
//! When one side disconnects, is dropped or dies, the other side's requests in progress end with
//! errors, as after [`Qp::flush`](crate::Qp::flush). A program that must know that its last
//! messages have arrived waits for their completions first.
//!
//! Dropping a request rejects it, and dropping an unfinished connection gives it up. In both cases
//! the peer is told. A peer that rejects gives [`Error::Declined`](crate::Error::Declined), with
//! its private data. A port without a listener gives the same error, with reason 8 of the IBA
//! (volume 1, 12.6.7.2).
//!
//! The agent runs the protocol for the program (IBA volume 1, chapter 12), so a slow program does
//! not delay the messages. A small thread of this crate, one for each open device that has
//! connections, receives the events.

mod connection;
mod connector;
mod datagrams;
mod hearing;
mod id;
mod listener;
pub(crate) mod manager;
mod prepared;
mod service;

#[cfg(feature = "tokio")]
pub(crate) use connection::Tie;

pub use connection::Connection;
pub use connector::{Connector, Route};
pub use datagrams::{DatagramListener, DatagramRequest, Found};
pub use listener::{Listener, ListenerBuilder, Request};
pub use prepared::{Incoming, Outgoing};
pub use service::Service;
