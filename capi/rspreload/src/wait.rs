//! Waiting for descriptors, some of which are rsockets. `rpoll` waits, with the rsockets' own
//! descriptors in place of the program's.

use crate::fork;
use crate::next::Function;
use crate::rdma::call;
use crate::table::{self, Kind};
use interpose::intercept;
use libc::{c_int, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};

/// Whether a list of descriptors has rsockets. If input is waited for, accepted connections become
/// rsockets now.
///
/// # Safety
/// `fds` has `count` entries.
unsafe fn has_rsockets(fds: *const pollfd, count: nfds_t) -> bool {
    let count = usize::try_from(count).unwrap_or(0);
    (0..count).fold(false, |found, index| {
        // SAFETY: the caller's promise.
        let entry = unsafe { fds.wrapping_add(index).read() };
        if entry.events & libc::POLLIN != 0 {
            fork::awaited(entry.fd);
        }
        found || table::rsocket(entry.fd).is_some()
    })
}

/// Waits with `rpoll`.
///
/// # Safety
/// `fds` has `count` entries.
unsafe fn wait(fds: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int {
    let length = usize::try_from(count).unwrap_or(0);
    let entry = |index: usize| fds.wrapping_add(index);
    // SAFETY: the caller's promise.
    let mut own: Vec<pollfd> = (0..length).map(|index| unsafe { entry(index).read() }).collect();
    for fd in &mut own {
        fd.fd = table::rsocket(fd.fd).unwrap_or(fd.fd);
    }
    let answer = call!(rpoll(own.as_mut_ptr(), count, milliseconds));
    for (index, fd) in own.iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { (*entry(index)).revents = fd.revents };
    }
    answer
}

/// Runs `body` with another signal mask.
///
/// # Safety
/// `mask` is NULL or valid.
pub(crate) unsafe fn masked<A>(mask: *const sigset_t, body: impl FnOnce() -> A) -> A {
    let mut before = std::mem::MaybeUninit::<sigset_t>::uninit();
    if mask.is_null() {
        return body();
    }
    // SAFETY: the caller's promise; `before` is filled here.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr()) };
    let answer = body();
    let why = interpose::errno();
    // SAFETY: filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    interpose::set_errno(why);
    answer
}

/// A timeout for `poll`: for ever if `time` is NULL, and never shorter than `time`.
///
/// # Safety
/// `time` is NULL or valid.
unsafe fn milliseconds(time: *const timespec) -> c_int {
    if time.is_null() {
        return -1;
    }
    // SAFETY: the caller's promise.
    let timespec { tv_sec, tv_nsec } = unsafe { time.read() };
    let whole = tv_sec.saturating_mul(1000).saturating_add(tv_nsec.saturating_add(999_999) / 1_000_000);
    c_int::try_from(whole).unwrap_or(c_int::MAX)
}

intercept! {
    /// `poll`.
    fn poll(fds: *mut pollfd, count: nfds_t, milliseconds: c_int) -> c_int as next => {
        // SAFETY: the program's list.
        unsafe { if has_rsockets(fds, count) { wait(fds, count, milliseconds) } else { next(fds, count, milliseconds) } }
    };

    /// `poll`, in programs that were compiled with checks.
    fn __poll_chk(fds: *mut pollfd, count: nfds_t, milliseconds: c_int, room: size_t) -> c_int as next => {
        // SAFETY: the program's list.
        unsafe { if has_rsockets(fds, count) { wait(fds, count, milliseconds) } else { next(fds, count, milliseconds, room) } }
    };

    /// `ppoll`.
    fn ppoll(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t) -> c_int as next => {
        // SAFETY: the program's list, time and mask.
        unsafe {
            if has_rsockets(fds, count) {
                masked(mask, || wait(fds, count, milliseconds(time)))
            } else {
                next(fds, count, time, mask)
            }
        }
    };

    /// `ppoll`, in programs that were compiled with checks.
    fn __ppoll_chk(fds: *mut pollfd, count: nfds_t, time: *const timespec, mask: *const sigset_t, room: size_t) -> c_int as next => {
        // SAFETY: the program's list, time and mask.
        unsafe {
            if has_rsockets(fds, count) {
                masked(mask, || wait(fds, count, milliseconds(time)))
            } else {
                next(fds, count, time, mask, room)
            }
        }
    };

    /// `select`.
    fn select(
        count: c_int, input: *mut fd_set, output: *mut fd_set, exceptional: *mut fd_set, time: *mut timeval,
    ) -> c_int as next => {
        let sets = [input, output, exceptional].map(Set);
        if !any_rsocket(count, sets) {
            return next(count, input, output, exceptional, time);
        }
        // SAFETY: the program's timeout, or NULL.
        let time = (!time.is_null()).then(|| unsafe { time.read() });
        let time = time.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec.saturating_mul(1000) });
        choose(count, sets, time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref))
    };

    /// `pselect`.
    fn pselect(
        count: c_int, input: *mut fd_set, output: *mut fd_set, exceptional: *mut fd_set, time: *const timespec, mask: *const sigset_t,
    ) -> c_int as next => {
        let sets = [input, output, exceptional].map(Set);
        if !any_rsocket(count, sets) {
            return next(count, input, output, exceptional, time, mask);
        }
        // SAFETY: the program's mask.
        unsafe { masked(mask, || choose(count, sets, time)) }
    };
}

/// A descriptor set of the program, or NULL.
#[derive(Clone, Copy)]
struct Set(*mut fd_set);

impl Set {
    /// The word of a descriptor and its bit in the word. (Some programs make larger sets than the C
    /// library's macros allow.)
    fn bit(self, fd: c_int) -> Option<(*mut u64, u64)> {
        let index = usize::try_from(fd).ok()?;
        (!self.0.is_null()).then(|| (self.0.cast::<u64>().wrapping_add(index / 64), 1 << (index % 64)))
    }

    fn has(self, fd: c_int) -> bool {
        // SAFETY: the program's set has bits for as many descriptors as it says.
        self.bit(fd).is_some_and(|(word, bit)| unsafe { word.read() } & bit != 0)
    }

    fn put(self, fd: c_int, there: bool) -> c_int {
        let Some((word, bit)) = self.bit(fd) else { return 0 };
        // SAFETY: as above.
        unsafe { word.write(if there { word.read() | bit } else { word.read() & !bit }) };
        c_int::from(there)
    }
}

fn any_rsocket(count: c_int, sets: [Set; 3]) -> bool {
    (0..count).fold(false, |found, fd| {
        if sets[0].has(fd) {
            fork::awaited(fd);
        }
        found || (table::rsocket(fd).is_some() && sets.iter().any(|set| set.has(fd)))
    })
}

/// Waits as `select` does, by polling.
fn choose(count: c_int, sets: [Set; 3], time: *const timespec) -> c_int {
    const HOLDS: [i16; 3] = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR,
        libc::POLLPRI,
    ];
    const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut fds: Vec<pollfd> = (0..count)
        .filter_map(|fd| {
            let events = sets.iter().zip(ASKED).filter(|(set, _)| set.has(fd)).fold(0, |all, (_, event)| all | event);
            (events != 0).then_some(pollfd { fd, events, revents: 0 })
        })
        .collect();
    let length = nfds_t::try_from(fds.len()).unwrap_or(0);
    // SAFETY: a local list, and the program's timeout.
    let answer = unsafe { wait(fds.as_mut_ptr(), length, milliseconds(time)) };
    if answer < 0 {
        return answer;
    }
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return interpose::refused(libc::EBADF);
    }
    let mut ready = 0;
    for fd in &fds {
        for ((set, asked), holds) in sets.iter().zip(ASKED).zip(HOLDS) {
            if fd.events & asked != 0 {
                ready += set.put(fd.fd, fd.revents & holds != 0);
            }
        }
    }
    ready
}

/// Polls a list in which rsockets already have their own descriptors.
pub(crate) fn poll_own(fds: &mut [pollfd], milliseconds: c_int) -> c_int {
    let length = nfds_t::try_from(fds.len()).unwrap_or(0);
    call!(rpoll(fds.as_mut_ptr(), length, milliseconds))
}

/// The rsocket's own descriptor, if a descriptor to watch is an rsocket.
pub(crate) fn watched(fd: c_int) -> Option<c_int> {
    match table::find(fd) {
        Kind::Rsocket(inner) => Some(inner),
        _ => None,
    }
}
