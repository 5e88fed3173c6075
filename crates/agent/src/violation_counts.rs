//! What is stored of violations ([`crate::violations`]). Principal types: [`Violations`],
//! [`ToldViolations`].

use abi::private::Violation;

use crate::context::HwCounters;
use crate::ids::PortId;

/// The most violations that wait to be told.
const MOST: usize = 64;

/// What a port counts apart from the contexts that are open.
#[derive(Debug, Default)]
pub(crate) struct PortCounts {
    pub(crate) violations: Violations,
    /// What ended contexts have counted.
    pub(crate) hardware: HwCounters,
}

/// The violations of a port that are known without its contexts.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    /// What ended contexts have counted, and management datagrams.
    pub(crate) kept: [u64; 2],
    /// How many there were when a manager cleared the counter.
    pub(crate) cleared: [u64; 2],
    /// There is one that an engine has told, or one of a management datagram.
    pub(crate) has_some: bool,
}

impl Violations {
    /// Adds what a context has counted that ends.
    pub(crate) fn keep(&mut self, counted: [u32; 2]) {
        self.has_some |= counted != [0; 2];
        self.kept.iter_mut().zip(counted).for_each(|(sum, more)| *sum = sum.saturating_add(more.into()));
    }
}

/// What engines have told of violations, until the ports tell their managers.
#[derive(Debug, Default)]
pub(crate) struct ToldViolations(Vec<(PortId, Violation)>);

impl ToldViolations {
    /// Notes what an engine has told. If too much waits, it is forgotten: the packet is counted.
    pub(crate) fn push(&mut self, at: PortId, told: Violation) {
        if self.0.len() < MOST {
            self.0.push((at, told));
        }
    }

    /// Takes all.
    pub(crate) fn take(&mut self) -> Vec<(PortId, Violation)> {
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_engines_tell_is_bounded() {
        let mut told = ToldViolations::default();
        for _ in 0..10 * MOST {
            told.push(PortId { device: 0, port: 1 }, Violation::default());
        }
        assert_eq!((told.take().len(), told.take().len()), (MOST, 0));
    }
}
