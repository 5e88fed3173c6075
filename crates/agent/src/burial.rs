//! Large shared memory that nobody needs any more goes on a thread of its own.
//!
//! The last who lets go of a file in memory frees its pages, which takes the system milliseconds where there are many. That
//! must not be the agent's thread. Principal type: [`Buried`].

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};

use shm::region::Region;

use crate::headroom;

/// Smaller memory goes at once.
const LARGE: usize = 1 << 20;

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
        if whole.0.len() >= LARGE
            && let Some(thread) = thread()
        {
            // A thread that has ended gives it back, and it goes here.
            drop(thread.send(whole));
        }
    }
}

/// The thread, if there could be one. It ends with the process.
fn thread() -> Option<&'static Sender<(Region, OwnedFd)>> {
    static THREAD: OnceLock<Option<Sender<(Region, OwnedFd)>>> = OnceLock::new();
    let start = || {
        let (sender, buried) = channel();
        let end = move || buried.into_iter().for_each(drop);
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
