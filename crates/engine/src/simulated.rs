//! Simulated time: an engine that does nothing by itself, and whose clock and chance are somebody else's.
//!
//! Such an engine has no helper thread: whoever simulates takes its turns, by [`Engine::step`], and finds out when the next one is due.
//! Everything else is as in real time, the words and descriptors by which engines wake each other too, so that a wake-up that is missing is
//! missed in a simulation as well. What a network of a simulation is, `fabric` knows. Principal trait: [`Simulated`].

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use crate::engine::Engine;

/// What a simulation decides for its engines.
pub trait Simulated: Send + Sync {
    /// Nanoseconds since the simulation began.
    fn now(&self) -> u64;

    /// A number, by the simulation's chance.
    fn chance(&self) -> u64;
}

/// What came of one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Something was done, and more may be there.
    Worked,
    /// Nothing is to be done before the engine is woken, or the simulation's clock shows so much.
    Sleeps(Option<u64>),
}

impl Engine {
    /// Takes one turn of the helper thread's, where the time is simulated ([`crate::Control::simulated`]).
    pub fn step(self: &Arc<Self>) -> Step {
        if self.is_gone() {
            return Step::Sleeps(None);
        }
        if self.take_turn() { Step::Worked } else { Step::Sleeps(self.timers.next().map(|at| at.0)) }
    }

    /// Whether a peer, the agent or the program has woken it since its last step.
    #[must_use]
    pub fn is_rung(&self) -> bool {
        !self.is_gone() && self.is_woken()
    }

    /// A number that nobody guesses easily, or the simulation's.
    #[must_use]
    pub fn chance(&self) -> u64 {
        match self.clock.simulated() {
            Some(simulated) => simulated.chance(),
            None => RandomState::new().build_hasher().finish(),
        }
    }
}
