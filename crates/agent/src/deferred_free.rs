//! A thread for jobs that take long.
//!
//! The thread that closes the last reference to a file in memory frees its pages. With many pages
//! this takes the kernel milliseconds, so the agent's thread must not do it. Commands give such
//! jobs to their [`Host`](crate::host::Host). The principal function is [`later`].

use std::sync::OnceLock;
use std::sync::mpsc::{SendError, Sender, channel};

use crate::headroom;

/// A job for the thread.
type FreeJob = Box<dyn FnOnce() + Send>;

/// Gives the thread a job. The caller does the job itself if there is no thread, or no memory for
/// the message. What a user may have is limited, and so is what there is to free.
pub(crate) fn later(job: FreeJob) {
    let Some(thread) = thread().filter(|_| headroom::is_there()) else { return job() };
    // If the thread has ended, the job comes back.
    if let Err(SendError(job)) = thread.send(job) {
        job();
    }
}

/// The thread, if it could be started. It ends with the process.
fn thread() -> Option<&'static Sender<FreeJob>> {
    static THREAD: OnceLock<Option<Sender<FreeJob>>> = OnceLock::new();
    let start = || {
        let (sender, jobs) = channel::<FreeJob>();
        let end = move || jobs.into_iter().for_each(|job| job());
        headroom::start("softhca-free".into(), headroom::STACK, end).ok().map(|_| sender)
    };
    THREAD.get_or_init(start).as_ref()
}
