//! The program's own memory, which may vanish at any time: copies and atomics that survive a fault,
//! and checks of a range without an access to it.
//!
//! A registered buffer is not pinned. The program may unmap it, protect it or truncate the file
//! under it at any time, and a forked process has lost the engine's mappings altogether. All engine
//! code that reads or writes user memory uses [`copy()`] or the atomics here. A failure returns a
//! [`Fault`], which the engine turns into a completion status; the program never gets a signal.
//! Keys, rights and ranges are not checked here; the memory region table does that. Principal type:
//! [`Fault`].
//!
//! This module has statics, because signal handlers and the kind of processor belong to the
//! process.

mod atomic;
mod caller;
mod copy;
mod fault;
mod fold;
pub mod guarded;
pub mod mappings;
mod outcome;
mod populate;
mod previous;
#[cfg(test)]
mod tests;

pub use atomic::{compare_swap, fetch_add, load, swap};
pub use caller::{ForkMark, block_other_signals, prepare_thread};
pub use copy::{copy, stage};
pub use fault::install;
pub use fold::copy_folding;
pub use outcome::{Fault, FaultSignal, Side};
pub use populate::populate;
