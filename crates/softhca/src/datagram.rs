//! Datagrams: a queue pair that sends to many peers and receives from many, and the peers that it
//! sends to. Principal types: [`DatagramQp`], [`Peer`].

use std::fmt;
use std::sync::Arc;

use abi::ah::AhAttr;

use crate::completion::DATAGRAM_HEADER;
use crate::endpoint::{DatagramEndpoint, Source};
use crate::error::Result;
use crate::gid::{GIDS, Gid};
use crate::message::Message;
use crate::operation::Operation;
use crate::pd::PdInner;
use crate::queue_pair::{QpInner, SendRequest};
use crate::rejected::Rejected;

/// One packet per message, to any queue pair; the packet may be lost (UD).
#[derive(Debug)]
pub enum Datagram {}

/// A datagram queue pair. A receive needs [`DatagramQp::HEADER`] bytes more than the message, for
/// the header with the sender's address. [`Completion::data`](crate::Completion::data) leaves the
/// header out.
pub struct DatagramQp {
    pub(crate) inner: QpInner,
    endpoint: DatagramEndpoint,
    port: u8,
    gid_index: u8,
}

/// How datagrams of an InfiniBand port reach another port of its subnet: what a subnet manager says
/// of a path or of a group. An Ethernet port ignores the LID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Path {
    /// The LID of the port or of the group.
    pub lid: u16,
    /// Service level.
    pub sl: u8,
    /// Whether datagrams carry GIDs, too. Groups need them.
    pub global: bool,
    /// The traffic class of datagrams with GIDs.
    pub traffic_class: u8,
    /// The flow label of datagrams with GIDs.
    pub flow_label: u32,
    /// The hop limit of datagrams with GIDs.
    pub hop_limit: u8,
}

/// A destination of datagrams. Clones refer to the same peer.
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
        // Fails only when the agent is gone, or in a child process, which does not own the object.
        let _ = self.ah.destroy();
    }
}

impl DatagramQp {
    /// Number of bytes before each message in its receive buffer.
    pub const HEADER: usize = DATAGRAM_HEADER;

    pub(crate) fn new(inner: QpInner, endpoint: DatagramEndpoint, (port, gid_index): (u8, u8)) -> Self {
        Self { inner, endpoint, port, gid_index }
    }

    /// What other programs must know to send to this queue pair.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// The QPN, which completions and events contain.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.endpoint.qpn
    }

    /// Why the queue pair entered the error state and flushed its requests: the first failure.
    /// `None` if nothing has failed.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        self.inner.qp.cause()
    }

    /// A peer to send to.
    ///
    /// # Errors
    /// EINVAL for an unreachable address.
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

    /// A peer to send to, on a path that a subnet manager has found.
    ///
    /// # Errors
    /// EINVAL for an address that the port cannot use.
    pub fn peer_on(&self, path: &Path, endpoint: &DatagramEndpoint) -> Result<Peer> {
        let vector = AhAttr {
            dgid: endpoint.gid.0,
            flow_label: path.flow_label,
            sgid_index: self.source(endpoint.gid),
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            dlid: path.lid,
            sl: path.sl,
            is_global: path.global.into(),
            port_num: self.port,
            ..AhAttr::default()
        };
        self.peer_at(&vector, *endpoint)
    }

    /// A peer to send to, by its address vector.
    pub(crate) fn peer_at(&self, vector: &AhAttr, endpoint: DatagramEndpoint) -> Result<Peer> {
        let ah = AhInner { ah: self.inner.pd.pd.create_ah(vector)?, _pd: Arc::clone(&self.inner.pd) };
        Ok(Peer { ah: Arc::new(ah), endpoint })
    }

    /// The index of the source address for packets to `gid`: this queue pair's own address, or else
    /// the first address of the other family.
    fn source(&self, gid: Gid) -> u8 {
        let fits = |own: Gid| own.ip().is_ipv4() == gid.ip().is_ipv4();
        let query = |index: u8| self.inner.pd.ctx.engine.query_gid(self.port, u32::from(index)).map(Gid);
        let other = || (1..GIDS).find(|index| query(*index).is_ok_and(|own| !own.is_empty() && fits(own)));
        if fits(self.endpoint.gid) { self.gid_index } else { other().unwrap_or(self.gid_index) }
    }

    /// The sender of a datagram as a peer, with this queue pair's own Q_Key.
    ///
    /// # Errors
    /// The errors of [`DatagramQp::peer`].
    pub fn answer(&self, source: &Source) -> Result<Peer> {
        self.peer(&DatagramEndpoint { qpn: source.qpn, qkey: self.endpoint.qkey, gid: source.gid })
    }

    /// All members of a multicast group as one peer, with this queue pair's own Q_Key.
    ///
    /// # Errors
    /// The errors of [`DatagramQp::peer`].
    pub fn group(&self, group: Gid) -> Result<Peer> {
        self.peer(&DatagramEndpoint { qpn: DatagramEndpoint::GROUP, qkey: self.endpoint.qkey, gid: group })
    }

    /// Joins a multicast group: from now on the queue pair receives datagrams to the group.
    ///
    /// # Errors
    /// EINVAL for a GID that is not a multicast group.
    pub fn join(&self, group: Gid) -> Result<()> {
        self.join_at(group, 0)
    }

    /// As [`DatagramQp::join`], for a group whose LID a subnet manager has assigned.
    ///
    /// # Errors
    /// The errors of [`DatagramQp::join`].
    pub fn join_at(&self, group: Gid, lid: u16) -> Result<()> {
        self.inner.qp.attach_mcast(&group.0, lid)?;
        let mut groups = self.inner.groups.lock();
        if !groups.contains(&group) {
            groups.push(group);
        }
        Ok(())
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// EINVAL when the queue pair is not in the group.
    pub fn leave(&self, group: Gid) -> Result<()> {
        self.inner.qp.detach_mcast(&group.0, 0)?;
        self.inner.groups.lock().retain(|joined| *joined != group);
        Ok(())
    }

    /// Posts a receive; its completion comes with `id`.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many
    /// parts.
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        self.inner.receive(id, into.into().parts)
    }

    /// Sends a datagram, at most as long as the port's MTU; its completion comes with `id`.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL for too many parts or when the queue pair is
    /// in the error state.
    pub fn send(&self, id: u64, message: impl Into<Message>, to: &Peer) -> Result<(), Rejected> {
        self.inner.send(id, message.into(), to.request())
    }

    /// Sends a few bytes, which are copied at once.
    ///
    /// # Errors
    /// EINVAL for more bytes than the queue pair's inline limit; else the errors of
    /// [`DatagramQp::send`].
    pub fn send_inline(&self, id: u64, bytes: &[u8], to: &Peer, immediate: Option<u32>) -> Result<()> {
        self.inner.inline(id, bytes, to.request(), immediate)
    }

    /// Flushes every request in progress: their completions come with an error and give the buffers
    /// back. The queue pair cannot send afterwards.
    ///
    /// # Errors
    /// EIO when the agent is gone. Then the requests have been flushed already.
    pub fn flush(&self) -> Result<()> {
        self.inner.flush()
    }
}

impl Peer {
    /// The address of the peer.
    #[must_use]
    pub fn endpoint(&self) -> DatagramEndpoint {
        self.endpoint
    }

    /// A send request to the peer.
    pub(crate) fn request(&self) -> SendRequest<'_> {
        SendRequest { to: Some((&self.ah.ah, self.endpoint)), ..SendRequest::new(Operation::Send, None) }
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
