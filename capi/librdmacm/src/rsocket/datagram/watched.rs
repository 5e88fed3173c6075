//! A datagram socket as `rpoll` sees it.

use super::path::Path;
use super::{DatagramSocket, State};
use crate::rsocket::waiting::Waker;
use crate::rsocket::watched::Watched;
use std::os::fd::RawFd;
use std::sync::Arc;

impl Watched for DatagramSocket {
    fn check(&self, events: i16) -> i16 {
        let mut state = self.state();
        self.look(&mut state, false);
        seen(&state, events)
    }

    fn enlist(&self, events: i16, waker: &Arc<Waker>, fds: &mut Vec<RawFd>) -> i16 {
        let mut state = self.state();
        let start = fds.len();
        self.prepare(&mut state, fds);
        let seen = seen(&state, events);
        if seen == 0 {
            state.waiters.add(waker);
        } else {
            fds.truncate(start);
        }
        seen
    }

    fn discharge(&self, waker: &Arc<Waker>, _ready: &[bool]) {
        self.woken(waker);
    }
}

/// The requested events that are true now.
fn seen(state: &State, events: i16) -> i16 {
    let asked = |event: i16, holds: bool| if holds { event & events } else { 0 };
    if state.closed {
        return libc::POLLNVAL;
    }
    let failed = if state.error.is_some() { libc::POLLERR } else { 0 };
    failed
        | asked(libc::POLLIN | libc::POLLRDNORM, !state.inbox.is_empty() || !state.readable)
        | asked(libc::POLLOUT | libc::POLLWRNORM, !state.writable || state.paths.iter().all(Path::can_send))
        | asked(libc::POLLRDHUP, !state.readable)
}
