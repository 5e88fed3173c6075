//! The wire: RoCEv2 between this engine and those of other agents, and real HCAs.
//!
//! Packets leave through [`port::Port`]s, many at a time ([`batch`]); which port and with which addresses is a [`flow::Flow`].
//! How much may be under way towards a host is [`peer::Peer`]'s, and which connection sends next the send scheduler says ([`scheduler`]). What arrives comes from the agent by ring, or out of the agent's
//! sockets where the agent lets this engine read them ([`inbox`], [`lease`]); [`deliver`] takes datagrams apart. The state machines
//! are those of the lanes; only what a path can lose, and how long a packet may be, differs.

pub(crate) mod alike;
pub(crate) mod batch;
pub(crate) mod congestion;
pub(crate) mod connected_receiver;
pub(crate) mod connected_sender;
mod connection;
pub(crate) mod delayed_ack;
pub(crate) mod deliver;
pub(crate) mod flow;
pub(crate) mod inbox;
pub(crate) mod lease;
pub(crate) mod next_segments;
pub(crate) mod origins;
pub(crate) mod peer;
pub(crate) mod port;
pub(crate) mod scheduler;
mod segment_run;
pub(crate) mod unanswered;
pub(crate) mod window;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, OnceLock};

use parking_lot::{Mutex, RwLock};

use crate::capture::CaptureHook;
use crate::network::Network;
use crate::qp::Qp;
use flow::{Flow, Vector};
use inbox::Inbox;
use peer::Peer;
use port::Port;

/// Flows that are remembered. A program with more destinations than this finds its flows anew now and then.
const FLOWS: usize = 4096;

type Gid = [u8; 16];

/// Everything that one engine has for the wire.
pub(crate) struct Net {
    network: Arc<dyn Network>,
    capture_hook: Arc<CaptureHook>,
    /// By source address and stripe.
    ports: Mutex<HashMap<(Gid, u32), Arc<Port>>>,
    /// By address.
    peers: Mutex<HashMap<Gid, Arc<Peer>>>,
    flows: RwLock<HashMap<Vector, Arc<Flow>>>,
    /// Where packets arrive; absent until the first QP, and where the agent has no wire.
    inbox: OnceLock<Option<Inbox>>,
    /// QPs whose acknowledgement waits for company, and whether there are some.
    delayed_acks: Mutex<Vec<Arc<Qp>>>,
    has_delayed_acks: AtomicBool,
    /// Connections wait for their turn.
    pub(crate) crowded: AtomicBool,
    /// Rounds since something came, while the program polls.
    pub(crate) idle: AtomicU32,
}

impl Net {
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
        }
    }

    /// Where packets arrive.
    pub(crate) fn inbox(&self) -> Option<&Inbox> {
        self.inbox.get()?.as_ref()
    }

    /// The agent is gone: its sockets are let go, so that the next agent gets the port.
    pub(crate) fn end(&self, number: u32) {
        if let Some(inbox) = self.inbox() {
            inbox.forget_sockets();
            if let Some(lease) = &inbox.lease {
                lease.release(number, inbox);
            }
        }
        self.flows.write().clear();
        self.delayed_acks.lock().clear();
    }

    /// Lets go of QPs, when no new ones can be found any more: they know their engine, and it would never end.
    pub(crate) fn forget_qps(&self) {
        self.delayed_acks.lock().clear();
        if let Some(inbox) = self.inbox() {
            inbox.forget_qps();
        }
    }
}
