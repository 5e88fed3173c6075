//! The time of the state machines: a number that the caller passes in. No clock is read here.
//! Principal type: [`Time`].

/// A point in time, in nanoseconds since any origin that the caller chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// Later than every point in time.
    pub const NEVER: Time = Time(u64::MAX);

    /// The point in time `nanoseconds` later.
    #[must_use]
    pub const fn after(self, nanoseconds: u64) -> Time {
        Time(self.0.saturating_add(nanoseconds))
    }
}

/// The duration of a 5-bit timeout code, in nanoseconds: 4.096 µs × 2^code. `None` for code 0,
/// which waits for ever. The local ACK timeout and the CM's timeouts use the same codes. IBA
/// 9.7.6.1.3.
#[must_use]
pub const fn timeout(code: u8) -> Option<u64> {
    match code & 0x1f {
        0 => None,
        code => Some(4096 << code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_codes_stand_for_the_times_of_the_specification() {
        assert_eq!(timeout(0), None);
        assert_eq!(timeout(1), Some(8_192));
        assert_eq!(timeout(14), Some(67_108_864));
        assert_eq!(timeout(31), Some(8_796_093_022_208));
        assert_eq!(Time(5).after(u64::MAX), Time::NEVER);
    }
}
