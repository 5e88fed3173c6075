//! Sleeping threads that wait for a socket. A sleeping thread waits on the socket's descriptors and
//! on its own descriptor, its [`Waker`]. Only one thread takes an event from a socket's descriptor,
//! and the event may concern other threads. So this thread wakes all threads that are registered
//! with the socket ([`Waiters`]).

use super::AGAIN;
use crate::entry::{Outcome, Refusal};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a thread spins for completions before it sleeps (rdma-core's `polling_time`).
pub(crate) const SPIN: Duration = Duration::from_micros(10);
/// How long a thread spins if its last wait was short: falling asleep and being woken would take
/// longer.
const LONG_SPIN: Duration = Duration::from_micros(50);
/// The limit of a short wait.
const SHORT_WAIT: Duration = Duration::from_micros(150);

/// How long to spin before the next wait, if the last wait took `waited`.
pub(crate) fn next_spin(waited: Duration) -> Duration {
    if waited < SHORT_WAIT { LONG_SPIN } else { SPIN }
}

/// Wakes a sleeping thread.
#[derive(Debug)]
pub(crate) struct Waker(OwnedFd);

thread_local! {
    static MINE: RefCell<Option<Arc<Waker>>> = const { RefCell::new(None) };
}

impl Waker {
    /// The calling thread's waker.
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
        // A thread that is ending cannot keep a waker any more.
        made.unwrap_or_else(|_| Self::new().map(Arc::new))
    }

    fn new() -> Outcome<Self> {
        rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).map(Self).map_err(no_eventfd)
    }

    /// Wakes the thread.
    pub(crate) fn wake(&self) {
        // A write fails only if the counter is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Resets the waker after a wake-up.
    pub(crate) fn quiet(&self) {
        // A read fails only if there was no wake-up.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    /// The descriptor to sleep on.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The threads that sleep, or are about to sleep, until something happens on a socket.
#[derive(Debug, Default)]
pub(crate) struct Waiters(Vec<Arc<Waker>>);

impl Waiters {
    /// Adds a thread.
    pub(crate) fn add(&mut self, waker: &Arc<Waker>) {
        self.0.push(Arc::clone(waker));
    }

    /// Removes a thread.
    pub(crate) fn remove(&mut self, waker: &Arc<Waker>) {
        if let Some(place) = self.0.iter().position(|other| Arc::ptr_eq(other, waker)) {
            self.0.swap_remove(place);
        }
    }

    /// Wakes all threads.
    pub(crate) fn wake(&self) {
        for waker in &self.0 {
            waker.wake();
        }
    }
}

/// How long a call may wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// It must not wait.
    None,
    /// Until this time.
    Until(Instant),
    /// For ever.
    Endless,
}

impl Patience {
    /// The limit set by `SO_RCVTIMEO` or `SO_SNDTIMEO`.
    pub(crate) fn of(limit: Option<Duration>) -> Self {
        limit.and_then(|limit| Instant::now().checked_add(limit)).map_or(Self::Endless, Self::Until)
    }

    /// The remaining time for `poll(2)`; `None` means for ever. Fails with EAGAIN when no time
    /// remains.
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

/// Sleeps until a descriptor is ready or the time is over, and returns the number of ready
/// descriptors.
pub(crate) fn sleep(fds: &mut [PollFd<'_>], left: Option<&Timespec>) -> Outcome<usize> {
    rustix::event::poll(fds, left).map_err(refusal)
}

/// Whether poll reported anything about a descriptor.
pub(crate) fn is_ready(fd: &PollFd<'_>) -> bool {
    !fd.revents().is_empty()
}

/// A descriptor to wait on for input.
pub(crate) fn input(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

/// Turns the C library's errno into a refusal.
pub(crate) fn refusal(errno: rustix::io::Errno) -> Refusal {
    Refusal(errno.raw_os_error())
}

/// The refusal for a program that asked for a socket when eventfd failed. The reason names
/// eventfd2.
pub(crate) fn no_eventfd(errno: rustix::io::Errno) -> Refusal {
    engine::refusal(abi::Errno(errno.raw_os_error()), shm::denied::denied("eventfd2")(errno).to_string()).into()
}

/// Borrows a descriptor with another owner, for the time of a call.
pub(crate) fn borrowed<'a>(fd: RawFd) -> BorrowedFd<'a> {
    // SAFETY: the descriptor lives as long as the socket that it is part of, or it is the program's
    // own. The kernel reports numbers that are not open (EBADF, POLLNVAL). -1 is not passed.
    unsafe { BorrowedFd::borrow_raw(fd.max(0)) }
}
