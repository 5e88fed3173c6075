//! Chooses the next work: the account that has used the least of the agent's thread is served
//! first.
//!
//! Work waits in one queue per account, oldest first. Each account has a tag: the time that it has
//! used, on a virtual clock. The clock stands at the tag of the account that was served last. An
//! account that gets work after a pause starts a little before that clock, so that it is served at
//! once. It cannot save up more than that while idle. An account that was served for long waits for
//! the others. Time is an argument; there is no clock here. The principal type is [`Fair`].

use std::collections::{BTreeMap, BTreeSet, LinkedList};

/// The work of many accounts.
#[derive(Debug)]
pub(crate) struct Fair<K, T> {
    accounts: BTreeMap<K, ClassQueue<T>>,
    /// The accounts with work, by their tags.
    waiting: BTreeSet<(u64, K)>,
    /// The tag of the account that was served last.
    clock: u64,
    /// How far before the clock an account begins.
    credit: u64,
    len: usize,
}

#[derive(Debug)]
struct ClassQueue<T> {
    tag: u64,
    /// A list of small nodes. Work cannot be refused, so growth must never need much memory at once
    /// ([`crate::headroom`]).
    work: LinkedList<T>,
}

impl<K: Copy + Ord, T> Fair<K, T> {
    /// Creates the queue without work.
    pub(crate) fn new(credit: u64) -> Self {
        Self { accounts: BTreeMap::new(), waiting: BTreeSet::new(), clock: 0, credit, len: 0 }
    }

    /// Whether there is no work.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds work behind the account's other work.
    pub(crate) fn push(&mut self, key: K, work: T) {
        self.account(key).work.push_back(work);
        self.len += 1;
    }

    /// Adds work before the account's other work, because the work has begun and the other work
    /// must wait for its end.
    pub(crate) fn push_first(&mut self, key: K, work: T) {
        self.account(key).work.push_front(work);
        self.len += 1;
    }

    /// Takes the next piece of work. If there is none, the thread is idle, and all used time is
    /// forgotten.
    pub(crate) fn next(&mut self) -> Option<(K, T)> {
        let Some((tag, key)) = self.waiting.pop_first() else {
            self.accounts.clear();
            self.clock = 0;
            return None;
        };
        self.clock = tag;
        let account = self.accounts.get_mut(&key)?;
        let work = account.work.pop_front()?;
        self.len -= 1;
        if !account.work.is_empty() {
            self.waiting.insert((tag, key));
        }
        Some((key, work))
    }

    /// Charges an account with `used` nanoseconds.
    pub(crate) fn charge(&mut self, key: K, used: u64) {
        let Some(account) = self.accounts.get_mut(&key) else { return };
        let old = account.tag;
        account.tag = old.saturating_add(used);
        if self.waiting.remove(&(old, key)) {
            self.waiting.insert((account.tag, key));
        }
    }

    /// The account, which is about to get work.
    fn account(&mut self, key: K) -> &mut ClassQueue<T> {
        let account = self.accounts.entry(key).or_insert(ClassQueue { tag: 0, work: LinkedList::new() });
        if account.work.is_empty() {
            account.tag = account.tag.max(self.clock.saturating_sub(self.credit));
            self.waiting.insert((account.tag, key));
        }
        account
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One step of a scenario: an account gets work, is served, or the thread becomes idle.
    enum Step {
        Push(char, u32),
        First(char, u32),
        /// This account and work must be served next, and use this much time.
        Served(char, u32, u64),
        Idle,
    }

    #[test]
    fn the_account_that_has_used_least_is_next() {
        use Step::{First, Idle, Push, Served};
        let tables: [(&str, Vec<Step>); 5] = [
            (
                "one account is served in order",
                vec![Push('a', 1), Push('a', 2), Served('a', 1, 10), Served('a', 2, 10), Idle],
            ),
            (
                "who comes with little waits for one piece of who has much",
                vec![
                    Push('a', 1),
                    Push('a', 2),
                    Push('a', 3),
                    Served('a', 1, 1_000),
                    Push('b', 1),
                    Served('b', 1, 10),
                    Push('b', 2),
                    Served('b', 2, 10),
                    Served('a', 2, 1_000),
                    Push('b', 3),
                    Served('b', 3, 10),
                    Served('a', 3, 1),
                    Idle,
                ],
            ),
            (
                "nobody saves up time while idle",
                vec![
                    Push('a', 1),
                    Push('a', 2),
                    Push('a', 3),
                    Served('a', 1, 1_000),
                    Served('a', 2, 1_000),
                    Push('b', 1),
                    Push('b', 2),
                    Push('b', 3),
                    // Measured from a: 1,000 behind it, and not 2,000.
                    Served('b', 1, 1_500),
                    Served('a', 3, 10),
                    Served('b', 2, 1),
                    Served('b', 3, 1),
                    Idle,
                ],
            ),
            (
                "what has been begun is before the rest of its account",
                vec![
                    Push('a', 1),
                    Served('a', 1, 5),
                    Push('a', 2),
                    First('a', 1),
                    Served('a', 1, 5),
                    Served('a', 2, 5),
                ],
            ),
            (
                "what was used is forgotten when the thread was idle",
                vec![
                    Push('a', 1),
                    Served('a', 1, 1_000_000),
                    Idle,
                    Push('a', 2),
                    Push('b', 1),
                    Served('a', 2, 10),
                    Served('b', 1, 10),
                ],
            ),
        ];
        for (name, steps) in tables {
            let mut fair = Fair::new(1);
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Push(key, work) => fair.push(key, work),
                    First(key, work) => fair.push_first(key, work),
                    Served(key, work, used) => {
                        assert_eq!(fair.next(), Some((key, work)), "{name}: step {number}");
                        fair.charge(key, used);
                    }
                    Idle => assert!(fair.is_empty() && fair.next().is_none(), "{name}: step {number}"),
                }
            }
        }
    }

    #[test]
    fn a_hundred_who_have_much_delay_one_who_has_little_by_one_piece() {
        let mut fair = Fair::new(1_000);
        for user in 0..100_u32 {
            (0..100).for_each(|work| fair.push(user, work));
        }
        for round in 0..1_000 {
            for _ in 0..if round == 0 { 101 } else { 3 } {
                let (user, _) = fair.next().expect("work");
                fair.charge(user, 1_000);
            }
            fair.push(1_000, round);
            let waited = (0..).find(|_| {
                let (user, _) = fair.next().expect("work");
                fair.charge(user, if user == 1_000 { 10 } else { 1_000 });
                user == 1_000
            });
            assert!(waited.is_some_and(|waited| waited <= 1), "round {round}: {waited:?}");
        }
    }
}
