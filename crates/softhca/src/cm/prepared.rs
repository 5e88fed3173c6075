//! Queue pairs for a connection that both sides have not agreed on yet: [`Incoming`] on the passive
//! side, [`Outgoing`] on the active side.
//!
//! They can post receives, so that there is room for the peer's first message. The attributes of
//! each state come from the connection manager (`rdma_init_qp_attr(3)`).

use std::fmt;
use std::marker::PhantomData;

use ::cm::{ConnEvent, ConnParam, EventKind, QpKind, QpState};
use abi::mr::access as right;
use abi::qp::{ModifyQp, attr};
use engine::Service;

use crate::builder::QpBuilder;
use crate::cm::connection::Connection;
use crate::cm::id::{Ends, Id};
use crate::connected::{Connected, Qp, Reliable};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::gid::Gid;
use crate::message::Message;
use crate::mtu::Mtu;
use crate::queue_pair::QpInner;
use crate::rejected::Rejected;
use crate::timing::Timing;

/// A queue pair and the id that will connect it.
pub(crate) struct Prepared<S> {
    // Dropped first: the peer is told before the queue pair is gone.
    pub(crate) id: Id,
    inner: QpInner,
    pub(crate) ends: Ends,
    timing: Timing,
    /// Maximum number of READs and atomics in flight, in each direction.
    reads: u8,
    service: PhantomData<fn() -> S>,
}

/// Numbers of READs and atomics in flight that both sides have agreed on.
#[derive(Clone, Copy)]
struct Depth {
    served: u8,
    asked: u8,
}

impl<S: Connected> Prepared<S> {
    pub(crate) fn new(id: Id, ends: Ends, qp: &QpBuilder<'_, S>) -> Result<Self> {
        let timing = qp.timing()?;
        let inner = qp.bare_for(&id.ctx)?;
        let mut init = id.attributes(QpState::INIT)?;
        init.attr_mask |= attr::ACCESS_FLAGS;
        // The rights of peers are set where memory is exposed.
        init.qp_access_flags = right::REMOTE_WRITE;
        if is_reliable::<S>() {
            init.qp_access_flags |= right::REMOTE_READ | right::REMOTE_ATOMIC;
        }
        inner.qp.modify(&init)?;
        let reads = qp.most_reads()?;
        Ok(Self { id, inner, ends, timing, reads, service: PhantomData })
    }

    fn parameters<'a>(&self, depth: Depth, private_data: &'a [u8]) -> ConnParam<'a> {
        ConnParam {
            qp_num: self.inner.qp.qpn(),
            srq: self.inner.queues.shared,
            responder_resources: depth.served,
            initiator_depth: depth.asked,
            retry_count: self.timing.retries,
            rnr_retry_count: self.timing.rnr_retries,
            private_data,
            ..ConnParam::default()
        }
    }

    /// The lesser of both sides' limits, if the peer has told its limits.
    fn agreed(&self, peer: &ConnEvent<'_>) -> Depth {
        Depth { served: peer.responder_resources.min(self.reads), asked: peer.initiator_depth.min(self.reads) }
    }

    /// Moves the queue pair to a state in which it can send. Returns both endpoints.
    fn ready(&self, depth: Depth) -> Result<(Endpoint, Endpoint)> {
        let mut rtr = self.id.attributes(QpState::RTR)?;
        if is_reliable::<S>() {
            rtr.attr_mask |= attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
            (rtr.max_dest_rd_atomic, rtr.min_rnr_timer) = (depth.served, self.timing.rnr_timer);
        }
        self.inner.qp.modify(&rtr)?;
        let mut rts = self.id.attributes(QpState::RTS)?;
        if is_reliable::<S>() {
            rts.attr_mask |= attr::MAX_QP_RD_ATOMIC;
            rts.max_rd_atomic = depth.asked;
        }
        self.inner.qp.modify(&rts)?;
        self.ends_of(&rtr, &rts, depth)
    }

    fn ends_of(&self, rtr: &ModifyQp, rts: &ModifyQp, depth: Depth) -> Result<(Endpoint, Endpoint)> {
        let port = if rtr.dest.port_num == 0 { 1 } else { rtr.dest.port_num };
        // A port of iWARP shows one GID, whatever address the connection has.
        let index = if self.inner.qp.is_iwarp() { 0 } else { rtr.dest.sgid_index };
        let gid = self.id.ctx.engine.query_gid(port, u32::from(index))?;
        let own = Endpoint {
            reliable: is_reliable::<S>(),
            qpn: self.inner.qp.qpn(),
            psn: rts.sq_psn,
            gid: Gid(gid),
            mtu: Mtu::of_code(rtr.path_mtu),
            reads: depth.served,
        };
        let peer =
            Endpoint { qpn: rtr.dest_qp_num, psn: rtr.rq_psn, gid: Gid(rtr.dest.dgid), reads: depth.asked, ..own };
        Ok((own, peer))
    }

    fn finish(self, (own, peer): (Endpoint, Endpoint), private_data: Vec<u8>) -> Connection<S> {
        self.id.mailbox.guard(&self.inner.qp, &self.inner.pd.ctx.engine);
        let qp = Qp::connected(self.inner, own, peer);
        Connection::new(self.id, qp, self.ends, private_data)
    }
}

/// A queue pair for a peer that has asked: post receives, then [`accept`](Incoming::accept).
///
/// Dropping it rejects the peer.
///
/// ```compile_fail,E0382
/// # fn example(incoming: softhca::cm::Incoming) -> softhca::Result<()> {
/// let connection = incoming.accept(b"")?;
/// incoming.accept(b"again")?; // `incoming` has become the connection.
/// # drop(connection); Ok(()) }
/// ```
pub struct Incoming<S = Reliable> {
    pub(crate) prepared: Prepared<S>,
    depth: Depth,
    private_data: Vec<u8>,
}

impl<S: Connected> Incoming<S> {
    pub(crate) fn new(prepared: Prepared<S>, peer: &ConnEvent<'_>) -> Self {
        let depth = prepared.agreed(peer);
        Self { prepared, depth, private_data: peer.private_data.to_vec() }
    }

    /// Posts a receive; its completion comes with `id`.
    ///
    /// # Errors
    /// The errors of [`Qp::receive`].
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        self.prepared.inner.receive(id, into.into().parts)
    }

    /// Accepts the peer, with up to 196 bytes for it, and waits until the peer confirms
    /// (`rdma_accept(3)`).
    ///
    /// # Errors
    /// [`Declined`](crate::Error::Declined) when the peer has given up, ETIMEDOUT when the peer
    /// does not answer any more.
    pub fn accept(self, private_data: &[u8]) -> Result<Connection<S>> {
        let ends = self.answer(private_data)?;
        self.prepared.id.expect(EventKind::ESTABLISHED)?;
        Ok(self.established(ends))
    }

    pub(crate) fn answer(&self, private_data: &[u8]) -> Result<(Endpoint, Endpoint)> {
        let id = &self.prepared.id;
        let accept = || -> Result<()> {
            let (channel, number) = id.command()?;
            Ok(channel.accept(number, id.cookie, &self.prepared.parameters(self.depth, private_data))?)
        };
        if self.prepared.inner.qp.is_iwarp() {
            // The queue pair gets its connection when the request is accepted.
            accept()?;
            return self.prepared.ready(self.depth);
        }
        let ends = self.prepared.ready(self.depth)?;
        accept()?;
        Ok(ends)
    }

    pub(crate) fn established(self, ends: (Endpoint, Endpoint)) -> Connection<S> {
        self.prepared.finish(ends, self.private_data)
    }
}

/// A queue pair for a peer that this side will ask: post receives, then
/// [`connect`](Outgoing::connect).
///
/// ```compile_fail,E0599
/// # fn example(outgoing: softhca::cm::Outgoing) -> softhca::Result<()> {
/// outgoing.send_inline(1, b"hello", None)?; // It is not connected yet.
/// # Ok(()) }
/// ```
pub struct Outgoing<S = Reliable> {
    pub(crate) prepared: Prepared<S>,
}

impl<S: Connected> Outgoing<S> {
    /// Posts a receive; its completion comes with `id`.
    ///
    /// # Errors
    /// The errors of [`Qp::receive`].
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        self.prepared.inner.receive(id, into.into().parts)
    }

    /// Asks the peer for a connection, with up to 56 bytes for it, and waits for the answer
    /// (`rdma_connect(3)`).
    ///
    /// # Errors
    /// [`Declined`](crate::Error::Declined) when the peer rejects the connection or nobody listens,
    /// ETIMEDOUT when nobody answers.
    pub fn connect(self, private_data: &[u8]) -> Result<Connection<S>> {
        self.ask(private_data)?;
        let answer = self.prepared.id.expect(EventKind::CONNECT_RESPONSE)?;
        self.answered(&answer)
    }

    pub(crate) fn ask(&self, private_data: &[u8]) -> Result<()> {
        let Prepared { id, reads, .. } = &self.prepared;
        let (channel, number) = id.command()?;
        let depth = Depth { served: *reads, asked: *reads };
        Ok(channel.connect(number, &self.prepared.parameters(depth, private_data))?)
    }

    pub(crate) fn answered(self, answer: &::cm::Event) -> Result<Connection<S>> {
        let peer = answer.conn();
        let ends = self.prepared.ready(self.prepared.agreed(&peer))?;
        let (channel, number) = self.prepared.id.command()?;
        channel.establish(number)?;
        Ok(self.prepared.finish(ends, peer.private_data.to_vec()))
    }
}

fn is_reliable<S: Connected>() -> bool {
    S::SERVICE == Service::Rc
}

/// The kind of the queue pairs of a service.
pub(crate) fn kind<S: Connected>() -> QpKind {
    if is_reliable::<S>() { QpKind::RC } else { QpKind::UC }
}

impl<S> fmt::Debug for Incoming<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Incoming(QP {:#x}, from {})", self.prepared.inner.qp.qpn(), self.prepared.ends.peer)
    }
}

impl<S> fmt::Debug for Outgoing<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outgoing(QP {:#x}, to {})", self.prepared.inner.qp.qpn(), self.prepared.ends.peer)
    }
}
