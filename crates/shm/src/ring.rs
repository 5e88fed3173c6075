//! The cell ring: one producer, one consumer, small records, one release store per record. It is
//! not a byte stream and does not wake anybody. Principal types: [`Producer`] and [`Consumer`].
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

use std::sync::atomic::Ordering;

use crate::layout::{RING_HEAD, cell_at};
use crate::memory::{CELL_DATA, Memory, Window};

/// Number of cells in a ring.
pub const CELLS: u32 = crate::layout::CELLS;
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
