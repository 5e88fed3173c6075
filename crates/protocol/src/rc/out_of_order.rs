//! Out-of-order packets: packets of a connection that come before one that they follow. Most often that one is not lost but late by a
//! few places, and going back for it would cost as much as a loss. So a caller that has memory for it may keep such packets for a moment
//! ([`crate::Responder::keep_out_of_order`], [`crate::Requester::keep_out_of_order`]), and bring them again in their order once the missing one has come.
//! When the moment is over, or more have come than it keeps, the missing one counts as lost; those at hand are kept for a while longer, for
//! then they need not come twice.
//!
//! A packet that is kept is to the machines a packet that has not come: it is looked at when it is brought again, as any other. So nothing
//! can be done with it that a network could not do by being slow, and only by as much as a caller's moment. Principal type: [`OutOfOrder`].

use crate::Time;
use wire::Psn;

/// How many packets one end of a connection keeps, at most: a burst of them, which one that is late may come behind.
pub const OUT_OF_ORDER_MAX: usize = 64;
/// How far behind the awaited number the number of a packet may be that is kept: as far as packets overtake each other, and no farther, for
/// whoever forges packets must hit a number.
pub(super) const REACH: u32 = 128;

/// Packets that came out of order, in their order.
#[derive(Debug)]
pub struct OutOfOrder<T> {
    kept: Vec<(Psn, T)>,
    until: Time,
    told: bool,
}

impl<T> Default for OutOfOrder<T> {
    fn default() -> Self {
        Self { kept: Vec::new(), until: Time::NEVER, told: false }
    }
}

impl<T> OutOfOrder<T> {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// When they have been kept for long enough; [`Time::NEVER`] if there are none.
    #[must_use]
    pub fn until(&self) -> Time {
        if self.kept.is_empty() { Time::NEVER } else { self.until }
    }

    /// Whether one more may be kept.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.kept.len() < OUT_OF_ORDER_MAX
    }

    /// Keeps packet `psn`, which `make` makes, if it is not here. The first one, and the first since a loss was told, sets `until` when.
    /// False if there is no room for it.
    pub fn keep(&mut self, psn: Psn, until: Time, make: impl FnOnce() -> Option<T>) -> bool {
        let is_new = !self.kept.iter().any(|(kept, _)| *kept == psn);
        if is_new {
            let Some(packet) = self.has_room().then(make).flatten() else { return false };
            if self.kept.is_empty() {
                self.told = true;
            }
            let place = self.kept.iter().rposition(|(kept, _)| kept.is_before(psn)).map_or(0, |before| before + 1);
            self.kept.insert(place, (psn, packet));
        }
        if std::mem::take(&mut self.told) {
            self.until = until;
        }
        true
    }

    /// Takes packet `psn` out, and forgets those before it: what comes too late for its turn has come before.
    pub fn take(&mut self, psn: Psn) -> Option<T> {
        self.kept.retain(|(kept, _)| !kept.is_before(psn));
        self.kept.first().is_some_and(|(kept, _)| *kept == psn).then(|| self.kept.remove(0).1)
    }

    /// The number of the first one, and the packet.
    #[must_use]
    pub fn first(&self) -> Option<(Psn, &T)> {
        self.kept.first().map(|(psn, packet)| (*psn, packet))
    }

    /// Takes the first one out.
    pub fn take_first(&mut self) -> Option<T> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0).1)
    }

    /// Time has passed: true if the peer is to be told now of what is missing; they are kept `until` then. The second time they are forgotten.
    pub fn run_out(&mut self, until: Time) -> bool {
        if self.told || self.kept.is_empty() {
            self.kept.clear();
            return false;
        }
        (self.told, self.until) = (true, until);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn psn(number: u32) -> Psn {
        Psn::new(number)
    }

    #[test]
    fn they_come_out_in_their_order_across_the_end_of_the_numbers() {
        let mut buffer = OutOfOrder::default();
        for number in [0, 0xff_fffe, 0xff_ffff, 0] {
            assert!(buffer.keep(psn(number), Time(u64::from(number)), || Some(number)));
        }
        assert_eq!((buffer.kept.len(), buffer.until()), (3, Time(0)), "one came twice, and the first says until when");
        assert_eq!(buffer.first(), Some((psn(0xff_fffe), &0xff_fffe)));
        assert_eq!(buffer.take(psn(0xff_fffd)), None);
        assert_eq!(buffer.take(psn(0xff_fffe)), Some(0xff_fffe));
        assert_eq!(buffer.take(psn(0)), Some(0), "the one before it is forgotten");
        assert_eq!((buffer.is_empty(), buffer.until()), (true, Time::NEVER));
    }

    #[test]
    fn there_are_never_more_than_a_burst() {
        let mut buffer = OutOfOrder::default();
        let kept = (0..100).filter(|number| buffer.keep(psn(*number), Time(7), || Some(*number))).count();
        assert_eq!((kept, buffer.has_room()), (OUT_OF_ORDER_MAX, false));
        assert!(
            buffer.keep(psn(63), Time(7), || unreachable!("it is here")) && !buffer.keep(psn(64), Time(7), || Some(64))
        );
        assert_eq!(buffer.take_first(), Some(0));
        assert_eq!(buffer.take(psn(99)), None);
        assert!(buffer.is_empty());
    }

    #[test]
    fn a_loss_is_told_once_and_they_are_forgotten_later() {
        let mut buffer = OutOfOrder::default();
        assert!(!buffer.run_out(Time(1)), "nothing is missing");
        buffer.keep(psn(2), Time(10), || Some(2));
        buffer.keep(psn(4), Time(11), || Some(4));
        assert!(buffer.until() == Time(10) && buffer.run_out(Time(20)) && buffer.until() == Time(20));
        // What was lost comes, and what it is kept for is missing once more: that is another loss.
        assert_eq!(buffer.take(psn(2)), Some(2));
        buffer.keep(psn(4), Time(30), || Some(4));
        assert!(buffer.until() == Time(30) && buffer.run_out(Time(40)));
        assert!(!buffer.run_out(Time(50)) && buffer.is_empty() && buffer.until() == Time::NEVER);
    }
}
