//! The sockets of all streams of an engine, and what they wait for. Principal type: [`Streams`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::endings::Endings;
use super::part::Live;
use crate::lock::Mutex;

/// The sockets of the streams.
#[derive(Default)]
pub(crate) struct Streams {
    epoll: OnceLock<OwnedFd>,
    pub(crate) count: AtomicU32,
    /// The queue pair whose socket was last added or ready.
    hot: AtomicU32,
    /// Held by the thread that serves the sockets.
    pub(super) buffer: Mutex<Vec<u8>>,
    /// Streams whose end the agent does not know yet.
    pub(super) ended: parking_lot::Mutex<Vec<u32>>,
    pub(super) endings: Endings,
}

impl Streams {
    /// What becomes readable when a socket is ready; `None` if there are no sockets.
    pub(crate) fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.epoll.get().filter(|_| self.count.load(Ordering::Relaxed) > 0).map(AsFd::as_fd)
    }

    /// Adds a socket.
    pub(super) fn add(&self, qpn: u32, socket: &OwnedFd) -> io::Result<()> {
        let set = match self.epoll.get() {
            Some(set) => set,
            None => {
                let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
                self.epoll.get_or_init(|| set)
            }
        };
        epoll::add(set, socket, EventData::new_u64(qpn.into()), EventFlags::IN | EventFlags::RDHUP)?;
        self.count.fetch_add(1, Ordering::Relaxed);
        self.note_ready(qpn);
        Ok(())
    }

    /// The socket of this queue pair is ready.
    pub(super) fn note_ready(&self, qpn: u32) {
        self.hot.store(qpn, Ordering::Relaxed);
    }

    /// The queue pair that probably has the only socket. Reading that socket costs less than asking
    /// whether it is ready.
    pub(super) fn only(&self) -> Option<u32> {
        (self.count.load(Ordering::Relaxed) == 1).then(|| self.hot.load(Ordering::Relaxed))
    }

    /// Removes a socket.
    pub(super) fn forget(&self, socket: &OwnedFd) {
        if let Some(set) = self.epoll.get()
            && epoll::delete(set, socket).is_ok()
        {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Watches a socket for what its stream waits for.
    pub(super) fn watch<R>(&self, qpn: u32, live: &mut Live<R>) {
        let mut interest = EventFlags::empty();
        interest.set(EventFlags::IN | EventFlags::RDHUP, !live.peer_ended);
        interest.set(EventFlags::OUT, live.is_full);
        if live.interest != interest
            && let Some(set) = self.epoll.get()
        {
            live.interest = interest;
            let _ = epoll::modify(set, &live.socket, EventData::new_u64(qpn.into()), interest);
        }
    }
}
