//! `epoll` with rsockets. The kernel's epoll descriptor watches the kernel's descriptors. Rsockets
//! are in a list beside it, and a waiting call waits for the list and the descriptor together.
//!
//! Edge triggering (`EPOLLET`) is derived from levels: an event that was reported is not reported
//! again until the program has received something, or has met a full socket. The principal type is
//! [`Watch`].

use crate::next::Function;
use crate::table::{self, Kind};
use crate::wait;
use interpose::{errno, intercept, refused, set_errno};
use libc::{c_int, epoll_event, pollfd, sigset_t};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The rsockets that one epoll descriptor watches.
struct Watch {
    /// An eventfd that is readable when the list has changed. The kernel's descriptor watches it
    /// too, for threads that already wait there.
    wake_fd: c_int,
    members: Vec<Member>,
}

#[derive(Clone, Copy)]
struct Member {
    fd: c_int,
    events: u32,
    data: u64,
    /// Events that were reported and must not be reported again for now.
    told: u32,
}

/// The data of that eventfd's events, a value that is neither an address nor a descriptor.
const WAKE: u64 = 0xF1E2_D3C4_B5A6_9788;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// The events that epoll and poll have in common, with the same numbers.
const COMMON: u32 = 0x7FF | libc::EPOLLRDHUP as u32;
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;

/// Whether any watch is edge-triggered. Every transfer checks this.
static EDGES: AtomicBool = AtomicBool::new(false);
static WATCHES: Mutex<Option<HashMap<c_int, Watch>>> = Mutex::new(None);

fn watches() -> MutexGuard<'static, Option<HashMap<c_int, Watch>>> {
    WATCHES.lock().unwrap_or_else(PoisonError::into_inner)
}

intercept! {
    /// `epoll_ctl`.
    fn epoll_ctl(list: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int as next => {
        if table::rsocket(fd).is_none() {
            return next(list, operation, fd, event);
        }
        // SAFETY: the program's event, or NULL.
        let event = (!event.is_null()).then(|| unsafe { event.read_unaligned() });
        control(list, operation, fd, event, |wake_fd, event| next(list, libc::EPOLL_CTL_ADD, wake_fd, event))
    };

    /// `epoll_wait`.
    fn epoll_wait(list: c_int, events: *mut epoll_event, most: c_int, milliseconds: c_int) -> c_int as next => {
        loop {
            if table::find(list) == Kind::Epoll {
                return waited(list, events, most, milliseconds, |events, most| next(list, events, most, 0));
            }
            let answer = next(list, events, most, milliseconds);
            let wake_fd = watches().as_ref().and_then(|watches| watches.get(&list)).map(|watch| watch.wake_fd);
            let Some(wake_fd) = wake_fd.filter(|_| answer > 0) else { return answer };
            // While this thread waited, the first rsocket was added to the list.
            let kept = without_wake(events, usize::try_from(answer).unwrap_or(0), wake_fd);
            if kept > 0 {
                return c_int::try_from(kept).unwrap_or(0);
            }
        }
    };

    /// `epoll_pwait`.
    fn epoll_pwait(list: c_int, events: *mut epoll_event, most: c_int, milliseconds: c_int, mask: *const sigset_t) -> c_int as next => {
        if table::find(list) == Kind::Epoll {
            let ask = |events, most| next(list, events, most, 0, std::ptr::null());
            // SAFETY: the program's mask.
            return unsafe { wait::masked(mask, || waited(list, events, most, milliseconds, ask)) };
        }
        next(list, events, most, milliseconds, mask)
    };
}

/// Adds, changes or removes an rsocket.
fn control(
    list: c_int,
    operation: c_int,
    fd: c_int,
    event: Option<epoll_event>,
    add: impl FnOnce(c_int, *mut epoll_event) -> c_int,
) -> c_int {
    let mut watches = watches();
    let watches = watches.get_or_insert_default();
    let watch = match watches.entry(list) {
        Entry::Occupied(there) => there.into_mut(),
        Entry::Vacant(free) => {
            // SAFETY: takes numbers.
            let wake_fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
            let mut own = epoll_event { events: libc::EPOLLIN as u32, u64: WAKE };
            if wake_fd < 0 || add(wake_fd, &raw mut own) != 0 {
                let why = errno();
                // SAFETY: takes a number; the descriptor was just made, or is -1.
                unsafe { libc::close(wake_fd) };
                return refused(why);
            }
            table::set(list, Kind::Epoll);
            free.insert(Watch { wake_fd, members: Vec::new() })
        }
    };
    let place = watch.members.iter().position(|member| member.fd == fd);
    let member = event.map(|event| Member { fd, events: event.events, data: event.u64, told: 0 });
    match (operation, place, member) {
        (libc::EPOLL_CTL_ADD, Some(_), _) => return refused(libc::EEXIST),
        (libc::EPOLL_CTL_ADD, None, Some(member)) => watch.members.push(member),
        (libc::EPOLL_CTL_MOD, Some(place), Some(member)) => {
            watch.members.splice(place..=place, [member]);
        }
        (libc::EPOLL_CTL_DEL, Some(place), _) => {
            watch.members.remove(place);
        }
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None, _) => return refused(libc::ENOENT),
        (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _, None) => return refused(libc::EFAULT),
        _ => return refused(libc::EINVAL),
    }
    if member.is_some_and(|member| member.events & EDGE != 0) {
        EDGES.store(true, Ordering::Relaxed);
    }
    wake(watch.wake_fd);
    0
}

fn wake(wake_fd: c_int) {
    // SAFETY: eight bytes.
    let _ = unsafe { libc::write(wake_fd, 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
}

/// Waits for the list and the kernel's descriptor together.
fn waited(
    list: c_int,
    events: *mut epoll_event,
    most: c_int,
    milliseconds: c_int,
    ask: impl Fn(*mut epoll_event, c_int) -> c_int,
) -> c_int {
    let Some(room) = usize::try_from(most).ok().filter(|most| *most > 0) else { return refused(libc::EINVAL) };
    let end = u64::try_from(milliseconds).ok().map(|limit| Instant::now() + Duration::from_millis(limit));
    loop {
        let (wake_fd, members) = match watches().as_ref().and_then(|watches| watches.get(&list)) {
            Some(watch) => (watch.wake_fd, watch.members.clone()),
            None => return refused(libc::EBADF),
        };
        let mut fds: Vec<pollfd> = members
            .iter()
            .map(|member| {
                let silent = member.events & ONCE != 0 && member.told != 0;
                let asked = member.events & COMMON & !member.told;
                let fd = if silent { None } else { wait::watched(member.fd) };
                pollfd { fd: fd.unwrap_or(-1), events: i16::try_from(asked).unwrap_or(0), revents: 0 }
            })
            .collect();
        fds.push(pollfd { fd: list, events: libc::POLLIN, revents: 0 });
        let left = end.map_or(-1, |end| {
            let left = end.saturating_duration_since(Instant::now());
            c_int::try_from(left.as_millis() + u128::from(left.subsec_nanos() % 1_000_000 != 0)).unwrap_or(c_int::MAX)
        });
        // Events that are always reported, and were, would be found again at once.
        quiet_edges(&mut fds, &members);
        let ready = wait::poll_own(&mut fds, left);
        if ready < 0 {
            return ready;
        }
        let mut count = 0;
        let mut put = |event: epoll_event| {
            // SAFETY: the program's array, which has room for `most` events.
            unsafe { events.wrapping_add(count).write_unaligned(event) };
            count += 1;
        };
        let mut told = Vec::new();
        for (member, fd) in members.iter().zip(&fds).filter(|(_, fd)| fd.revents != 0).take(room) {
            let found = u32::from(fd.revents.cast_unsigned()) & COMMON;
            put(epoll_event { events: found, u64: member.data });
            told.push((member.fd, found));
        }
        note(list, &told);
        if fds.last().is_some_and(|own| own.revents != 0) && count < room {
            let start = events.wrapping_add(count);
            let more = ask(start, c_int::try_from(room - count).unwrap_or(0));
            count += without_wake(start, usize::try_from(more).unwrap_or(0), wake_fd);
        }
        if count > 0 {
            return c_int::try_from(count).unwrap_or(0);
        }
        if end.is_some_and(|end| Instant::now() >= end) {
            return 0;
        }
    }
}

/// Leaves out edge-triggered members whose end has been reported.
fn quiet_edges(fds: &mut [pollfd], members: &[Member]) {
    for (fd, member) in fds.iter_mut().zip(members) {
        if member.events & EDGE != 0 && member.told & ALWAYS != 0 {
            fd.fd = -1;
        }
    }
}

/// Removes the eventfd's event from the kernel's events. Returns how many are left.
fn without_wake(start: *mut epoll_event, count: usize, wake_fd: c_int) -> usize {
    let mut kept = 0;
    for index in 0..count {
        // SAFETY: the kernel has written `count` events.
        let event = unsafe { start.wrapping_add(index).read_unaligned() };
        if { event.u64 } == WAKE {
            // SAFETY: eight bytes.
            let _ = unsafe { libc::read(wake_fd, [0_u8; 8].as_mut_ptr().cast(), 8) };
        } else {
            // SAFETY: at or before the event that was just read.
            unsafe { start.wrapping_add(kept).write_unaligned(event) };
            kept += 1;
        }
    }
    kept
}

/// Notes the reported events of one-shot and edge-triggered members.
fn note(list: c_int, told: &[(c_int, u32)]) {
    if told.is_empty() {
        return;
    }
    let mut watches = watches();
    let Some(watch) = watches.as_mut().and_then(|watches| watches.get_mut(&list)) else { return };
    for (fd, found) in told {
        for member in watch.members.iter_mut().filter(|member| member.fd == *fd && member.events & (EDGE | ONCE) != 0) {
            member.told |= *found;
        }
    }
}

/// The program has received from a descriptor: data that remains or arrives must be reported again.
pub(crate) fn received(fd: c_int) {
    news(fd, (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLRDNORM) as u32);
}

/// The program has met a full socket: free space must be reported again.
pub(crate) fn is_full(fd: c_int) {
    news(fd, (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32);
}

fn news(fd: c_int, events: u32) {
    if !EDGES.load(Ordering::Relaxed) {
        return;
    }
    let why = errno();
    for watch in watches().iter_mut().flat_map(HashMap::values_mut) {
        let mut changed = false;
        for member in watch.members.iter_mut().filter(|member| member.fd == fd && member.events & ONCE == 0) {
            changed |= member.told & events != 0;
            member.told &= !events;
        }
        if changed {
            wake(watch.wake_fd);
        }
    }
    set_errno(why);
}

/// Stops watching a descriptor that is being closed.
pub(crate) fn forget(fd: c_int) {
    for watch in watches().iter_mut().flat_map(HashMap::values_mut) {
        watch.members.retain(|member| member.fd != fd);
    }
}

/// Ends the watch of an epoll descriptor that is being closed.
pub(crate) fn end(list: c_int) {
    let watch = watches().as_mut().and_then(|watches| watches.remove(&list));
    if let Some(watch) = watch {
        // SAFETY: this library's descriptor.
        unsafe { libc::close(watch.wake_fd) };
    }
}
