//! What a switch does wrong, in few words: four rules of faults on demand (`abi::fault`), which decide for each packet. Principal type:
//! [`Faults`].

use abi::fault::{Kind, Rule};

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

    /// The same as rules, in the order in which they are asked.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        let all = [
            (Kind::Loss, self.loss),
            (Kind::Duplicate, self.duplication),
            (Kind::Reorder, self.reordering),
            (Kind::Corrupt, self.corruption),
        ];
        // Each has its own chance.
        let rules =
            (0..).zip(all).map(|(n, (kind, part))| Rule::of(kind, part, self.seed.wrapping_mul(4).wrapping_add(n)));
        rules.filter(|rule| rule.when.rate != Some(0.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_never_happens_is_no_rule() {
        assert_eq!(Faults::default().rules(), []);
        assert_eq!(Faults::loss(0.5, 2).rules(), [Rule::loss(0.5, 8)]);
        assert_eq!(Faults::all(0.1, 3).rules().len(), 4);
    }
}
