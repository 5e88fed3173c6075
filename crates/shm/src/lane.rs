//! A lane: one region between two parties, with a cell ring and a bulk ring in each direction. It
//! is not a transport: the caller defines the meaning of the records. Principal items: [`ends`],
//! [`LaneTx`] and [`LaneRx`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::bulk::{BulkRx, BulkTx};
use crate::layout::{self, BULK_AT, DIRECTION, DIRECTION_LEN, WAITING};
use crate::memory::{Memory, Window};
use crate::region::Region;
use crate::ring::{Consumer, Glance, Producer};

/// Length of a lane's region.
pub const LANE_LEN: usize = layout::LANE_LEN;
/// Length of each bulk ring of a lane.
pub const BULK: usize = layout::BULK;

/// The two parties of a lane. Which party is which side is agreed when the lane is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The party that writes the first cell ring and the first bulk ring.
    A,
    /// The other party.
    B,
}

/// One side's ends of a lane in a fresh region. Each side takes its ends once in the region's life;
/// both may live in one process. Panics when the region is shorter than [`LANE_LEN`].
pub fn ends(region: Arc<Region>, side: Side) -> (LaneTx, LaneRx) {
    let direction = |i: usize| Window::new(region.clone(), i * DIRECTION, DIRECTION_LEN);
    let bytes = |i: usize| Window::new(region.clone(), BULK_AT + i * BULK, BULK);
    let (out, back) = match side {
        Side::A => (0, 1),
        Side::B => (1, 0),
    };
    let tx = LaneTx {
        ring: Producer::new(direction(out)),
        bulk: BulkTx::new(direction(out), bytes(out)),
        control: direction(out),
    };
    let rx = LaneRx {
        ring: Consumer::new(direction(back)),
        bulk: BulkRx::new(direction(back), bytes(back)),
        control: direction(back),
    };
    (tx, rx)
}

/// The sending half of a side.
#[derive(Debug)]
pub struct LaneTx {
    /// The cells.
    pub ring: Producer,
    /// The bulk bytes.
    pub bulk: BulkTx,
    control: Window,
}

impl LaneTx {
    /// Tells the peer whether this side waits for space. Use it only before sleeping, because it
    /// costs a system call. After `set_waiting(true)` try once more to push or reserve. That
    /// attempt finds space that the peer freed before it could see the word; for space freed later
    /// the peer notifies this side.
    pub fn set_waiting(&self, waiting: bool) {
        say_waiting(&self.control, waiting);
    }
}

/// The receiving half of a side.
#[derive(Debug)]
pub struct LaneRx {
    /// The cells.
    pub ring: Consumer,
    /// The bulk bytes.
    pub bulk: BulkRx,
    control: Window,
}

impl LaneRx {
    /// Whether the peer waits for space. Check it after publishing or releasing space; if true,
    /// clear it first, then notify the peer.
    pub fn peer_waiting(&self) -> bool {
        said_waiting(&self.control)
    }

    /// A view of this half for a caller that does not hold it.
    pub fn glance(&self) -> Glance {
        Glance::new(self.control.clone())
    }

    /// Clears the peer's waiting word; the peer sets it again if necessary.
    pub fn clear_waiting(&self) {
        self.control.store(WAITING, 0, Ordering::Relaxed);
    }
}

/// The producer's side of [`LaneTx::set_waiting`].
pub(crate) fn say_waiting(control: &impl Memory, waiting: bool) {
    control.store(WAITING, u32::from(waiting), Ordering::Relaxed);
    if waiting {
        // Pairs with the fence in `said_waiting`. The producer stores `waiting`, then loads a head;
        // the consumer stores a head, then loads `waiting`. At least one of them sees what the
        // other stored. The producer executes the expensive barrier, because it has no other work.
        control.sleeper_barrier();
    }
}

/// The consumer's side of [`LaneRx::peer_waiting`].
pub(crate) fn said_waiting(control: &impl Memory) -> bool {
    // Pairs with the barrier in `say_waiting`, see there.
    control.poster_fence();
    control.load(WAITING, Ordering::Relaxed) != 0
}
