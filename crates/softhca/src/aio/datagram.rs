//! Datagram queue pairs for tasks. Principal type: [`DatagramQp`].

use std::fmt;
use std::sync::Arc;

use crate::aio::inbox::Inbox;
use crate::batch::Batch;
use crate::completion::Completion;
use crate::datagram::{Datagram, Peer};
use crate::error::Result;
use crate::message::Message;
use crate::rejected::Rejected;

/// A datagram queue pair of a runtime. What [`aio::Qp`](crate::aio::Qp) says about futures and
/// order holds here too.
pub struct DatagramQp {
    verbs: crate::DatagramQp,
    inbox: Arc<Inbox>,
}

impl DatagramQp {
    /// Attaches a queue pair to the current runtime. Its posted receives stay posted.
    ///
    /// # Errors
    /// EINVAL outside of a runtime.
    ///
    /// # Panics
    /// In a runtime without `enable_io`.
    pub fn new(qp: crate::DatagramQp) -> Result<Self> {
        let inner = &qp.inner;
        inner.send_cq.tasks()?;
        inner.receive_cq.tasks()?;
        let inbox = Inbox::of(&inner.queues, inner.qp.qpn(), &inner.receive_cq);
        Ok(Self { verbs: qp, inbox })
    }

    /// The same queue pair, for its addresses and groups, and for requests with ids.
    #[must_use]
    pub fn verbs(&self) -> &crate::DatagramQp {
        &self.verbs
    }

    /// Adds a receive buffer to the queue, and does not wait. The buffer needs
    /// [`HEADER`](crate::DatagramQp::HEADER) bytes more than the message.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many
    /// parts.
    pub fn post_receive(&self, into: impl Into<Message>) -> Result<(), Rejected> {
        self.verbs.receive(0, into)
    }

    /// Waits for the next datagram; [`Completion::source`] is its sender. Dropping the future loses
    /// nothing.
    ///
    /// # Errors
    /// The receive failed. The error contains its buffers.
    pub async fn message(&self) -> Result<Completion, Rejected> {
        let inner = &self.verbs.inner;
        self.inbox.next(&inner.queues, &inner.receive_cq).await
    }

    /// Adds a receive buffer to the queue and waits for the next datagram. The buffer stays in the
    /// queue when the future is dropped.
    ///
    /// # Errors
    /// The errors of [`DatagramQp::post_receive`] and [`DatagramQp::message`].
    pub async fn receive(&self, into: impl Into<Message>) -> Result<Completion, Rejected> {
        self.post_receive(into)?;
        self.message().await
    }

    /// Sends a datagram, at most as long as the port's MTU. The future is ready when the datagram
    /// has left; the completion contains the buffer.
    ///
    /// # Errors
    /// The request was refused, or failed. The error contains its buffers.
    pub async fn send(&self, message: impl Into<Message>, to: &Peer) -> Result<Completion, Rejected> {
        self.verbs.inner.carry_out(message.into(), to.request()).await
    }

    /// Sends a few bytes, which are copied when the request is posted.
    ///
    /// # Errors
    /// EINVAL for more bytes than the queue pair's inline limit; else the errors of
    /// [`DatagramQp::send`].
    pub async fn send_inline(&self, bytes: &[u8], to: &Peer, immediate: Option<u32>) -> Result<()> {
        self.verbs.inner.carry_out_inline(bytes, to.request(), immediate).await
    }

    /// Begins a batch, which [`Batch::run`] posts and awaits.
    pub fn batch(&self) -> Batch<'_, Datagram> {
        self.verbs.batch()
    }
}

impl fmt::Debug for DatagramQp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aio::{:?}", self.verbs)
    }
}
