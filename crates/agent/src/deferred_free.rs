//! Frees shared memory on a thread of its own.
//!
//! The thread that closes the last reference to a file in memory frees its pages. With many pages
//! this takes the kernel milliseconds, so the agent's thread must not do it. The principal type is
//! [`FreedLater`].

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SendError, Sender, channel};

use shm::region::Region;

use crate::headroom;

/// Smaller memory is freed at once.
const LARGE: usize = 1 << 20;
/// Maximum number of descriptors that wait for the thread. Beyond that the caller closes them
/// itself, so that a client cannot open them faster than they are closed.
const WAITING_MAX: usize = 4096;

/// A job for the thread.
type Job = Box<dyn FnOnce() + Send>;

/// Gives the thread a job. The caller does the job itself if there is no thread, or no memory for
/// the message.
pub(crate) fn later(job: impl FnOnce() + Send + 'static) {
    let Some(thread) = thread().filter(|_| headroom::is_there()) else { return job() };
    // If the thread has ended, the job comes back.
    if let Err(SendError(job)) = thread.send(Box::new(job)) {
        job();
    }
}

/// Closes a descriptor of shared memory on the thread.
pub(crate) fn close(fd: OwnedFd) {
    static WAITING: AtomicUsize = AtomicUsize::new(0);
    if WAITING.load(Relaxed) >= WAITING_MAX {
        return drop(fd);
    }
    WAITING.fetch_add(1, Relaxed);
    later(move || {
        drop(fd);
        WAITING.fetch_sub(1, Relaxed);
    });
}

/// A region with its descriptor. When it is dropped, the thread frees both.
pub(crate) struct FreedLater {
    whole: Option<(Region, OwnedFd)>,
}

impl FreedLater {
    pub(crate) fn new(region: Region, fd: OwnedFd) -> Self {
        Self { whole: Some((region, fd)) }
    }

    /// Its descriptor.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.whole().1
    }

    fn whole(&self) -> &(Region, OwnedFd) {
        self.whole.as_ref().expect("it is taken out only when it is dropped")
    }
}

impl Deref for FreedLater {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.whole().0
    }
}

impl Drop for FreedLater {
    fn drop(&mut self) {
        let Some(whole) = self.whole.take() else { return };
        if whole.0.len() >= LARGE {
            later(move || drop(whole));
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    #[test]
    fn large_memory_goes_without_anybody_waiting_for_it() {
        let (region, fd) = Region::create("softhca-test-deferred", 64 << 20).expect("memory");
        let number = fd.as_raw_fd();
        drop(FreedLater::new(region, fd));
        let end = Instant::now() + Duration::from_secs(30);
        let is_there = || {
            let link = fs::read_link(format!("/proc/self/fd/{number}"));
            link.is_ok_and(|link| link.to_string_lossy().contains("softhca-test-deferred"))
        };
        while is_there() {
            assert!(Instant::now() < end, "it is kept");
            std::thread::yield_now();
        }
    }
}
