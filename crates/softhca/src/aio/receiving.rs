//! How tasks wait for the messages of a queue pair. Adds to [`Inbox`].

use std::sync::Arc;

use crate::aio::inbox::Inbox;
use crate::completion::Completion;
use crate::cq::CqInner;
use crate::error::Error;
use crate::pending::Queues;
use crate::rejected::Rejected;

impl Inbox {
    /// The inbox of a queue pair, created if necessary.
    pub(crate) fn of(queues: &Queues, qpn: u32, cq: &CqInner) -> Arc<Self> {
        let inbox = Arc::default();
        let _ = queues.inbox.set(Arc::clone(&inbox));
        // Messages that came earlier go first, except messages that arrive at this moment, which no
        // task has seen.
        cq.sift(|completion| {
            if completion.qp() != qpn || !completion.operation().is_receive() {
                return Some(completion);
            }
            inbox.state.lock().put(completion);
            None
        });
        inbox
    }

    /// Waits for the next message of the queue pair with these queues.
    pub(crate) async fn next(&self, queues: &Queues, cq: &Arc<CqInner>) -> Result<Completion, Rejected> {
        loop {
            let came = self.came.notified();
            cq.gather()?;
            if let Some(completion) = self.state.lock().messages.pop_front() {
                return completion.settled();
            }
            if let Some(error) = self.over(queues) {
                return Err(error.into());
            }
            cq.drive(came).await?;
        }
    }

    /// Why no more messages can come, if the receives have failed and none is left.
    fn over(&self, queues: &Queues) -> Option<Error> {
        let failed = self.state.lock().failed.clone()?;
        (!queues.shared && queues.receives.is_empty()).then_some(failed)
    }
}
