//! Counts of rules that programs brought themselves. They outlive the program, because `softhca
//! run` asks for them after its program has ended.
//!
//! `softhca fault list` does not show these rules. The number of rules kept is bounded, per user
//! and in total. The principal type is [`EndedRules`].

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::asker::Asker;
use crate::ids::Peer;

/// The maximum number of rules that are kept, of all users and of one user.
const KEPT: usize = 512;
const KEPT_OF_ONE: usize = 128;

/// A rule of a program that has ended.
#[derive(Debug)]
pub(super) struct Row {
    /// The program.
    pub(super) peer: Peer,
    pub(super) id: u32,
    pub(super) rule: String,
    /// How many packets or calls it was asked about.
    pub(super) seen: u64,
    /// How often it acted.
    pub(super) acted: u64,
}

/// The rules of programs that have ended, oldest first.
#[derive(Debug, Default)]
pub(super) struct EndedRules {
    rows: VecDeque<Row>,
}

impl EndedRules {
    /// Keeps a rule that has acted, and adds it to the same rule of an earlier open of this
    /// program. If the user has too many rules, the user's oldest rule is removed. If all users
    /// together have too many, the oldest rule of all is removed.
    pub(super) fn keep(&mut self, row: Row) {
        if row.acted == 0 {
            return;
        }
        let (uid, pid) = (row.peer.uid, row.peer.pid);
        let is_same = |kept: &&mut Row| (kept.peer.uid, kept.peer.pid) == (uid, pid) && kept.rule == row.rule;
        // Each open of a device brings the rules again. So a program that opens a device often has
        // only one row for each rule.
        if let Some(kept) = self.rows.iter_mut().find(is_same) {
            kept.seen += row.seen;
            kept.acted += row.acted;
            return;
        }
        if self.rows.iter().filter(|kept| kept.peer.uid == uid).count() >= KEPT_OF_ONE {
            let oldest = self.rows.iter().position(|kept| kept.peer.uid == uid);
            oldest.and_then(|place| self.rows.remove(place));
        } else if self.rows.len() == KEPT {
            self.rows.pop_front();
        }
        self.rows.push_back(row);
    }

    /// The rules of the programs that `asker` may see.
    pub(super) fn show(&self, asker: Asker) -> Vec<Value> {
        let visible = self.rows.iter().filter(|row| asker.may_see(row.peer.uid));
        let show = |row: &Row| json!({"id": row.id, "rule": row.rule, "pid": row.peer.pid, "seen": row.seen, "acted": row.acted});
        visible.map(show).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_of(uid: u32, pid: u32, id: u32) -> Row {
        let peer = Peer { pid, uid, comm: String::new() };
        Row { peer, id, rule: "loss".to_owned(), seen: 2, acted: u64::from(id) }
    }

    #[test]
    fn a_program_that_opens_often_has_one_row_for_each_rule() {
        let mut ended = EndedRules::default();
        (1..=2 * KEPT_OF_ONE as u32).for_each(|id| ended.keep(row_of(1, 7, id)));
        ended.keep(row_of(1, 8, 5));
        let all: u64 = (1..=2 * KEPT_OF_ONE as u64).sum();
        let shown = ended.show(Asker::Root);
        let counts: Vec<_> = shown.iter().map(|row| (row["id"].as_u64(), row["acted"].as_u64())).collect();
        assert_eq!(counts, [(Some(1), Some(all)), (Some(5), Some(5))]);
    }

    #[test]
    fn one_user_does_not_push_out_the_rules_of_others() {
        let mut ended = EndedRules::default();
        let row = |uid, id| row_of(uid, id, id);
        ended.keep(row(1, 0));
        assert!(ended.show(Asker::Root).is_empty(), "a rule that never acted is not kept");
        ended.keep(row(1, 1));
        (0..2 * KEPT as u32).for_each(|id| ended.keep(row(2, id + 2)));
        assert_eq!((ended.show(Asker::User(1)).len(), ended.show(Asker::User(2)).len()), (1, KEPT_OF_ONE));
        (3..2 * KEPT as u32).for_each(|uid| ended.keep(row(uid, uid)));
        assert_eq!(ended.rows.len(), KEPT);
    }
}
