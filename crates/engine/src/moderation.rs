//! Moderation: an armed CQ gives its event only after several completions, or after the first of
//! them has waited for a period. A CQ that is polled and not armed does not use it. Principal type:
//! [`Moderation`].

mod periods;

use protocol::Time;

/// The number for all moderated CQs among the timers' QP numbers. No QP has it.
pub(crate) const PERIODS: u32 = u32::MAX;
/// `ExModifyCq::attr_mask`: count and period.
const MODERATE: u32 = 1;

/// The limits for pending events, and the pending completions.
#[derive(Debug)]
pub(crate) struct Moderation {
    count: u32,
    /// Nanoseconds.
    period: u64,
    /// Completions whose event is pending.
    held: u32,
    /// When the first of them has waited for the period.
    due: Time,
}

/// What to do with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Send it now, for all pending completions.
    Now,
    /// It waits with others.
    Waits,
    /// It is the first pending one, and waits until this time.
    WaitsUntil(Time),
}

impl Moderation {
    /// `None` turns moderation off, as a count or period of 0 does.
    pub(crate) fn new(count: u16, period: u16) -> Option<Self> {
        let (count, period) = (u32::from(count), u64::from(period) * 1000);
        (count != 0 && period != 0).then_some(Self { count, period, held: 0, due: Time::NEVER })
    }

    /// Counts one more completion for which the program wants an event.
    pub(crate) fn add(&mut self, now: Time) -> Verdict {
        self.held += 1;
        if self.held >= self.count || self.held > 1 && self.due <= now {
            self.held = 0;
            return Verdict::Now;
        }
        if self.held > 1 {
            return Verdict::Waits;
        }
        self.due = now.after(self.period);
        Verdict::WaitsUntil(self.due)
    }

    /// The time until which events wait, if any are pending.
    pub(crate) fn waits_until(&self) -> Option<Time> {
        (self.held > 0).then_some(self.due)
    }

    /// Clears the pending completions after their event.
    pub(crate) fn release(&mut self) {
        self.held = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_so_many_or_so_long() {
        assert!(Moderation::new(0, 5).is_none() && Moderation::new(5, 0).is_none());
        let mut moderation = Moderation::new(3, 2).expect("both");
        assert_eq!(moderation.waits_until(), None);
        assert_eq!(moderation.add(Time(100)), Verdict::WaitsUntil(Time(2100)));
        assert_eq!(moderation.waits_until(), Some(Time(2100)));
        assert_eq!(moderation.add(Time(200)), Verdict::Waits);
        assert_eq!(moderation.add(Time(300)), Verdict::Now, "the third");
        assert_eq!(moderation.add(Time(5000)), Verdict::WaitsUntil(Time(7000)), "a new period");
        assert_eq!(moderation.add(Time(7000)), Verdict::Now, "it is over, and nobody has looked");
        assert_eq!(moderation.waits_until(), None);
        let mut each = Moderation::new(1, 9).expect("both");
        assert_eq!([each.add(Time(1)), each.add(Time(2))], [Verdict::Now; 2]);
    }
}
