//! An event file: a descriptor that programs poll, and a queue of records.
//!
//! The descriptor is an eventfd. Its counter is non-zero whenever records wait (checked under the
//! lock). So `poll`, `epoll` (also edge-triggered, because every push writes) and O_NONBLOCK behave
//! as on a kernel's event file. The records wait in this process. So none is lost in a full socket
//! buffer, and a destroy call can remove the records of its object. Principal type: [`EventFile`].

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use abi::errno::Errno;
use parking_lot::Mutex;
use rustix::io::ReadWriteFlags;

/// A file of events that ends with the device.
pub(crate) trait Closable: Send + Sync {
    /// From now on readers that would wait get EIO.
    fn kill(&self);
}

pub(crate) struct EventFile<R> {
    fd: OwnedFd,
    queue: Mutex<VecDeque<R>>,
    /// The device is gone: after the last record readers get EIO.
    dead: AtomicBool,
}

impl<R> EventFile<R> {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd, queue: Mutex::new(VecDeque::new()), dead: AtomicBool::new(false) }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub(crate) fn push(&self, record: R) {
        let mut queue = self.queue.lock();
        queue.push_back(record);
        self.notify();
    }

    /// Removes the records for which `keep` is false: the records of an object that is being
    /// destroyed.
    pub(crate) fn retain(&self, keep: impl FnMut(&R) -> bool) {
        let mut queue = self.queue.lock();
        queue.retain(keep);
        if queue.is_empty() {
            self.drain();
        }
    }

    /// From now on readers that would wait get EIO.
    pub(crate) fn kill(&self) {
        let _queue = self.queue.lock();
        self.dead.store(true, Ordering::Relaxed);
        self.notify();
    }

    /// Waits until there may be a record, unless the program has set O_NONBLOCK: then this fails
    /// with EAGAIN. After a signal, the wait restarts or returns EINTR, as the handler's flags say.
    pub(crate) fn wait(&self) -> Result<(), Errno> {
        let mut counter = [0u8; 8];
        rustix::io::read(&self.fd, &mut counter).map(drop).map_err(|error| Errno(error.raw_os_error()))
    }

    /// The next record, if there is one. `foreign` returns one of the agent's records and whether
    /// more wait there; those records come first. `count` is called with the record while
    /// [`EventFile::retain`] must wait: when an object is destroyed, its record is either still
    /// here or counted.
    pub(crate) fn take(
        &self,
        foreign: impl FnOnce() -> (Option<R>, bool),
        count: impl FnMut(&R),
    ) -> Result<Option<R>, Errno> {
        let mut queue = self.queue.lock();
        // Before `foreign` is called: the agent writes the counter after its record, so a record
        // that this call misses makes the counter non-zero again.
        self.drain();
        let (record, more) = foreign();
        let record = record.or_else(|| queue.pop_front());
        let dead = self.dead.load(Ordering::Relaxed);
        if more || dead || !queue.is_empty() {
            self.notify();
        }
        record.iter().for_each(count);
        match record {
            None if dead => Err(Errno::EIO),
            record => Ok(record),
        }
    }

    fn notify(&self) {
        // EAGAIN means that the counter is at its maximum, so it is not zero.
        let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
    }

    fn drain(&self) {
        let mut counter = [0u8; 8];
        let mut slices = [IoSliceMut::new(&mut counter)];
        let _ = rustix::io::preadv2(&self.fd, &mut slices, u64::MAX, ReadWriteFlags::NOWAIT);
    }
}
