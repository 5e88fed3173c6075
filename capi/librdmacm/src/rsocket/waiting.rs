//! Threads that sleep until a socket has something for them. A sleeper waits on the socket's descriptors and on one of its own,
//! its [`Waker`]: an event on a socket's descriptor is taken by one thread only, and what it finds may be for others, so it wakes
//! everybody who is registered with the socket ([`Waiters`]).

use super::AGAIN;
use crate::entry::{Outcome, Refusal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread looks for completions before it sleeps (rdma-core's `polling_time`).
pub(crate) const SPIN: Duration = Duration::from_micros(10);
/// How long it does so where the last wait was not much longer than that: to fall asleep and be woken would take longer.
const LONG_SPIN: Duration = Duration::from_micros(50);
/// What is not much longer.
const SHORT_WAIT: Duration = Duration::from_micros(150);

/// How long to look before the next wait, after one of this length.
pub(crate) fn next_spin(waited: Duration) -> Duration {
    if waited < SHORT_WAIT { LONG_SPIN } else { SPIN }
}

/// By which a sleeping thread is woken.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

thread_local! {
    static MINE: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// The calling thread's.
    pub(crate) fn mine() -> Outcome<Arc<Self>> {
        let made = MINE.try_with(|mine| {
            let mut mine = mine.borrow_mut();
            if let Some(waker) = &*mine {
                return Ok(Arc::clone(waker));
            }
            let waker = Arc::new(Self::new()?);
            *mine = Some(Arc::clone(&waker));
            Ok(waker)
        });
        // A thread that is ending has no place for one any more.
        made.unwrap_or_else(|_| Self::new().map(Arc::new))
    }

    fn new() -> Outcome<Self> {
        rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Self).map_err(no_eventfd)
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // The only refusal is that it has been woken very often already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Takes the wake-ups that have been noticed.
    pub(crate) fn quiet(&self) {
        // The only refusal is that there is none.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// To sleep on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The threads that sleep, or are about to, until something happens to a socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Arc<Waker>>);

impl Waiters {
    /// Adds a thread.
    pub(crate) fn add(&mut self, waker: &Arc<Waker>) {
        self.0.push(Arc::clone(waker));
    }

    /// Takes a thread out again.
    pub(crate) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(place) = self.0.iter().position(|other| Arc::ptr_eq(other, waker)) {
            self.0.swap_remove(place);
        }
    }

    /// Wakes all of them.
    pub(crate) fn wake(&self) {
        for waker in &self.0 {
            waker.wake();
        }
    }
}

/// Until when a call may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// It may not.
    None,
    /// Until then.
    Until(Instant),
    /// As long as it takes.
    Endless,
}

impl Patience {
    /// What `SO_RCVTIMEO` and `SO_SNDTIMEO` say.
    pub(crate) fn of(limit: Option<Duration>) -> Self {
        limit.and_then(|limit| Instant::now().checked_add(limit)).map_or(Self::Endless, Self::Until)
    }

    /// What is left of it, as `poll(2)` takes it; `None` is for ever. EAGAIN when nothing is left.
    pub(crate) fn left(self) -> Outcome<Option<Timespec>> {
        match self {
            Self::None => Err(AGAIN),
            Self::Endless => Ok(None),
            Self::Until(end) => {
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() { Err(AGAIN) } else { Timespec::try_from(left).map(Some).map_err(|_| AGAIN) }
            }
        }
    }
}

/// Sleeps until one of the descriptors is ready or the time is over, and says how many are.
pub(crate) fn sleep(fds: &mut [PollFd<'_>], left: Option<&Timespec>) -> Outcome<usize> {
    rustix::event::poll(fds, left).map_err(refusal)
}

/// Whether what poll said of a descriptor is worth a look.
pub(crate) fn is_ready(fd: &PollFd<'_>) -> bool {
    !fd.revents().is_empty()
}

/// A descriptor to wait on for input.
pub(crate) fn input(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// What the C library's errno means here.
pub(crate) fn refusal(errno: rustix::io::Errno) -> Refusal {
    Refusal(errno.raw_os_error())
}

/// What a refused eventfd means to a program that asked for a socket: it is noted by name.
pub(crate) fn no_eventfd(errno: rustix::io::Errno) -> Refusal {
    engine::Error::refuse(abi::Errno(errno.raw_os_error()), shm::denied::denied("eventfd2")(errno).to_string()).into()
}

/// A descriptor that somebody else owns, for the time of a call.
pub(crate) fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the number is that of a descriptor which lives as long as the socket that it is part of, or it is the program's
    // own, and the kernel looks after numbers that are not open (EBADF, POLLNVAL). -1 is not passed.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}
