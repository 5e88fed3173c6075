//! The faults of a switch in short form: four rules of faults on demand (`abi::fault`), which
//! decide for each packet. Principal type: [`Faults`].

use abi::fault::{FaultKind, Rule};

/// Probabilities (0 to 1) of the faults. The seed determines the decisions, one packet after the
/// other. Which packet is the nth depends on the sending threads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// The seed of the decisions.
    pub seed: u64,
    /// Probability that a packet is lost.
    pub loss: f64,
    /// Probability that a packet arrives twice.
    pub duplication: f64,
    /// Probability that a packet arrives after the next one to the same host. A packet without a
    /// successor waits until the faults change.
    pub reordering: f64,
    /// Probability that one bit of a packet is flipped, so that its ICRC is wrong.
    pub corruption: f64,
}

impl Default for Faults {
    /// No faults.
    fn default() -> Self {
        Self { seed: 1, loss: 0.0, duplication: 0.0, reordering: 0.0, corruption: 0.0 }
    }
}

impl Faults {
    /// Only loss.
    #[must_use]
    pub fn loss(part: f64, seed: u64) -> Self {
        Self { seed, loss: part, ..Self::default() }
    }

    /// Loss, duplication, reordering and corruption with the same probability.
    #[must_use]
    pub fn all(part: f64, seed: u64) -> Self {
        Self { seed, loss: part, duplication: part, reordering: part, corruption: part }
    }

    /// The faults as rules, in the order in which they are checked.
    #[must_use]
    pub fn rules(&self) -> Vec<Rule> {
        let all = [
            (FaultKind::Loss, self.loss),
            (FaultKind::Duplicate, self.duplication),
            (FaultKind::Reorder, self.reordering),
            (FaultKind::Corrupt, self.corruption),
        ];
        // Each rule has its own random sequence.
        let rules =
            (0..).zip(all).map(|(n, (kind, part))| Rule::of(kind, part, self.seed.wrapping_mul(4).wrapping_add(n)));
        rules.filter(|rule| rule.when.rate != Some(0.0)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_with_a_rate_of_zero_give_no_rule() {
        assert_eq!(Faults::default().rules(), []);
        assert_eq!(Faults::loss(0.5, 2).rules(), [Rule::loss(0.5, 8)]);
        assert_eq!(Faults::all(0.1, 3).rules().len(), 4);
    }
}
