//! Posting by tasks: in order, waiting while a queue is full, and awaiting the completion. All
//! kinds of queue pairs share these functions.

use engine::PostError;
use tokio::sync::oneshot;

use crate::batch::Batch;
use crate::completion::Completion;
use crate::error::{Error, Result};
use crate::message::{Message, Parts};
use crate::pending::{Owner, Pending};
use crate::queue_pair::{Flags, QpInner, Refusal, SendRequest, Sges};
use crate::rejected::Rejected;

impl QpInner {
    /// Posts a send request as soon as there is room, and waits for its completion.
    pub(crate) async fn carry_out(&self, message: Message, request: SendRequest<'_>) -> Result<Completion, Rejected> {
        let flags = Flags::of(&message);
        let parts = message.parts;
        if let Err(error) = request.check(parts.total()) {
            return Err(Rejected { error, buffers: parts.into_buffers() });
        }
        self.post_in_turn(request, flags, None, parts).await
    }

    /// As `carry_out`, for bytes that are copied when the request is posted.
    pub(crate) async fn carry_out_inline(
        &self,
        bytes: &[u8],
        request: SendRequest<'_>,
        immediate: Option<u32>,
    ) -> Result<()> {
        request.check(bytes.len() as u64)?;
        self.post_in_turn(request, Flags::inline(immediate), Some(bytes), Parts::None).await?;
        Ok(())
    }

    async fn post_in_turn(
        &self,
        request: SendRequest<'_>,
        flags: Flags,
        inline: Option<&[u8]>,
        parts: Parts,
    ) -> Result<Completion, Rejected> {
        let tasks = self.send_cq.tasks()?;
        let (task, ended) = oneshot::channel();
        let mut pending = Pending::new(0, request.operation, parts, Owner::Task(task));
        let turn = self.turn.lock().await;
        loop {
            let room = tasks.room.notified();
            let sges = inline.map_or_else(|| Sges::of(&pending.parts), Sges::inline);
            match self.post(request, flags, sges.as_slice(), pending) {
                Ok(()) => break,
                Err(Refusal { error: Error::NotPosted(error), pending: back }) if self.has_room_later(error) => {
                    pending = *back;
                }
                Err(refusal) => return Err(refusal.into()),
            }
            if let Err(error) = self.send_cq.drive(room).await {
                return Err(Rejected { error, buffers: pending.parts.into_buffers() });
            }
        }
        drop(turn);
        self.ended(ended).await
    }

    /// Whether a refused request can be posted later, when other requests have completed.
    fn has_room_later(&self, error: PostError) -> bool {
        error.is_full() && self.qp.caps().max_send_wr > 0
    }

    async fn ended(&self, ended: oneshot::Receiver<Completion>) -> Result<Completion, Rejected> {
        match self.send_cq.drive(ended).await? {
            Ok(completion) => completion.settled(),
            // The memory stays with the queue pair.
            Err(_) => Err(self.send_cq.ended().into()),
        }
    }
}

impl<S> Batch<'_, S> {
    /// Posts the requests together as soon as there is room for all of them, and waits for their
    /// completion (feature `tokio`). Otherwise as [`Batch::post`]. What [`aio`](crate::aio) says
    /// about dropped futures holds for the whole batch.
    ///
    /// ```no_run
    /// # async fn example(qp: softhca::aio::Qp<softhca::Reliable>, rows: Vec<softhca::Buffer>,
    /// #     table: softhca::RemoteRegion) -> softhca::Result<()> {
    /// let batch = rows.into_iter().fold(qp.batch(), |batch, row| batch.write(row, &table));
    /// let rows = batch.run().await?.into_buffers();
    /// # drop(rows); Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The error of the first request that failed, with the buffers of all; EINVAL as for
    /// [`Batch::post`], and outside of a runtime.
    pub async fn run(mut self) -> Result<Completion, Rejected> {
        self.check()?;
        let qp = self.qp();
        let tasks = qp.send_cq.tasks()?;
        let (task, ended) = oneshot::channel();
        let mut owner = Owner::Task(task);
        let turn = qp.turn.lock().await;
        loop {
            let room = tasks.room.notified();
            match self.try_post(0, owner) {
                Ok(()) => break,
                Err((error, back)) if qp.has_room_later(error) => owner = back,
                Err((error, _)) => return Err(self.rejected(error)),
            }
            if let Err(error) = qp.send_cq.drive(room).await {
                return Err(self.rejected(error));
            }
        }
        drop(turn);
        qp.ended(ended).await
    }
}
