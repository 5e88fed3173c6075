//! Delayed packets: packets that a fault rule makes late, or that wait behind another packet or for
//! a slow line.
//!
//! A packet's bytes are copied when it would have left or arrived. So later changes of the
//! program's memory do not affect it. No thread waits for delayed packets; a timer fires when one
//! is due. `delayed_packets/sending.rs` sends them. Principal type: [`DelayedPackets`].

mod sending;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use wire::Headers;

use crate::cell::{Packet, Path};
use crate::lane::Lane;
use crate::net::flow::Flow;

/// The timer key of delayed packets.
pub(crate) const DELAYED_PACKETS: u32 = u32::MAX - 1;

/// Bytes that wait, at most. Further packets are lost, as in a network with full queues.
const MOST: usize = 64 << 20;
/// The memory of a delayed packet besides its payload.
const OWN: usize = 256;

/// The destination of a packet.
pub(super) enum To<Q> {
    Lane {
        lane: Arc<Lane<Q>>,
        path: Path,
        headers: Headers,
        grh: Option<[u8; 40]>,
    },
    Host {
        flow: Arc<Flow<Q>>,
        headers: Headers,
        damage: Option<u64>,
    },
    /// A QP here: from a lane, or from the first address to the second.
    Here {
        packet: Packet,
        addresses: Option<([u8; 16], [u8; 16])>,
    },
}

/// A packet that waits.
pub(super) struct DelayedPacket<Q> {
    pub(super) qp: Weak<Q>,
    pub(super) qpn: u32,
    pub(super) to: To<Q>,
    pub(super) bytes: Box<[u8]>,
    /// The packet follows as soon as another packet of its QP has passed.
    pub(super) late: bool,
}

/// All waiting packets, by due time and order of arrival.
pub(super) struct DelayedPackets<Q> {
    waiting: Mutex<Waiting<Q>>,
    bytes: AtomicUsize,
}

struct Waiting<Q> {
    delayed_packets: BTreeMap<(u64, u64), DelayedPacket<Q>>,
    order: u64,
}

impl<Q> DelayedPackets<Q> {
    pub(super) fn new() -> Self {
        let waiting = Waiting { delayed_packets: BTreeMap::new(), order: 0 };
        Self { waiting: Mutex::new(waiting), bytes: AtomicUsize::new(0) }
    }

    /// Keeps a packet until `at`; returns false if there is no room.
    fn keep(&self, at: u64, packet: DelayedPacket<Q>) -> bool {
        let size = OWN + packet.bytes.len();
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > MOST {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        let mut waiting = self.waiting.lock();
        waiting.order += 1;
        let order = waiting.order;
        waiting.delayed_packets.insert((at, order), packet);
        true
    }

    /// Whether packets of a QP wait in line, in their original order.
    pub(super) fn has_line(&self, qpn: u32) -> bool {
        self.waiting.lock().delayed_packets.values().any(|packet| packet.qpn == qpn && !packet.late)
    }

    /// Makes the packets due that wait for the next packet of a QP.
    fn follow(&self, qpn: u32, now: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let late = |packet: &DelayedPacket<Q>| packet.qpn == qpn && packet.late;
        let keys: Vec<_> =
            waiting.delayed_packets.iter().filter(|(_, packet)| late(packet)).map(|(key, _)| *key).collect();
        for key in &keys {
            if let Some(packet) = waiting.delayed_packets.remove(key) {
                waiting.delayed_packets.insert((now.min(key.0), key.1), packet);
            }
        }
        !keys.is_empty()
    }

    fn put_back(&self, key: (u64, u64), packet: DelayedPacket<Q>) {
        self.bytes.fetch_add(OWN + packet.bytes.len(), Ordering::Relaxed);
        self.waiting.lock().delayed_packets.insert(key, packet);
    }

    /// Takes the first packet that is due.
    fn take(&self, now: u64) -> Option<((u64, u64), DelayedPacket<Q>)> {
        let mut waiting = self.waiting.lock();
        let (key, _) = waiting.delayed_packets.first_key_value().filter(|((at, _), _)| *at <= now)?;
        let key = *key;
        let packet = waiting.delayed_packets.remove(&key)?;
        self.bytes.fetch_sub(OWN + packet.bytes.len(), Ordering::Relaxed);
        Some((key, packet))
    }

    fn next(&self) -> Option<u64> {
        self.waiting.lock().delayed_packets.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn clear(&self) {
        let gone = std::mem::take(&mut self.waiting.lock().delayed_packets);
        self.bytes.store(0, Ordering::Relaxed);
        drop(gone);
    }
}
