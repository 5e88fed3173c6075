//! The connection manager in the answers of the admin node: every id with its stage, and some
//! counters. This file only reads.

use abi::qp::kind;
use abi::ucma::sockaddr::Sockaddr;
use serde_json::{Value, json};

use super::Manager;
use super::id::{Stage, space_name};
use crate::asker::Asker;

/// Maximum number of ids that are shown.
pub(crate) const SHOWN: usize = 10_000;

/// What a kernel would report about an id that belongs to a device, or that listens on all devices.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Its number.
    pub(crate) name: u32,
    /// Its owner.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
    /// The device, by index, and its port; `None` for all devices.
    pub(crate) device: Option<usize>,
    pub(crate) port: Option<u8>,
    pub(crate) kind: u8,
    pub(crate) qpn: u32,
    pub(crate) space: u16,
    /// The state, as `enum rdma_cm_state` numbers it.
    pub(crate) state: u8,
    pub(crate) local: Option<Sockaddr>,
    pub(crate) remote: Option<Sockaddr>,
}

impl Manager {
    /// The ids in `most` slots from `start` on, and where the next ones begin.
    pub(crate) fn listed(&self, start: usize, most: usize) -> (impl Iterator<Item = Listed> + '_, Option<usize>) {
        let (ids, next) = self.ids.some(start, most);
        let listed = ids.filter_map(|(name, id)| {
            let peer = &self.channels.get(&id.channel)?.channel.peer;
            if id.attachment.is_none() && id.stage != Stage::Listening {
                return None;
            }
            Some(Listed {
                name,
                pid: peer.pid,
                uid: peer.uid,
                device: id.attachment.map(|at| at.device),
                port: id.attachment.map(|at| at.port),
                kind: id.kind,
                qpn: id.qpn,
                space: id.space,
                state: match id.stage {
                    Stage::Idle => 0,
                    Stage::Resolving => 1,
                    Stage::AddressResolved => 2,
                    Stage::RouteResolved => 4,
                    Stage::Connecting => 5,
                    Stage::Over => 6,
                    Stage::Bound => 7,
                    Stage::Listening => 8,
                },
                local: id.local,
                remote: id.remote,
            })
        });
        (listed, next)
    }

    /// The ids in `most` slots from `start` on, and where the next ones begin. If the asker may not
    /// see a user's ids in full, they are shown without the numbers that would help to interfere.
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
                "events": id.events.queued + id.events.untaken,
                "groups": id.members.len(),
            }))
        });
        (shown.collect(), next)
    }

    /// How many ids there are.
    pub(crate) fn ids(&self) -> usize {
        self.ids.len()
    }

    /// Counters for `softhca show`.
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
            "lost": self.mail.inlet.lost(),
        })
    }
}
