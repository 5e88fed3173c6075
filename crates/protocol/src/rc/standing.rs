//! How far a responder has come, as another one can go on with it: for a connection whose responder may have to be served by somebody
//! else, because whoever served it is gone. What was not said yet is not part of it, for its requester asks again. Principal type:
//! [`Standing`].

use super::answers::Kept;
use crate::{Outcome, Responder};
use wire::Psn;

/// READs and atomics that a [`Standing`] remembers: the newest ones.
pub const KEPT: usize = 16;

/// The message of which some packets have come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Open {
    /// None.
    #[default]
    None,
    /// A SEND, of which `done` bytes have come.
    Send {
        /// Bytes so far.
        done: u32,
    },
    /// A WRITE, of which `done` bytes have come.
    Write {
        /// Where it goes.
        va: u64,
        /// The key that opens it.
        rkey: u32,
        /// All bytes of it.
        total: u32,
        /// Bytes so far.
        done: u32,
    },
}

/// How far a responder has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The number of the packet that is awaited.
    pub expected: Psn,
    /// Messages completed.
    pub msn: u32,
    /// The message at hand.
    pub open: Open,
    /// What was asked for last, oldest first.
    pub answers: [Option<Kept>; KEPT],
}

impl Responder {
    /// How far this responder has come.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing { expected: self.expected, msn: self.answers.msn, open: self.message, answers: self.answers.kept() }
    }

    /// Goes on from there. The responder is configured, and has not handled anything yet.
    pub fn resume(&mut self, standing: &Standing) {
        self.expected = standing.expected;
        self.message = standing.open;
        self.answers.restore(standing.msn & 0xff_ffff, &standing.answers);
    }

    /// How a step went that this responder has not asked for: what another one asks for is carried out where this one is, which then is
    /// nothing but a place for the outcome.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.unasked.take()
    }
}
