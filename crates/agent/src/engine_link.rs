//! The agent's end of one engine: the means to wake it, and the pushes to it.
//!
//! A push waits here until the owner of the world flushes it, and longer if the engine has no room
//! for it. The backlog holds only what the engine does not know yet, and each fact once. If a lane
//! ends before its engine knows it, no push is left. If a state changes a thousand times, one push
//! is left. So a stopped program gets everything when it continues. Only an engine whose backlog is
//! far longer than that of real programs is disconnected. The principal type is [`EngineLink`].

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use abi::layout::Record;
use abi::private::{Push, push};
use rustix::io::Errno;
use shm::notifier::Notifier;
use shm::socket::Socket;

use crate::foreign::Foreign;
use crate::host::Host;
use crate::pending::PendingContext;
use crate::wire::link::Waker;

/// Maximum number of pushes that wait for one engine. Most of them are about lanes and targets, of
/// which programs have fewer.
const BACKLOG_MAX: usize = 16 * 1024;

/// Maximum number of offers that wait for one engine: about as many as the push socket holds.
const OFFERS_MAX: usize = 16;

/// Size of the push socket's buffer, as the kernel counts: about sixteen pushes. The descriptors in
/// these pushes count for the agent's user. If more of them were in flight than one process may
/// have open, no program of that user could pass a descriptor.
const IN_FLIGHT: usize = 6 * 1024;

/// The agent's end of one engine.
pub struct EngineLink {
    /// The memory with the engine's wake word. Peers get it; the agent never maps it.
    wake_word: Arc<Foreign>,
    /// The eventfd that wakes the engine.
    kick: Arc<Foreign>,
    /// The socket receives nothing from the engine, so closing it never blocks.
    socket: Arc<Socket>,
    backlog: PendingPushes,
    /// Records that are dropped if the engine has no room for them, and their descriptors.
    offers: Vec<(Push, Vec<Foreign>)>,
    state: ListenState,
    pending: Option<PendingContext>,
    /// Whether the push socket is watched for room.
    pub watched: bool,
}

/// Whether an engine receives pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListenState {
    /// It receives pushes, or has no room at the moment.
    Listens,
    /// Like `Listens`, but the kernel takes no descriptors, and no event tells when it does again.
    Retries,
    /// It has closed its end: its program has closed the device, or is ending. Its connection will
    /// report that too.
    Ended,
    /// It has left too many pushes unread.
    Broken,
}

impl EngineLink {
    /// Creates a link. Returns it with the engine's end of the push socket.
    pub fn new(host: &dyn Host, wake_word: Foreign, kick: Foreign) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = host.push_socket(IN_FLIGHT)?;
        let (wake_word, kick) = (Arc::new(wake_word), Arc::new(kick));
        let link = Self {
            wake_word,
            kick,
            socket: Arc::new(ours),
            backlog: PendingPushes::default(),
            offers: Vec::new(),
            state: ListenState::Listens,
            pending: None,
            watched: false,
        };
        Ok((link, theirs))
    }

    /// The push socket, to watch it for room.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The memory with the engine's wake word.
    pub(crate) fn wake_word(&self) -> &Arc<Foreign> {
        &self.wake_word
    }

    /// The eventfd that wakes the engine.
    pub(crate) fn kick(&self) -> &Arc<Foreign> {
        &self.kick
    }

    /// The means to wake the engine. If `safely`, waking never blocks, whatever the engine's
    /// process does.
    pub(crate) fn waker(&self, safely: bool) -> io::Result<Waker> {
        Ok(match safely {
            true => Waker::Push(Arc::clone(&self.socket)),
            false => Waker::Eventfd(Notifier::from(self.kick.try_clone()?)),
        })
    }

    /// Pushes a record with the next [`EngineLink::flush`], or later when the engine has room.
    pub fn push(&mut self, record: Push, fds: Vec<Arc<Foreign>>) {
        if !self.is_over() {
            self.backlog.add(record, fds);
            self.note();
        }
    }

    /// Notes that something waits.
    fn note(&self) {
        if let Some(pending) = &self.pending {
            pending.note();
        }
    }

    /// Sets where this link notes that pushes wait, or that the engine is broken.
    pub fn note_at(&mut self, pending: PendingContext) {
        self.pending = Some(pending);
    }

    /// Whether pushes wait.
    pub fn waits(&self) -> bool {
        self.backlog.len() > 0
    }

    /// Pushes an unimportant record with the next [`EngineLink::flush`]. It is dropped if the
    /// engine has no room then.
    pub fn offer(&mut self, record: Push, fds: Vec<Foreign>) {
        if !self.is_over() && self.offers.len() < OFFERS_MAX {
            self.offers.push((record, fds));
            self.note();
        }
    }

    /// Sends waiting pushes and offers, as far as there is room. An engine for which too much waits
    /// after that is broken.
    pub fn flush(&mut self) {
        self.send_backlog();
        for (record, fds) in std::mem::take(&mut self.offers) {
            if self.backlog.len() == 0 && !self.is_over() {
                // If the other end is closed, the next important push notices that.
                let _ = self.socket.try_send(record.bytes(), &fds.iter().map(AsFd::as_fd).collect::<Vec<_>>());
            }
        }
        if self.backlog.len() > BACKLOG_MAX {
            self.state = ListenState::Broken;
            self.backlog = PendingPushes::default();
        }
    }

    /// Sends waiting pushes. If descriptors are the problem, nothing is tried before
    /// [`Self::retry_sends`]: each failed attempt looks like room to the poller.
    fn send_backlog(&mut self) {
        while self.state == ListenState::Listens
            && let Some((record, fds)) = self.backlog.first()
        {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match self.socket.try_send(record.bytes(), &borrowed) {
                Ok(()) => self.backlog.remove_first(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_short_of_room(&error) => self.state = ListenState::Retries,
                Err(error) => {
                    tracing::debug!(%error, "an engine has closed its end");
                    self.state = ListenState::Ended;
                    self.backlog = PendingPushes::default();
                }
            }
        }
    }

    /// Tries again after a while, if descriptors were the problem.
    pub fn retry_sends(&mut self) {
        if self.must_retry() {
            self.state = ListenState::Listens;
            self.flush();
        }
    }

    /// Whether pushes must be offered again, because no event tells when there is room.
    pub fn must_retry(&self) -> bool {
        self.state == ListenState::Retries
    }

    /// Whether the engine has left so many pushes unread that it no longer knows its lanes.
    pub fn is_broken(&self) -> bool {
        self.state == ListenState::Broken
    }

    fn is_over(&self) -> bool {
        matches!(self.state, ListenState::Ended | ListenState::Broken)
    }
}

/// Whether a message was not sent because the kernel has no room for its descriptors, or for the
/// message at all. Too many descriptors of a user are in flight, or memory is short. The condition
/// passes, but no socket event tells when.
pub fn is_short_of_room(error: &io::Error) -> bool {
    let short = [Errno::TOOMANYREFS, Errno::NOBUFS, Errno::NOMEM];
    short.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What an engine does not know yet, in order.
#[derive(Default)]
struct PendingPushes {
    waiting: BTreeMap<u64, (Push, Vec<Arc<Foreign>>)>,
    /// The position of the record of a kind about a lane, a target or a capture.
    places: BTreeMap<(u32, u32), u64>,
    last: u64,
}

impl PendingPushes {
    /// Adds a record, unless a waiting record says the same. A record that ends what a waiting
    /// record begins removes that record.
    fn add(&mut self, record: Push, fds: Vec<Arc<Foreign>>) {
        let subject = record.lane.lane;
        let begun = match record.kind {
            push::LANE_GONE => Some(push::LANE),
            push::CAPTURE_END => Some(push::CAPTURE),
            _ => None,
        };
        if let Some(place) = begun.and_then(|begun| self.places.remove(&(begun, subject))) {
            self.waiting.remove(&place);
            return;
        }
        if !self.places.contains_key(&(record.kind, subject)) {
            self.last += 1;
            self.places.insert((record.kind, subject), self.last);
            self.waiting.insert(self.last, (record, fds));
        }
    }

    fn first(&self) -> Option<&(Push, Vec<Arc<Foreign>>)> {
        self.waiting.first_key_value().map(|(_, waiting)| waiting)
    }

    fn remove_first(&mut self) {
        if let Some((_, (record, _))) = self.waiting.pop_first() {
            self.places.remove(&(record.kind, record.lane.lane));
        }
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::System;
    use crate::ids::ContextId;
    use crate::lanes::lane_gone;
    use abi::private::LaneOut;

    const A: ContextId = ContextId(1);

    fn link() -> (EngineLink, Socket) {
        let (wake_word, kick) =
            (System::default().event_file().expect("fd"), System::default().event_file().expect("fd"));
        let (link, theirs) =
            EngineLink::new(&System::default(), Foreign::ours(wake_word), Foreign::ours(kick)).expect("a link");
        (link, theirs.into())
    }

    fn record(kind: u32, lane: u32) -> Push {
        Push { kind, lane: LaneOut { lane, ..LaneOut::default() }, ..Push::default() }
    }

    /// Everything that the engine gets when it reads again.
    fn taken(link: &mut EngineLink, theirs: &Socket) -> Vec<(u32, u32)> {
        let mut all = Vec::new();
        let mut bytes = [0; 64];
        loop {
            match theirs.try_recv(&mut bytes) {
                Ok(received) => {
                    let push = Push::read(&bytes[..received.len]).expect("a push");
                    all.push((push.kind, push.lane.lane));
                }
                Err(_) if link.backlog.len() == 0 => return all,
                Err(_) => link.flush(),
            }
        }
    }

    /// Pushes lanes until one must wait. Returns how many there are.
    fn fill(link: &mut EngineLink) -> u32 {
        let fds: Vec<_> =
            (0..4).map(|_| Arc::new(Foreign::ours(System::default().event_file().expect("fd")))).collect();
        let lanes = (1..).find(|&lane| {
            link.push(record(push::LANE, lane), fds.clone());
            link.flush();
            link.backlog.len() > 0
        });
        lanes.expect("it is full at some time")
    }

    #[test]
    fn an_engine_that_does_not_listen_holds_few_descriptors() {
        let (mut link, theirs) = link();
        let lanes = fill(&mut link);
        assert!((5..64).contains(&lanes), "{lanes} lanes");
        let all: Vec<_> = (1..=lanes).map(|lane| (push::LANE, lane)).collect();
        assert_eq!(taken(&mut link, &theirs), all, "all, in their order");
    }

    #[test]
    fn pushes_that_cancel_each_other_leave_no_backlog() {
        let (mut link, theirs) = link();
        let lanes = fill(&mut link);
        for number in lanes + 1..lanes + 40_000 {
            link.push(record(push::LANE, number), Vec::new());
            link.push(record(push::CAPTURE, number), Vec::new());
            link.push(lane_gone(number, A), Vec::new());
            link.push(record(push::CAPTURE_END, number), Vec::new());
        }
        assert_eq!(link.backlog.len(), 1);
        link.push(lane_gone(1, A), Vec::new());
        let mut all: Vec<_> = (1..=lanes).map(|lane| (push::LANE, lane)).collect();
        all.push((push::LANE_GONE, 1));
        assert_eq!(taken(&mut link, &theirs), all);
    }

    #[test]
    fn a_state_that_changes_again_and_again_waits_once() {
        let (mut link, theirs) = link();
        let lanes = fill(&mut link) as usize;
        for _ in 0..40_000 {
            for kind in [push::PORTS, push::FAULTS, push::REMOVED, push::SHUTDOWN] {
                link.push(record(kind, 0), Vec::new());
            }
            link.push(record(push::TARGET, 0x11), Vec::new());
        }
        assert!(!link.is_broken());
        let states =
            [(push::PORTS, 0), (push::FAULTS, 0), (push::REMOVED, 0), (push::SHUTDOWN, 0), (push::TARGET, 0x11)];
        assert_eq!(taken(&mut link, &theirs)[lanes..], states);
        // Once the engine knows it, it can be pushed again.
        link.push(record(push::PORTS, 0), Vec::new());
        assert_eq!(taken(&mut link, &theirs), [(push::PORTS, 0)]);
    }

    #[test]
    fn an_engine_that_has_closed_its_end_is_not_broken() {
        let (mut link, theirs) = link();
        drop(theirs);
        for lane in 0..40_000 {
            link.push(lane_gone(lane, A), Vec::new());
        }
        link.flush();
        assert!(!link.is_broken() && !link.must_retry() && link.backlog.len() == 0);
    }

    #[test]
    fn an_engine_that_owes_too_much_is_given_up() {
        let (mut link, _theirs) = link();
        for lane in 0..40_000 {
            link.push(lane_gone(lane, A), Vec::new());
        }
        link.flush();
        assert!(link.is_broken() && link.backlog.len() == 0);
    }
}
