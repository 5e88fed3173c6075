//! Datagram queue pairs for tasks. Principal type: [`DatagramQp`].

use std::fmt;
use std::sync::Arc;

use crate::aio::Inbox;
use crate::batch::Batch;
use crate::completion::Completion;
use crate::datagram::{Datagram, Peer};
use crate::error::{Rejected, Result};
use crate::message::Message;

/// A datagram queue pair of a runtime; see [`aio::Qp`](crate::aio::Qp) for what holds for both.
pub struct DatagramQp {
    verbs: crate::DatagramQp,
    inbox: Arc<Inbox>,
}

impl DatagramQp {
    /// Makes a queue pair the current runtime's. Its receives that are under way stay so.
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

    /// Gives the queue a buffer to receive into, with [`HEADER`](crate::DatagramQp::HEADER) bytes more than the message, and does not wait.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many parts.
    pub fn post_receive(&self, into: impl Into<Message>) -> Result<(), Rejected> {
        self.verbs.receive(0, into)
    }

    /// Waits for the next datagram; [`Completion::source`] says who sent it. Dropping the future loses nothing.
    ///
    /// # Errors
    /// The receive failed, and its buffers are in the error.
    pub async fn message(&self) -> Result<Completion, Rejected> {
        let inner = &self.verbs.inner;
        self.inbox.next(&inner.queues, &inner.receive_cq).await
    }

    /// Gives the queue a buffer and waits for the next datagram. When the future is dropped the buffer is still the queue's.
    ///
    /// # Errors
    /// As [`DatagramQp::post_receive`] and [`DatagramQp::message`].
    pub async fn receive(&self, into: impl Into<Message>) -> Result<Completion, Rejected> {
        self.post_receive(into)?;
        self.message().await
    }

    /// Sends a datagram, at most as long as the port's MTU. Ready when it has left; the buffer is in the completion.
    ///
    /// # Errors
    /// The request was refused, or failed; its buffers are in the error.
    pub async fn send(&self, message: impl Into<Message>, to: &Peer) -> Result<Completion, Rejected> {
        self.verbs.inner.carry_out(message.into(), to.request()).await
    }

    /// Sends a few bytes, which are copied when it is posted.
    ///
    /// # Errors
    /// EINVAL for more than the queue pair takes inline; else as [`DatagramQp::send`].
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
