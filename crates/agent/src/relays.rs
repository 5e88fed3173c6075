//! Waking across users. No process gets the eventfd of another user's engine.
//!
//! A process with an engine's eventfd can drain it, or fill it so that the next notification
//! blocks. So a lane between two users uses eventfds of the agent, one per user and target. A
//! notification wakes the agent. The agent looks at the target's wake word. If the word is armed,
//! the agent wakes the target through its push socket. These eventfds are never read, and the agent
//! never writes them. The principal type is [`Relays`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};
use shm::WakeWordView;

use crate::engine_link::EngineLink;
use crate::host::Host;
use crate::ids::ContextId;
use crate::wire::link::Waker;

/// Maximum number of eventfds that are handled at once. The next piece of work handles the rest.
const EVENTS: usize = 64;

/// All relays from a user to another user's engine.
pub struct Relays {
    epoll: OwnedFd,
    relays: BTreeMap<u32, Relay>,
    /// By the engine that is woken, and the user who wakes it.
    by_waker: BTreeMap<(ContextId, u32), u32>,
    last: u32,
}

struct Relay {
    notifier: OwnedFd,
    wake_word: WakeWordView,
    waker: Waker,
    /// The arming of the wake word for which the target was last woken.
    woken: u32,
}

impl Relays {
    /// Creates the set without relays.
    pub fn new() -> io::Result<Self> {
        let epoll = crate::poller::new_epoll()?;
        Ok(Self { epoll, relays: BTreeMap::new(), by_waker: BTreeMap::new(), last: 0 })
    }

    /// The notifier with which the user `uid` wakes `target`.
    pub fn notifier(&mut self, host: &dyn Host, target: ContextId, link: &EngineLink, uid: u32) -> io::Result<OwnedFd> {
        if let Some(relay) = self.by_waker.get(&(target, uid)).and_then(|id| self.relays.get(id)) {
            return host.duplicate(relay.notifier.as_fd());
        }
        let id = self.last.wrapping_add(1);
        let (notifier, wake_word) = host.relay(self.epoll.as_fd(), id, link.wake_word().as_fd())?;
        let theirs = host.duplicate(notifier.as_fd())?;
        self.last = id;
        self.relays.insert(id, Relay { notifier, wake_word, waker: link.waker(true)?, woken: 0 });
        self.by_waker.insert((target, uid), id);
        Ok(theirs)
    }

    /// Removes the relays to an engine that is gone.
    pub fn forget(&mut self, target: ContextId) {
        let wakers: Vec<_> =
            self.by_waker.range((target, 0)..=(target, u32::MAX)).map(|(waker, id)| (*waker, *id)).collect();
        for (waker, id) in wakers {
            self.by_waker.remove(&waker);
            if let Some(relay) = self.relays.remove(&id) {
                // Other processes also hold the eventfd, so closing this descriptor would not end
                // the watch.
                let _ = epoll::delete(&self.epoll, &relay.notifier);
            }
        }
    }

    /// Wakes the targets that were notified.
    pub fn hand_on(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&now));
        for event in events {
            let id = u32::try_from(event.data.u64()).unwrap_or_default();
            if let Some(relay) = self.relays.get_mut(&id)
                && let Some(word) = relay.wake_word.armed()
                && std::mem::replace(&mut relay.woken, word) != word
            {
                relay.waker.wake();
            }
        }
    }

    /// How many relays there are.
    pub fn len(&self) -> usize {
        self.relays.len()
    }

    /// Whether there are no relays.
    pub fn is_empty(&self) -> bool {
        self.relays.is_empty()
    }
}

impl AsFd for Relays {
    /// Readable when a target was notified.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::Foreign;
    use crate::host::System;
    use abi::layout::Record;
    use abi::private::{Push, push};
    use shm::notifier::Notifier;
    use shm::{Socket, WakeWord};

    const TARGET: ContextId = ContextId(7);

    #[test]
    fn a_ring_becomes_one_push_per_arming() {
        let (wake_word, fd) = WakeWord::create().expect("a wake word");
        let kick = System::default().event_file().expect("an eventfd");
        let host = System::default();
        let (link, theirs) = EngineLink::new(&host, Foreign::ours(fd), Foreign::ours(kick)).expect("a link");
        let pushes = Socket::from(theirs);
        let mut relays = Relays::new().expect("none yet");
        let notifier = Notifier::from(relays.notifier(&host, TARGET, &link, 1000).expect("a notifier"));
        relays.notifier(&host, TARGET, &link, 1000).expect("the same one");
        assert_eq!(relays.len(), 1);
        let mut buffer = [0; 256];
        let mut pushed = || pushes.try_recv(&mut buffer).ok().and_then(|received| Push::read(&buffer[..received.len]));
        notifier.notify();
        relays.hand_on();
        assert!(pushed().is_none(), "who is awake is not woken");
        wake_word.arm();
        for _ in 0..3 {
            notifier.notify();
            relays.hand_on();
        }
        assert_eq!(pushed().map(|push| push.kind), Some(push::WAKE));
        assert!(pushed().is_none(), "once is enough");
        wake_word.disarm();
        wake_word.arm();
        notifier.notify();
        relays.hand_on();
        assert!(pushed().is_some());
        relays.forget(TARGET);
        notifier.notify();
        relays.hand_on();
        assert!(relays.is_empty() && pushed().is_none());
    }
}
