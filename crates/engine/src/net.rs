//! The wire: RoCEv2 to engines of other agents and to real HCAs.
//!
//! Packets leave in batches ([`batch`]) through [`port::Port`]s. A [`flow::Flow`] names the port
//! and the addresses. [`peer::Peer`] limits the unacknowledged bytes towards a host, and the send
//! scheduler ([`scheduler`]) chooses the next connection. Packets arrive from the agent through a
//! ring, or from the agent's sockets while this engine holds the lease ([`inbox`], [`lease`]).
//! [`deliver`] parses datagrams. The state machines are the ones of the lanes; only losses and
//! packet lengths differ. `Q` is the type of queue pairs: this state keeps lists of them and
//! never accesses their fields. Principal type: [`Net`].

pub(crate) mod batch;
mod congestion;
pub(crate) mod connected_receiver;
pub(crate) mod connected_sender;
mod connection;
pub(crate) mod datagrams;
mod delayed_ack;
pub(crate) mod deliver;
mod expected;
pub(crate) mod flow;
pub(crate) mod inbox;
pub(crate) mod lease;
pub(crate) mod peer;
pub(crate) mod port;
pub(crate) mod reply_pattern;
pub(crate) mod scheduler;
pub(crate) mod to_agent;
pub(crate) mod unanswered;
pub(crate) mod uniform_traffic;
pub(crate) mod window;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};
use wire::cm::Gid;

use crate::capture::CaptureHook;
use crate::network::Network;
use crate::stream::sockets::Streams;
use flow::{Flow, Vector};
use inbox::Inbox;
use peer::Peer;
use port::Port;

/// The maximum number of cached flows. A program with more destinations sometimes looks flows up
/// again.
const FLOWS: usize = 4096;

/// The wire state of one engine.
pub(crate) struct Net<Q> {
    pub(crate) network: Arc<dyn Network>,
    capture_hook: Arc<CaptureHook>,
    /// By source address and lane index.
    ports: Mutex<HashMap<(Gid, u32), Arc<Port>>>,
    /// By address.
    peers: Mutex<HashMap<Gid, Arc<Peer<Q>>>>,
    flows: RwLock<HashMap<Vector, Arc<Flow<Q>>>>,
    /// The queue of received packets. Absent until the first QP, and with an agent that has no
    /// wire.
    inbox: OnceLock<Option<Inbox<Q>>>,
    /// QPs with a delayed ACK, and whether there are any.
    delayed_acks: Mutex<Vec<Arc<Q>>>,
    has_delayed_acks: AtomicBool,
    /// Whether connections wait for the send scheduler.
    crowded: AtomicBool,
    /// Rounds since the last packet, while the program polls.
    pub(crate) idle: AtomicU32,
    /// The sockets of queue pairs of iWARP.
    pub(crate) streams: Streams,
}

impl<Q> Net<Q> {
    pub(crate) fn new(network: Arc<dyn Network>, capture_hook: Arc<CaptureHook>) -> Self {
        Self {
            network,
            capture_hook,
            ports: Mutex::default(),
            peers: Mutex::default(),
            flows: RwLock::default(),
            inbox: OnceLock::new(),
            delayed_acks: Mutex::default(),
            has_delayed_acks: AtomicBool::new(false),
            crowded: AtomicBool::new(false),
            idle: AtomicU32::new(0),
            streams: Streams::default(),
        }
    }

    /// The queue of received packets.
    pub(crate) fn inbox(&self) -> Option<&Inbox<Q>> {
        self.inbox.get()?.as_ref()
    }

    /// Whether there are delayed acknowledgements.
    #[inline]
    pub(crate) fn has_delayed_acks(&self) -> bool {
        self.has_delayed_acks.load(Ordering::Acquire)
    }

    /// Whether connections wait for the send scheduler.
    #[inline]
    pub(crate) fn is_crowded(&self) -> bool {
        self.crowded.load(Ordering::Acquire)
    }

    /// Whether there are sockets of iWARP.
    #[inline]
    pub(crate) fn has_streams(&self) -> bool {
        self.streams.count.load(Ordering::Relaxed) > 0
    }

    /// The agent is gone: closes its sockets, so that the next agent can bind the port.
    pub(crate) fn end(&self, number: u32) {
        if let Some(inbox) = self.inbox() {
            inbox.forget_sockets();
            if let Some(lease) = &inbox.lease {
                lease.release(number, inbox.agent.notifier());
            }
        }
        self.flows.write().clear();
        self.delayed_acks.lock().clear();
    }

    /// Releases the QPs after no new ones can be found. They hold the engine, which would otherwise
    /// never end.
    pub(crate) fn forget_qps(&self) {
        self.delayed_acks.lock().clear();
        if let Some(inbox) = self.inbox() {
            inbox.forget_qps();
        }
    }
}
