//! Shared memory whose end may take long: with many pages, its host frees it where nobody waits.
//!
//! The principal type is [`FreedLater`].

use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use shm::region::Region;

use crate::host::Host;

/// Smaller memory is freed at once.
const LARGE: usize = 1 << 20;

/// A region with its descriptor. When it is dropped, its host frees both.
pub(crate) struct FreedLater {
    host: Arc<dyn Host>,
    whole: Option<(Region, OwnedFd)>,
}

impl FreedLater {
    pub(crate) fn new(host: Arc<dyn Host>, region: Region, fd: OwnedFd) -> Self {
        Self { host, whole: Some((region, fd)) }
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
            self.host.later(Box::new(move || drop(whole)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::System;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::time::{Duration, Instant};

    #[test]
    fn large_memory_goes_without_anybody_waiting_for_it() {
        let (region, fd) = Region::create("softhca-test-deferred", 64 << 20).expect("memory");
        let number = fd.as_raw_fd();
        drop(FreedLater::new(Arc::new(System::default()), region, fd));
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
