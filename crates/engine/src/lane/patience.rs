//! How long datagrams to groups wait for a member whose lane is full. The principal type is
//! [`Patience`].

use std::sync::atomic::{AtomicU64, Ordering};

/// The patience with a member that has not kept anybody waiting, in nanoseconds: longer than a busy
/// machine keeps a thread from running.
const MOST: u64 = 200_000_000;
/// What a member regains with each datagram that it takes, in nanoseconds. A member that is only
/// slower than the sender takes thousands in a second, so it is always waited for.
const REGAINED: u64 = 1_000_000;

/// The rest of the patience with one member, in nanoseconds. A member may take datagrams as slowly
/// as it likes, and must not hold up the senders of its group for ever.
pub(crate) struct Patience(AtomicU64);

impl Patience {
    pub(crate) const fn new() -> Self {
        Self(AtomicU64::new(MOST))
    }

    /// How long the next datagram may wait.
    pub(crate) fn left(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The member has taken a datagram that waited for so long.
    pub(crate) fn on_taken(&self, waited: u64) {
        let left = self.left();
        let now = left.saturating_sub(waited).saturating_add(REGAINED).min(MOST);
        // Almost always nothing changes, and the word stays shared between processors.
        if now != left {
            self.0.store(now, Ordering::Relaxed);
        }
    }

    /// A datagram has waited in vain.
    pub(crate) fn on_lost(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_only_is_slower_is_always_waited_for() {
        let patience = Patience::new();
        for _ in 0..10_000 {
            patience.on_taken(REGAINED);
        }
        assert_eq!(patience.left(), MOST);
    }

    #[test]
    fn a_member_that_takes_one_datagram_at_the_last_moment_delays_the_others_less_and_less() {
        let patience = Patience::new();
        let delays = (0..100).map(|_| {
            let delay = patience.left();
            patience.on_taken(delay);
            delay
        });
        assert_eq!(delays.sum::<u64>(), MOST + 99 * REGAINED);
    }

    #[test]
    fn a_member_that_stops_is_waited_for_again_after_it_has_taken_some() {
        let patience = Patience::new();
        patience.on_lost();
        assert_eq!(patience.left(), 0);
        for _ in 0..MOST / REGAINED {
            patience.on_taken(0);
        }
        assert_eq!(patience.left(), MOST);
    }
}
