//! The user for whom a thread of the agent works, so that a log can tell whose work caused a line.

use std::cell::Cell;

thread_local! {
    static USER: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The user for whom the calling thread works, if it is a thread of the agent that works for a
/// single user.
pub fn current() -> Option<u32> {
    USER.get()
}

/// Sets the user for whom the calling thread works.
pub(crate) fn enter(user: Option<u32>) {
    USER.set(user);
}
