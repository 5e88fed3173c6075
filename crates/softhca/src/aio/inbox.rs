//! Queues of messages that wait for tasks, in order of arrival, one for each queue pair. Principal
//! type: [`Inbox`].
//!
//! A message belongs to no future, so it is not lost when a future is dropped.

use std::collections::VecDeque;

use parking_lot::Mutex;
use protocol::Status;
use tokio::sync::Notify;

use crate::completion::Completion;
use crate::error::Error;

/// The messages of a queue pair.
#[derive(Default)]
pub(crate) struct Inbox {
    pub(super) state: Mutex<InboxState>,
    pub(super) came: Notify,
}

#[derive(Default)]
pub(super) struct InboxState {
    pub(super) messages: VecDeque<Completion>,
    /// Why the first failed receive failed.
    pub(super) failed: Option<Error>,
}

impl Inbox {
    /// Adds a message; [`Inbox::tell`] wakes a task that waits for it.
    pub(crate) fn put(&self, completion: Completion) {
        self.state.lock().put(completion);
    }

    pub(crate) fn tell(&self) {
        self.came.notify_one();
    }

    pub(crate) fn tell_all(&self) {
        self.came.notify_waiters();
    }
}

impl InboxState {
    pub(super) fn put(&mut self, completion: Completion) {
        if completion.status() != Status::Success && self.failed.is_none() {
            self.failed = completion.error();
        }
        self.messages.push_back(completion);
    }
}
