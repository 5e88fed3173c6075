//! How many connections each user has begun that their peers have not answered. The principal type
//! is [`PendingConnections`].

use std::collections::BTreeMap;
use std::sync::Arc;

/// Maximum number of unanswered connections of one user.
pub(super) const MOST: usize = 1024;

/// One unanswered connection, as long as the value lives.
#[derive(Debug)]
pub(super) struct PendingConnection(#[allow(dead_code, reason = "its count is what matters")] Arc<()>);

/// The unanswered connections of all users.
#[derive(Debug, Default)]
pub(super) struct PendingConnections {
    by_user: BTreeMap<u32, Arc<()>>,
}

impl PendingConnections {
    /// Counts one more connection of a user; `None` if the user has `most` already.
    pub(super) fn add(&mut self, user: u32, most: usize) -> Option<PendingConnection> {
        self.by_user.retain(|known, count| *known == user || Arc::strong_count(count) > 1);
        let count = self.by_user.entry(user).or_default();
        (Arc::strong_count(count) <= most).then(|| PendingConnection(Arc::clone(count)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_limit_that_ends_with_the_connections() {
        let mut askers = PendingConnections::default();
        let mut held: Vec<PendingConnection> = (0..2).map(|_| askers.add(7, 2).expect("room")).collect();
        assert!(askers.add(7, 2).is_none());
        assert!(askers.add(8, 2).is_some(), "another user");
        held.pop();
        held.extend(askers.add(7, 2));
        assert_eq!((held.len(), askers.by_user.len()), (2, 1), "users without connections are forgotten");
    }
}
