//! When empty WRITEs make a peer look at what it has overlooked ([`Quirks::nudge`]). Principal type:
//! [`Nudges`].
//!
//! [`Quirks::nudge`]: crate::quirks::Quirks::nudge

use std::time::Duration;

/// How many there are after a first FPDU, and how much longer each waits than the one before. With
/// siw, the last one leaves after 1.7 seconds.
const COUNT: u32 = 5;
const LONGER: u32 = 4;

/// The nudges that are still to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nudges {
    /// The time before the next one.
    wait: Duration,
    left: u32,
    /// When the next one is due. `None`: nothing has been sent yet.
    at: Option<Duration>,
    /// Its time has come, and it waits for room.
    waits: bool,
}

impl Nudges {
    /// Those of an initiator; none if the first wait is 0.
    pub(super) fn new(wait: Duration) -> Nudges {
        Nudges { wait, left: if wait.is_zero() { 0 } else { COUNT }, at: None, waits: false }
    }

    /// When the next one is due, if it does not wait for room.
    pub(super) fn due(&self) -> Option<Duration> {
        self.at.filter(|_| self.left > 0 && !self.waits)
    }

    /// Looks at the time. Returns whether one may leave.
    pub(super) fn may_leave(&mut self, now: Duration) -> bool {
        self.waits |= self.due().is_some_and(|due| due <= now);
        self.waits
    }

    /// Something is sent. What leaves when a nudge is due takes its place.
    pub(super) fn sent(&mut self, now: Duration) {
        if self.may_leave(now) {
            self.left -= 1;
            self.wait *= LONGER;
        } else if self.at.is_some() {
            return;
        }
        (self.at, self.waits) = (Some(now + self.wait), false);
    }
}
