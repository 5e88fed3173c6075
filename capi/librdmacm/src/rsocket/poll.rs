//! `rpoll` and `rselect`: wait for rsockets and ordinary descriptors together. An rsocket may be
//! ready although none of its descriptors is readable. So all sockets are checked first; then the
//! caller sleeps on the descriptors behind them, and checks again. The principal function is
//! [`poll`].

use super::table::{self, Socket};
use super::waiting::{self, Patience, SPIN, Waker, borrowed, input, is_ready, next_spin};
use super::watched::Watched;
use crate::entry::{Outcome, Refusal};
use libc::pollfd;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::cell::Cell;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kind of one entry of a list.
enum Item {
    Socket(Socket),
    Plain,
    Ignored,
}

impl Item {
    fn of(fd: RawFd) -> Self {
        match table::current().find(fd) {
            Some(socket) if socket.watched().is_some() => Self::Socket(socket),
            _ if fd < 0 => Self::Ignored,
            _ => Self::Plain,
        }
    }

    fn watched(&self) -> Option<&dyn Watched> {
        match self {
            Self::Socket(socket) => socket.watched(),
            Self::Plain | Self::Ignored => None,
        }
    }
}

/// Waits until an entry of the list is ready, and returns the number of ready entries.
pub(crate) fn poll(fds: &mut [pollfd], patience: Patience) -> Outcome<usize> {
    let items: Vec<Item> = fds.iter().map(|fd| Item::of(fd.fd)).collect();
    let start = Instant::now();
    let spin = NEXT_SPIN.get();
    loop {
        let ready = check(fds, &items)?;
        if ready > 0 || matches!(patience, Patience::None) {
            return Ok(ready);
        }
        // Without rsockets in the list, spinning finds nothing.
        if start.elapsed() >= spin || items.iter().all(|item| item.watched().is_none()) {
            break;
        }
        std::hint::spin_loop();
    }
    let waker = Waker::mine()?;
    loop {
        let Ok(left) = patience.left() else { return check(fds, &items) };
        sleep(fds, &items, &waker, left.as_ref())?;
        let ready = check(fds, &items)?;
        if ready > 0 {
            NEXT_SPIN.set(next_spin(start.elapsed()));
            return Ok(ready);
        }
    }
}

thread_local! {
    /// How long the calling thread's next wait spins before it sleeps.
    static NEXT_SPIN: Cell<Duration> = const { Cell::new(SPIN) };
}

/// Checks all entries once.
fn check(fds: &mut [pollfd], items: &[Item]) -> Outcome<usize> {
    let mut ready = 0;
    let mut plain = false;
    for (fd, item) in fds.iter_mut().zip(items) {
        fd.revents = item.watched().map_or(0, |watched| watched.check(fd.events));
        ready += usize::from(fd.revents != 0);
        plain |= matches!(item, Item::Plain);
    }
    if !plain {
        return Ok(ready);
    }
    let mut asked: Vec<PollFd<'_>> =
        fds.iter().zip(items).filter(|(_, item)| matches!(item, Item::Plain)).map(|(fd, _)| plain_fd(fd)).collect();
    waiting::sleep(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }))?;
    let answers = asked.iter().map(|fd| fd.revents().bits().cast_signed());
    for ((fd, _), revents) in fds.iter_mut().zip(items).filter(|(_, item)| matches!(item, Item::Plain)).zip(answers) {
        fd.revents = revents;
        ready += usize::from(revents != 0);
    }
    Ok(ready)
}

fn plain_fd<'a>(fd: &pollfd) -> PollFd<'a> {
    PollFd::from_borrowed_fd(borrowed(fd.fd), PollFlags::from_bits_retain(fd.events.cast_unsigned()))
}

/// Sleeps until an entry may be ready.
fn sleep(fds: &[pollfd], items: &[Item], waker: &Arc<Waker>, left: Option<&Timespec>) -> Outcome<()> {
    let mut behind: Vec<RawFd> = Vec::with_capacity(fds.len() * 2);
    let mut enlisted: Vec<(&dyn Watched, usize, usize)> = Vec::with_capacity(fds.len());
    let mut ready = false;
    for (fd, item) in fds.iter().zip(items) {
        let Some(watched) = item.watched() else { continue };
        let start = behind.len();
        ready = watched.enlist(fd.events, waker, &mut behind) != 0;
        if ready {
            break;
        }
        enlisted.push((watched, start, behind.len()));
    }
    let mut asked: Vec<PollFd<'_>> =
        behind.iter().map(|fd| if *fd < 0 { input(waker.fd()) } else { input(borrowed(*fd)) }).collect();
    asked.push(input(waker.fd()));
    asked.extend(fds.iter().zip(items).filter(|(_, item)| matches!(item, Item::Plain)).map(|(fd, _)| plain_fd(fd)));
    let slept = if ready { Ok(0) } else { waiting::sleep(&mut asked, left) };
    if asked.get(behind.len()).is_some_and(is_ready) {
        waker.quiet();
    }
    let answers: Vec<bool> = asked.iter().take(behind.len()).map(|fd| !ready && is_ready(fd)).collect();
    for (watched, start, end) in enlisted {
        watched.discharge(waker, answers.get(start..end).unwrap_or_default());
    }
    slept.map(|_| ())
}

/// The timeout of `poll(2)`: negative means for ever.
pub(crate) fn patience(milliseconds: i32) -> Patience {
    match u64::try_from(milliseconds) {
        Err(_) => Patience::Endless,
        Ok(0) => Patience::None,
        Ok(milliseconds) => Patience::of(Some(Duration::from_millis(milliseconds))),
    }
}

/// A descriptor set of `select(2)`, or NULL.
#[derive(Clone, Copy)]
pub(crate) struct Set(*mut libc::fd_set);

impl Set {
    /// Wraps the program's set.
    ///
    /// # Safety
    /// `set` is NULL, or has a bit for every descriptor that is asked for.
    pub(crate) unsafe fn new(set: *mut libc::fd_set) -> Self {
        Self(set)
    }

    /// The word of a descriptor and its bit in the word. (Some programs make larger sets than the C
    /// library's macros allow.)
    fn bit(self, fd: RawFd) -> Option<(*mut u64, u64)> {
        let index = usize::try_from(fd).ok()?;
        (!self.0.is_null()).then(|| (self.0.cast::<u64>().wrapping_add(index / 64), 1 << (index % 64)))
    }

    fn has(self, fd: RawFd) -> bool {
        // SAFETY: the promise of `new`.
        self.bit(fd).is_some_and(|(word, bit)| unsafe { word.read() } & bit != 0)
    }

    fn put(self, fd: RawFd, there: bool) -> usize {
        if let Some((word, bit)) = self.bit(fd) {
            // SAFETY: the promise of `new`.
            unsafe { word.write(if there { word.read() | bit } else { word.read() & !bit }) };
            return usize::from(there);
        }
        0
    }
}

/// Waits as `select(2)` does. The sets are for input, output, and exceptional conditions.
pub(crate) fn select(count: RawFd, sets: [Set; 3], patience: Patience) -> Outcome<usize> {
    const INPUT: i16 = libc::POLLIN | libc::POLLRDNORM | libc::POLLRDBAND | libc::POLLHUP | libc::POLLERR;
    const OUTPUT: i16 = libc::POLLOUT | libc::POLLWRNORM | libc::POLLWRBAND | libc::POLLERR;
    const EXCEPTION: i16 = libc::POLLPRI;
    const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
    let mut fds: Vec<pollfd> = (0..count)
        .filter_map(|fd| {
            let events = sets.iter().zip(ASKED).filter(|(set, _)| set.has(fd)).fold(0, |all, (_, event)| all | event);
            (events != 0).then_some(pollfd { fd, events, revents: 0 })
        })
        .collect();
    poll(&mut fds, patience)?;
    if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
        return Err(Refusal(libc::EBADF));
    }
    let mut ready = 0;
    for fd in &fds {
        for ((set, asked), holds) in sets.iter().zip(ASKED).zip([INPUT, OUTPUT, EXCEPTION]) {
            if fd.events & asked != 0 {
                ready += set.put(fd.fd, fd.revents & holds != 0);
            }
        }
    }
    Ok(ready)
}
