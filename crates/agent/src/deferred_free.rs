//! A thread for jobs that take long.
//!
//! The thread that closes the last reference to a file in memory frees its pages. With many pages
//! this takes the kernel milliseconds, so the agent's thread must not do it. Commands give such jobs
//! to their [`Host`](crate::host::Host). The principal function is [`later`].

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SendError, Sender, channel};

use crate::headroom;

/// Maximum number of jobs that wait for the thread. Beyond that the caller does its job itself, so
/// that a client cannot cause them faster than they are done.
const WAITING_MAX: usize = 4096;

/// A job for the thread.
type Job = Box<dyn FnOnce() + Send>;

/// Gives the thread a job. The caller does the job itself if there is no thread, no memory for the
/// message, or too much to do already.
pub(crate) fn later(job: Job) {
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    let has_room = || headroom::is_there() && WAITING.load(Relaxed) < WAITING_MAX;
    let Some(thread) = thread().filter(|_| has_room()) else { return job() };
    WAITING.fetch_add(1, Relaxed);
    let counted = move || {
        job();
        WAITING.fetch_sub(1, Relaxed);
    };
    // If the thread has ended, the job comes back.
    if let Err(SendError(counted)) = thread.send(Box::new(counted)) {
        counted();
    }
}

/// The thread, if it could be started. It ends with the process.
fn thread() -> Option<&'static Sender<Job>> {
    static THREAD: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    let start = || {
        let (sender, jobs) = channel::<Job>();
        let end = move || jobs.into_iter().for_each(|job| job());
        headroom::start("softhca-free".into(), headroom::STACK, end).ok().map(|_| sender)
    };
    THREAD.get_or_init(start).as_ref()
}
