//! `repoll_create`, `repoll_ctl`, `repoll_wait` (rdma-core since RDMACM_1.5): a list of descriptors
//! that is kept between waiting calls. It is level-triggered. The principal type is [`Epoll`].

use super::poll;
use super::waiting::{Patience, no_eventfd};
use crate::entry::{Outcome, Refusal};
use libc::{epoll_event, pollfd};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// A list of descriptors to wait for.
pub(crate) struct Epoll {
    /// The list's descriptor. It is written when the list changes, so that waiting threads look
    /// again.
    fd: OwnedFd,
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    entries: Vec<Entry>,
    /// Where the next look begins, so that every entry is served.
    turn: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    fd: RawFd,
    events: u32,
    data: u64,
    /// The event was reported once and is not asked for again (`EPOLLONESHOT`).
    resting: bool,
}

/// The events that epoll and poll have in common, with the same numbers.
const COMMON: u32 = 0x7FF | libc::EPOLLRDHUP as u32;

impl Epoll {
    /// An empty list.
    pub(crate) fn new(flags: c_int) -> Outcome<Self> {
        let close = if flags & libc::EPOLL_CLOEXEC != 0 { EventfdFlags::CLOEXEC } else { EventfdFlags::empty() };
        let fd = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | close).map_err(no_eventfd)?;
        Ok(Self { fd, list: Mutex::default() })
    }

    /// The descriptor by which the program knows the list.
    pub(crate) fn number(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Adds, changes or removes a descriptor.
    pub(crate) fn control(&self, operation: c_int, fd: RawFd, event: Option<epoll_event>) -> Outcome<()> {
        let mut list = self.list.lock();
        let place = list.entries.iter().position(|entry| entry.fd == fd);
        let entry = || -> Outcome<Entry> {
            let epoll_event { events, u64: data } = event.ok_or(Refusal(libc::EFAULT))?;
            Ok(Entry { fd, events, data, resting: false })
        };
        match (operation, place) {
            (libc::EPOLL_CTL_ADD, Some(_)) => return Err(Refusal(libc::EEXIST)),
            (libc::EPOLL_CTL_ADD, None) => list.entries.push(entry()?),
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, None) => return Err(Refusal(libc::ENOENT)),
            (libc::EPOLL_CTL_MOD, Some(place)) => {
                let entry = entry()?;
                list.entries.splice(place..=place, [entry]);
            }
            (libc::EPOLL_CTL_DEL, Some(place)) => {
                list.entries.remove(place);
            }
            _ => return Err(Refusal(libc::EINVAL)),
        }
        drop(list);
        let _ = rustix::io::write(&self.fd, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Waits until descriptors of the list are ready, and returns their events.
    pub(crate) fn wait(&self, most: usize, patience: Patience) -> Outcome<Vec<epoll_event>> {
        loop {
            let (asked, mut fds) = {
                let mut list = self.list.lock();
                list.turn = list.turn.wrapping_add(1);
                let mut entries = list.entries.clone();
                let turn = list.turn.checked_rem(entries.len()).unwrap_or(0);
                entries.rotate_left(turn);
                let ask = |entry: &Entry| pollfd {
                    fd: if entry.resting { -1 } else { entry.fd },
                    events: i16::try_from(entry.events & 0x7FFF & COMMON).unwrap_or(0),
                    revents: 0,
                };
                let mut fds: Vec<pollfd> = entries.iter().map(ask).collect();
                fds.push(pollfd { fd: self.number(), events: libc::POLLIN, revents: 0 });
                (entries, fds)
            };
            let ready = poll::poll(&mut fds, patience)?;
            if fds.pop().is_some_and(|own| own.revents != 0) {
                let _ = rustix::io::read(&self.fd, &mut [0; 8]);
            }
            let found: Vec<(Entry, i16)> = asked
                .into_iter()
                .zip(&fds)
                .filter(|(_, fd)| fd.revents != 0)
                .map(|(entry, fd)| (entry, fd.revents))
                .take(most)
                .collect();
            if !found.is_empty() {
                return Ok(self.told(&found));
            }
            if ready == 0 {
                return Ok(Vec::new());
            }
        }
    }

    fn told(&self, found: &[(Entry, i16)]) -> Vec<epoll_event> {
        let mut list = self.list.lock();
        let event = |(entry, revents): &(Entry, i16)| epoll_event {
            events: u32::from(revents.cast_unsigned()) & COMMON,
            u64: entry.data,
        };
        for (entry, _) in found.iter().filter(|(entry, _)| entry.events & libc::EPOLLONESHOT as u32 != 0) {
            if let Some(same) = list.entries.iter_mut().find(|same| same.fd == entry.fd) {
                same.resting = true;
            }
        }
        found.iter().map(event).collect()
    }
}
