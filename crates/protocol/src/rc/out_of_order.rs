//! Out-of-order packets, which arrive before a packet that they follow. Most often that packet is
//! not lost but late by a few places, and going back for it would cost as much as a loss. So a
//! caller that has memory for out-of-order packets may keep them for a short time
//! ([`crate::Responder::keep_out_of_order`], [`crate::Requester::keep_out_of_order`]). It passes
//! them in again, in order, once the missing packet has arrived. If the time ends, or if more
//! packets have come than it keeps, the missing packet counts as lost. The kept packets stay a
//! while longer, so that they need not be sent twice.
//!
//! The state machines treat a kept packet as one that has not arrived. They check it like any other
//! when it is passed in again. So a kept packet can do nothing that a slow network could not do,
//! and it is late only by the time for which the caller keeps it. Principal type: [`OutOfOrder`].

use crate::time::Time;
use wire::Psn;

/// How many packets one end of a connection keeps at most: one burst, which a late packet may
/// follow.
pub const OUT_OF_ORDER_MAX: usize = 64;
/// The largest distance from the expected number to the number of a kept packet. It covers the
/// usual reordering. A larger value would help a sender of forged packets, who must guess a number.
pub(super) const REACH: u32 = 128;

/// Packets that came out of order, sorted by number.
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
    /// Whether no packet is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// When the packets have been kept for long enough; [`Time::NEVER`] if there is no packet.
    #[must_use]
    pub fn until(&self) -> Time {
        if self.kept.is_empty() { Time::NEVER } else { self.until }
    }

    /// Whether one more packet may be kept.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.kept.len() < OUT_OF_ORDER_MAX
    }

    /// Keeps packet `psn`, which `make` makes, unless it is already here. The first packet sets
    /// `until`, and so does the first packet after a loss was reported. Returns false if there is
    /// no room.
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

    /// Takes packet `psn` out, and drops earlier packets: they have arrived before.
    pub fn take(&mut self, psn: Psn) -> Option<T> {
        self.kept.retain(|(kept, _)| !kept.is_before(psn));
        self.kept.first().is_some_and(|(kept, _)| *kept == psn).then(|| self.kept.remove(0).1)
    }

    /// The number of the first packet, and the packet.
    #[must_use]
    pub fn first(&self) -> Option<(Psn, &T)> {
        self.kept.first().map(|(psn, packet)| (*psn, packet))
    }

    /// Takes the first packet out.
    pub fn take_first(&mut self) -> Option<T> {
        (!self.kept.is_empty()).then(|| self.kept.remove(0).1)
    }

    /// Time has passed. Returns true if the peer must be told now that a packet is missing; the
    /// packets are then kept `until` the given time. The second time, the packets are dropped.
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
        assert!(!buffer.is_empty());
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
        // The lost packet arrives, and the packet behind the next gap waits again: that is another
        // loss.
        assert_eq!(buffer.take(psn(2)), Some(2));
        buffer.keep(psn(4), Time(30), || Some(4));
        assert!(buffer.until() == Time(30) && buffer.run_out(Time(40)));
        assert!(!buffer.run_out(Time(50)) && buffer.is_empty() && buffer.until() == Time::NEVER);
    }
}
