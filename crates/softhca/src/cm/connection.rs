//! Connections that the connection manager has made: a queue pair with the addresses of both sides,
//! and a way to disconnect. Principal type: [`Connection`].

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::qp::{ModifyQp, attr, state};

use crate::cm::id::{Ends, Id};
use crate::connected::{Connected, Qp, Reliable};
use crate::error::Result;

/// A connected queue pair whose peer was found by its address. It dereferences to [`Qp`]: post to
/// it as to any other queue pair.
///
/// The service is part of the type, as that of [`Qp`]: it is reliable if nothing else is named.
///
/// Dropping the connection disconnects. When the peer disconnects or dies, the requests in progress
/// end with errors.
pub struct Connection<S = Reliable> {
    // Dropped first: the peer is told before the queue pair is gone.
    pub(crate) tie: Tie,
    pub(crate) qp: Qp<S>,
}

/// The part of a connection besides its queue pair.
pub(crate) struct Tie {
    pub(crate) id: Id,
    qp: Arc<engine::Qp>,
    pub(crate) ends: Ends,
    pub(crate) private_data: Vec<u8>,
}

impl Tie {
    /// Flushes the queue pair, then disconnects: received data is acknowledged before the peer is
    /// told.
    pub(crate) fn disconnect(&self) -> Result<()> {
        self.end()?;
        if !self.id.mailbox.is_closed() {
            let (channel, id) = self.id.command()?;
            // Fails if the peer disconnected first.
            let _ = channel.disconnect(id);
        }
        Ok(())
    }

    fn end(&self) -> Result<()> {
        let end = ModifyQp { attr_mask: attr::STATE, qp_state: state::ERR, ..ModifyQp::default() };
        Ok(self.qp.modify(&end)?)
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        if !self.id.mailbox.is_closed() {
            // Fails when the device is gone, or in a child process. Then there is no peer to tell.
            let _ = self.end();
        }
    }
}

impl<S: Connected> Connection<S> {
    pub(crate) fn new(id: Id, qp: Qp<S>, ends: Ends, private_data: Vec<u8>) -> Self {
        Self { tie: Tie { id, qp: Arc::clone(&qp.inner.qp), ends, private_data }, qp }
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
    /// this side has disconnected.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn wait_closed(&self) -> Result<()> {
        self.wait_closed_for(Duration::MAX).map(drop)
    }

    /// Waits until the connection has ended, at most for `limit`. Returns whether it has ended.
    ///
    /// # Errors
    /// The errors of [`Connection::wait_closed`].
    pub fn wait_closed_for(&self, limit: Duration) -> Result<bool> {
        self.tie.id.mailbox.wait_closed(Instant::now().checked_add(limit))
    }

    /// Ends the connection on both sides (`rdma_disconnect(3)`): the requests in progress end with
    /// errors. The call does not wait for the peer.
    ///
    /// # Errors
    /// EIO when the agent is gone. Then the connection has ended already.
    pub fn disconnect(&self) -> Result<()> {
        self.tie.disconnect()
    }
}

impl<S: Connected> Deref for Connection<S> {
    type Target = Qp<S>;

    fn deref(&self) -> &Qp<S> {
        &self.qp
    }
}

impl<S: Connected> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends { local, peer } = self.tie.ends;
        write!(f, "Connection({local} to {peer}, {:?})", self.qp)
    }
}
