//! Lanes: shared memory between this engine and one other of the same agent, and who is at the far end.
//!
//! A [`Lane`] is one side. Its sending half and its receiving half have a lock each, so a thread that posts never waits for one
//! that receives. A full lane never makes anybody wait: the QP goes to the lane's blocked list and goes on when there is room. The
//! bytes of a cell are `cell.rs`'s business, what arrives is `progress.rs`'s.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use abi::errno::Errno;
use abi::private::LaneOut;
use arc_swap::ArcSwap;
use shm::{BellView, Doorbell, LANE_LEN, LaneRx, LaneTx, Side};

use crate::capture::Ends;
use crate::cell::Notice;
use crate::error::{Error, Result};
use crate::lock::Mutex;
use crate::qp::Qp;

/// How much of a message travels as one packet on a lane: the "path MTU" of the state machines there.
pub(crate) const LANE_MTU: u32 = 32 * 1024;

/// How many lanes two engines may have: a QP's number picks one, so that threads with QPs of their own share no producer.
pub(crate) const STRIPES: u32 = 4;

/// The most notices that wait for room. More than a sound peer can cause; a hostile one only harms itself.
const NOTICES: usize = 4096;

/// The receiving half, with what one batch of cells has touched.
pub(crate) struct Receiver {
    pub(crate) rx: LaneRx,
    pub(crate) touched: Vec<Arc<Qp>>,
    /// The QP of the last packet, which is likely to be the next one's. It may be destroyed by then.
    pub(crate) recent: Option<Arc<Qp>>,
    /// Where a record is copied before anything in it is believed.
    pub(crate) record: [u8; shm::RECORD_MAX],
}

/// The sending half.
pub(crate) struct Sender {
    pub(crate) tx: LaneTx,
    /// Where a record is put together.
    pub(crate) record: [u8; shm::RECORD_MAX],
    /// Bulk has been used since it was last given back.
    pub(crate) bulky: bool,
    /// The piece of bulk for which there was no room; 0 when it was cells that were missing.
    pub(crate) wanted: u32,
    /// While somebody captures: between which addresses the packets go.
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
                // To find out is to get on.
                Err(shm::Broken) => true,
            };
        }
        // A quarter of the ring: going on for a single cell would only be blocked again.
        self.tx.ring.free_cells() >= shm::CELLS / 4 || self.tx.ring.is_broken()
    }
}

/// One side of a lane.
pub(crate) struct Lane {
    pub(crate) id: u32,
    /// The engine at the far end.
    pub(crate) peer: u32,
    pub(crate) pid: u32,
    pub(crate) stripe: u32,
    pub(crate) sender: Mutex<Sender>,
    pub(crate) receiver: Mutex<Receiver>,
    blocked: Mutex<Blocked>,
    pub(crate) has_blocked: AtomicBool,
    memory: OwnedFd,
    peer_bell: BellView,
    peer_wake: Doorbell,
    /// The arming for which the peer has been rung.
    rung: AtomicU32,
    /// The peer is gone, or has broken the rules: nothing goes in or out any more.
    dead: AtomicBool,
}

#[derive(Default)]
struct Blocked {
    qps: VecDeque<Arc<Qp>>,
    notices: VecDeque<Notice>,
}

impl Lane {
    /// Takes our side of the lane that the agent describes; `fds` are its memory, our wake-up, the peer's and the peer's bell.
    pub(crate) fn new(out: &LaneOut, fds: Vec<OwnedFd>) -> Result<Arc<Self>> {
        let [memory, _our_kick, peer_wake, bell] = <[OwnedFd; 4]>::try_from(fds)
            .map_err(|_| Error::refuse(Errno::EIO, "a lane came without its descriptors"))?;
        let region = shm::Region::map(memory.as_fd(), LANE_LEN)?;
        let side = if out.side == 0 { Side::A } else { Side::B };
        let (tx, rx) = shm::ends(Arc::new(region), side);
        Ok(Arc::new(Self {
            id: out.lane,
            peer: out.engine,
            pid: out.pid,
            stripe: out.stripe,
            sender: Mutex::new(Sender { tx, record: [0; shm::RECORD_MAX], bulky: false, wanted: 0, ends: None }),
            receiver: Mutex::new(Receiver {
                rx,
                touched: Vec::with_capacity(64),
                recent: None,
                record: [0; shm::RECORD_MAX],
            }),
            blocked: Mutex::default(),
            has_blocked: AtomicBool::new(false),
            memory,
            peer_bell: BellView::map(bell.as_fd())?,
            peer_wake: Doorbell::from(peer_wake),
            rung: AtomicU32::new(0),
            dead: AtomicBool::new(false),
        }))
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    /// After pushing: wakes the peer if it has asked for that.
    pub(crate) fn notify(&self) {
        shm::poster_fence();
        if let Some(word) = self.peer_bell.armed()
            && self.rung.swap(word, Ordering::Relaxed) != word
        {
            self.peer_wake.ring();
        }
    }

    /// Puts a QP that found the lane full on the list of those to go on with.
    pub(crate) fn block(&self, qp: &Arc<Qp>) {
        self.blocked.lock().qps.push_back(Arc::clone(qp));
        if !self.has_blocked.swap(true, Ordering::AcqRel) {
            qp.engine().waker.attend();
        }
    }

    /// Keeps a notice for which there is no room; the same one twice is one.
    pub(crate) fn keep_notice(&self, notice: Notice) {
        let mut blocked = self.blocked.lock();
        if blocked.notices.len() < NOTICES && !blocked.notices.contains(&notice) {
            blocked.notices.push_back(notice);
        }
        self.has_blocked.store(true, Ordering::Release);
    }

    /// Those that wait for room, taken off the list.
    pub(crate) fn unblock(&self) -> (VecDeque<Arc<Qp>>, VecDeque<Notice>) {
        self.sender.lock().wanted = 0;
        let mut blocked = self.blocked.lock();
        self.has_blocked.store(false, Ordering::Relaxed);
        (std::mem::take(&mut blocked.qps), std::mem::take(&mut blocked.notices))
    }

    /// Whether a blocked QP would get on now. With `sure`, for going to sleep: waits for whoever is sending, and if there is no
    /// room has the peer wake us when it has made some. Without, whoever asks will ask again.
    pub(crate) fn has_room(&self, sure: bool) -> bool {
        if self.is_dead() {
            return true;
        }
        if !sure {
            return self.sender.try_lock().is_some_and(|mut sender| sender.has_room());
        }
        let mut sender = self.sender.lock();
        sender.has_room() || {
            sender.tx.set_waiting(true);
            sender.has_room()
        }
    }

    /// Gives the pages of the bulk area back if it is idle.
    pub(crate) fn rest(&self) {
        if let Some(mut sender) = self.sender.try_lock()
            && sender.bulky
            && sender.tx.bulk.idle()
            && sender.tx.bulk.give_back(self.memory.as_fd()).unwrap_or(false)
        {
            sender.bulky = false;
        }
    }
}

/// The lanes of one engine.
pub(crate) struct Lanes {
    /// What progress walks over.
    list: ArcSwap<Vec<Arc<Lane>>>,
    /// Which lane leads to (engine, stripe).
    routes: Mutex<HashMap<(u32, u32), Arc<Lane>>>,
    /// Engines that had a lane and have ended. Their numbers do not come back; those of their QPs name them for a while.
    ended: Mutex<HashSet<u32>>,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self { list: ArcSwap::default(), routes: Mutex::new(HashMap::new()), ended: Mutex::default() }
    }

    pub(crate) fn list(&self) -> arc_swap::Guard<Arc<Vec<Arc<Lane>>>> {
        self.list.load()
    }

    pub(crate) fn route(&self, engine: u32, stripe: u32) -> Option<Arc<Lane>> {
        self.routes.lock().get(&(engine, stripe)).cloned()
    }

    /// Adds a lane; one with the same number and the same end is there already when both sides opened it at once.
    pub(crate) fn add(&self, lane: Arc<Lane>, route: bool) -> Arc<Lane> {
        let mut routes = self.routes.lock();
        let known = routes.get(&(lane.peer, lane.stripe)).filter(|known| route && known.id == lane.id).cloned();
        if let Some(known) = known {
            return known;
        }
        if route {
            routes.insert((lane.peer, lane.stripe), Arc::clone(&lane));
        }
        let mut list = self.list.load_full().to_vec();
        list.push(Arc::clone(&lane));
        self.list.store(Arc::new(list));
        lane
    }

    /// Nobody needs to ask for a lane to `engine` any more.
    pub(crate) fn bury(&self, engine: u32) {
        self.ended.lock().insert(engine);
    }

    /// Whether `engine` had a lane and has ended.
    pub(crate) fn has_ended(&self, engine: u32) -> bool {
        self.ended.lock().contains(&engine)
    }

    /// Takes a lane out; its QPs keep it, dead.
    pub(crate) fn remove(&self, id: u32) -> Vec<Arc<Lane>> {
        let mut routes = self.routes.lock();
        routes.retain(|_, lane| lane.id != id);
        let (gone, kept): (Vec<_>, Vec<_>) = self.list.load_full().iter().cloned().partition(|lane| lane.id == id);
        self.list.store(Arc::new(kept));
        gone.iter().for_each(|lane| lane.kill());
        gone
    }

    pub(crate) fn clear(&self) {
        self.routes.lock().clear();
        self.list.store(Arc::new(Vec::new()));
    }
}
