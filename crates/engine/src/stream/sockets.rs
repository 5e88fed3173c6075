//! The sockets of all streams of an engine, and what they wait for. Principal type: [`Streams`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::endings::Endings;
use super::part::Live;
use crate::lock::Mutex;

/// If there are several sockets, the engine asks in every so many rounds which of them are ready.
const ROUNDS: u32 = 8;

/// The sockets of the streams.
#[derive(Default)]
pub(crate) struct Streams {
    epoll: OnceLock<OwnedFd>,
    pub(crate) count: AtomicU32,
    /// The queue pair whose socket was last added, or last ready alone; otherwise 0.
    hot: AtomicU32,
    /// Rounds in which a thread has looked for ready sockets.
    rounds: AtomicU32,
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
        self.hot.store(qpn, Ordering::Relaxed);
        Ok(())
    }

    /// These sockets were ready.
    pub(super) fn note_ready(&self, ready: &[epoll::Event]) {
        match ready {
            [] => {}
            [one] => self.hot.store(one.data.u64() as u32, Ordering::Relaxed),
            // The next bytes may come from any of them.
            _ => self.hot.store(0, Ordering::Relaxed),
        }
    }

    /// The queue pair whose socket is probably ready next. Reading that socket costs less than
    /// asking which sockets are ready, which is necessary only now and then.
    pub(super) fn hot(&self) -> Option<u32> {
        let hot = self.hot.load(Ordering::Relaxed);
        // Not an atomic increment: the caller serves the sockets alone.
        let rounds = self.rounds.load(Ordering::Relaxed).wrapping_add(1);
        self.rounds.store(rounds, Ordering::Relaxed);
        let asks = self.count.load(Ordering::Relaxed) > 1 && rounds.is_multiple_of(ROUNDS);
        (hot != 0 && !asks).then_some(hot)
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
        let is_held = live.gate.until.is_some();
        interest.set(EventFlags::IN | EventFlags::RDHUP, !live.peer_ended && !is_held);
        interest.set(EventFlags::OUT, live.is_full);
        // An end that is not read stays ready. It must not be reported again and again.
        interest.set(EventFlags::ET, is_held);
        if live.interest != interest
            && let Some(set) = self.epoll.get()
        {
            live.interest = interest;
            let _ = epoll::modify(set, &live.socket, EventData::new_u64(qpn.into()), interest);
        }
    }
}
