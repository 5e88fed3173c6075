//! State of a CQ for the tasks that wait on it. How they wait is in `driver.rs`. Principal types:
//! [`Tasks`] and [`Told`].

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};

use tokio::sync::{Notify, oneshot};
use tokio::task::AbortHandle;

use crate::aio::inbox::Inbox;
use crate::completion::Completion;
use crate::error::Error;

/// A CQ's state about the tasks that wait on it.
pub(crate) struct Tasks {
    /// Notified when completions were taken, because queues have room then.
    pub(crate) room: Notify,
    /// Notified when there are stashed completions.
    pub(crate) stashed: Notify,
    /// Number of tasks that sleep, or are about to sleep: they need the CQ to be armed.
    pub(crate) sleepers: AtomicUsize,
    /// The CQ is armed, or a task is arming it and polls afterwards.
    pub(crate) armed: AtomicBool,
    /// Set while one of the tasks polls before it sleeps.
    pub(crate) looking: AtomicBool,
    /// Set when no more completions can come; the reason.
    pub(crate) ended: OnceLock<Error>,
    /// The task that owns the descriptor.
    pub(crate) driver: AbortHandle,
}

/// The owner of a completion.
pub(crate) enum Told {
    Task(oneshot::Sender<Completion>, Completion),
    Inbox(Arc<Inbox>),
}

impl Told {
    /// Wakes the owner. If the task has dropped its future, the completion and its buffers are
    /// freed here.
    pub(crate) fn tell(self) {
        match self {
            Self::Task(task, completion) => drop(task.send(completion)),
            Self::Inbox(inbox) => inbox.tell(),
        }
    }
}

impl Tasks {
    /// Wakes waiters after `taken` completions were taken, of which `kept` are stashed.
    pub(crate) fn gathered(&self, taken: usize, kept: usize) {
        if taken > 0 {
            self.room.notify_waiters();
        }
        for _ in 0..kept {
            self.stashed.notify_one();
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
