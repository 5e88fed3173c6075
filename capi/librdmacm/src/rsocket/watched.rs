//! What a waiting thread asks of a socket. The principal type is [`Watched`].

use super::waiting::Waker;
use std::os::fd::RawFd;
use std::sync::Arc;

/// An object that a thread can wait for.
pub(crate) trait Watched {
    /// The events that are true now: those of `events`, and those that are always reported.
    fn check(&self, events: i16) -> i16;

    /// As `check`. If no event is true, registers `waker`, which is woken when something happens,
    /// and adds the descriptors to sleep on to `fds` (-1 for one that does not exist yet).
    fn enlist(&self, events: i16, waker: &Arc<Waker>, fds: &mut Vec<RawFd>) -> i16;

    /// Ends the registration after the caller has slept. `ready` says which of the descriptors were
    /// ready.
    fn discharge(&self, waker: &Arc<Waker>, ready: &[bool]);
}
