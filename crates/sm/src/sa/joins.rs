//! Joins whose answer waits until the switches have the new member in their multicast tables: a
//! member that sends at once reaches the others. Principal type: [`Joins`].

use super::request::{Peer, Records};
use std::collections::VecDeque;
use std::time::Duration;
use wire::mad::Header;

/// The longest wait. Then the answer goes, and the tables follow.
const LONGEST: Duration = Duration::from_millis(500);
/// The most answers that wait. Further ones go at once.
const MOST: usize = 4096;

/// A join that is done, and its answer.
#[derive(Clone, Debug)]
pub(super) struct Join {
    pub(super) to: Peer,
    pub(super) header: Header,
    pub(super) mask: u64,
    pub(super) records: Records,
    until: Duration,
}

/// The answers that wait, in the order of their joins.
#[derive(Clone, Debug, Default)]
pub(super) struct Joins {
    waiting: VecDeque<Join>,
}

impl Joins {
    /// Keeps an answer. A repeated request has one answer. Gives the records back if there is no
    /// room.
    pub(super) fn hold(
        &mut self,
        to: Peer,
        header: Header,
        mask: u64,
        records: Records,
        now: Duration,
    ) -> Result<(), Records> {
        let is_same = |join: &Join| join.to == to && join.header.transaction == header.transaction;
        if self.waiting.len() >= MOST {
            return Err(records);
        }
        if !self.waiting.iter().any(is_same) {
            self.waiting.push_back(Join { to, header, mask, records, until: now + LONGEST });
        }
        Ok(())
    }

    /// The next answer that can go: all of them if the tables are set.
    pub(super) fn next(&mut self, tables_are_set: bool, now: Duration) -> Option<Join> {
        self.waiting.pop_front_if(|join| tables_are_set || join.until <= now)
    }

    pub(super) fn deadline(&self) -> Option<Duration> {
        self.waiting.front().map(|join| join.until)
    }
}
