//! Freed blocks: which are kept for the next allocation, and how they are given back to the
//! machine. The principal functions are [`keep`] and [`reuse`].

use crate::cache::{Kept, LARGEST, Surplus};
use crate::front::{Memory, memory};
use crate::lock::Held;
use crate::owner::is_owner;
use crate::pages;
use crate::table::{Advice, Piece, Span};

/// What a new block has in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Content {
    /// Anything.
    Any,
    /// Zeros.
    Zeros,
}

/// Keeps a block of the table that the program frees. `false`: it is not a block to keep, and stays
/// in the table.
pub(crate) fn keep(memory: &mut Memory, block: &Span) -> bool {
    let whole = memory.table.first(block).filter(|piece| (piece.start, piece.end) == (block.start, block.end));
    let is_plain = |piece: &Piece| {
        let is_usual = !piece.is_unusual && !piece.advice.is_undumped && !piece.advice.is_guarded;
        is_usual && piece.file.is_some() && piece.protection == pages::DATA.bits()
    };
    if !whole.is_some_and(|piece| is_plain(&piece)) || block.len() > LARGEST || !memory.cache.is_open() || !is_owner() {
        return false;
    }
    // A whole piece is taken without a split.
    let Ok(Some((piece, last))) = memory.take(block) else { return false };
    if last.is_none() {
        // A part of the file is mapped elsewhere.
        let put = memory.put(piece);
        debug_assert!(put.is_ok(), "a piece was just taken out");
        return false;
    }
    memory.files += 1;
    let piece = Piece { advice: Advice::NONE, ..piece };
    let oldest = memory.cache.put(Kept { piece, since: pages::now(), is_full: true });
    if let Some(oldest) = oldest {
        memory.give_back(&oldest);
    }
    true
}

/// Takes a kept block that fits a request. If none fits, enforces the bounds of the cache.
pub(crate) fn reuse(length: usize, align: usize, content: Content) -> Option<usize> {
    if length > LARGEST || !is_owner() {
        return None;
    }
    let mut memory = memory();
    let Some(kept) = memory.cache.take(length, align) else {
        tidy(memory);
        return None;
    };
    // The program may have closed all descriptors: a new block has one that can be granted.
    if !pages::is_reusable(&kept.piece) || memory.put(kept.piece).is_err() {
        memory.give_back(&kept);
        return None;
    }
    drop(memory);
    if kept.is_full && content == Content::Zeros {
        pages::clear(&kept.piece);
    }
    Some(kept.piece.start)
}

/// Gives back what exceeds a bound of the cache.
pub(crate) fn tidy(mut held: Held<'_, Memory>) {
    while is_owner()
        && let Some(surplus) = held.cache.surplus(pages::now())
    {
        match surplus {
            Surplus::Block(kept) => held.give_back(&kept),
            Surplus::Data(kept) => {
                drop(held);
                // Without the lock: it can take long.
                let is_empty = pages::punch_for_good(&kept.piece);
                held = memory();
                let oldest = if is_empty { held.cache.put(Kept { is_full: false, ..kept }) } else { Some(kept) };
                if let Some(oldest) = oldest {
                    held.give_back(&oldest);
                }
            }
        }
    }
}
