//! The way to the agent: packets of other engines that this one has read, and multicast packets
//! that the agent sends on over the links of the subnet. Principal types: [`ToAgent`], and
//! [`ToGroup`] with which the packets of a group leave.

use std::io;
use std::sync::Arc;

use abi::layout::Record;
use abi::wire::{Arrival, arrival_flags, arrival_kind, inline_max};
use shm::{LaneTx, Notifier, RECORD_MAX};

use crate::lock::Mutex;
use crate::net::flow::Vector;
use crate::net::port::FIRST;
use crate::network::Outlet;

/// The engine's side of its wire lane, as far as it sends.
pub(crate) struct ToAgent {
    lane: Mutex<LaneTx>,
    notifier: Notifier,
}

impl ToAgent {
    pub(crate) fn new(lane: LaneTx, notifier: Notifier) -> Self {
        Self { lane: Mutex::new(lane), notifier }
    }

    /// What wakes the agent's thread for this lane.
    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Puts packets on the lane, and wakes the agent. Returns false if there is no room; then they
    /// are lost, as on a network. `arrival` lacks the fields that depend on their position.
    pub(crate) fn push(&self, arrival: Arrival, bytes: &[u8]) -> bool {
        let pushed = self.put(arrival, bytes).is_some();
        if pushed {
            self.notifier.notify();
        }
        pushed
    }

    fn put(&self, mut arrival: Arrival, bytes: &[u8]) -> Option<()> {
        const HEAD: usize = size_of::<Arrival>();
        let mut record = [0; RECORD_MAX];
        let mut lane = self.lane.lock();
        if bytes.len() <= inline_max(RECORD_MAX) {
            record[..HEAD].copy_from_slice(arrival.bytes());
            record[HEAD..HEAD + bytes.len()].copy_from_slice(bytes);
            return lane.ring.push(&record[..HEAD + bytes.len()]).ok();
        }
        let slot = lane.bulk.put(bytes).ok()??;
        (arrival.flags, arrival.bulk) = (arrival_flags::BULK, slot.offset);
        let pushed = lane.ring.push(arrival.bytes());
        if pushed.is_err() {
            lane.bulk.cancel(slot);
        }
        pushed.ok()
    }
}

/// The outlet of a group whose packets the agent sends on.
pub(crate) struct ToGroup {
    agent: Arc<ToAgent>,
    /// What all its records have in common.
    head: Arrival,
}

impl ToGroup {
    pub(crate) fn new(agent: Arc<ToAgent>, source: [u8; 16], vector: &Vector) -> Self {
        let head = Arrival {
            kind: arrival_kind::TO_GROUP,
            from: source,
            from_port: FIRST,
            to: vector.dgid,
            lid: vector.mlid,
            sl: vector.sl,
            port: vector.port_num,
            ..Arrival::default()
        };
        Self { agent, head }
    }
}

impl Outlet for ToGroup {
    fn port(&self) -> u16 {
        self.head.from_port
    }

    fn send(&self, out: &udp::Outgoing<'_>) -> io::Result<()> {
        let len = out.bytes.len();
        let segment = if out.segment == 0 { len } else { out.segment.min(len) };
        let head = Arrival {
            traffic_class: out.traffic_class,
            hop_limit: out.hop_limit,
            segment: segment as u16,
            len: len as u32,
            ..self.head
        };
        if self.agent.push(head, out.bytes) { Ok(()) } else { Err(io::ErrorKind::WouldBlock.into()) }
    }
}
