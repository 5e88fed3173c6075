//! Lanes: shared memory between this engine and another engine of the same agent, and what is known
//! of that engine.
//!
//! A [`Lane`] is one side. Its sending half and its receiving half have a lock each, so a thread
//! that posts never waits for a thread that receives. No thread waits for a full lane: the QP goes
//! to the lane's blocked list, and continues when there is room. The bytes of a cell are in
//! `cell.rs`, the handling of received cells in `progress.rs`. `Q` is the type of queue pairs: a
//! lane keeps lists of them and never accesses their fields. Principal types: [`Lane`] and
//! [`Lanes`].

mod load;
mod patience;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use abi::errno::Errno;
use abi::private::{LaneOut, lane_flags};
use arc_swap::ArcSwap;
use shm::{Glance, LANE_LEN, LaneRx, LaneTx, Notifier, Side, WakeWordView};

use crate::capture::Ends;
use crate::cell::Notice;
use crate::error::{Result, by_system, refusal};
use crate::helper::Waker;
use crate::lock::{Mutex, MutexGuard};
use crate::pollers::{CqPair, CqPairCell};
use load::{BulkMemory, Load};
use patience::Patience;

/// The largest packet on a lane: the path MTU of the state machines there.
pub(crate) const LANE_MTU: u32 = 32 * 1024;

/// How many lanes two engines may have. Connections use them in turn, so that threads with QPs of
/// their own often share no producer.
pub(crate) const LANES_PER_PAIR: u32 = 4;

/// The most notices that wait for room: more than a correct peer can cause. A hostile peer harms
/// only itself.
const NOTICES: usize = 4096;

/// The receiving half, with the QPs that one batch of cells has touched.
pub(crate) struct Receiver<Q> {
    pub(crate) rx: LaneRx,
    pub(crate) touched: Vec<Arc<Q>>,
    /// The QP of the last packet, which is probably also the next one's. It may be destroyed by
    /// then.
    pub(crate) recent: Option<Arc<Q>>,
    /// A record is copied here before anything in it is checked.
    pub(crate) record: [u8; shm::RECORD_MAX],
}

/// The sending half.
pub(crate) struct Sender {
    pub(crate) tx: LaneTx,
    /// The buffer in which a record is built.
    pub(crate) record: [u8; shm::RECORD_MAX],
    pub(crate) load: Load,
    /// The bulk size for which there was no room; 0 if cells were missing.
    pub(crate) wanted: u32,
    /// While a capture runs: the addresses of the packets.
    pub(crate) ends: Option<Ends>,
}

impl Sender {
    fn has_room(&mut self) -> bool {
        if self.wanted > 0 {
            return match self.tx.bulk.reserve(self.wanted as usize) {
                Ok(Some(slot)) => {
                    self.tx.bulk.cancel(slot);
                    true
                }
                Ok(None) => false,
                // Returns true, so that the caller pushes again: this push reports the broken lane.
                Err(shm::Broken) => true,
            };
        }
        // A quarter of the ring: with a single cell, the QP would be blocked again at once.
        self.tx.ring.free_cells() >= shm::CELLS / 4 || self.tx.ring.is_broken()
    }
}

/// One side of a lane.
pub(crate) struct Lane<Q> {
    pub(crate) id: u32,
    /// The engine at the other end.
    pub(crate) peer: u32,
    pub(crate) pid: u32,
    /// The device that the engine at the other end has opened.
    pub(crate) device: u32,
    pub(crate) lane_index: u32,
    /// The engine at the other end is another user's.
    is_apart: bool,
    pub(crate) sender: Mutex<Sender>,
    pub(crate) receiver: Mutex<Receiver<Q>>,
    /// Shows threads that do not hold the receiving half whether records have arrived.
    glance: Glance,
    /// The position of the receiving half in the ring.
    position: AtomicU32,
    /// The CQs of the last packet's QP. All polling threads read this word, and the words beside it
    /// change with each message; so it has a cache line of its own.
    cqs: CqPairCell,
    blocked: Mutex<Blocked<Q>>,
    pub(crate) has_blocked: AtomicBool,
    peer_wake_word: WakeWordView,
    peer_wake: Notifier,
    /// The armed value of the peer's wake word for which the peer was last notified.
    notified: AtomicU32,
    /// The peer is gone or has written invalid data: nothing is sent or received any more.
    dead: AtomicBool,
    /// How long datagrams to groups wait for the peer.
    pub(crate) patience: Patience,
}

struct Blocked<Q> {
    qps: VecDeque<Arc<Q>>,
    notices: VecDeque<Notice>,
}

impl<Q> Lane<Q> {
    /// Maps this engine's side of the lane that the agent describes. `fds` are its memory, this
    /// engine's notifier, the peer's notifier and the peer's wake word.
    pub(crate) fn new(out: &LaneOut, fds: Vec<OwnedFd>) -> Result<Arc<Self>> {
        let [memory, _our_kick, peer_wake, wake_word] =
            <[OwnedFd; 4]>::try_from(fds).map_err(|_| refusal(Errno::EIO, "a lane came without its descriptors"))?;
        let region = shm::Region::map(memory.as_fd(), LANE_LEN).map_err(by_system)?;
        let side = if out.side == 0 { Side::A } else { Side::B };
        let (tx, rx) = shm::ends(Arc::new(region), side);
        let glance = rx.ring.glance();
        Ok(Arc::new(Self {
            id: out.lane,
            peer: out.engine,
            pid: out.pid,
            device: out.device,
            lane_index: out.lane_index,
            is_apart: out.flags & lane_flags::APART != 0,
            sender: Mutex::new(Sender {
                tx,
                record: [0; shm::RECORD_MAX],
                load: Load::default(),
                wanted: 0,
                ends: None,
            }),
            receiver: Mutex::new(Receiver { rx, touched: Vec::new(), recent: None, record: [0; shm::RECORD_MAX] }),
            glance,
            position: AtomicU32::new(0),
            cqs: CqPairCell::default(),
            blocked: Mutex::new(Blocked { qps: VecDeque::new(), notices: VecDeque::new() }),
            has_blocked: AtomicBool::new(false),
            peer_wake_word: WakeWordView::map(wake_word.as_fd()).map_err(by_system)?,
            peer_wake: Notifier::from(peer_wake),
            notified: AtomicU32::new(0),
            dead: AtomicBool::new(false),
            patience: Patience::new(),
        }))
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// Whether records seem to have arrived. Only a thread that holds the receiving half knows for
    /// sure; a thread that is about to sleep must take it.
    #[inline]
    pub(crate) fn may_have_packets(&self) -> bool {
        self.glance.sees(self.position.load(Ordering::Relaxed))
    }

    /// Records the position of the receiving half.
    #[inline]
    pub(crate) fn set_position(&self, position: u32) {
        self.position.store(position, Ordering::Relaxed);
    }

    /// The CQs of the last packet's QP.
    #[inline]
    pub(crate) fn cqs(&self) -> CqPair {
        self.cqs.get()
    }

    /// Records the CQs of the last packet's QP.
    #[inline]
    pub(crate) fn set_cqs(&self, cqs: CqPair) {
        self.cqs.set(cqs);
    }

    /// Wakes the peer if it has armed its wake word. Call this after a push.
    pub(crate) fn notify(&self) {
        if self.peer_needs_wake() {
            self.wake_peer();
        }
    }

    /// Whether the peer has armed its wake word and was not notified since. If so, the caller must
    /// wake the peer. Call this after a push.
    #[inline]
    pub(crate) fn peer_needs_wake(&self) -> bool {
        shm::poster_fence();
        self.peer_wake_word.armed().is_some_and(|word| self.notified.swap(word, Ordering::Relaxed) != word)
    }

    /// Wakes the peer.
    #[cold]
    pub(crate) fn wake_peer(&self) {
        self.peer_wake.notify();
    }

    /// Puts a QP that found the lane full on the list of blocked QPs.
    pub(crate) fn block(&self, qp: &Arc<Q>, waker: &Waker) {
        self.blocked.lock().qps.push_back(Arc::clone(qp));
        if !self.has_blocked.swap(true, Ordering::AcqRel) {
            waker.attend();
        }
    }

    /// There is no room any more: puts the remaining QPs back in front of the list. Trying each of
    /// them would often cost more than their packets.
    pub(crate) fn wait_on(&self, mut qps: VecDeque<Arc<Q>>, waker: &Waker) {
        if qps.is_empty() {
            return;
        }
        {
            let mut blocked = self.blocked.lock();
            qps.append(&mut blocked.qps);
            blocked.qps = qps;
        }
        if !self.has_blocked.swap(true, Ordering::AcqRel) {
            waker.attend();
        }
    }

    /// Keeps a notice for which there is no room; duplicates are dropped.
    pub(crate) fn keep_notice(&self, notice: Notice) {
        let mut blocked = self.blocked.lock();
        if blocked.notices.len() < NOTICES && !blocked.notices.contains(&notice) {
            blocked.notices.push_back(notice);
        }
        self.has_blocked.store(true, Ordering::Release);
    }

    /// Removes and returns the waiting QPs and notices.
    pub(crate) fn unblock(&self) -> (VecDeque<Arc<Q>>, VecDeque<Notice>) {
        self.sender.lock().wanted = 0;
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(false, Ordering::Relaxed);
        (std::mem::take(&mut blocked.qps), std::mem::take(&mut blocked.notices))
    }

    /// Whether a blocked QP could go on now. With `sure`, before a sleep: waits for the lock of the
    /// sending half, and if there is no room, asks the peer to wake this engine when there is.
    /// Without `sure`, the caller must check again later.
    pub(crate) fn has_room(&self, sure: bool) -> bool {
        if self.is_dead() {
            return true;
        }
        if !sure {
            return self.sender.try_lock().is_some_and(|mut sender| sender.has_room());
        }
        let mut sender = self.sender.lock();
        sender.has_room() || {
            sender.tx.ring.set_waiting(true);
            sender.has_room()
        }
    }

    /// Gives the pages of the bulk area back if it is idle. The kernel waits for a process that is
    /// writing to the lane's file. So another user's process could hold up this engine here. One of
    /// the same user could as well stop it.
    pub(crate) fn rest(&self) {
        if !self.is_apart
            && let Some(mut sender) = self.sender.try_lock()
            && sender.load.bulky
            && sender.tx.bulk.idle()
            // A failure would repeat: the program has locked its memory.
            && sender.tx.bulk.give_back().unwrap_or(true)
        {
            sender.load = Load::default();
        }
    }

    /// Whether there may be pages to give back.
    pub(crate) fn is_bulky(&self) -> bool {
        !self.is_apart && self.sender.try_lock().is_none_or(|sender| sender.load.bulky)
    }
}

/// How many pollers can have a list of their own, beside one for all callers that do not poll.
const WALKERS: usize = 8;

/// The list as a poller has seen it, and the count of changes at that time.
type Seen<Q> = Option<(u64, List<Q>)>;

/// A list of lanes.
type List<Q> = Arc<Vec<Arc<Lane<Q>>>>;

/// One poller's copy of the list. Each poll writes to its lock, so it has cache lines of its own.
#[repr(align(128))]
struct PollerCopy<Q>(Mutex<Seen<Q>>);

/// The lanes of one engine, for one pass over them.
pub(crate) enum Walk<'a, Q> {
    Seen(MutexGuard<'a, Seen<Q>>),
    Loaded(arc_swap::Guard<List<Q>>),
}

impl<Q> std::ops::Deref for Walk<'_, Q> {
    type Target = [Arc<Lane<Q>>];

    #[inline]
    fn deref(&self) -> &Self::Target {
        match self {
            Self::Seen(seen) => seen.as_ref().map_or(&[], |(_, list)| list),
            Self::Loaded(list) => list,
        }
    }
}

/// The lane to (engine, lane index).
type Routes<Q> = HashMap<(u32, u32), Arc<Lane<Q>>>;

/// The lanes of one engine.
pub(crate) struct Lanes<Q> {
    /// The lanes for the rounds of `progress.rs`.
    list: ArcSwap<Vec<Arc<Lane<Q>>>>,
    /// How often the list has changed.
    changes: AtomicU64,
    /// The pollers' copies of the list: a pass costs one locked instruction, where loading the list
    /// costs three.
    seen: [PollerCopy<Q>; WALKERS + 1],
    routes: Mutex<Routes<Q>>,
    /// How many connections have taken a lane index, by engine.
    taken: Mutex<HashMap<u32, u32>>,
    bulk_memory: Arc<BulkMemory>,
}

impl<Q> Lanes<Q> {
    pub(crate) fn new() -> Self {
        Self {
            list: ArcSwap::default(),
            changes: AtomicU64::new(0),
            seen: std::array::from_fn(|_| PollerCopy(Mutex::new(None))),
            routes: Mutex::new(HashMap::new()),
            taken: Mutex::default(),
            bulk_memory: Arc::default(),
        }
    }

    /// The memory of the lanes' bulk rings.
    pub(crate) fn bulk_memory(&self) -> &Arc<BulkMemory> {
        &self.bulk_memory
    }

    pub(crate) fn list(&self) -> arc_swap::Guard<List<Q>> {
        self.list.load()
    }

    /// The list for a caller that needs it often; each poller has its own number.
    #[inline]
    pub(crate) fn walk(&self, poller: Option<u32>) -> Walk<'_, Q> {
        let who = poller.map_or(WALKERS, |number| number as usize % WALKERS);
        let Some(mut seen) = self.seen[who].0.try_lock() else { return Walk::Loaded(self.list()) };
        // Acquire: pairs with the release in `set`, so that the list is at least as new as the
        // count.
        let changes = self.changes.load(Ordering::Acquire);
        if seen.as_ref().is_none_or(|(known, _)| *known != changes) {
            *seen = Some((changes, self.list.load_full()));
        }
        Walk::Seen(seen)
    }

    fn set(&self, list: Vec<Arc<Lane<Q>>>) {
        self.list.store(Arc::new(list));
        self.changes.fetch_add(1, Ordering::Release);
        // No copy should keep a dead lane. A poller whose copy is locked now sees the new count on
        // its next pass.
        for mut seen in self.seen.iter().filter_map(|memory| memory.0.try_lock()) {
            *seen = None;
        }
    }

    /// The lane index of a new connection to `engine`, or of a new QP with many destinations, which
    /// counts for engine 0. Both ends count independently. If they connect in the same order, each
    /// pair of QPs has one lane for both directions, and the first connections need no second lane.
    pub(crate) fn next_lane_index(&self, engine: u32) -> u32 {
        let mut taken = self.taken.lock();
        let count = taken.entry(engine).or_default();
        let lane_index = *count % LANES_PER_PAIR;
        *count = count.wrapping_add(1);
        lane_index
    }

    pub(crate) fn route(&self, engine: u32, lane_index: u32) -> Option<Arc<Lane<Q>>> {
        self.routes.lock().get(&(engine, lane_index)).cloned()
    }

    /// Any lane to an engine.
    pub(crate) fn any_to(&self, engine: u32) -> Option<Arc<Lane<Q>>> {
        let routes = self.routes.lock();
        routes.iter().find(|((to, _), lane)| *to == engine && !lane.is_dead()).map(|(_, lane)| Arc::clone(lane))
    }

    /// Adds a lane. If both sides opened it at once, a lane with this number and this peer exists
    /// already and is returned.
    pub(crate) fn add(&self, lane: Arc<Lane<Q>>, route: bool) -> Arc<Lane<Q>> {
        let mut routes = self.routes.lock();
        let known = routes.get(&(lane.peer, lane.lane_index)).filter(|known| route && known.id == lane.id).cloned();
        if let Some(known) = known {
            return known;
        }
        if route {
            routes.insert((lane.peer, lane.lane_index), Arc::clone(&lane));
        }
        let mut list = self.list.load_full().to_vec();
        list.push(Arc::clone(&lane));
        self.set(list);
        lane
    }

    /// An engine has ended, so no lane to it will be opened any more.
    pub(crate) fn engine_ended(&self, engine: u32) {
        self.taken.lock().remove(&engine);
    }

    /// Removes a lane and marks it as dead. Its QPs still hold it.
    pub(crate) fn remove(&self, id: u32) -> Vec<Arc<Lane<Q>>> {
        let mut routes = self.routes.lock();
        routes.retain(|_, lane| lane.id != id);
        let (gone, kept): (Vec<_>, Vec<_>) = self.list.load_full().iter().cloned().partition(|lane| lane.id == id);
        self.set(kept);
        gone.iter().for_each(|lane| lane.kill());
        gone
    }

    pub(crate) fn clear(&self) {
        self.routes.lock().clear();
        self.set(Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm::{Region, WakeWord};

    /// Whether the memory of a lane still holds what was sent after the lane has rested.
    fn keeps_its_pages(side: u32, flags: u32) -> bool {
        let (region, memory) = Region::create("softhca-test", LANE_LEN).expect("memory");
        let notifier = || OwnedFd::from(Notifier::new().expect("a notifier"));
        let (_, wake_word) = WakeWord::create().expect("a wake word");
        let fds = vec![memory, notifier(), notifier(), wake_word];
        let lane: Arc<Lane<()>> = Lane::new(&LaneOut { side, flags, ..LaneOut::default() }, fds).expect("a lane");
        let mut sender = lane.sender.lock();
        let slot = sender.tx.bulk.put(&[7; 64]).expect("sound").expect("room");
        sender.tx.bulk.cancel(slot);
        sender.load.add(64);
        drop(sender);
        assert_eq!(lane.is_bulky(), flags & lane_flags::APART == 0);
        lane.rest();
        let mut bytes = vec![0; LANE_LEN];
        region.copy_out(0, &mut bytes);
        bytes.contains(&7)
    }

    /// write(2) locks the lane's file while it copies the caller's memory. If a page fault there does
    /// not end, returning pages of the file (MADV_REMOVE) waits for the lock.
    #[test]
    fn only_lanes_between_engines_of_one_user_give_their_pages_back() {
        for side in [0, 1] {
            assert!(!keeps_its_pages(side, 0));
            assert!(keeps_its_pages(side, lane_flags::APART));
        }
    }
}
