//! A stream socket as `rpoll` sees it.

use super::transfer::{can_receive, can_send};
use super::{Phase, State, StreamSocket};
use crate::rsocket::waiting::Waker;
use crate::rsocket::watched::Watched;
use rsocket::stream::End;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

impl Watched for StreamSocket {
    fn check(&self, events: i16) -> i16 {
        let mut state = self.state();
        self.look(&mut state);
        state.in_vain = state.in_vain.wrapping_add(1);
        if state.in_vain.is_multiple_of(super::IN_VAIN) {
            self.look_for_news(&mut state);
        }
        seen(&state, events)
    }

    fn enlist(&self, events: i16, waker: &Arc<Waker>, fds: &mut Vec<RawFd>) -> i16 {
        let mut state = self.state();
        self.arm(&mut state);
        self.look(&mut state);
        let seen = seen(&state, events);
        if seen == 0 {
            state.waiters.add(waker);
            fds.push(self.fd());
            fds.push(self.link.get().map_or(-1, |link| link.completions.fd().as_raw_fd()));
        }
        seen
    }

    fn discharge(&self, waker: &Arc<Waker>, ready: &[bool]) {
        let [news, completions] = [0, 1].map(|index| ready.get(index).copied().unwrap_or(false));
        self.woken(waker, news, completions);
    }
}

/// The events that are true: the requested ones, and those that are always reported.
fn seen(state: &State, events: i16) -> i16 {
    let asked = |event: i16, holds: bool| if holds { event & events } else { 0 };
    let input = libc::POLLIN | libc::POLLRDNORM;
    let output = libc::POLLOUT | libc::POLLWRNORM;
    if state.closed {
        return libc::POLLNVAL;
    }
    match (state.phase, &state.stream) {
        (Phase::Listening, _) => asked(input, !state.requests.is_empty()),
        (Phase::Connected, Some(stream)) => {
            // Programs take a hang-up for the end of the data, so it is not reported while there is
            // something to read.
            let both = !stream.is_readable() && !stream.is_writable() && stream.inbox().unread() == 0;
            let failed = stream.end() == Some(End::Failed);
            asked(input, can_receive(stream))
                | asked(output, can_send(stream))
                | asked(libc::POLLRDHUP, !stream.is_readable())
                | if failed { libc::POLLERR } else { 0 }
                | if both { libc::POLLHUP } else { 0 }
        }
        (Phase::Failed, _) => asked(input | output, true) | libc::POLLERR | libc::POLLHUP,
        (Phase::New | Phase::Bound, _) => asked(output, true) | libc::POLLHUP,
        _ => 0,
    }
}
