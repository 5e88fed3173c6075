//! The state of a responder that another responder can continue from. It is needed when the process
//! that served a connection is gone, and another process may have to serve its responder. Answers
//! that were not sent yet are not part of it, because the requester asks again. Principal type:
//! [`Standing`].

use super::answers::Kept;
use crate::responder::{Open, Responder};
use crate::step::Outcome;
use wire::Psn;

/// How many READs and atomics a [`Standing`] remembers: the newest ones.
pub const KEPT: usize = 16;

/// The state of a responder that another one can continue from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The number of the expected packet.
    pub expected: Psn,
    /// Messages completed.
    pub msn: u32,
    /// The message that has begun.
    pub open: Open,
    /// The last READs and atomics, oldest first.
    pub answers: [Option<Kept>; KEPT],
}

impl Responder {
    /// The state that another responder can continue from.
    #[must_use]
    pub fn standing(&self) -> Standing {
        Standing { expected: self.expected, msn: self.answers.msn, open: self.message, answers: self.answers.kept() }
    }

    /// Continues from that state. The responder must be configured, and must not have handled a
    /// packet.
    pub fn resume(&mut self, standing: &Standing) {
        self.expected = standing.expected;
        self.message = standing.open;
        self.answers.restore(standing.msn & 0xff_ffff, &standing.answers);
    }

    /// Takes the outcome of a step that this responder has not returned. A caller that carries out
    /// another responder's step uses this object only to get the outcome.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.foreign_outcome.take()
    }
}
