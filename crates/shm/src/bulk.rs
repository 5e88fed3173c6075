//! The bulk ring: a byte ring for payload that is too large for cells, in contiguous pieces. It
//! carries no lengths and no commits of its own: a cell names the (offset, length) of each piece,
//! so the cell ring orders and publishes it. Principal types: [`BulkTx`] and [`BulkRx`].
//!
//! Pieces are rounded up to cache lines and released in the order in which they were reserved. A
//! piece never wraps around the end: the bytes left there are skipped and freed together with the
//! piece.
//!
//! The producer uses only the first [`REACH`] bytes of the ring at first, and skips the rest like
//! the bytes at the end. With [`BulkTx::grow`] it uses more. This takes memory, but a long ring is
//! faster: a line is written again only after it has left the consumer's cache. The consumer does
//! not know how much of the ring is in use.

use std::io;
use std::sync::atomic::Ordering;

use crate::memory::{Memory, Window, load_bytes, store_bytes};
use crate::region::{Sink, Source};
use crate::ring::{BULK, BULK_HEAD, Broken};

/// How many bytes of the ring a producer uses at first; a power of two.
pub const REACH: usize = if cfg!(loom) { BULK / 2 } else { BULK / 8 };

/// Maximum length of a piece: half of what a producer uses at first, because then an empty ring has
/// room for it at any position.
pub const PIECE_MAX: usize = REACH / 2;

const SIZE: u32 = BULK as u32;
const LINE: u32 = 64;

/// A reserved piece of the ring, to be filled before the cell that names it is pushed.
#[derive(Debug)]
pub struct BulkSlot {
    /// Offset in the ring, which the cell contains.
    pub offset: u32,
    /// Number of bytes that were reserved.
    pub len: u32,
    reservation: Reservation,
}

/// The writing end of a bulk ring.
#[derive(Debug)]
pub struct BulkTx {
    reservations: Reservations,
    bytes: Window,
}

impl BulkTx {
    /// The writing end of a fresh ring over `bytes`, whose head word is in `control`.
    pub(crate) fn new(control: Window, bytes: Window) -> Self {
        Self { reservations: Reservations::new(control), bytes }
    }

    /// Reserves `len` contiguous bytes (1 to [`PIECE_MAX`], else it panics); `None` when the
    /// consumer must release some first.
    pub fn reserve(&mut self, len: usize) -> Result<Option<BulkSlot>, Broken> {
        let Some(reservation) = self.reservations.reserve(len)? else {
            return Ok(None);
        };
        Ok(Some(BulkSlot { offset: reservation.offset, len: len as u32, reservation }))
    }

    /// The bytes of a reserved piece. Panics when it lies outside of this ring.
    #[inline]
    pub fn sink(&mut self, slot: &BulkSlot) -> Sink<'_> {
        self.bytes.sink(slot.offset as usize, slot.len as usize).expect("a reservation lies inside the ring")
    }

    /// Reserves room for `bytes` as [`BulkTx::reserve`] does, and copies `bytes` in.
    pub fn put(&mut self, bytes: &[u8]) -> Result<Option<BulkSlot>, Broken> {
        let Some(slot) = self.reserve(bytes.len())? else {
            return Ok(None);
        };
        // SAFETY: the piece is as long as `bytes` and writable.
        unsafe { store_bytes(self.sink(&slot).start(), bytes) };
        Ok(Some(slot))
    }

    /// Undoes the latest reservation, whose cell could not be pushed. Panics when it is not the
    /// latest.
    pub fn cancel(&mut self, slot: BulkSlot) {
        self.reservations.cancel(slot.reservation);
    }

    /// Whether the consumer has released everything.
    pub fn idle(&mut self) -> bool {
        self.reservations.idle()
    }

    /// How many bytes of the ring are in use: a power of two from [`REACH`] to [`BULK`].
    pub fn reach(&self) -> usize {
        self.reservations.reach as usize
    }

    /// Uses twice as many bytes of the ring, if there are more.
    pub fn grow(&mut self) {
        self.reservations.grow();
    }

    /// Gives the ring's pages back to the system if the ring is idle, and uses only [`REACH`] bytes
    /// again. Returns whether it was idle.
    pub fn give_back(&mut self) -> io::Result<bool> {
        if !self.idle() {
            return Ok(false);
        }
        self.reservations.reach = REACH as u32;
        self.bytes.region().punch(self.bytes.start(), BULK)?;
        Ok(true)
    }
}

/// The reading end of a bulk ring.
#[derive(Debug)]
pub struct BulkRx {
    releases: Releases,
    bytes: Window,
}

impl BulkRx {
    /// The reading end of a fresh ring over `bytes`, whose head word is in `control`.
    pub(crate) fn new(control: Window, bytes: Window) -> Self {
        Self { releases: Releases::new(control), bytes }
    }

    /// The piece that a cell names; `None` when no such piece is possible. The peer can still
    /// change the bytes at any time.
    #[inline]
    pub fn piece(&self, offset: u32, len: u32) -> Option<Source<'_>> {
        if !plausible(offset, len) {
            return None;
        }
        self.bytes.source(offset as usize, len as usize)
    }

    /// Copies out the piece of `into.len()` bytes that a cell names, and gives it back to the
    /// producer. False when no such piece is possible.
    #[must_use]
    pub fn take(&mut self, offset: u32, into: &mut [u8]) -> bool {
        let Some((len, piece)) = u32::try_from(into.len()).ok().and_then(|len| Some((len, self.piece(offset, len)?)))
        else {
            return false;
        };
        // SAFETY: the piece is as long as `into` and readable.
        unsafe { load_bytes(piece.start().cast_mut(), into) };
        self.release(offset, len);
        true
    }

    /// Gives a piece and all pieces before it back to the producer. An impossible piece is ignored.
    pub fn release(&mut self, offset: u32, len: u32) {
        self.releases.release(offset, len);
    }
}

/// A reservation by its positions, which count bytes since the beginning (modulo 2^32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) offset: u32,
    before: u32,
    after: u32,
}

/// What the producer has reserved: the arithmetic of [`BulkTx`], without the bytes.
#[derive(Debug)]
pub(crate) struct Reservations<M: Memory = Window> {
    control: M,
    /// The end of the latest reservation.
    tail: u32,
    /// The consumer's head when it was last read.
    head: u32,
    /// Pieces end before this offset.
    reach: u32,
    broken: bool,
}

impl<M: Memory> Reservations<M> {
    pub(crate) fn new(control: M) -> Self {
        Self::at(control, 0)
    }

    fn at(control: M, start: u32) -> Self {
        Self { control, tail: start, head: start, reach: REACH as u32, broken: false }
    }

    pub(crate) fn reserve(&mut self, len: usize) -> Result<Option<Reservation>, Broken> {
        assert!((1..=PIECE_MAX).contains(&len), "a piece of {len} bytes, 1 to {PIECE_MAX} are allowed");
        let len = round_up(len as u32);
        let at = self.tail % SIZE;
        let start = if at + len <= self.reach { self.tail } else { self.tail.wrapping_add(SIZE - at) };
        let after = start.wrapping_add(len);
        if self.broken || after.wrapping_sub(self.head) > SIZE {
            self.look_at_head()?;
            if after.wrapping_sub(self.head) > SIZE {
                return Ok(None);
            }
        }
        let before = std::mem::replace(&mut self.tail, after);
        Ok(Some(Reservation { offset: start % SIZE, before, after }))
    }

    pub(crate) fn grow(&mut self) {
        self.reach = (self.reach * 2).min(SIZE);
    }

    pub(crate) fn cancel(&mut self, reservation: Reservation) {
        assert!(reservation.after == self.tail, "only the latest reservation can be cancelled");
        self.tail = reservation.before;
    }

    pub(crate) fn idle(&mut self) -> bool {
        self.look_at_head().is_ok() && self.head == self.tail
    }

    fn look_at_head(&mut self) -> Result<(), Broken> {
        // Acquire: pairs with the release store in `Releases::release`, so that the consumer has
        // finished with the bytes that are about to be overwritten.
        let head = self.control.load(BULK_HEAD, Ordering::Acquire);
        // A valid head only moves forward, and never past the tail.
        let forward = head.wrapping_sub(self.head) <= self.tail.wrapping_sub(self.head);
        if self.broken || !forward {
            self.broken = true;
            return Err(Broken);
        }
        self.head = head;
        Ok(())
    }
}

/// What the consumer has released: the arithmetic of [`BulkRx`], without the bytes.
#[derive(Debug)]
pub(crate) struct Releases<M: Memory = Window> {
    control: M,
    /// The end of the latest piece released.
    head: u32,
}

impl<M: Memory> Releases<M> {
    pub(crate) fn new(control: M) -> Self {
        Self::at(control, 0)
    }

    fn at(control: M, start: u32) -> Self {
        Self { control, head: start }
    }

    pub(crate) fn release(&mut self, offset: u32, len: u32) {
        if !plausible(offset, len) {
            return;
        }
        let skipped = offset.wrapping_sub(self.head) % SIZE;
        self.head = self.head.wrapping_add(skipped).wrapping_add(round_up(len));
        // Release: pairs with the acquire load in `Reservations::look_at_head`.
        self.control.store(BULK_HEAD, self.head, Ordering::Release);
    }
}

/// Whether the producer could have reserved this piece.
fn plausible(offset: u32, len: u32) -> bool {
    offset.is_multiple_of(LINE)
        && offset < SIZE
        && (1..=PIECE_MAX as u32).contains(&len)
        && round_up(len) <= SIZE - offset
}

/// Rounds up to whole cache lines; the length is at most [`PIECE_MAX`].
fn round_up(len: u32) -> u32 {
    len.next_multiple_of(LINE)
}

/// Both ends of a ring that has been in use up to position `start`, all of it released.
#[cfg(test)]
pub(crate) fn used_until<M: Memory + Clone>(control: M, start: u32) -> (Reservations<M>, Releases<M>) {
    control.store(BULK_HEAD, start, Ordering::Relaxed);
    (Reservations::at(control.clone(), start), Releases::at(control, start))
}
