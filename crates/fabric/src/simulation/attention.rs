//! Which engines and agents of a simulation a step has to look at: those that were woken, and those
//! that have just run. An epoll set tells who was woken, so that the others cost nothing. Not what
//! is done with them ([`super::turns`]). Principal type: [`Attention`].

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

/// How many descriptors one system call tells of.
const TOLD: usize = 64;

/// The engines and hosts to look at, by number.
#[derive(Debug, Default)]
pub(super) struct Attention {
    /// Made when the first host is added. Engines have even numbers, hosts odd ones.
    epoll: Option<OwnedFd>,
    engines: BTreeSet<usize>,
    hosts: BTreeSet<usize>,
    looks: u64,
}

impl Attention {
    /// The set, and the number of an engine in it.
    pub(super) fn of_engine(&mut self, engine: usize) -> io::Result<(BorrowedFd<'_>, u64)> {
        Ok((self.epoll()?, 2 * engine as u64))
    }

    /// The set, and the number of a host in it.
    pub(super) fn of_host(&mut self, host: usize) -> io::Result<(BorrowedFd<'_>, u64)> {
        Ok((self.epoll()?, 2 * host as u64 + 1))
    }

    fn epoll(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.epoll.is_none() {
            self.epoll = Some(epoll::create(CreateFlags::CLOEXEC)?);
        }
        self.epoll.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The next step looks at this engine.
    pub(super) fn look_at_engine(&mut self, engine: usize) {
        self.engines.insert(engine);
    }

    /// The next step looks at this host.
    pub(super) fn look_at_host(&mut self, host: usize) {
        self.hosts.insert(host);
    }

    /// Takes the engines and hosts to look at now, in order.
    pub(super) fn take(&mut self) -> (BTreeSet<usize>, BTreeSet<usize>) {
        self.listen();
        let taken = (std::mem::take(&mut self.engines), std::mem::take(&mut self.hosts));
        self.looks += (taken.0.len() + taken.1.len()) as u64;
        taken
    }

    /// How many engines and hosts were looked at so far.
    pub(super) fn looks(&self) -> u64 {
        self.looks
    }

    fn listen(&mut self) {
        let Some(epoll) = &self.epoll else { return };
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; TOLD];
        loop {
            let at_once = Some(&Timespec { tv_sec: 0, tv_nsec: 0 });
            let count = epoll::wait(epoll, &mut events, at_once).unwrap_or(0);
            for event in &events[..count] {
                let number = event.data.u64() as usize;
                let set = if number.is_multiple_of(2) { &mut self.engines } else { &mut self.hosts };
                set.insert(number / 2);
            }
            if count < TOLD {
                return;
            }
        }
    }
}
