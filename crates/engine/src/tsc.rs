//! The processor's time stamp counter: the cheapest way to leave a trace of when something happened.
//!
//! Ticks have no unit here; whoever compares them measures the unit beside a clock. A counter that is not the same on all
//! processors makes guesses worse and nothing wrong.

/// Ticks since some time.
#[inline]
pub(crate) fn now() -> u64 {
    // SAFETY: every x86-64 processor has the instruction.
    unsafe { core::arch::x86_64::_rdtsc() }
}
