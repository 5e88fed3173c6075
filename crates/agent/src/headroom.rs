//! Whether there is memory for one more piece of work.
//!
//! A piece of work makes many small allocations: nodes of maps, sentences, a reply. Rust ends the process when one of them
//! fails. So a piece that a client has caused begins only if [`BYTES`] can be allocated at once. Without them a command is
//! refused with ENOMEM, unless it gives memory back, and a datagram is lost. Tables that can need more in one allocation grow by `try_reserve`, or are
//! maps of small nodes.

use std::io;
use std::thread::{Builder, JoinHandle};

use abi::Errno;

use crate::refusal::{Outcome, refuse};

/// What one piece of work allocates at most: a request and a reply of 64 KiB each are the largest of it.
pub(crate) const BYTES: usize = 128 << 10;

/// What a new thread allocates beside its stack.
const THREAD: usize = 512 << 10;
/// The standard library's own choice for a stack.
pub(crate) const STACK: usize = 2 << 20;

/// Whether so much can be allocated now.
pub(crate) fn is_there() -> bool {
    has(BYTES)
}

fn has(bytes: usize) -> bool {
    let mut room = Vec::<u8>::new();
    let is_there = room.try_reserve_exact(bytes).is_ok();
    // Without this the compiler may leave out an allocation that nobody uses.
    std::hint::black_box(&mut room);
    is_there
}

/// Starts a thread, if there is memory for it: what a new thread allocates before it runs ends the process when it fails.
pub(crate) fn start(name: String, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if !has(stack + THREAD) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Builder::new().name(name).stack_size(stack).spawn(run)
}

/// Refuses what a client wants if not. Without a sentence: that would be an allocation.
pub(crate) fn check() -> Outcome<()> {
    if is_there() { Ok(()) } else { refuse(Errno::ENOMEM, String::new()) }
}
