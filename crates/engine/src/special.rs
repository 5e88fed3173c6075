//! What is special about a queue pair or an engine: the reasons why its packets cannot take every
//! path.
//!
//! Each reason is one bit. Only the code of that feature sets and clears it; a reset clears all.
//! The bits of a queue pair are in its `Link`, those of an engine in its `Core`, and `Qp::special`
//! returns both. The general path supports all of them. Every other path names those that it
//! supports, and leaves the packet to the general path if there are others. So a new feature that
//! must see each packet sets a bit, and no path has to know the feature. Principal type:
//! [`Special`].

use std::sync::atomic::{AtomicU8, Ordering};

/// A set of reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Special(u8);

impl Special {
    /// The peer is on another host: the path MTU holds, and packets may be lost.
    pub(crate) const WIRE: Self = Self(1);
    /// Packets on a lane may be lost, by faults on demand.
    pub(crate) const LOSSY: Self = Self(1 << 1);
    /// A fault rule of this engine may concern the packets.
    pub(crate) const RULED: Self = Self(1 << 2);
    /// There is a rate limit.
    pub(crate) const PACED: Self = Self(1 << 3);
    /// The next request could be carried out directly on the peer's memory if nothing were under
    /// way, and only short requests are. So it waits for that.
    pub(crate) const HELD: Self = Self(1 << 4);
    /// A capture runs. Of engines only.
    pub(crate) const CAPTURED: Self = Self(1 << 5);
    /// The strict mode is on. Of engines only.
    pub(crate) const STRICT: Self = Self(1 << 6);

    /// Packets of the path MTU are longer than the MTU of a link on the path.
    pub(crate) const NARROW: Self = Self(1 << 7);

    /// Whether at least one of the reasons `which` is in this set.
    #[inline]
    pub(crate) const fn has(self, which: Self) -> bool {
        self.0 & which.0 != 0
    }

    /// Whether there is a reason beside those of `supported`.
    #[inline]
    pub(crate) const fn has_beside(self, supported: Self) -> bool {
        self.0 & !supported.0 != 0
    }

    /// The reasons of both sets.
    #[inline]
    #[must_use]
    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Sets or clears the reasons `which`.
    #[inline]
    pub(crate) const fn set(&mut self, which: Self, on: bool) {
        self.0 = if on { self.0 | which.0 } else { self.0 & !which.0 };
    }
}

/// The reasons of an engine. Any thread reads them.
#[derive(Default)]
pub(crate) struct SpecialWord(AtomicU8);

impl SpecialWord {
    /// The reasons now.
    #[inline]
    pub(crate) fn get(&self) -> Special {
        Special(self.0.load(Ordering::Relaxed))
    }

    /// Sets or clears the reasons `which`.
    pub(crate) fn set(&self, which: Special, on: bool) {
        match on {
            true => self.0.fetch_or(which.0, Ordering::Relaxed),
            false => self.0.fetch_and(!which.0, Ordering::Relaxed),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_bit_of_its_own() {
        let all = [
            Special::WIRE,
            Special::LOSSY,
            Special::RULED,
            Special::PACED,
            Special::HELD,
            Special::CAPTURED,
            Special::STRICT,
            Special::NARROW,
        ];
        for one in all {
            for other in all {
                assert_eq!(one.has(other), one == other);
            }
            let mut set = Special::WIRE.and(Special::RULED);
            set.set(one, false);
            assert!(!set.has(one));
            set.set(one, true);
            assert!(set.has(one) && !one.has_beside(one) && one.has_beside(Special::default()));
        }
    }

    #[test]
    fn a_word_keeps_the_reasons_of_other_features() {
        let word = SpecialWord::default();
        word.set(Special::STRICT, true);
        word.set(Special::CAPTURED, true);
        assert!(word.get().has(Special::CAPTURED) && word.get().has(Special::STRICT));
        word.set(Special::CAPTURED, false);
        assert!(!word.get().has_beside(Special::STRICT) && word.get().has(Special::STRICT));
    }
}
