//! Simulated time: the clock and the randomness of an engine without a thread of its own.
//!
//! The steps of such an engine are in `step.rs`. The simulated network is in `fabric`. Principal
//! trait: [`Simulated`].

/// The time and randomness that a simulation gives to its engines.
pub trait Simulated: Send + Sync {
    /// Nanoseconds since the simulation began.
    fn now(&self) -> u64;

    /// The next random number of the simulation.
    fn chance(&self) -> u64;
}
