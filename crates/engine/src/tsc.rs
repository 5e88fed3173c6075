//! The processor's time stamp counter: the cheapest way to record when something happened. Time
//! with a unit is in [`crate::clock`]. Principal function: [`now`].
//!
//! Ticks have no unit here; a caller that compares them measures their rate with a clock. If the
//! counter differs between processors, estimates become worse, but nothing fails.

/// The counter's value, in ticks.
#[inline]
pub(crate) fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}
