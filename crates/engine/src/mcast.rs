//! Multicast: which local QPs are in a group, and which engines of this agent have members.
//!
//! The list of engines comes from the agent and is valid for one epoch of the board. The helper
//! thread asks for it, because a post never waits. Principal type: [`Groups`].

mod members;

use std::collections::HashMap;
use std::sync::Arc;

use abi::qp::ModifyQp;
use parking_lot::RwLock;
use protocol::Time;
use wire::cm::Gid;

use crate::memory::DatagramEntry;

/// An epoch, and where datagrams went in it.
type Answered = (u32, Reached);

/// Where the datagrams of a path go.
#[derive(Clone)]
pub(crate) struct Reached {
    /// The engines of this agent with members.
    pub(crate) engines: Arc<[u32]>,
    /// They also reach links to other agents of the subnet.
    pub(crate) leaves: bool,
    /// Switches drop copies for their P_Key.
    pub(crate) dropped: bool,
}

/// What decides which members a datagram reaches.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GroupPath {
    group: Gid,
    /// The LID of the group.
    lid: u16,
    /// The sender's port.
    port: u8,
    sl: u8,
    hop_limit: u8,
    pkey_index: u16,
}

impl GroupPath {
    /// The path of a datagram of a queue pair with these attributes.
    pub(crate) const fn of(entry: &DatagramEntry, attributes: &ModifyQp) -> Self {
        let (port, pkey_index) = (attributes.port_num, attributes.pkey_index);
        Self { group: entry.dgid, lid: entry.lid, port, sl: entry.sl, hop_limit: entry.hop_limit, pkey_index }
    }
}

/// The members that have not got the current datagram of a QP yet.
pub(crate) struct Missing<L> {
    /// The request.
    pub(crate) slot: u32,
    pub(crate) lanes: Vec<Arc<L>>,
    /// Since when the datagram waits for them.
    pub(crate) since: Time,
}

/// The groups that this engine knows.
pub(crate) struct Groups {
    /// QPs of this engine, by group.
    members: RwLock<HashMap<Gid, Vec<u32>>>,
    /// Where datagrams go, and the epoch for which that is valid.
    engines: RwLock<HashMap<GroupPath, Answered>>,
}

impl Groups {
    pub(crate) fn new() -> Self {
        Self { members: RwLock::new(HashMap::new()), engines: RwLock::new(HashMap::new()) }
    }

    /// QPs of this engine in `group`.
    pub(crate) fn members(&self, group: &Gid) -> Vec<u32> {
        self.members.read().get(group).cloned().unwrap_or_default()
    }

    /// Whether a QP of this engine is in any group.
    pub(crate) fn has(&self, qpn: u32) -> bool {
        self.members.read().values().any(|members| members.contains(&qpn))
    }

    pub(crate) fn forget(&self, qpn: u32) {
        self.members.write().retain(|_, members| {
            members.retain(|&member| member != qpn);
            !members.is_empty()
        });
    }
}

/// Whether `gid` is a group's.
pub(crate) fn is_group(gid: &Gid) -> bool {
    std::net::Ipv6Addr::from(*gid).to_canonical().is_multicast()
}
