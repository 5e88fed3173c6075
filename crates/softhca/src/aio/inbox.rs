//! Queues of messages that wait for tasks, in order of arrival, one for each queue pair. Principal
//! type: [`Inbox`].
//!
//! A message belongs to no future, so it is not lost when a future is dropped.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use protocol::Status;
use tokio::sync::Notify;

use crate::aio::Told;
use crate::completion::Completion;
use crate::cq::CqInner;
use crate::error::Error;
use crate::pending::Queues;
use crate::rejected::Rejected;

/// The messages of a queue pair.
#[derive(Default)]
pub(crate) struct Inbox {
    state: Mutex<State>,
    came: Notify,
}

#[derive(Default)]
struct State {
    messages: VecDeque<Completion>,
    /// Why the first failed receive failed.
    failed: Option<Error>,
}

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

    /// Adds a message; [`Told::tell`] wakes a task that waits for it.
    pub(crate) fn put(self: Arc<Self>, completion: Completion) -> Told {
        self.state.lock().put(completion);
        Told::Inbox(self)
    }

    pub(crate) fn tell(&self) {
        self.came.notify_one();
    }

    pub(crate) fn tell_all(&self) {
        self.came.notify_waiters();
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

impl State {
    fn put(&mut self, completion: Completion) {
        if completion.status() != Status::Success && self.failed.is_none() {
            self.failed = completion.error();
        }
        self.messages.push_back(completion);
    }
}
