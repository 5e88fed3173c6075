//! Whether there is memory for one more piece of work.
//!
//! A piece of work makes many small allocations: nodes of maps, sentences, a reply. If one of them
//! fails, Rust ends the process. So a piece that a client has caused begins only if [`BYTES`] can
//! be allocated at once. Otherwise a command is refused with ENOMEM, unless it frees memory, and a
//! datagram is lost. Tables that may need more in one allocation grow by `try_reserve`, or are maps
//! of small nodes.

use std::io;
use std::thread::{Builder, JoinHandle};

use abi::Errno;

use crate::account;
use crate::refusal::{Outcome, refuse};

/// Maximum memory that one piece of work allocates. The largest parts are a request and a reply of
/// 64 KiB each.
pub(crate) const BYTES: usize = 128 << 10;

/// What a new thread allocates besides its stack.
const THREAD: usize = 512 << 10;
/// The standard library's default for a stack.
pub(crate) const STACK: usize = 2 << 20;

/// Whether this much can be allocated now.
pub(crate) fn is_there() -> bool {
    has(BYTES)
}

fn has(bytes: usize) -> bool {
    #[cfg(test)]
    if tests::WITHHELD.get() {
        return false;
    }
    let mut room = Vec::<u8>::new();
    let is_there = room.try_reserve_exact(bytes).is_ok();
    // Otherwise the compiler could remove an allocation that is not used.
    std::hint::black_box(&mut room);
    is_there
}

/// Starts a thread, if there is memory for it. If a new thread cannot allocate what it needs before
/// it runs, the process ends.
pub(crate) fn start(name: String, stack: usize, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    if !has(stack + THREAD) {
        return Err(io::ErrorKind::OutOfMemory.into());
    }
    Builder::new().name(name).stack_size(stack).spawn(run)
}

/// Like [`start`], for a thread that works for one user: its log lines count for that user.
pub(crate) fn start_for(
    uid: u32,
    name: String,
    stack: usize,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    start(name, stack, move || {
        account::enter(Some(uid));
        run();
    })
}

/// Refuses a client's command if there is no memory. The refusal has no sentence, because that
/// would be an allocation.
pub(crate) fn check() -> Outcome<()> {
    if is_there() { Ok(()) } else { refuse(Errno::ENOMEM, String::new()) }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// The calling thread finds no memory.
        pub(crate) static WITHHELD: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn a_thread_for_one_user_works_on_the_users_account() {
        let (told, user) = std::sync::mpsc::channel();
        let tell = move || told.send(account::current()).expect("it is waited for");
        start_for(77, "a test".into(), STACK, tell).expect("a thread").join().expect("it ends");
        assert_eq!((user.recv(), account::current()), (Ok(Some(77)), None));
    }
}
