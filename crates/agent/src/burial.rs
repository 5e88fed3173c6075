//! Shared memory that nobody needs any more goes on a thread of its own.
//!
//! The last who lets go of a file in memory frees its pages, which takes the system milliseconds where there are many. That
//! must not be the agent's thread. Principal type: [`Buried`].

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{SendError, Sender, channel};

use shm::region::Region;

use crate::headroom;

/// Smaller memory goes at once.
const LARGE: usize = 1 << 20;
/// Descriptors that may wait for the thread. Beyond these the caller closes, so that nobody has more of them opened than are closed.
const WAITING_MAX: usize = 4096;

/// What the thread does.
type Job = Box<dyn FnOnce() + Send>;

/// Has the thread do something; the caller does it where there is no thread, or no memory to tell it.
pub(crate) fn later(job: impl FnOnce() + Send + 'static) {
    let Some(thread) = thread().filter(|_| headroom::is_there()) else { return job() };
    // A thread that has ended gives the job back.
    if let Err(SendError(job)) = thread.send(Box::new(job)) {
        job();
    }
}

/// Has the thread close a descriptor of shared memory.
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

/// A region with its descriptor; when it is dropped, both go where nobody waits for it.
pub(crate) struct Buried {
    whole: Option<(Region, OwnedFd)>,
}

impl Buried {
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

impl Deref for Buried {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.whole().0
    }
}

impl Drop for Buried {
    fn drop(&mut self) {
        let Some(whole) = self.whole.take() else { return };
        if whole.0.len() >= LARGE {
            later(move || drop(whole));
        }
    }
}

/// The thread, if there could be one. It ends with the process.
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
        let (region, fd) = Region::create("softhca-test-burial", 64 << 20).expect("memory");
        let number = fd.as_raw_fd();
        drop(Buried::new(region, fd));
        let end = Instant::now() + Duration::from_secs(30);
        let is_there = || {
            let link = fs::read_link(format!("/proc/self/fd/{number}"));
            link.is_ok_and(|link| link.to_string_lossy().contains("softhca-test-burial"))
        };
        while is_there() {
            assert!(Instant::now() < end, "it is kept");
            std::thread::yield_now();
        }
    }
}
