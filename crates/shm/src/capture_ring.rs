//! A capture ring: a ring of records of any length, from one process to another. If there is no
//! room for a record, the writer drops the record and does not wait.
//!
//! ```text
//!   0  bytes ever written u64         (the writer's)
//!  64  bytes ever read u64            (the reader's)
//! 128  records lost u64 · attached u32 (the writer's)
//! 256  records: length u32, 0 u32, bytes, up to a multiple of 8;
//!      a record that reaches the end continues at the beginning
//! ```
//! The ring carries diagnostics: nobody is woken, and the reader polls from time to time. Words of
//! the other side are untrusted. Principal types: [`CaptureRingTx`], [`CaptureRingRx`].

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use crate::region::Region;
use crate::ring::Broken;

const WRITTEN: usize = 0;
const READ: usize = 64;
const LOST: usize = 128;
const ATTACHED: usize = 136;
const RECORDS: usize = 256;
/// Length of a record's header.
const HEAD: usize = 8;

/// The smallest size of a capture ring, in bytes of records.
pub const CAPTURE_RING_MIN: usize = 64 * 1024;
/// The largest size of a capture ring, in bytes of records.
pub const CAPTURE_RING_MAX: usize = 1 << 30;

/// Creates the memory of a capture ring of `room` bytes, a power of two between
/// [`CAPTURE_RING_MIN`] and [`CAPTURE_RING_MAX`].
pub fn create_capture_ring(room: usize) -> io::Result<OwnedFd> {
    Ok(Region::create("softhca-capture-ring", RECORDS + sound(room)?)?.1)
}

fn sound(room: usize) -> io::Result<usize> {
    let is_sound = room.is_power_of_two() && (CAPTURE_RING_MIN..=CAPTURE_RING_MAX).contains(&room);
    is_sound.then_some(room).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// The writer's end.
#[derive(Debug)]
pub struct CaptureRingTx {
    region: Region,
    room: usize,
    /// Private copies of WRITTEN and LOST, which nobody else can change.
    written: u64,
    lost: u64,
}

impl CaptureRingTx {
    /// Maps a capture ring for writing.
    pub fn map(fd: BorrowedFd<'_>, room: usize) -> io::Result<Self> {
        let region = Region::map(fd, RECORDS + sound(room)?)?;
        Ok(Self { region, room, written: 0, lost: 0 })
    }

    /// Tells the reader that every packet is written from now on.
    pub fn attach(&self) {
        // Release: pairs with the reader's acquire in `is_attached`.
        self.region.word(ATTACHED).store(1, Ordering::Release);
    }

    /// Writes one record of several parts, or counts it as lost; returns whether it was written.
    pub fn push(&mut self, parts: &[&[u8]]) -> bool {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let size = HEAD + len.next_multiple_of(8);
        // Acquire: pairs with the reader's release, so that the reader has copied the bytes that
        // are about to be overwritten.
        let used = self.written.wrapping_sub(self.region.word64(READ).load(Ordering::Acquire));
        // A reader's position ahead of the writer is invalid: treat the ring as full.
        let free = usize::try_from(used).ok().and_then(|used| self.room.checked_sub(used)).unwrap_or(0);
        if size > free {
            self.lost += 1;
            self.region.word64(LOST).store(self.lost, Ordering::Relaxed);
            return false;
        }
        let mut at = self.written;
        let head = [(len as u32).to_le_bytes(), [0; 4]].concat();
        for part in std::iter::once(head.as_slice()).chain(parts.iter().copied()) {
            self.copy_in(at, part);
            at = at.wrapping_add(part.len() as u64);
        }
        self.written = self.written.wrapping_add(size as u64);
        // Release: pairs with the reader's acquire, so that it sees the record before the count.
        self.region.word64(WRITTEN).store(self.written, Ordering::Release);
        true
    }

    fn copy_in(&self, at: u64, bytes: &[u8]) {
        let at = (at % self.room as u64) as usize;
        let (first, rest) = bytes.split_at(bytes.len().min(self.room - at));
        self.region.copy_in(RECORDS + at, first);
        self.region.copy_in(RECORDS, rest);
    }
}

/// The reader's end.
#[derive(Debug)]
pub struct CaptureRingRx {
    region: Region,
    room: usize,
    read: u64,
}

impl CaptureRingRx {
    /// Maps a capture ring for reading.
    pub fn map(fd: BorrowedFd<'_>, room: usize) -> io::Result<Self> {
        Ok(Self { region: Region::map(fd, RECORDS + sound(room)?)?, room, read: 0 })
    }

    /// Whether the writer has said that it writes every packet.
    pub fn is_attached(&self) -> bool {
        self.region.word(ATTACHED).load(Ordering::Acquire) != 0
    }

    /// Number of records that had no room, as the writer reports.
    pub fn lost(&self) -> u64 {
        self.region.word64(LOST).load(Ordering::Relaxed)
    }

    /// Whether everything that was written has been read.
    pub fn is_empty(&self) -> bool {
        self.region.word64(WRITTEN).load(Ordering::Acquire) == self.read
    }

    /// Takes the next record; false when there is none.
    ///
    /// # Errors
    /// The writer has written something that no correct writer writes.
    pub fn pop(&mut self, into: &mut Vec<u8>) -> Result<bool, Broken> {
        // Acquire: pairs with the writer's release.
        let ready = self.region.word64(WRITTEN).load(Ordering::Acquire).wrapping_sub(self.read);
        let ready = usize::try_from(ready).ok().filter(|ready| *ready <= self.room).ok_or(Broken)?;
        if ready == 0 {
            return Ok(false);
        }
        let mut head = [0; HEAD];
        if ready < HEAD {
            return Err(Broken);
        }
        self.copy_out(self.read, &mut head);
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let size = HEAD + len.next_multiple_of(8);
        if size > ready {
            return Err(Broken);
        }
        into.resize(len, 0);
        self.copy_out(self.read.wrapping_add(HEAD as u64), into);
        self.read = self.read.wrapping_add(size as u64);
        // Release: pairs with the writer's acquire, which then may overwrite the record.
        self.region.word64(READ).store(self.read, Ordering::Release);
        Ok(true)
    }

    fn copy_out(&self, at: u64, bytes: &mut [u8]) {
        let at = (at % self.room as u64) as usize;
        let fits = bytes.len().min(self.room - at);
        let (first, rest) = bytes.split_at_mut(fits);
        self.region.copy_out(RECORDS + at, first);
        self.region.copy_out(RECORDS, rest);
    }
}
