//! Where things lie in a lane's region: the numbers only. Principal constants: [`LANE_LEN`] and the offsets of one direction.
//!
//! ```text
//! [control A][cells A][control B][cells B][bulk A][bulk B]      A, B: the side that writes the cells
//! ```
//!
//! A direction is a control page and its cells. Each control word has a cache line of its own, because each is written
//! by one party while the other works on the next line.

/// Bytes of a cell: one cache line.
pub(crate) const CELL: usize = 64;
/// Cells of a ring; a power of two. The models under loom fill and wrap a smaller one.
pub(crate) const CELLS: u32 = if cfg!(loom) { 8 } else { 256 };

/// In a direction: how far the consumer has read the cells (written by the consumer).
pub(crate) const RING_HEAD: usize = 0;
/// In a direction: how far the consumer has released bulk bytes (written by the consumer).
pub(crate) const BULK_HEAD: usize = 64;
/// In a direction: the producer waits for space (set by the producer, cleared by the consumer).
pub(crate) const WAITING: usize = 128;
/// In a direction: the first cell.
pub(crate) const CELLS_AT: usize = 4096;
/// Bytes of a direction.
pub(crate) const DIRECTION_LEN: usize = CELLS_AT + CELLS as usize * CELL;

/// Bytes of a bulk ring; a power of two.
pub(crate) const BULK: usize = if cfg!(loom) { 256 } else { 512 * 1024 };
/// In the lane: the first bulk ring.
pub(crate) const BULK_AT: usize = 2 * DIRECTION_LEN;
/// Bytes of a lane's region.
pub(crate) const LANE_LEN: usize = BULK_AT + 2 * BULK;

const _: () = assert!(CELLS.is_power_of_two() && BULK.is_power_of_two() && BULK <= 1 << 31);
const _: () = assert!(cfg!(loom) || (BULK_AT.is_multiple_of(4096) && LANE_LEN.is_multiple_of(4096)));
