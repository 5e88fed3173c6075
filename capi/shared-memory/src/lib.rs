//! `libsofthca_shared.so`: memory that is shared from its allocation on. `softhca run
//! --shared-memory` puts the library into `LD_PRELOAD`. Large blocks of `malloc`, and large
//! anonymous private mappings, then come from sealed memfds, mapped shared. So a peer of the same
//! user can be granted direct access to them. To the program, they look like private memory.
//!
//! This library replaces each function of the C library that allocates or maps memory, or that
//! forks, under its own name. Small requests, and requests for memory that this library has not
//! made, go to the next function of that name. [`choice`] decides what is shared, [`table`] records
//! the memory, and [`cache`] keeps freed blocks; all three are pure. [`front`] has the state.
//! [`heap`] and [`entry`] are the entries from C. [`pages`] calls the kernel.
//! `docs/decisions/0032-shared-from-birth.md` gives the reasons.
//!
//! Rules for every function: it never panics, uses no allocated memory and no thread-local
//! variables, and leaves `errno` as the C library would. Nothing here calls the C library's `mmap`,
//! `malloc` and relatives except as the next functions.
#![cfg_attr(test, allow(dead_code, reason = "a test program keeps the C library's own functions"))]

mod blocks;
mod cache;
mod choice;
mod early;
mod entry;
mod forks;
mod freed;
mod front;
mod heap;
mod lock;
mod mappings;
mod next;
mod owner;
mod pages;
mod stack;
mod surroundings;
mod table;
