//! Connections that the connection manager has made: a queue pair with the addresses of both sides, and an end. Principal type:
//! [`Connection`].

use std::fmt;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use abi::qp::{ModifyQp, attr, state};

use crate::cm::id::{Ends, Id};
use crate::connected::{Qp, Reliable};
use crate::error::Result;

/// A connected queue pair whose peer was found by its address. It is a [`Qp`]: post to it as to any other.
///
/// Dropping it disconnects. When the peer disconnects or dies, requests that are under way end with errors.
pub struct Connection {
    // Ends first: the peer is told before the queue pair is gone.
    pub(crate) tie: Tie,
    pub(crate) qp: Qp<Reliable>,
}

/// What a connection has besides its queue pair.
pub(crate) struct Tie {
    pub(crate) id: Id,
    qp: Arc<engine::Qp>,
    pub(crate) ends: Ends,
    pub(crate) private_data: Vec<u8>,
}

impl Tie {
    /// Ends the queue pair and then the connection: what it has received is acknowledged before the peer is told.
    pub(crate) fn disconnect(&self) -> Result<()> {
        self.end()?;
        if !self.id.mailbox.is_closed() {
            let (channel, id) = self.id.command()?;
            // Refused when the peer was faster.
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
            // Refused when the device is gone, or in a child process; then there is nobody to tell.
            let _ = self.end();
        }
    }
}

impl Connection {
    pub(crate) fn new(id: Id, qp: Qp<Reliable>, ends: Ends, private_data: Vec<u8>) -> Self {
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

    /// What the peer has sent along when it connected or accepted. Zeros follow it, up to what the message has room for.
    #[must_use]
    pub fn private_data(&self) -> &[u8] {
        &self.tie.private_data
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.tie.id.mailbox.is_closed()
    }

    /// Waits until it has ended: until the peer disconnects or dies, or has heard that this side has.
    ///
    /// # Errors
    /// EIO when the agent is gone.
    pub fn wait_closed(&self) -> Result<()> {
        self.wait_closed_for(Duration::MAX).map(drop)
    }

    /// Waits until it has ended, but not longer than `limit`; says whether it has.
    ///
    /// # Errors
    /// As [`Connection::wait_closed`].
    pub fn wait_closed_for(&self, limit: Duration) -> Result<bool> {
        self.tie.id.mailbox.wait_closed(Instant::now().checked_add(limit))
    }

    /// Ends it, on both sides (`rdma_disconnect(3)`): what is under way ends with errors. It does not wait for the peer.
    ///
    /// # Errors
    /// EIO when the agent is gone; then it has ended already.
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
        let Ends { local, peer } = self.tie.ends;
        write!(f, "Connection({local} to {peer}, {:?})", self.qp)
    }
}
