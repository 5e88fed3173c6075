//! What the manager needs from outside: the time, and numbers that cannot be guessed. A simulation
//! provides both. The principal type is [`Outside`].

use std::io;
use std::sync::Arc;
use std::time::Instant;

use engine::Simulated;
use protocol::Time;

use crate::host::Random;

/// A source of time and random numbers.
pub(crate) enum Outside {
    /// The machine's clock and random numbers.
    Real {
        /// The zero of the time.
        began: Instant,
        /// A buffer of random numbers.
        random: Box<Random>,
    },
    /// A simulation's time and numbers.
    Simulated(Arc<dyn Simulated>),
}

impl Outside {
    /// Uses the machine's clock and random numbers.
    pub(crate) fn real() -> io::Result<Self> {
        Ok(Self::Real { began: Instant::now(), random: Box::new(Random::new()?) })
    }

    /// Whether a simulation provides them.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self, Self::Simulated(_))
    }

    /// The time, in nanoseconds since its zero.
    pub(crate) fn now(&self) -> Time {
        match self {
            Self::Real { began, .. } => Time(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Self::Simulated(simulated) => Time(simulated.now()),
        }
    }

    /// A random number of 32 bits.
    pub(crate) fn word(&mut self) -> u32 {
        match self {
            Self::Real { random, .. } => random.word(),
            // The upper half: in some generators the lower half is less random.
            Self::Simulated(simulated) => (simulated.chance() >> 32) as u32,
        }
    }

    /// A random number of 64 bits.
    pub(crate) fn long(&mut self) -> u64 {
        u64::from(self.word()) << 32 | u64::from(self.word())
    }

    /// Advances the time at once.
    #[cfg(test)]
    pub(crate) fn pass(&mut self, time: std::time::Duration) {
        match self {
            Self::Real { began, .. } => *began -= time,
            Self::Simulated(_) => unreachable!("who simulates has the time"),
        }
    }
}
