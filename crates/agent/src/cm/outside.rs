//! What the manager has from outside: the time, and numbers that nobody can guess. In a simulation both are the simulation's. Principal type:
//! [`Outside`].

use std::io;
use std::sync::Arc;
use std::time::Instant;

use engine::Simulated;
use protocol::Time;

use crate::chance::Random;

/// Time and chance.
pub(crate) enum Outside {
    /// The machine's.
    Real {
        /// When the time began.
        began: Instant,
        /// Numbers that were got ahead.
        random: Box<Random>,
    },
    /// A simulation's.
    Simulated(Arc<dyn Simulated>),
}

impl Outside {
    /// The machine's.
    pub(crate) fn real() -> io::Result<Self> {
        Ok(Self::Real { began: Instant::now(), random: Box::new(Random::new()?) })
    }

    /// Whether they are a simulation's.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated(_))
    }

    /// The time: nanoseconds since it began.
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Real { began, .. } => Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Self::Simulated(simulated) => Time(simulated.now()),
        }
    }

    /// A number.
    pub(crate) fn word(&mut self) -> u32 {
        match self {
            Self::Real { random, .. } => random.word(),
            // The upper half: of some generators the lower one is the lesser chance.
            Self::Simulated(simulated) => (simulated.chance() >> 32) as u32,
        }
    }

    /// A longer one.
    pub(crate) fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    /// Lets time pass at once.
    #[cfg(test)]
    pub(crate) fn pass(&mut self, time: std::time::Duration) {
        match self {
            Self::Real { began, .. } => *began -= time,
            Self::Simulated(_) => unreachable!("who simulates has the time"),
        }
    }
}
