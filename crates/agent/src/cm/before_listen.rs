//! Requests that arrive before there is a listener.
//!
//! On a network it takes milliseconds to find a route, and programs rely on that. In perftest, both
//! sides synchronise; then one side listens while the other connects, and a rejection ends the
//! test. Here a route takes microseconds. So a request without a listener waits for a short time
//! before it is rejected. If a program begins to listen in this time, it gets the request. The
//! principal type is [`BeforeListen`].

use std::collections::VecDeque;

use protocol::Time;
use protocol::cm::{Ece, Id as ConnectionId, Origin};
use wire::cm::{Req, SidrReq};

/// How long a request waits, in nanoseconds. On a busy machine, a program may wait this long for a
/// processor.
pub(super) const GRACE: u64 = 20_000_000;
/// Maximum number of requests that wait. Further requests are rejected at once.
const MOST: usize = 256;

/// A request that has arrived.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    Connection(Req, Ece),
    Question(SidrReq, Origin),
}

/// The waiting requests, ordered by when they are rejected.
#[derive(Default)]
pub(super) struct BeforeListen {
    pub(super) waiting: VecDeque<(Time, ConnectionId, Ask)>,
}

impl BeforeListen {
    /// Keeps a request, if its time has not expired and if there are room and memory.
    pub(super) fn keep(&mut self, now: Time, until: Time, connection: ConnectionId, ask: &Ask) -> bool {
        let keeps = now < until && self.waiting.len() < MOST && self.waiting.try_reserve(1).is_ok();
        if keeps {
            self.waiting.push_back((until, connection, *ask));
        }
        keeps
    }

    /// When the first request is rejected.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.waiting.front().map(|(until, ..)| *until)
    }

    /// Forgets a request. Returns whether it was there.
    pub(super) fn forget(&mut self, connection: ConnectionId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, other, _)| *other != connection);
        self.waiting.len() < before
    }
}
