//! The program's own memory, which is never to be trusted to be there: copies and atomics that survive a fault, and what
//! can be known about a range without touching it.
//!
//! A registered buffer is not pinned. The program may unmap it, protect it or truncate the file under it at any time, and
//! a process that forked has lost the engine's mappings altogether. Everything in the engine that reads or writes such
//! memory goes through [`copy()`] or the atomics here: what fails comes back as a [`Fault`], which the engine turns into a
//! completion status, and never as a signal to the program. Keys, rights and ranges are not looked at
//! here; that is the memory region table's part.
//!
//! There are statics here, as nowhere else in the engine: signal handlers and the kind of processor belong to the process.

mod atomic;
mod copy;
mod fault;
mod fold;
mod fork;
pub mod guarded;
pub mod mappings;
mod populate;
mod previous;
#[cfg(test)]
mod tests;

pub use atomic::{compare_swap, fetch_add, load, swap};
pub use copy::{copy, stage};
pub use fault::{Fault, FaultSignal, Side, block_other_signals, install, prepare_thread};
pub use fold::copy_folding;
pub use fork::ForkMark;
pub use populate::populate;
