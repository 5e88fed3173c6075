//! The layout of a lane's region: only the numbers. Principal items: [`LANE_LEN`], the offsets of
//! one direction, and [`cell_at`].
//!
//! ```text
//! page 0                                 page 1                   page 8        page 9
//! [A: words, cells 0 to 27][B: the same] [A: cells 28 to 59][B] … [A: … 255][B] [bulk A][bulk B]
//!
//! A, B: the side that writes the cells
//! ```
//!
//! The directions share each page, half and half. Two processes with little traffic then touch only
//! the first page, and a page costs more than their data. Each control word has its own cache line,
//! because one party writes it while the other works on the next line.

/// Bytes of a cell: one cache line.
pub(crate) const CELL: usize = 64;
/// Cells of a ring; a power of two. The models under loom fill and wrap a smaller one.
pub(crate) const CELLS: u32 = if cfg!(loom) { 8 } else { 256 };

/// Length of a page, and the part of it that belongs to one direction.
const PAGE: usize = 4096;
const HALF: usize = PAGE / 2;
/// Number of cache lines in that part.
const LINES: usize = HALF / CELL;

/// In a direction: how far the consumer has read the cells (written by the consumer).
pub(crate) const RING_HEAD: usize = 0;
/// In a direction: how far the consumer has released bulk bytes (written by the consumer).
pub(crate) const BULK_HEAD: usize = 64;
/// In a direction: the producer waits for space (set by the producer, cleared by the consumer).
pub(crate) const WAITING: usize = 128;
/// In a direction: the first cell.
pub(crate) const CELLS_AT: usize = 256;
/// Length of a direction, from its beginning to its last byte.
pub(crate) const DIRECTION_LEN: usize = cell_at(CELLS - 1) + CELL;
/// Offset of the second direction from the first.
pub(crate) const DIRECTION: usize = HALF;

/// Bytes of a bulk ring; a power of two.
pub(crate) const BULK: usize = if cfg!(loom) { 256 } else { 512 * 1024 };
/// In the lane: the first bulk ring.
pub(crate) const BULK_AT: usize = (DIRECTION + DIRECTION_LEN).next_multiple_of(PAGE);
/// Bytes of a lane's region.
pub(crate) const LANE_LEN: usize = BULK_AT + 2 * BULK;

const _: () = assert!(CELLS.is_power_of_two() && BULK.is_power_of_two() && BULK <= 1 << 31);
const _: () = assert!(CELLS_AT.is_multiple_of(CELL) && WAITING + CELL <= CELLS_AT && LINES.is_power_of_two());
const _: () = assert!(cfg!(loom) || LANE_LEN.is_multiple_of(PAGE));

/// In a direction: the offset of cell `index`, which counts without wrapping at the ring's size.
#[inline]
pub(crate) const fn cell_at(index: u32) -> usize {
    // Number of lines of this direction before the cell. Each half page of them is followed by a
    // half page of the other direction.
    let line = CELLS_AT / CELL + (index % CELLS) as usize;
    (line + (line & !(LINES - 1))) * CELL
}
