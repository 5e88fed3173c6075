//! Timers and retries of a connection, as people write them, and the verbs codes for them.
//! Principal types: [`Retries`], [`RnrRetries`].

use std::time::Duration;

use abi::errno::Errno;

use crate::error::{Error, Result};

/// How often a request is retransmitted before it fails: 0 to 7 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Retries(u8);

impl Retries {
    /// No retries.
    pub const NONE: Self = Self(0);
    /// 7 retries, the maximum.
    pub const MOST: Self = Self(7);

    /// This number of retries.
    ///
    /// # Errors
    /// EINVAL for more than 7.
    pub fn new(times: u8) -> Result<Self> {
        checked(times, Self::MOST.0, "retries").map(Self)
    }

    /// Number of retries.
    #[must_use]
    pub const fn times(self) -> u8 {
        self.0
    }
}

/// How often a request is retransmitted when the peer has posted no receive for it (RNR): 0 to 6
/// times, or for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RnrRetries(u8);

impl RnrRetries {
    /// No retries.
    pub const NONE: Self = Self(0);
    /// Retries until the peer posts a receive.
    pub const INFINITE: Self = Self(7);

    /// This number of retries.
    ///
    /// # Errors
    /// EINVAL for more than 6.
    pub fn new(times: u8) -> Result<Self> {
        checked(times, 6, "RNR retries").map(Self)
    }

    /// Number of retries; `None` means for ever.
    #[must_use]
    pub fn times(self) -> Option<u8> {
        (self != Self::INFINITE).then_some(self.0)
    }
}

fn checked(times: u8, most: u8, what: &str) -> Result<u8> {
    match times {
        times if times <= most => Ok(times),
        times => Err(Error::refused(Errno::EINVAL, format!("{times} {what}: the maximum is {most}"))),
    }
}

/// Timers and retries as verbs codes.
#[derive(Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) rnr_retries: u8,
    pub(crate) rnr_timer: u8,
}

/// Timers and retries as the program chose them.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) timeout: Duration,
    pub(crate) retries: Retries,
    pub(crate) rnr_retries: RnrRetries,
    pub(crate) min_rnr_timer: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            timeout: Duration::from_millis(67),
            retries: Retries::MOST,
            rnr_retries: RnrRetries::INFINITE,
            min_rnr_timer: Duration::from_micros(640),
        }
    }
}

impl Patience {
    /// Converts to verbs codes.
    pub(crate) fn timing(self) -> Result<Timing> {
        Ok(Timing {
            timeout: timeout_code(self.timeout),
            retries: self.retries.0,
            rnr_retries: self.rnr_retries.0,
            rnr_timer: rnr_code(self.min_rnr_timer)?,
        })
    }
}

/// The code of the next longer time-out (IBA volume 1, 9.9.2.1.1: 4.096 µs × 2^code); 0 for no
/// time-out.
fn timeout_code(limit: Duration) -> u8 {
    (1..=31).find(|code| limit <= Duration::from_nanos(4096 << code)).unwrap_or(0)
}

/// The code of the next longer RNR timer (IBA volume 1, 9.7.5.2.8).
fn rnr_code(pause: Duration) -> Result<u8> {
    // Code 0 is the longest time.
    let mut codes = (1..32).chain([0]);
    codes.find(|code| pause <= Duration::from_nanos(protocol::rnr::nanoseconds(*code))).ok_or_else(|| {
        let longest = Duration::from_nanos(protocol::rnr::nanoseconds(0));
        Error::refused(Errno::EINVAL, format!("min_rnr_timer {pause:?}: the maximum is {longest:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_up() {
        let nanos = Duration::from_nanos;
        let timeouts = [0, 8192, 8193, 67_000_000, 67_108_864, 67_108_865, 4096 << 31, (4096 << 31) + 1];
        assert_eq!(timeouts.map(|limit| timeout_code(nanos(limit))), [1, 1, 2, 14, 14, 15, 31, 0]);
        assert_eq!(timeout_code(Duration::MAX), 0);
        let timers = [0, 10_000, 10_001, 640_000, 491_520_000, 491_520_001, 655_360_000];
        assert_eq!(timers.map(|pause| rnr_code(nanos(pause)).expect("short enough")), [1, 1, 2, 12, 31, 0, 0]);
        let error = rnr_code(nanos(655_360_001)).expect_err("too long");
        assert!(error.reason().contains("the maximum is 655.36ms"), "{error}");
    }

    #[test]
    fn counts_are_checked() {
        assert_eq!(Retries::new(7).expect("the most"), Retries::MOST);
        assert_eq!(Retries::new(8).expect_err("too many").reason(), "8 retries: the maximum is 7");
        assert_eq!(RnrRetries::new(6).expect("the most").times(), Some(6));
        assert_eq!(RnrRetries::new(7).expect_err("that would be for ever").errno(), Errno::EINVAL.0);
        assert_eq!(RnrRetries::INFINITE.times(), None);
    }

    #[test]
    fn the_default_timing_is_as_documented() {
        let timing = Patience::default().timing().expect("good values");
        assert_eq!((timing.timeout, timing.retries, timing.rnr_retries, timing.rnr_timer), (14, 7, 7, 12));
    }
}
