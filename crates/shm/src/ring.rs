//! The cell ring: one producer, one consumer, small records, one release store per record; and the
//! layout of the region of a lane, in which the rings lie. It is not a byte stream and does not
//! wake anybody. Principal types: [`Producer`] and [`Consumer`].
//!
//! A cell is one cache line: 60 data bytes, then a commit word. The commit word of a record's first
//! cell is `index << 4 | n`. The index counts cells (28 bits, from the second lap on, so that the
//! zeros of fresh memory are not a commit), and n is the number of cells of the record. The
//! record's other cells carry their index and n = 0.
//!
//! So each cell shows by itself whether it was written in this lap. The consumer needs no shared
//! word of the producer, and data can never look like a commit. In the steady state only the cells'
//! own lines move between the two caches. The producer reads the consumer's head word only when the
//! ring looks full.
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

use std::sync::atomic::Ordering;

use crate::memory::{CELL_DATA, Memory, Window};

/// Bytes of a cell: one cache line.
pub(crate) const CELL: usize = 64;
/// Number of cells in a ring; a power of two. The models under loom fill and wrap a smaller one.
pub const CELLS: u32 = if cfg!(loom) { 8 } else { 256 };

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

/// Length of each bulk ring of a lane; a power of two.
pub const BULK: usize = if cfg!(loom) { 512 } else { 4096 * 1024 };
/// In the lane: the first bulk ring.
pub(crate) const BULK_AT: usize = (DIRECTION + DIRECTION_LEN).next_multiple_of(PAGE);
/// Length of a lane's region.
pub const LANE_LEN: usize = BULK_AT + 2 * BULK;

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

/// Maximum number of cells of a record.
pub const RECORD_CELLS: u32 = 5;
/// Maximum length of a record.
pub const RECORD_MAX: usize = RECORD_CELLS as usize * CELL_DATA;

/// The bits of a commit word that hold the number of cells; the other bits are the index.
const COUNT: u32 = 15;

/// The peer wrote something into the shared memory that no correct peer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has damaged the shared memory of this lane")]
pub struct Broken;

/// Why a record was not pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The consumer must free space first.
    #[error("the ring is full")]
    Full,
    /// See [`Broken`]; permanent.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// The writing end of a ring.
#[derive(Debug)]
pub struct Producer<M: Memory = Window> {
    memory: M,
    /// The next cell to write.
    tail: u32,
    /// The consumer's head when it was last read.
    head: u32,
    broken: bool,
}

impl<M: Memory> Producer<M> {
    /// The writing end of the ring in an unused direction.
    pub(crate) fn new(memory: M) -> Self {
        Self::at(memory, 0)
    }

    fn at(memory: M, start: u32) -> Self {
        Self { memory, tail: start, head: start, broken: false }
    }

    /// Publishes a record. Panics when it is longer than [`RECORD_MAX`].
    pub fn push(&mut self, record: &[u8]) -> Result<(), PushError> {
        assert!(record.len() <= RECORD_MAX, "a record of {} bytes, at most {RECORD_MAX} are allowed", record.len());
        let cells = cells_of(record.len());
        if self.cached_free() < cells {
            self.look_at_head()?;
            if self.cached_free() < cells {
                return Err(PushError::Full);
            }
        }
        let (first, rest) = record.split_at(record.len().min(CELL_DATA));
        for (index, data) in (1..).zip(rest.chunks(CELL_DATA)) {
            let index = self.tail.wrapping_add(index);
            self.fill(index, data, M::write_payload);
            self.memory.store(commit_at(index), commit(index, 0), Ordering::Relaxed);
        }
        self.fill(self.tail, first, M::write_cell);
        // Release: pairs with the acquire load in `Consumer::pop`. A consumer that sees this commit
        // also sees the data of all the record's cells, the commits of its other cells, and bulk
        // bytes written before.
        self.memory.store(commit_at(self.tail), commit(self.tail, cells), Ordering::Release);
        self.tail = self.tail.wrapping_add(cells);
        Ok(())
    }

    /// Publishes a record of one cell.
    #[inline]
    pub fn push_cell(&mut self, record: &[u8; CELL_DATA]) -> Result<(), PushError> {
        if self.cached_free() == 0 {
            self.look_at_head()?;
            if self.cached_free() == 0 {
                return Err(PushError::Full);
            }
        }
        let at = cell_at(self.tail);
        self.memory.write_cell(at, record);
        // Release: as in `push`.
        self.memory.store(at + CELL_DATA, commit(self.tail, 1), Ordering::Release);
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Number of cells that can be written. The consumer's head is read only when few cells seem to
    /// be left. 0 on a broken ring.
    pub fn free_cells(&mut self) -> u32 {
        if self.cached_free() < CELLS / 4 && self.look_at_head().is_err() {
            return 0;
        }
        self.cached_free()
    }

    /// Whether the consumer has published a head that is impossible. Nothing can be pushed any
    /// more.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    /// Tells the peer whether this side waits for space. Use it only before sleeping, because it
    /// costs a system call. After `set_waiting(true)` try once more to push or reserve. That
    /// attempt finds space that the peer freed before it could see the word; for space freed later
    /// the peer notifies this side.
    pub fn set_waiting(&self, waiting: bool) {
        say_waiting(&self.memory, waiting);
    }

    fn cached_free(&self) -> u32 {
        CELLS - self.tail.wrapping_sub(self.head)
    }

    fn look_at_head(&mut self) -> Result<(), Broken> {
        // Acquire: pairs with the release store in `Consumer::publish`, so that the consumer has
        // finished copying out of the cells that are about to be overwritten.
        let head = self.memory.load(RING_HEAD, Ordering::Acquire);
        // A valid head only moves forward, and never past the tail.
        let forward = head.wrapping_sub(self.head) <= self.tail.wrapping_sub(self.head);
        if self.broken || !forward {
            self.broken = true;
            // Makes the ring look full, so that each later push reads the head again.
            self.head = self.tail.wrapping_sub(CELLS);
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }

    #[inline]
    fn fill(&self, index: u32, data: &[u8], write: impl Fn(&M, usize, &[u8; CELL_DATA])) {
        if let Ok(whole) = data.try_into() {
            return write(&self.memory, cell_at(index), whole);
        }
        let mut padded = [0; CELL_DATA];
        padded[..data.len()].copy_from_slice(data);
        write(&self.memory, cell_at(index), &padded);
    }
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Consumer<M: Memory = Window> {
    memory: M,
    /// The next cell to read.
    head: u32,
    /// The head that was last published to the producer.
    published: u32,
    broken: bool,
}

impl<M: Memory> Consumer<M> {
    /// The reading end of the ring in an unused direction.
    pub(crate) fn new(memory: M) -> Self {
        Self::at(memory, 0)
    }

    fn at(memory: M, start: u32) -> Self {
        Self { memory, head: start, published: start, broken: false }
    }

    /// Copies the next record out, if there is one, and returns its length rounded up to whole
    /// cells: the bytes after the record have no meaning. [`Consumer::publish`] gives the space
    /// back.
    pub fn pop(&mut self, buf: &mut [u8; RECORD_MAX]) -> Result<Option<usize>, Broken> {
        let at = cell_at(self.head);
        // Acquire: pairs with the release store in `Producer::push`.
        let word = self.memory.load(at + CELL_DATA, Ordering::Acquire);
        if word & !COUNT != commit(self.head, 0) {
            return self.nothing_new(word);
        }
        let cells = word & COUNT;
        let (data, _) = buf.as_chunks_mut::<CELL_DATA>();
        let [first, rest @ ..] = data else { return self.damaged() };
        if self.broken || cells == 0 || cells > 1 && !self.pop_rest(cells - 1, rest) {
            return self.damaged();
        }
        self.memory.read_cell(at, first);
        self.head = self.head.wrapping_add(cells);
        Ok(Some(cells as usize * CELL_DATA))
    }

    /// Copies the other cells of a record out. Returns false if there are not so many.
    #[inline(never)]
    fn pop_rest(&self, cells: u32, rest: &mut [[u8; CELL_DATA]]) -> bool {
        let Some(rest) = rest.get_mut(..cells as usize) else { return false };
        (1..).zip(rest).all(|(k, data)| {
            let index = self.head.wrapping_add(k);
            // Relaxed: the acquire load of the first commit has ordered these.
            let is_next = self.memory.load(commit_at(index), Ordering::Relaxed) == commit(index, 0);
            if is_next {
                self.memory.read_payload(cell_at(index), data);
            }
            is_next
        })
    }

    /// The index of the next cell to read, for [`Glance::sees`].
    pub fn position(&self) -> u32 {
        self.head
    }

    /// Whether [`Consumer::pop`] would find a record, as far as can be seen now.
    #[inline]
    pub fn has_next(&self) -> bool {
        // Relaxed: the result does not guard any other read.
        let word = self.memory.load(commit_at(self.head), Ordering::Relaxed);
        word & !COUNT == commit(self.head, 0) && word & COUNT != 0
    }

    /// Makes the consumed space visible to the producer; once per batch.
    pub fn publish(&mut self) {
        if self.published != self.head {
            self.published = self.head;
            // Release: pairs with the acquire load in `Producer::look_at_head`.
            self.memory.store(RING_HEAD, self.head, Ordering::Release);
        }
    }

    /// Whether the peer waits for space. Check it after publishing or releasing space; if true,
    /// clear it first, then notify the peer.
    pub fn peer_waiting(&self) -> bool {
        said_waiting(&self.memory)
    }

    /// Clears the peer's waiting word; the peer sets it again if necessary.
    pub fn clear_waiting(&self) {
        self.memory.store(WAITING, 0, Ordering::Relaxed);
    }

    /// The cell still has the commit of the last lap (or none yet), or else a value that no correct
    /// peer writes.
    fn nothing_new(&mut self, word: u32) -> Result<Option<usize>, Broken> {
        if self.broken || is_new(word, self.head) { self.damaged() } else { Ok(None) }
    }

    #[cold]
    fn damaged(&mut self) -> Result<Option<usize>, Broken> {
        self.broken = true;
        Err(Broken)
    }
}

/// A view of a ring for a caller that does not hold its reading end.
#[derive(Debug)]
pub struct Glance<M: Memory = Window> {
    memory: M,
}

impl Consumer {
    /// A view of this end for a caller that does not hold it.
    pub fn glance(&self) -> Glance {
        Glance::new(self.memory.clone())
    }
}

impl<M: Memory> Glance<M> {
    pub(crate) fn new(memory: M) -> Self {
        Self { memory }
    }

    /// Whether cell `position` has changed since the last lap: a consumer at this position has a
    /// record to take, or an error to report. The result says nothing about what was pushed before
    /// the caller last got the consumer's position.
    #[inline]
    pub fn sees(&self, position: u32) -> bool {
        // Relaxed: the result does not guard any other read.
        is_new(self.memory.load(commit_at(position), Ordering::Relaxed), position)
    }
}

/// Whether a commit word at `index` differs from that of the last lap, or of fresh memory.
#[inline]
fn is_new(word: u32, index: u32) -> bool {
    word != 0 && word & !COUNT != commit(index.wrapping_sub(CELLS), 0)
}

fn cells_of(len: usize) -> u32 {
    // At most RECORD_CELLS, because the length is at most RECORD_MAX. An empty record takes one
    // cell, too.
    len.div_ceil(CELL_DATA).max(1) as u32
}

fn commit(index: u32, cells: u32) -> u32 {
    index.wrapping_add(CELLS) << 4 | cells
}

fn commit_at(index: u32) -> usize {
    cell_at(index) + CELL_DATA
}

/// The producer's side of [`Producer::set_waiting`].
pub(crate) fn say_waiting(control: &impl Memory, waiting: bool) {
    control.store(WAITING, u32::from(waiting), Ordering::Relaxed);
    if waiting {
        // Pairs with the fence in `said_waiting`. The producer stores `waiting`, then loads a head;
        // the consumer stores a head, then loads `waiting`. At least one of them sees what the
        // other stored. The producer executes the expensive barrier, because it has no other work.
        control.sleeper_barrier();
    }
}

/// The consumer's side of [`Consumer::peer_waiting`].
pub(crate) fn said_waiting(control: &impl Memory) -> bool {
    // Pairs with the barrier in `say_waiting`, see there.
    control.poster_fence();
    control.load(WAITING, Ordering::Relaxed) != 0
}

/// Both ends of a ring that has been in use up to cell `start`, all of it consumed and published.
#[cfg(test)]
pub(crate) fn used_until<M: Memory + Clone>(memory: M, start: u32) -> (Producer<M>, Consumer<M>) {
    for back in 1..=CELLS {
        let index = start.wrapping_sub(back);
        memory.store(commit_at(index), commit(index, 1), Ordering::Relaxed);
    }
    memory.store(RING_HEAD, start, Ordering::Relaxed);
    (Producer::at(memory.clone(), start), Consumer::at(memory, start))
}
