//! For whom a thread of the agent is at work: so that a log can tell the lines that one user has caused from others.

use std::cell::Cell;

thread_local! {
    static USER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The user for whom the calling thread is at work, if it is one of the agent's and at work for a single one.
pub fn current() -> Option<u32> {
    USER.get()
}

/// The calling thread is at work for this user from now on.
pub(crate) fn enter(user: Option<u32>) {
    USER.set(user);
}
