//! Which virtual lane of an egress port sends next. Two tables of lanes with weights are served
//! round robin. The high table goes first, until it has sent its limit while the low table waits.
//! VL 15 goes before both and does not appear here. Principal type: [`Arbiter`]. IBA 7.6.9.

use crate::frame::BLOCK;

/// The most entries of one table.
pub const MOST: usize = 64;
/// The limit that means no limit.
pub const UNLIMITED: u8 = 255;

const LIMIT_UNIT: usize = 4096;

/// An entry of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The virtual lane.
    pub vl: u8,
    /// Units of 64 bytes that the entry may send in its turn. 0 skips the entry.
    pub weight: u8,
}

/// The tables of a port, set by the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tables {
    /// The table that goes first, at most [`MOST`] entries.
    pub high: Box<[Entry]>,
    /// The table that goes when the high one has nothing to send, or has reached its limit.
    pub low: Box<[Entry]>,
    /// VLHighLimit: how much the high table may send while the low table waits, in units of 4096
    /// bytes. 0 is one packet, 255 no limit.
    pub limit: u8,
}

impl Tables {
    /// Tables with these pairs of lane and weight.
    #[must_use]
    pub fn new(high: &[(u8, u8)], low: &[(u8, u8)], limit: u8) -> Tables {
        let entries = |pairs: &[(u8, u8)]| pairs.iter().take(MOST).map(|&(vl, weight)| Entry { vl, weight }).collect();
        Tables { high: entries(high), low: entries(low), limit }
    }
}

/// The turn of one table.
#[derive(Clone, Copy, Debug, Default)]
struct Turn {
    at: u8,
    /// Units that the entry may still send. 0: the entry begins its turn when it comes.
    left: u8,
}

impl Turn {
    /// The next lane to send, of those that can send. Stays at an entry while it has weight
    /// left.
    fn next(&mut self, entries: &[Entry], ready: impl Fn(u8) -> bool) -> Option<u8> {
        let count = entries.len();
        let mut at = usize::from(self.at);
        if let Some(entry) = entries.get(at).filter(|_| self.left > 0) {
            if ready(entry.vl) {
                return Some(entry.vl);
            }
            at += 1;
        }
        for step in 0..count {
            let at = (at + step) % count;
            let entry = entries[at];
            if entry.weight > 0 && ready(entry.vl) {
                *self = Turn { at: at as u8, left: entry.weight };
                return Some(entry.vl);
            }
        }
        None
    }

    /// A packet has gone. A packet goes as a whole even if less weight is left.
    fn charge(&mut self, bytes: usize, count: usize) {
        self.left = self.left.saturating_sub(bytes.div_ceil(BLOCK).min(255) as u8);
        if self.left == 0 {
            self.at = ((usize::from(self.at) + 1) % count.max(1)) as u8;
        }
    }
}

/// The state of a port's arbitration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arbiter {
    high: Turn,
    low: Turn,
    /// Bytes that the high table has sent since the low table was last served.
    high_bytes: usize,
}

impl Arbiter {
    /// The lane that sends next. `ready` says how long the next packet of a lane is, if the lane
    /// has one and its credits suffice. A lane that is in no table does not send.
    pub fn next(&mut self, tables: &Tables, ready: impl Fn(u8) -> Option<usize>) -> Option<u8> {
        let can = |vl| ready(vl).is_some();
        let limit = match tables.limit {
            UNLIMITED => usize::MAX,
            0 => 1,
            limit => usize::from(limit) * LIMIT_UNIT,
        };
        let high_first = self.high_bytes < limit;
        let high = |arbiter: &mut Arbiter| {
            let vl = arbiter.high.next(&tables.high, can)?;
            let bytes = ready(vl)?;
            arbiter.high.charge(bytes, tables.high.len());
            arbiter.high_bytes = arbiter.high_bytes.saturating_add(bytes);
            Some(vl)
        };
        let low = |arbiter: &mut Arbiter| {
            let vl = arbiter.low.next(&tables.low, can)?;
            arbiter.low.charge(ready(vl)?, tables.low.len());
            arbiter.high_bytes = 0;
            Some(vl)
        };
        if high_first { high(self).or_else(|| low(self)) } else { low(self).or_else(|| high(self)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes that each lane sends in `rounds` turns, all with packets of `bytes` ready.
    fn shares(tables: &Tables, bytes: usize, rounds: usize, ready: &[u8]) -> [usize; 15] {
        let mut arbiter = Arbiter::default();
        let mut sent = [0; 15];
        for _ in 0..rounds {
            let vl = arbiter.next(tables, |vl| ready.contains(&vl).then_some(bytes)).unwrap();
            sent[usize::from(vl)] += 1;
        }
        sent
    }

    #[test]
    fn l31_lanes_share_by_their_weights() {
        let tables = Tables::new(&[], &[(0, 64), (1, 192)], 0);
        assert_eq!(shares(&tables, 1024, 64, &[0, 1])[..2], [16, 48]);
        assert_eq!(shares(&tables, 1024, 64, &[0])[..2], [64, 0], "a lane alone has everything");
    }

    #[test]
    fn l31_weight_0_skips_and_a_lane_outside_the_tables_never_sends() {
        let tables = Tables::new(&[], &[(0, 0), (1, 1)], 0);
        assert_eq!(shares(&tables, 64, 8, &[0, 1])[..2], [0, 8]);
        assert_eq!(Arbiter::default().next(&tables, |vl| (vl == 2).then_some(64)), None);
    }

    #[test]
    fn l31_the_high_table_goes_first() {
        let tables = Tables::new(&[(1, 1)], &[(0, 255)], UNLIMITED);
        assert_eq!(shares(&tables, 2048, 50, &[0, 1])[..2], [0, 50]);
        assert_eq!(shares(&tables, 2048, 50, &[0])[..2], [50, 0]);
    }

    #[test]
    fn l31_low_priority_gets_its_turn_after_vl_high_limit() {
        for (limit, high, low) in [(0, 25, 25), (1, 40, 10), (2, 45, 5)] {
            let tables = Tables::new(&[(1, 255)], &[(0, 255)], limit);
            let sent = shares(&tables, 1024, 50, &[0, 1]);
            assert!(sent[1].abs_diff(high) <= 1 && sent[0].abs_diff(low) <= 1, "limit {limit}: {sent:?}");
        }
    }

    #[test]
    fn l31_a_turn_ends_with_the_packet_that_uses_up_its_weight() {
        let tables = Tables::new(&[], &[(0, 1), (1, 2)], 0);
        assert_eq!(shares(&tables, 4096, 10, &[0, 1])[..2], [5, 5], "each packet is longer than the weight");
    }
}
