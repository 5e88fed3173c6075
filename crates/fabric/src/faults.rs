//! What a switch does wrong, and how it is decided for each packet. Principal types: [`Faults`], [`Dice`].

/// How often packets come to harm: parts of 1. The decisions follow from the seed, one packet after the other; which packet is
/// the nth depends on the threads that send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Where the decisions begin.
    pub seed: u64,
    /// Packets that vanish.
    pub loss: f64,
    /// Packets that come twice.
    pub duplication: f64,
    /// Packets that come after the next one to the same host. The last of all waits for a next one, and may be lost so.
    pub reordering: f64,
    /// Packets of which one bit is another: their ICRC does not fit.
    pub corruption: f64,
}

impl Default for Faults {
    /// None at all.
    fn default() -> Self {
        Self { seed: 1, loss: 0.0, duplication: 0.0, reordering: 0.0, corruption: 0.0 }
    }
}

impl Faults {
    /// Packets get lost, and nothing else.
    #[must_use]
    pub fn loss(part: f64, seed: u64) -> Self {
        Self { seed, loss: part, ..Self::default() }
    }

    /// Packets get lost, repeated, reordered and damaged, each as often.
    #[must_use]
    pub fn all(part: f64, seed: u64) -> Self {
        Self { seed, loss: part, duplication: part, reordering: part, corruption: part }
    }

    pub(crate) fn is_none(&self) -> bool {
        self.loss == 0.0 && self.duplication == 0.0 && self.reordering == 0.0 && self.corruption == 0.0
    }
}

/// What becomes of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Good,
    Lost,
    Twice,
    Late,
    /// The bit that changes, to be taken modulo the packet's length.
    Damaged(u64),
}

/// A sequence of numbers that looks like chance (splitmix64).
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    pub(crate) fn happens(&mut self, part: f64) -> bool {
        // 53 bits are what a double holds.
        ((self.next() >> 11) as f64) < part * (1u64 << 53) as f64
    }

    /// A number below `bound`, or 0.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // The high half of the product: no bound of a simulation is large enough for the bias to matter.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    pub(crate) fn fate(&mut self, faults: &Faults) -> Fate {
        if self.happens(faults.loss) {
            Fate::Lost
        } else if self.happens(faults.duplication) {
            Fate::Twice
        } else if self.happens(faults.reordering) {
            Fate::Late
        } else if self.happens(faults.corruption) {
            Fate::Damaged(self.next())
        } else {
            Fate::Good
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fates_come_as_often_as_was_asked_for_and_again_with_the_seed() {
        let fates = |seed| {
            let mut dice = Dice::new(seed);
            (0..100_000).map(|_| dice.fate(&Faults::all(0.1, seed))).collect::<Vec<_>>()
        };
        let some = fates(5);
        assert!(some == fates(5) && some != fates(6));
        let count = |fate: fn(&Fate) -> bool| some.iter().filter(|one| fate(one)).count();
        let counts = [
            count(|fate| *fate == Fate::Lost),
            count(|fate| *fate == Fate::Twice),
            count(|fate| *fate == Fate::Late),
            count(|fate| matches!(fate, Fate::Damaged(_))),
        ];
        for (count, expected) in counts.into_iter().zip([10_000_usize, 9_000, 8_100, 7_290]) {
            assert!(count.abs_diff(expected) < 500, "{counts:?}");
        }
        let mut dice = Dice::new(1);
        assert!((0..1000).all(|_| dice.fate(&Faults::default()) == Fate::Good));
    }
}
