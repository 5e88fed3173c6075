//! Connected queue pairs: [`Unconnected`] before it is connected to its peer, [`Qp`] afterwards.
//!
//! The service is part of the type: an operation that only the reliable service offers does not
//! compile on the unreliable one.

use std::fmt;
use std::marker::PhantomData;

use abi::errno::Errno;
use abi::qp::{Dest, ModifyQp, attr, state};
use engine::Service;

use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::message::{Message, Part};
use crate::operation::Operation;
use crate::queue_pair::{Agreed, QpInner, SendRequest};
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;
use crate::timing::Timing;

mod sealed {
    pub trait Sealed {}
}

/// The services that connect two queue pairs.
pub trait Connected: sealed::Sealed {
    /// The service as a value.
    #[doc(hidden)]
    const SERVICE: Service;
}

/// Messages arrive once and in order, or the sender gets an error (RC).
#[derive(Debug)]
pub enum Reliable {}

/// The network can lose messages, because lost packets are not retransmitted (UC).
#[derive(Debug)]
pub enum Unreliable {}

impl sealed::Sealed for Reliable {}
impl sealed::Sealed for Unreliable {}

impl Connected for Reliable {
    const SERVICE: Service = Service::Rc;
}

impl Connected for Unreliable {
    const SERVICE: Service = Service::Uc;
}

/// A queue pair that is not connected to its peer yet. It can post receives, and it tells what the
/// peer must know.
///
/// ```compile_fail,E0599
/// # fn example(pd: softhca::Pd, cq: softhca::Cq) -> softhca::Result<()> {
/// let qp = pd.reliable(&cq).build()?;
/// qp.send(1, pd.buffer(64)?)?; // It has no peer.
/// # Ok(()) }
/// ```
pub struct Unconnected<Service> {
    inner: QpInner,
    endpoint: Endpoint,
    port: u8,
    gid_index: u8,
    timing: Timing,
    service: PhantomData<fn() -> Service>,
}

impl<S: Connected> Unconnected<S> {
    pub(crate) fn new(inner: QpInner, endpoint: Endpoint, (port, gid_index): (u8, u8), timing: Timing) -> Self {
        Self { inner, endpoint, port, gid_index, timing, service: PhantomData }
    }

    /// What the peer must know to connect.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Posts a receive; its completion comes with `id`. Post receives before the peer gets the
    /// endpoint.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many
    /// parts.
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        self.inner.receive(id, into.into().parts)
    }

    /// Connects to a peer, which must do the same with [`Unconnected::endpoint`]. The queue pair
    /// can send at once. On the reliable service, packets sent before the peer has connected are
    /// retransmitted for a while. On the unreliable service they are lost.
    ///
    /// # Errors
    /// EINVAL for an endpoint of another service, or an unreachable address.
    pub fn connect(self, peer: &Endpoint) -> Result<Qp<S>> {
        let reliable = S::SERVICE == Service::Rc;
        if peer.reliable != reliable {
            let name = |reliable| if reliable { "reliable" } else { "unreliable" };
            return Err(Error::refused(
                Errno::EINVAL,
                format!(
                    "QP {:#x} is {}, its peer {:#x} is {}",
                    self.endpoint.qpn,
                    name(reliable),
                    peer.qpn,
                    name(peer.reliable)
                ),
            ));
        }
        let Agreed { mtu, reads } = Agreed::between(&self.endpoint, peer);
        let dest = Dest {
            dgid: peer.gid.0,
            sgid_index: self.gid_index,
            port_num: self.port,
            hop_limit: 64,
            is_global: 1,
            ..Dest::default()
        };
        let mut rtr = ModifyQp {
            attr_mask: attr::STATE | attr::AV | attr::PATH_MTU | attr::DEST_QPN | attr::RQ_PSN,
            qp_state: state::RTR,
            dest,
            path_mtu: mtu.code(),
            dest_qp_num: peer.qpn,
            rq_psn: peer.psn,
            max_dest_rd_atomic: reads,
            min_rnr_timer: self.timing.rnr_timer,
            ..ModifyQp::default()
        };
        let mut rts = ModifyQp {
            attr_mask: attr::STATE | attr::SQ_PSN,
            qp_state: state::RTS,
            sq_psn: self.endpoint.psn,
            timeout: self.timing.timeout,
            retry_cnt: self.timing.retries,
            rnr_retry: self.timing.rnr_retries,
            max_rd_atomic: reads,
            ..ModifyQp::default()
        };
        if reliable {
            rtr.attr_mask |= attr::MAX_DEST_RD_ATOMIC | attr::MIN_RNR_TIMER;
            rts.attr_mask |= attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        }
        self.inner.qp.modify(&rtr)?;
        self.inner.qp.modify(&rts)?;
        Ok(Qp::connected(self.inner, self.endpoint, *peer))
    }
}

impl<S> fmt::Debug for Unconnected<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Unconnected({})", self.endpoint)
    }
}

/// A connected queue pair. Posting takes `&self`, so threads may share one; they also share its
/// lock.
///
/// Dropping the queue pair ends its requests, whose data may not have arrived yet: wait for the
/// completions first. The adapter frees the buffers of these requests when it no longer uses them.
pub struct Qp<Service> {
    pub(crate) inner: QpInner,
    endpoint: Endpoint,
    peer: Endpoint,
    service: PhantomData<fn() -> Service>,
}

impl<S: Connected> Qp<S> {
    pub(crate) fn connected(inner: QpInner, endpoint: Endpoint, peer: Endpoint) -> Self {
        Self { inner, endpoint, peer, service: PhantomData }
    }

    /// The endpoint of this side.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// The endpoint of the peer.
    #[must_use]
    pub fn peer(&self) -> Endpoint {
        self.peer
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

    /// Posts a receive; its completion comes with `id`.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many
    /// parts.
    pub fn receive(&self, id: u64, into: impl Into<Message>) -> Result<(), Rejected> {
        self.inner.receive(id, into.into().parts)
    }

    /// Sends a message to the peer's next receive; its completion comes with `id`.
    ///
    /// Only registered memory can be sent. [`Qp::send_inline`] sends a few bytes of any memory, and
    /// [`Qp::scope`] registers memory for a while.
    ///
    /// ```compile_fail,E0277
    /// # fn example(qp: softhca::Qp<softhca::Reliable>) -> softhca::Result<()> {
    /// qp.send(1, vec![0_u8; 64])?; // Not registered.
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL for too many parts or when the queue pair is
    /// in the error state.
    pub fn send(&self, id: u64, message: impl Into<Message>) -> Result<(), Rejected> {
        self.inner.send(id, message.into(), SendRequest::new(Operation::Send, None))
    }

    /// Sends a few bytes, which are copied at once.
    ///
    /// # Errors
    /// EINVAL for more bytes than the queue pair's inline limit; else the errors of [`Qp::send`].
    pub fn send_inline(&self, id: u64, bytes: &[u8], immediate: Option<u32>) -> Result<()> {
        self.inner.inline(id, bytes, SendRequest::new(Operation::Send, None), immediate)
    }

    /// Writes to exposed memory of the peer, from the beginning of the region (see
    /// [`RemoteRegion::part`]). With immediate data the peer's next receive completes as well.
    ///
    /// # Errors
    /// EINVAL when the message is longer than the region; else the errors of [`Qp::send`].
    pub fn write(&self, id: u64, message: impl Into<Message>, to: &RemoteRegion) -> Result<(), Rejected> {
        self.inner.send(id, message.into(), SendRequest::new(Operation::Write, Some(*to)))
    }

    /// Writes a few bytes, which are copied at once.
    ///
    /// # Errors
    /// The errors of [`Qp::send_inline`] and [`Qp::write`].
    pub fn write_inline(&self, id: u64, bytes: &[u8], to: &RemoteRegion) -> Result<()> {
        self.inner.inline(id, bytes, SendRequest::new(Operation::Write, Some(*to)), None)
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

impl Qp<Reliable> {
    /// Reads exposed memory of the peer, from the beginning of the region, until the buffer is
    /// full.
    ///
    /// ```compile_fail,E0599
    /// # fn example(qp: softhca::Qp<softhca::Unreliable>, b: softhca::Buffer,
    /// #     there: softhca::RemoteRegion)
    /// #     -> softhca::Result<()> {
    /// qp.read(1, b, &there)?; // Only the reliable service reads.
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// EINVAL when the buffer is longer than the region; else the errors of [`Qp::send`].
    pub fn read(&self, id: u64, into: impl Into<Message>, from: &RemoteRegion) -> Result<(), Rejected> {
        self.inner.send(id, into.into(), SendRequest::new(Operation::Read, Some(*from)))
    }

    /// Adds to the word at the beginning of the region, wrapping around. The completion's
    /// [`word`](crate::Completion::word) is the previous value.
    ///
    /// # Errors
    /// EINVAL when either side has less than 8 bytes; else the errors of [`Qp::send`].
    pub fn fetch_add(&self, id: u64, into: impl Into<Part>, at: &RemoteRegion, value: u64) -> Result<(), Rejected> {
        let request = SendRequest { compare_add: value, ..SendRequest::new(Operation::FetchAdd, Some(*at)) };
        self.inner.send(id, into.into().into(), request)
    }

    /// Replaces the word at the beginning of the region with `new` if the word is `expected`. The
    /// completion's [`word`](crate::Completion::word) is the previous value.
    ///
    /// # Errors
    /// The errors of [`Qp::fetch_add`].
    pub fn compare_swap(
        &self,
        id: u64,
        into: impl Into<Part>,
        at: &RemoteRegion,
        expected: u64,
        new: u64,
    ) -> Result<(), Rejected> {
        let request =
            SendRequest { compare_add: expected, swap: new, ..SendRequest::new(Operation::CompareSwap, Some(*at)) };
        self.inner.send(id, into.into().into(), request)
    }
}

impl<S> fmt::Debug for Qp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({} to {})", self.endpoint, self.peer)
    }
}
