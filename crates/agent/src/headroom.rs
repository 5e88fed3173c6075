//! Whether there is memory for one more piece of work.
//!
//! A piece of work makes many small allocations: nodes of maps, sentences, a reply. Rust ends the process when one of them
//! fails. So a piece that a client has caused begins only if [`BYTES`] can be allocated at once. Without them a command is
//! refused with ENOMEM, unless it gives memory back, and a datagram is lost. Tables that can need more in one allocation grow by `try_reserve`, or are
//! maps of small nodes.

use abi::Errno;

use crate::refusal::{Outcome, refuse};

/// What one piece of work allocates at most: a request and a reply of 64 KiB each are the largest of it.
pub(crate) const BYTES: usize = 128 << 10;

/// Whether so much can be allocated now.
pub(crate) fn is_there() -> bool {
    let mut room = Vec::<u8>::new();
    let is_there = room.try_reserve_exact(BYTES).is_ok();
    // Without this the compiler may leave out an allocation that nobody uses.
    std::hint::black_box(&mut room);
    is_there
}

/// Refuses what a client wants if not. Without a sentence: that would be an allocation.
pub(crate) fn check() -> Outcome<()> {
    if is_there() { Ok(()) } else { refuse(Errno::ENOMEM, String::new()) }
}
