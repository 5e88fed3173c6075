//! The lane broker: engines that said hello, the lanes between them, and what is pushed to them.
//!
//! The agent makes a lane's memory and hands it to both ends; no data passes through the agent. A push that its engine does
//! not take at once waits in a bounded queue; an engine that lets it overflow is cut off. What lanes carry is not known
//! here. The principal types are [`EngineLink`] and [`Lanes`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use abi::layout::Record;
use abi::private::{LaneOut, Push, push};
use shm::eventfd::Doorbell;
use shm::lane::LANE_LEN;
use shm::region::Region;
use shm::socket::Socket;

use crate::context::ContextId;
use crate::wire::link::Waker;

/// Lanes of one pair of engines, at most.
pub const STRIPES: u32 = 64;
/// Pushes that wait for one engine, at most.
const BACKLOG_MAX: usize = 1024;

/// The agent's end of one engine.
pub struct EngineLink {
    /// The memory with the engine's wake word; given to peers, never mapped here.
    bell: OwnedFd,
    /// What wakes the engine.
    kick: OwnedFd,
    socket: Socket,
    backlog: VecDeque<(Push, Vec<OwnedFd>)>,
    broken: bool,
    /// Whether somebody waits for room in the push socket.
    pub watched: bool,
}

impl EngineLink {
    /// A link, and the engine's end of its push socket.
    pub fn new(bell: OwnedFd, kick: OwnedFd) -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = Socket::pair()?;
        let link = Self { bell, kick, socket: ours, backlog: VecDeque::new(), broken: false, watched: false };
        Ok((link, theirs.into()))
    }

    /// The push socket, to watch it for room.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The memory with the engine's wake word.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// What wakes the engine; with `safely` it never waits, whatever the engine's process does.
    pub(crate) fn waker(&self, safely: bool) -> io::Result<Waker> {
        Ok(match safely {
            true => Waker::Push(Socket::from(self.socket.as_fd().try_clone_to_owned()?)),
            false => Waker::Eventfd(Doorbell::from(self.kick.try_clone()?)),
        })
    }

    /// Pushes a record, now or when the engine has room for it.
    pub fn push(&mut self, record: Push, fds: Vec<OwnedFd>) {
        // A lane that ends before its engine has heard of it is not worth a word: whoever opens lanes to an engine that is
        // stopped, and leaves again and again, does not fill its backlog.
        let waiting =
            |(other, _): &(Push, Vec<OwnedFd>)| other.kind == push::LANE && other.lane.lane == record.lane.lane;
        if record.kind == push::LANE_GONE
            && let Some(index) = self.backlog.iter().position(waiting)
        {
            self.backlog.remove(index);
            return;
        }
        if self.backlog.len() >= BACKLOG_MAX {
            self.broken = true;
        }
        if !self.broken {
            self.backlog.push_back((record, fds));
            self.flush();
        }
    }

    /// Pushes a record that is of no need: it is dropped if the engine has no room for it now.
    pub fn offer(&mut self, record: Push, fds: Vec<OwnedFd>) {
        if self.backlog.is_empty() && !self.broken {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            // An end that is gone is found out with the next push that counts.
            let _ = self.socket.try_send(record.bytes(), &borrowed);
        }
    }

    /// Sends what waits, as far as there is room.
    pub fn flush(&mut self) {
        while let Some((record, fds)) = self.backlog.front() {
            let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
            match self.socket.try_send(record.bytes(), &borrowed) {
                Ok(()) => drop(self.backlog.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // Too many descriptors in flight: the kernel wants them received first. Room comes as with a full buffer.
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::TOOMANYREFS.raw_os_error()) => return,
                Err(_) => {
                    self.broken = true;
                    self.backlog.clear();
                }
            }
        }
    }

    /// Whether the engine stopped taking what is pushed, so that it no longer knows its lanes.
    pub fn is_broken(&self) -> bool {
        self.broken
    }
}

/// What one end of a lane is told, and the descriptors that go with it.
pub struct LaneEnd {
    /// The record, its process and device fields still to be filled in.
    pub out: LaneOut,
    /// Lane memory, what wakes the receiver, what wakes its peer, the peer's bell.
    pub fds: Vec<OwnedFd>,
}

/// Where among [`LaneEnd::fds`] what wakes the peer is.
pub const WAKES_PEER: usize = 2;

/// All lanes of an agent.
#[derive(Default)]
pub struct Lanes {
    lanes: BTreeMap<u32, Lane>,
    by_pair: BTreeMap<(ContextId, ContextId, u32), u32>,
    last: u32,
}

struct Lane {
    /// Side 0 and side 1. The same engine twice for a lane to itself.
    ends: [ContextId; 2],
    stripe: u32,
    memory: OwnedFd,
}

impl Lanes {
    /// The lane of a pair and a stripe, and whether it was made now. The order of the pair does not matter.
    pub fn open(&mut self, from: ContextId, to: ContextId, stripe: u32) -> io::Result<(u32, bool)> {
        let pair = (from.min(to), from.max(to), stripe);
        if let Some(lane) = self.by_pair.get(&pair) {
            return Ok((*lane, false));
        }
        let (_, memory) = Region::create("softhca-lane", LANE_LEN)?;
        self.last = self.last.checked_add(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        self.lanes.insert(self.last, Lane { ends: [from, to], stripe, memory });
        self.by_pair.insert(pair, self.last);
        Ok((self.last, true))
    }

    /// What the engine on `side` is told about a lane.
    pub fn describe(&self, lane: u32, side: usize, me: &EngineLink, peer: &EngineLink) -> io::Result<LaneEnd> {
        let held = self.lanes.get(&lane).ok_or(io::ErrorKind::NotFound)?;
        let out = LaneOut {
            lane,
            side: side as u32,
            engine: held.ends[1 - side].0,
            stripe: held.stripe,
            len: LANE_LEN as u64,
            ..LaneOut::default()
        };
        let fds = [&held.memory, &me.kick, &peer.kick, &peer.bell];
        Ok(LaneEnd { out, fds: fds.into_iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()? })
    }

    /// Which side of a lane an engine has; side 0 of a lane to itself.
    pub fn side(&self, lane: u32, engine: ContextId) -> usize {
        self.lanes.get(&lane).map_or(0, |held| usize::from(held.ends[0] != engine))
    }

    /// Takes back a lane that could not be handed out.
    pub fn close(&mut self, lane: u32) {
        if let Some(Lane { ends: [a, b], stripe, .. }) = self.lanes.remove(&lane) {
            self.by_pair.remove(&(a.min(b), a.max(b), stripe));
        }
    }

    /// Ends every lane of an engine that is gone: (lane, the engine at the other end).
    pub fn forget(&mut self, engine: ContextId) -> Vec<(u32, ContextId)> {
        let mut orphaned = Vec::new();
        for (lane, held) in &self.lanes {
            if held.ends.contains(&engine) {
                let other = if held.ends[0] == engine { held.ends[1] } else { held.ends[0] };
                orphaned.push((*lane, other));
            }
        }
        for (lane, _) in &orphaned {
            self.close(*lane);
        }
        orphaned
    }

    /// The engines at the other ends of an engine's lanes, one entry per lane.
    pub fn neighbours(&self, engine: ContextId) -> impl Iterator<Item = ContextId> + '_ {
        self.lanes
            .values()
            .filter(move |held| held.ends.contains(&engine))
            .map(move |held| if held.ends[0] == engine { held.ends[1] } else { held.ends[0] })
    }

    /// For each engine with lanes to others, the engines at their other ends.
    pub fn neighbourhood(&self) -> BTreeMap<ContextId, BTreeSet<ContextId>> {
        let mut all: BTreeMap<ContextId, BTreeSet<ContextId>> = BTreeMap::new();
        for [one, other] in self.lanes.values().map(|held| held.ends).filter(|[one, other]| one != other) {
            all.entry(one).or_default().insert(other);
            all.entry(other).or_default().insert(one);
        }
        all
    }

    /// How many lanes there are.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}

/// The push that says a lane's other end is gone.
pub fn lane_gone(lane: u32, engine: ContextId) -> Push {
    Push { kind: push::LANE_GONE, lane: LaneOut { lane, engine: engine.0, ..LaneOut::default() }, ..Push::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContextId = ContextId(1);
    const B: ContextId = ContextId(2);

    #[test]
    fn a_pair_and_a_stripe_have_one_lane_whoever_asks() {
        let mut lanes = Lanes::default();
        let (lane, new) = lanes.open(A, B, 0).expect("a lane");
        assert!(new);
        assert_eq!(lanes.open(B, A, 0).expect("the same"), (lane, false));
        assert_ne!(lanes.open(A, B, 1).expect("another").0, lane);
        assert_eq!((lanes.side(lane, A), lanes.side(lane, B)), (0, 1));
        assert_eq!(lanes.forget(B), [(1, A), (2, A)]);
        assert_eq!(lanes.len(), 0);
        assert!(lanes.open(A, B, 0).expect("a new one").0 > 2, "a lane's number never comes back");
    }

    #[test]
    fn lanes_that_come_and_go_do_not_fill_the_backlog() {
        let (bell, kick) = (crate::context::event_file().expect("fd"), crate::context::event_file().expect("fd"));
        let (mut link, _theirs) = EngineLink::new(bell, kick).expect("a link");
        let mut lane = 0;
        while link.backlog.is_empty() {
            lane += 1;
            link.push(
                Push { kind: push::LANE, lane: LaneOut { lane, ..LaneOut::default() }, ..Push::default() },
                Vec::new(),
            );
        }
        for lane in lane + 1..lane + 20_000 {
            link.push(
                Push { kind: push::LANE, lane: LaneOut { lane, ..LaneOut::default() }, ..Push::default() },
                Vec::new(),
            );
            link.push(lane_gone(lane, A), Vec::new());
        }
        assert!(!link.is_broken() && link.backlog.len() == 1);
    }

    #[test]
    fn an_engine_that_takes_nothing_is_given_up() {
        let (bell, kick) = (crate::context::event_file().expect("fd"), crate::context::event_file().expect("fd"));
        let (mut link, _theirs) = EngineLink::new(bell, kick).expect("a link");
        for lane in 0..20_000 {
            link.push(lane_gone(lane, A), Vec::new());
        }
        assert!(link.is_broken());
    }
}
