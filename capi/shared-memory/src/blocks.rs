//! Blocks of `malloc` in shared memory: each is a mapping of its own. All addresses are numbers;
//! the entry makes them pointers. The principal functions are [`make`] and [`resize`].

use rustix::io::Errno;

use crate::choice::{PAGE, file_length, whole_pages};
use crate::freed::Content;
use crate::front::{self, memory};
use crate::table::{Piece, Span};
use crate::{freed, pages};

/// A new block, if the user wants it to be shared and it can be.
#[inline]
pub(crate) fn make(size: usize, align: usize, content: Content) -> Option<usize> {
    if front::choice().wants_block(size, align) { make_shared(size, align, content) } else { None }
}

fn make_shared(size: usize, align: usize, content: Content) -> Option<usize> {
    let length = whole_pages(size)?;
    let align = align.max(PAGE);
    freed::reuse(length, align, content).or_else(|| make_new(length, align))
}

#[cold]
fn make_new(length: usize, align: usize) -> Option<usize> {
    let whole_length = length.checked_add(align - PAGE)?;
    let whole = pages::map(whole_length).or_else(|error| {
        // The address space may be limited.
        if front::give_up() { pages::map(whole_length) } else { Err(error) }
    });
    let whole = whole.ok()?;
    let start = whole.next_multiple_of(align);
    let block = start..start + length;
    pages::unmap(&(whole..block.start));
    pages::unmap(&(block.end..whole + whole_length));
    if front::make(&block, file_length(length), start) {
        return Some(start);
    }
    pages::unmap(&block);
    None
}

/// The shared block that begins at an address.
#[inline]
pub(crate) fn find(address: usize) -> Option<Span> {
    let is_possible = address.is_multiple_of(PAGE) && front::may_hold(&(address..address.saturating_add(1)));
    if is_possible { memory().table.block(address) } else { None }
}

/// Frees the shared block that begins at an address. Returns false if there is no such block.
#[inline]
pub(crate) fn free(address: usize) -> bool {
    let is_possible = address.is_multiple_of(PAGE) && front::may_hold(&(address..address.saturating_add(1)));
    is_possible && free_shared(address)
}

fn free_shared(address: usize) -> bool {
    let mut memory = memory();
    let Some(block) = memory.table.block(address) else { return false };
    if freed::keep(&mut memory, &block) {
        freed::tidy(memory);
        return true;
    }
    // A table that cannot be split keeps the memory. Blocks are split only by mprotect(2).
    if front::release_held(memory, &block).is_ok() {
        pages::unmap(&block);
    }
    true
}

/// What `realloc` can do with a block.
pub(crate) enum Resized {
    /// The block, perhaps at another address.
    Done(usize),
    /// The block must be copied.
    Copy,
}

/// Changes the size of a block without a copy, if possible.
pub(crate) fn resize(block: &Span, size: usize) -> Resized {
    let Some(length) = whole_pages(size) else { return Resized::Copy };
    // A block that has become small goes back to the next allocator.
    if length < block.len() / 4 && !front::choice().wants_block(size, 1) {
        return Resized::Copy;
    }
    if length <= block.len() {
        let tail = block.start + length..block.end;
        if !tail.is_empty() && front::release(&tail).is_ok() {
            pages::unmap(&tail);
        }
        return Resized::Done(block.start);
    }
    grow(block, length).map_or(Resized::Copy, Resized::Done)
}

fn grow(block: &Span, length: usize) -> Option<usize> {
    // Held until the piece is back: neither a fork nor the end of another piece of the file may miss it.
    let mut memory = memory();
    let piece = memory.lift(block).ok()??;
    let fits = piece.file.is_none_or(|file| piece.offset.saturating_add(length) <= file.length);
    let moved = if fits { pages::remap(block, length).ok() } else { None };
    let start = moved.unwrap_or(block.start);
    let end = if moved.is_some() { start + length } else { block.end };
    let put = memory.put(Piece { start, end, block: start, ..piece });
    debug_assert!(put.is_ok(), "a piece was just taken out");
    moved
}

/// Copies the data of a block to a new block of zeros of at least its size. Holes stay holes.
pub(crate) fn copy(block: &Span, to: usize) -> Result<(), Errno> {
    let mut at = block.start;
    // A function of its own, so that the lock is not held while the data is copied.
    let next = |at| memory().table.first(&(at..block.end));
    while let Some(piece) = next(at) {
        pages::copy(&piece, to + (piece.start - block.start))?;
        at = piece.end;
    }
    Ok(())
}

/// The block, or else the piece, around an address.
pub(crate) fn around(address: usize) -> Option<Span> {
    let span = address / PAGE * PAGE..address.saturating_add(1);
    let piece = if front::may_hold(&span) {
        memory().table.pieces().find(|piece| piece.start <= address && address < piece.end).copied()
    } else {
        None
    }?;
    find(piece.block).or(Some(piece.start..piece.end))
}
