//! The connection manager in the admin node's answers: every id with what it is doing, and a few numbers. Only reads.

use abi::qp::kind;
use serde_json::{Value, json};

use super::Manager;
use super::id::space_name;
use crate::admin::Asker;

/// The most ids that are shown.
pub(crate) const SHOWN: usize = 10_000;

impl Manager {
    /// The ids of `most` places from `start` on, of users whose affairs the asker may see in full, of others without numbers that
    /// would help to interfere; and where the next ones begin.
    pub(crate) fn show(&self, asker: Asker, start: usize, most: usize) -> (Vec<Value>, Option<usize>) {
        let (ids, next) = self.ids.some(start, most);
        let shown = ids.filter_map(|(name, id)| {
            let owner = self.channels.get(&id.channel)?;
            let peer = &owner.channel.peer;
            let state = id.connection.and_then(|connection| self.core.state(connection).ok());
            let full = asker.may_see(peer.uid);
            Some(json!({
                "id": name,
                "pid": peer.pid,
                "uid": peer.uid,
                "comm": peer.comm,
                "space": space_name(id.space),
                "type": kind::name(id.kind),
                "stage": id.stage.to_string(),
                "state": state.map(|state| state.to_string()),
                "local": id.local.map(|address| address.to_string()),
                "remote": id.remote.map(|address| address.to_string()),
                "qpn": full.then_some(id.qpn),
                "events": id.queued + id.untaken,
                "groups": id.members.len(),
            }))
        });
        (shown.collect(), next)
    }

    /// How many ids there are.
    pub(crate) fn ids(&self) -> usize {
        self.ids.len()
    }

    /// A few numbers.
    pub(crate) fn status(&self) -> Value {
        let held = self.core.counts();
        json!({
            "channels": self.channels.len(),
            "ids": self.ids.len(),
            "memberships": self.members.len(),
            "events": self.channels.values().map(|owner| owner.channel.waiting()).sum::<usize>(),
            "connections": held.ids,
            "resting": held.resting,
            "timers": held.timers,
            "sent": self.counts.sent,
            "received": self.counts.received,
            "not_sent": self.counts.not_sent,
            "dropped": self.counts.dropped,
            "lost": self.inlet.lost(),
        })
    }
}
