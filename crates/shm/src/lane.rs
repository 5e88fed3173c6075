//! A lane: one region between two parties, with a cell ring and a bulk ring in each direction. It
//! is not a transport: the caller defines the meaning of the records. Principal items: [`ends`],
//! [`LaneTx`] and [`LaneRx`].

use std::sync::Arc;

use crate::bulk::{BulkRx, BulkTx};
use crate::memory::Window;
use crate::region::Region;
use crate::ring::{BULK_AT, Consumer, DIRECTION, DIRECTION_LEN, Producer};

pub use crate::ring::{BULK, LANE_LEN};

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
    let tx = LaneTx { ring: Producer::new(direction(out)), bulk: BulkTx::new(direction(out), bytes(out)) };
    let rx = LaneRx { ring: Consumer::new(direction(back)), bulk: BulkRx::new(direction(back), bytes(back)) };
    (tx, rx)
}

/// The sending half of a side.
#[derive(Debug)]
pub struct LaneTx {
    /// The cells.
    pub ring: Producer,
    /// The bulk bytes.
    pub bulk: BulkTx,
}

/// The receiving half of a side.
#[derive(Debug)]
pub struct LaneRx {
    /// The cells.
    pub ring: Consumer,
    /// The bulk bytes.
    pub bulk: BulkRx,
}
