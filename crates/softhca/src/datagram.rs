//! Datagrams: a queue pair that sends to many and hears many, and the peers that it sends to. Principal types: [`DatagramQp`], [`Peer`].

use std::fmt;
use std::sync::Arc;

use abi::ah::AhAttr;

use crate::builder::GIDS;
use crate::completion::{DATAGRAM_HEADER, Operation};
use crate::endpoint::{DatagramEndpoint, Source};
use crate::error::{Rejected, Result};
use crate::gid::Gid;
use crate::message::Message;
use crate::pd::PdInner;
use crate::queue_pair::{QpInner, Request};

/// One packet per message, to anybody, perhaps lost (UD).
#[derive(Debug)]
pub enum Datagram {}

/// A datagram queue pair. Receives need [`DatagramQp::HEADER`] bytes more than the message, for where it came from;
/// [`Completion::data`](crate::Completion::data) leaves them out.
pub struct DatagramQp {
    pub(crate) inner: QpInner,
    endpoint: DatagramEndpoint,
    port: u8,
    gid_index: u8,
}

/// Somebody to send datagrams to. Clones are the same.
#[derive(Clone)]
pub struct Peer {
    ah: Arc<AhInner>,
    endpoint: DatagramEndpoint,
}

struct AhInner {
    ah: Arc<engine::Ah>,
    _pd: Arc<PdInner>,
}

impl Drop for AhInner {
    fn drop(&mut self) {
        // Refused only when the agent is gone, or in a child process, which owns nothing of it.
        let _ = self.ah.destroy();
    }
}

impl DatagramQp {
    /// Bytes before each message in its receive buffer.
    pub const HEADER: usize = DATAGRAM_HEADER;

    pub(crate) fn new(inner: QpInner, endpoint: DatagramEndpoint, (port, gid_index): (u8, u8)) -> Self {
        Self { inner, endpoint, port, gid_index }
    }

    /// What others have to know to send to it.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// Its number, by which completions and events call it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.endpoint.qpn
    }

    /// Why the queue pair went to the error state, and everything that waited on it was flushed: what failed first. `None` while nothing
    /// has.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.inner.qp.cause()
    }

    /// Somebody to send to.
    ///
    /// # Errors
    /// EINVAL for an address that cannot be reached from here.
    pub fn peer(&self, endpoint: &DatagramEndpoint) -> Result<Peer> {
        let vector = AhAttr {
            dgid: endpoint.gid.0,
            sgid_index: self.source(endpoint.gid),
            port_num: self.port,
            hop_limit: 64,
            is_global: 1,
            ..AhAttr::default()
        };
        self.peer_at(&vector, *endpoint)
    }

    /// Somebody to send to, by an address vector.
    pub(crate) fn peer_at(&self, vector: &AhAttr, endpoint: DatagramEndpoint) -> Result<Peer> {
        let ah = AhInner { ah: self.inner.pd.pd.create_ah(vector)?, _pd: Arc::clone(&self.inner.pd) };
        Ok(Peer { ah: Arc::new(ah), endpoint })
    }

    /// The index of the address to send to `gid` from: this queue pair's own, or else the first one of the other family.
    fn source(&self, gid: Gid) -> u8 {
        let fits = |own: Gid| own.ip().is_ipv4() == gid.ip().is_ipv4();
        let query = |index: u8| self.inner.pd.ctx.engine.query_gid(self.port, u32::from(index)).map(Gid);
        let other = || (1..GIDS).find(|index| query(*index).is_ok_and(|own| !own.is_empty() && fits(own)));
        if fits(self.endpoint.gid) { self.gid_index } else { other().unwrap_or(self.gid_index) }
    }

    /// Whoever sent a datagram, to answer with this queue pair's own key.
    ///
    /// # Errors
    /// As [`DatagramQp::peer`].
    pub fn answer(&self, source: &Source) -> Result<Peer> {
        self.peer(&DatagramEndpoint { qpn: source.qpn, qkey: self.endpoint.qkey, gid: source.gid })
    }

    /// Every member of a multicast group, with this queue pair's own key.
    ///
    /// # Errors
    /// As [`DatagramQp::peer`].
    pub fn group(&self, group: Gid) -> Result<Peer> {
        self.peer(&DatagramEndpoint { qpn: DatagramEndpoint::GROUP, qkey: self.endpoint.qkey, gid: group })
    }

    /// Receives what is sent to a multicast group, from now on.
    ///
    /// # Errors
    /// EINVAL for a GID that is no group.
    pub fn join(&self, group: Gid) -> Result<()> {
        self.inner.qp.attach_mcast(&group.0, 0)?;
        let mut groups = self.inner.groups.lock();
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// EINVAL when it is not in it.
    pub fn leave(&self, group: Gid) -> Result<()> {
        self.inner.qp.detach_mcast(&group.0, 0)?;
        self.inner.groups.lock().retain(|joined| *joined != group);
        Ok(())
    }

    /// Posts a receive; `id` comes back with its completion.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many parts.
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        self.inner.receive(id, into.into().parts)
    }

    /// Sends a datagram, at most as long as the port's MTU; `id` comes back with the completion.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL for too many parts or when the queue pair is in error.
    pub fn send(&self, id: u64, message: impl Into<Message>, to: &Peer) -> Result<(), Rejected> {
        self.inner.send(id, message.into(), to.request())
    }

    /// Sends a few bytes, which are copied at once.
    ///
    /// # Errors
    /// EINVAL for more than the queue pair takes inline; else as [`DatagramQp::send`].
    pub fn send_inline(&self, id: u64, bytes: &[u8], to: &Peer, immediate: Option<u32>) -> Result<()> {
        self.inner.inline(id, bytes, to.request(), immediate)
    }

    /// Ends every request that is under way: their completions come with an error, and give the buffers back. Nothing can be
    /// sent afterwards.
    ///
    /// # Errors
    /// EIO when the agent is gone; then it has happened already.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
}

impl Peer {
    /// Where it is.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// A message to it.
    pub(crate) fn request(&self) -> Request<'_> {
        Request { to: Some((&self.ah.ah, self.endpoint)), ..Request::new(Operation::Send, None) }
    }
}

impl fmt::Debug for DatagramQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatagramQp({})", self.endpoint)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Peer({})", self.endpoint)
    }
}
