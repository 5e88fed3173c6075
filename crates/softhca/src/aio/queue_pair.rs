//! Connected queue pairs for tasks. Principal type: [`Qp`].

use std::fmt;
use std::sync::Arc;

use crate::aio::inbox::Inbox;
use crate::batch::Batch;
use crate::completion::Completion;
use crate::connected::{Connected, Reliable};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::message::{Message, Part};
use crate::operation::Operation;
use crate::queue_pair::SendRequest;
use crate::rejected::Rejected;
use crate::remote::RemoteRegion;

/// A connected queue pair of a runtime. All methods take `&self`: tasks may share one, in an
/// [`Arc`] or by reference.
///
/// Requests are posted in the order in which their futures are first polled. When the send queue or
/// its CQ is full, they wait for room in that order. See [the module](crate::aio) for dropped
/// futures.
pub struct Qp<Service> {
    verbs: crate::Qp<Service>,
    inbox: Arc<Inbox>,
}

impl<S: Connected> Qp<S> {
    /// Attaches a queue pair to the current runtime. Its posted receives stay posted, and
    /// [`Qp::message`] returns their messages.
    ///
    /// # Errors
    /// EINVAL outside of a runtime.
    ///
    /// # Panics
    /// In a runtime without `enable_io`.
    pub fn new(qp: crate::Qp<S>) -> Result<Self> {
        let inner = &qp.inner;
        inner.send_cq.tasks()?;
        inner.receive_cq.tasks()?;
        let inbox = Inbox::of(&inner.queues, inner.qp.qpn(), &inner.receive_cq);
        Ok(Self { verbs: qp, inbox })
    }

    /// The endpoint of this side.
    #[must_use]
    pub fn endpoint(&self) -> Endpoint {
        self.verbs.endpoint()
    }

    /// The endpoint of the peer.
    #[must_use]
    pub fn peer(&self) -> Endpoint {
        self.verbs.peer()
    }

    /// The QPN, which events contain.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.verbs.number()
    }

    /// The same queue pair, for requests with ids: [`Cq::next`](crate::Cq::next) awaits their
    /// completions. Received messages still go to tasks.
    #[must_use]
    pub fn verbs(&self) -> &crate::Qp<S> {
        &self.verbs
    }

    /// Adds a receive buffer to the queue, and does not wait. [`Qp::message`] returns the messages.
    ///
    /// # Errors
    /// ENOMEM when the queue or its CQ is full, EINVAL with a shared receive queue or for too many
    /// parts.
    pub fn post_receive(&self, into: impl Into<Message>) -> Result<(), Rejected> {
        self.verbs.receive(0, into)
    }

    /// Waits for the next message, in any buffer of the queue. When several tasks wait, each gets
    /// one message.
    ///
    /// Dropping the future loses nothing.
    ///
    /// ```no_run
    /// # async fn example(qp: softhca::aio::Qp<softhca::Reliable>, pd: softhca::Pd)
    /// #     -> softhca::Result<()> {
    /// for buffer in pd.buffer(64 * 1024)?.pieces(1024) {
    ///     qp.post_receive(buffer)?;
    /// }
    /// loop {
    ///     let message = qp.message().await?;
    ///     println!("{:?}", message.data());
    ///     qp.post_receive(message.into_buffer())?;
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// The receive failed; the error contains its buffers. If no receive is left: why the first one
    /// failed.
    pub async fn message(&self) -> Result<Completion, Rejected> {
        let inner = &self.verbs.inner;
        self.inbox.next(&inner.queues, &inner.receive_cq).await
    }

    /// Adds a receive buffer to the queue and waits for the next message. The message is in this
    /// buffer if the queue had no other.
    ///
    /// The buffer stays in the queue when the future is dropped; the next call gets the message.
    ///
    /// # Errors
    /// The errors of [`Qp::post_receive`] and [`Qp::message`].
    pub async fn receive(&self, into: impl Into<Message>) -> Result<Completion, Rejected> {
        self.post_receive(into)?;
        self.message().await
    }

    /// Sends a message to the peer's next receive. The future is ready when the peer has
    /// acknowledged the message (on the unreliable service: when the message has left). The
    /// completion contains the buffer.
    ///
    /// Borrowed memory cannot be sent: the future may be dropped, and the borrow would end before
    /// the request.
    ///
    /// ```compile_fail,E0277
    /// # async fn example(qp: softhca::aio::Qp<softhca::Reliable>, buffer: softhca::Buffer)
    /// #     -> softhca::Result<()> {
    /// qp.send(&buffer[..8]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The request was refused, or failed. The error contains its buffers.
    pub async fn send(&self, message: impl Into<Message>) -> Result<Completion, Rejected> {
        self.verbs.inner.carry_out(message.into(), SendRequest::new(Operation::Send, None)).await
    }

    /// Sends a few bytes, which are copied when the request is posted.
    ///
    /// # Errors
    /// EINVAL for more bytes than the queue pair's inline limit; else the errors of [`Qp::send`].
    pub async fn send_inline(&self, bytes: &[u8], immediate: Option<u32>) -> Result<()> {
        self.verbs.inner.carry_out_inline(bytes, SendRequest::new(Operation::Send, None), immediate).await
    }

    /// Writes to exposed memory of the peer, as [`crate::Qp::write`] does.
    ///
    /// # Errors
    /// EINVAL when the message is longer than the region; else the errors of [`Qp::send`].
    pub async fn write(&self, message: impl Into<Message>, to: &RemoteRegion) -> Result<Completion, Rejected> {
        self.verbs.inner.carry_out(message.into(), SendRequest::new(Operation::Write, Some(*to))).await
    }

    /// Writes a few bytes, which are copied when the request is posted.
    ///
    /// # Errors
    /// The errors of [`Qp::send_inline`] and [`Qp::write`].
    pub async fn write_inline(&self, bytes: &[u8], to: &RemoteRegion) -> Result<()> {
        self.verbs.inner.carry_out_inline(bytes, SendRequest::new(Operation::Write, Some(*to)), None).await
    }

    /// Begins a batch, which [`Batch::run`] posts and awaits.
    pub fn batch(&self) -> Batch<'_, S> {
        self.verbs.batch()
    }

    /// Flushes every request in progress: awaiting tasks get an error with the buffers. The queue
    /// pair cannot send afterwards.
    ///
    /// # Errors
    /// EIO when the agent is gone. Then the requests have been flushed already.
    pub fn flush(&self) -> Result<()> {
        self.verbs.flush()
    }
}

impl Qp<Reliable> {
    /// Reads exposed memory of the peer, from the beginning of the region, until the buffer is
    /// full. The data is the completion's [`data`](Completion::data).
    ///
    /// ```compile_fail,E0599
    /// # async fn example(qp: softhca::aio::Qp<softhca::Unreliable>, b: softhca::Buffer,
    /// #     there: softhca::RemoteRegion)
    /// #     -> softhca::Result<()> {
    /// qp.read(b, &there).await?; // Only the reliable service reads.
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// EINVAL when the buffer is longer than the region; else the errors of [`Qp::send`].
    pub async fn read(&self, into: impl Into<Message>, from: &RemoteRegion) -> Result<Completion, Rejected> {
        self.verbs.inner.carry_out(into.into(), SendRequest::new(Operation::Read, Some(*from))).await
    }

    /// Adds to the word at the beginning of the region, wrapping around. The completion's
    /// [`word`](Completion::word) is the previous value.
    ///
    /// # Errors
    /// EINVAL when either side has less than 8 bytes; else the errors of [`Qp::send`].
    pub async fn fetch_add(
        &self,
        into: impl Into<Part>,
        at: &RemoteRegion,
        value: u64,
    ) -> Result<Completion, Rejected> {
        let request = SendRequest { compare_add: value, ..SendRequest::new(Operation::FetchAdd, Some(*at)) };
        self.verbs.inner.carry_out(into.into().into(), request).await
    }

    /// Replaces the word at the beginning of the region with `new` if the word is `expected`. The
    /// completion's [`word`](Completion::word) is the previous value.
    ///
    /// # Errors
    /// The errors of [`Qp::fetch_add`].
    pub async fn compare_swap(
        &self,
        into: impl Into<Part>,
        at: &RemoteRegion,
        expected: u64,
        new: u64,
    ) -> Result<Completion, Rejected> {
        let request =
            SendRequest { compare_add: expected, swap: new, ..SendRequest::new(Operation::CompareSwap, Some(*at)) };
        self.verbs.inner.carry_out(into.into().into(), request).await
    }
}

impl<S> fmt::Debug for Qp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "aio::{:?}", self.verbs)
    }
}
