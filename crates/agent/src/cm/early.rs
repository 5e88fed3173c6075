//! Requests that come before anybody listens.
//!
//! On a network a route takes milliseconds to find, and programs have got used to that: perftest's two sides greet each other, and then
//! one listens while the other calls, which does not survive to be rejected. Here a route takes microseconds. So a request at whose service nobody
//! listens waits a moment before it is rejected, and whoever begins to listen meanwhile gets it. The principal type is [`Early`].

use std::collections::VecDeque;

use protocol::Time;
use protocol::cm::{Ece, Id as ConnectionId, Origin};
use wire::cm::{Req, SidrReq};

/// How long a request waits, in nanoseconds: as long as a busy machine lets a program wait for a processor.
pub(super) const MOMENT: u64 = 20_000_000;
/// Requests that wait at a time; more are rejected at once.
const MOST: usize = 256;

/// What has come.
#[derive(Clone, Copy)]
pub(super) enum Ask {
    Connection(Req, Ece),
    Question(SidrReq, Origin),
}

/// The requests that wait, the first to be rejected first.
#[derive(Default)]
pub(super) struct Early {
    pub(super) waiting: VecDeque<(Time, ConnectionId, Ask)>,
}

impl Early {
    /// Keeps a request, if its time is not over and there are room and memory.
    pub(super) fn keep(&mut self, now: Time, until: Time, connection: ConnectionId, ask: &Ask) -> bool {
        let keeps = now < until && self.waiting.len() < MOST && self.waiting.try_reserve(1).is_ok();
        if keeps {
            self.waiting.push_back((until, connection, *ask));
        }
        keeps
    }

    /// When the first is to be rejected.
    pub(super) fn next_time(&self) -> Option<Time> {
        self.waiting.front().map(|(until, ..)| *until)
    }

    /// Forgets a request; says whether it was there.
    pub(super) fn forget(&mut self, connection: ConnectionId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, other, _)| *other != connection);
        self.waiting.len() < before
    }
}
