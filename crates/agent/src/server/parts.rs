//! The parts of the server: the listening sockets, the connections, the waiting work, and the files
//! that the server shows.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use shm::socket::Listener;

use super::admin_connections::Connections;
use super::scheduler::{self, Account, Work};
use crate::cm::ChannelId;
use crate::fair::Fair;
use crate::ids::ContextId;
use crate::listening::Spare;
use crate::mirror::Mirror;
use crate::node_views::NodeViews;
use crate::poller::Token;

/// The sockets on which clients connect.
#[derive(Default)]
pub(super) struct Listeners {
    /// One for each device, by index.
    pub(super) devices: BTreeMap<usize, Listener>,
    pub(super) manager: Option<Listener>,
    /// One for each node of a topology, by the index of its device.
    pub(super) node_managers: BTreeMap<usize, Listener>,
    pub(super) admin: Option<Listener>,
    pub(super) netlink: Option<Listener>,
    pub(super) mads: Option<Listener>,
    /// For the case that no descriptor is left.
    pub(super) spare: Spare,
}

/// The connections.
#[derive(Default)]
pub(super) struct Registry {
    /// How many connections each user has.
    pub(super) users: BTreeMap<u32, Connections>,
    /// The connection of each engine's client.
    pub(super) by_engine: BTreeMap<ContextId, u32>,
    /// The number of the last connection.
    pub(super) last: u32,
}

/// The work that waits, and when the server last looked for more.
pub(super) struct Schedule {
    pub(super) queue: Fair<Account, Work>,
    /// Events that are already in the queue.
    pub(super) queued: BTreeSet<Token>,
    pub(super) timers_queued: bool,
    /// When the poller was last asked for events.
    pub(super) polled: Instant,
    /// When records without room were last offered again.
    pub(super) retried: Instant,
    /// The thread has carried out a command since its last wait.
    pub(super) served: bool,
}

impl Schedule {
    pub(super) fn new() -> Self {
        Self {
            queue: Fair::new(scheduler::CREDIT),
            queued: BTreeSet::new(),
            timers_queued: false,
            polled: Instant::now(),
            retried: Instant::now(),
            served: false,
        }
    }
}

/// The clients in this process, which have no socket.
#[derive(Default)]
pub(super) struct Local {
    pub(super) contexts: BTreeSet<ContextId>,
    /// Their event channels.
    pub(super) channels: BTreeSet<ChannelId>,
}

/// When the server ends because nobody is connected.
pub(super) struct Idle {
    pub(super) exit: Option<Duration>,
    pub(super) since: Instant,
}

/// What the server shows in the file system.
#[derive(Default)]
pub(super) struct Surroundings {
    pub(super) mirror: Option<Mirror>,
    /// The nodes of a topology.
    pub(super) nodes: NodeViews,
    /// Becomes readable when the run directory is removed.
    pub(super) lost: Option<OwnedFd>,
}
