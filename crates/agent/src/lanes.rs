//! The lane broker: the lanes between engines that have sent ENGINE_HELLO.
//!
//! The agent creates a lane's memory and gives it to both ends. No data passes through the agent,
//! and the agent does not know what lanes carry. [`crate::engine_link`] tells the other end of a
//! lane. The principal type is [`Lanes`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

use abi::private::{LaneOut, Push, push};
use shm::lane::LANE_LEN;

use crate::engine_link::EngineLink;
use crate::foreign::Foreign;
use crate::host::Host;
use crate::ids::ContextId;

/// Maximum number of lanes of one pair of engines.
pub const LANES_PER_PAIR: u32 = 64;
/// The record for one end of a lane, and its descriptors.
pub struct LaneEnd {
    /// The record, without its process and device fields.
    pub out: LaneOut,
    /// The lane's memory, the receiver's notifier, its peer's notifier, the peer's wake word.
    pub fds: Vec<Arc<Foreign>>,
}

/// The index of the peer's notifier in [`LaneEnd::fds`].
pub const WAKES_PEER: usize = 2;

/// All lanes of an agent.
pub struct Lanes {
    host: Arc<dyn Host>,
    lanes: BTreeMap<u32, Lane>,
    by_pair: BTreeMap<(ContextId, ContextId, u32), u32>,
    /// Every lane twice: by the engine at each end.
    by_end: BTreeSet<(ContextId, u32)>,
    /// How many lanes the engines of each user have opened.
    by_user: BTreeMap<u32, LaneCounts>,
    last: u32,
}

/// How many lanes the engines of a user have opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LaneCounts {
    /// All of them; each is a descriptor of the agent.
    pub all: u64,
    /// Those with an end at a proxy engine; the agent also maps each of them.
    pub proxy: u64,
}

struct Lane {
    /// The engines on side 0 and side 1. They are equal for a lane of an engine to itself.
    ends: [ContextId; 2],
    lane_index: u32,
    /// Kept, because an end may ask for its lane again.
    memory: Arc<Foreign>,
    /// The user of the engine that opened the lane.
    opener: u32,
    /// One of its ends is a proxy engine.
    proxy: bool,
}

impl Lanes {
    /// No lanes yet; they will be memory of `host`.
    pub fn new(host: Arc<dyn Host>) -> Self {
        let (lanes, by_pair, by_end, by_user) = Default::default();
        Self { host, lanes, by_pair, by_end, by_user, last: 0 }
    }

    /// Opens the lane of a pair with this lane index. The second value is true if the lane was
    /// created now; then it counts for the user `opener`. The order of the pair does not matter.
    /// `proxy`: one of the two engines is a proxy engine.
    pub fn open(
        &mut self,
        (from, to): (ContextId, ContextId),
        lane_index: u32,
        opener: u32,
        proxy: bool,
    ) -> io::Result<(u32, bool)> {
        if let Some(lane) = self.find((from, to), lane_index) {
            return Ok((lane, false));
        }
        let (_, memory) = self.host.memory("softhca-lane", LANE_LEN)?;
        self.last = self.last.checked_add(1).ok_or(io::ErrorKind::QuotaExceeded)?;
        let memory = Arc::new(Foreign::memory(memory, Arc::clone(&self.host)));
        self.lanes.insert(self.last, Lane { ends: [from, to], lane_index, memory, opener, proxy });
        self.by_end.extend([(from, self.last), (to, self.last)]);
        let opened = self.by_user.entry(opener).or_default();
        opened.all += 1;
        opened.proxy += u64::from(proxy);
        self.by_pair.insert((from.min(to), from.max(to), lane_index), self.last);
        Ok((self.last, true))
    }

    /// The lane of a pair with this index. The order of the pair does not matter.
    pub fn find(&self, (from, to): (ContextId, ContextId), lane_index: u32) -> Option<u32> {
        self.by_pair.get(&(from.min(to), from.max(to), lane_index)).copied()
    }

    /// The record for the engine on `side` of a lane.
    pub fn describe(&self, lane: u32, side: usize, me: &EngineLink, peer: &EngineLink) -> io::Result<LaneEnd> {
        let held = self.lanes.get(&lane).ok_or(io::ErrorKind::NotFound)?;
        let out = LaneOut {
            lane,
            side: side as u32,
            engine: held.ends[1 - side].0,
            lane_index: held.lane_index,
            len: LANE_LEN as u32,
            ..LaneOut::default()
        };
        let fds = [&held.memory, me.kick(), peer.kick(), peer.wake_word()];
        Ok(LaneEnd { out, fds: fds.map(Arc::clone).into() })
    }

    /// The side of an engine on a lane; side 0 for a lane to itself.
    pub fn side(&self, lane: u32, engine: ContextId) -> usize {
        self.lanes.get(&lane).map_or(0, |held| usize::from(held.ends[0] != engine))
    }

    /// Removes a lane that could not be handed out.
    pub fn close(&mut self, lane: u32) {
        let Some(Lane { ends: [a, b], lane_index, opener, proxy, .. }) = self.lanes.remove(&lane) else { return };
        self.by_pair.remove(&(a.min(b), a.max(b), lane_index));
        self.by_end.remove(&(a, lane));
        self.by_end.remove(&(b, lane));
        if let Some(opened) = self.by_user.get_mut(&opener) {
            opened.all -= 1;
            opened.proxy -= u64::from(proxy);
            if opened.all == 0 {
                self.by_user.remove(&opener);
            }
        }
    }

    /// How many lanes a user's engines have opened.
    pub fn opened_by(&self, user: u32) -> LaneCounts {
        self.by_user.get(&user).copied().unwrap_or_default()
    }

    /// Ends lanes of an engine that is gone, `most` at most. Returns each lane with the engine at
    /// its other end.
    pub fn forget_some(&mut self, engine: ContextId, most: usize) -> Vec<(u32, ContextId)> {
        let orphaned: Vec<_> = self.of(engine).take(most).collect();
        for (lane, _) in &orphaned {
            self.close(*lane);
        }
        orphaned
    }

    /// The engines at the other ends of an engine's lanes, one entry per lane.
    pub fn neighbours(&self, engine: ContextId) -> impl Iterator<Item = ContextId> + '_ {
        self.of(engine).map(|(_, other)| other)
    }

    /// An engine's lanes, each with the engine at the other end.
    fn of(&self, engine: ContextId) -> impl Iterator<Item = (u32, ContextId)> + '_ {
        let lanes = self.by_end.range((engine, 0)..=(engine, u32::MAX));
        lanes.filter_map(move |(_, lane)| {
            let [a, b] = self.lanes.get(lane)?.ends;
            Some((*lane, if a == engine { b } else { a }))
        })
    }

    /// How many lanes there are.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there are no lanes.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}

/// The push that tells an engine that the other end of a lane is gone.
pub fn lane_gone(lane: u32, engine: ContextId) -> Push {
    Push { kind: push::LANE_GONE, lane: LaneOut { lane, engine: engine.0, ..LaneOut::default() }, ..Push::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ContextId = ContextId(1);
    const B: ContextId = ContextId(2);

    #[test]
    fn a_pair_has_one_lane_for_each_index() {
        let mut lanes = Lanes::new(Arc::new(crate::host::System::default()));
        let (lane, new) = lanes.open((A, B), 0, 7, false).expect("a lane");
        assert!(new);
        assert_eq!(lanes.open((B, A), 0, 7, false).expect("the same"), (lane, false));
        assert_ne!(lanes.open((A, B), 1, 8, true).expect("another").0, lane);
        assert_eq!((lanes.side(lane, A), lanes.side(lane, B)), (0, 1));
        let opened = |all, proxy| LaneCounts { all, proxy };
        let by_users = [7, 8, 9].map(|user| lanes.opened_by(user));
        assert_eq!(by_users, [opened(1, 0), opened(1, 1), opened(0, 0)]);
        assert_eq!((lanes.forget_some(B, 1), lanes.forget_some(B, 9)), (vec![(1, A)], vec![(2, A)]));
        assert!(lanes.is_empty() && lanes.by_user.is_empty() && lanes.forget_some(B, 9).is_empty());
        assert!(lanes.open((A, B), 0, 7, false).expect("a new one").0 > 2, "a lane's number never comes back");
    }
}
