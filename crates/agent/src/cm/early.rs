//! Requests that come before anybody listens.
//!
//! On a network a route takes milliseconds to find, and programs have got used to that: perftest's two sides greet each other, and then
//! one listens while the other calls, which does not survive to be rejected. Here a route takes microseconds. So a request at whose service nobody
//! listens waits a moment before it is rejected, and whoever begins to listen meanwhile gets it. The principal type is [`Early`].

use std::collections::VecDeque;

use protocol::Time;
use protocol::cm::{Ece, Id as ConnectionId, Origin};
use wire::cm::{Req, SidrReq};

use super::Manager;

/// How long a request waits, in nanoseconds: as long as a busy machine lets a program wait for a processor.
const MOMENT: u64 = 20_000_000;
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
    waiting: VecDeque<(Time, ConnectionId, Ask)>,
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
    fn forget(&mut self, connection: ConnectionId) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(_, other, _)| *other != connection);
        self.waiting.len() < before
    }
}

impl Manager {
    /// A request has come.
    pub(super) fn on_ask(&mut self, connection: ConnectionId, ask: &Ask) {
        let until = self.now().after(MOMENT);
        self.consider(connection, ask, until);
    }

    /// Somebody has begun to listen.
    pub(super) fn consider_early(&mut self) {
        for (until, connection, ask) in std::mem::take(&mut self.early.waiting) {
            self.consider(connection, &ask, until);
        }
    }

    /// Rejects whose time is over.
    pub(super) fn reject_early(&mut self, now: Time) {
        while self.early.next_time().is_some_and(|until| until <= now) {
            if let Some((until, connection, ask)) = self.early.waiting.pop_front() {
                self.consider(connection, &ask, until);
            }
        }
    }

    /// The peer of a connection that has no id has changed its mind.
    pub(super) fn forget_early(&mut self, connection: ConnectionId) {
        if self.early.forget(connection) {
            let now = self.now();
            if let Err(error) = self.core.destroy(now, connection) {
                tracing::debug!(%error, "a request was gone before it was forgotten");
            }
        }
    }

    fn consider(&mut self, connection: ConnectionId, ask: &Ask, until: Time) {
        match ask {
            Ask::Connection(req, ece) => self.on_request(connection, (req, *ece), until),
            Ask::Question(req, origin) => self.on_question(connection, (req, origin), until),
        }
    }
}
