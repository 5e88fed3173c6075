//! The steps of an engine in simulated time.
//!
//! The simulation takes the steps of the helper thread by [`Engine::step`], which returns when the
//! next step is due. Everything else is as in real time, including the wake words and descriptors
//! by which engines wake each other. So a missing wakeup is also missing in a simulation. Principal
//! type: [`Step`].

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::engine::Engine;

/// The result of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The step did work, and there may be more.
    Worked,
    /// No work is due until the engine is woken, or until this time of the simulation's clock.
    Sleeps(Option<u64>),
}

impl Engine {
    /// Takes one step of the helper thread in simulated time ([`crate::Control::simulated`]).
    pub fn step(self: &Arc<Self>) -> Step {
        if self.is_gone() {
            return Step::Sleeps(None);
        }
        if self.take_turn() { Step::Worked } else { Step::Sleeps(self.timers.next().map(|at| at.0)) }
    }

    /// Whether a peer, the agent or the program has woken it since its last step.
    #[must_use]
    pub fn is_notified(&self) -> bool {
        !self.is_gone() && self.is_woken()
    }

    /// Adds the engine to an epoll set with this number: the set tells each time that the engine is
    /// woken. What came before may be missing.
    ///
    /// # Errors
    /// The system has no memory left, or the engine is in the set already.
    pub fn watch(&self, epoll: BorrowedFd<'_>, number: u64) -> std::io::Result<()> {
        self.add_wakeups(epoll, number)
    }

    /// A random number that is hard to guess, or the simulation's.
    #[must_use]
    pub fn chance(&self) -> u64 {
        match self.clock.simulated() {
            Some(simulated) => simulated.chance(),
            None => RandomState::new().build_hasher().finish(),
        }
    }
}
