//! Delayed packets: packets that a fault rule makes late, or that wait behind another packet or for
//! a slow line.
//!
//! A packet's bytes are copied when it would have left or arrived. So later changes of the
//! program's memory do not affect it. No thread waits for delayed packets; a timer fires when one
//! is due. Principal type: [`DelayedPackets`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::Time;
use shm::Source;
use wire::Headers;

use crate::cell::{Packet, Path};
use crate::engine::Engine;
use crate::lane::Lane;
use crate::net::flow::Flow;
use crate::qp::Qp;
use crate::receive;
use crate::transmit::{Origin, Sent};

/// The timer key of delayed packets.
pub(crate) const DELAYED_PACKETS: u32 = u32::MAX - 1;

/// Bytes that wait, at most. Further packets are lost, as in a network with full queues.
const MOST: usize = 64 << 20;
/// The memory of a delayed packet besides its payload.
const OWN: usize = 256;
/// When a delayed packet whose lane was full is tried again, in nanoseconds.
const AGAIN: u64 = 50_000;

/// The destination of a packet.
pub(super) enum To {
    Lane {
        lane: Arc<Lane>,
        path: Path,
        headers: Headers,
        grh: Option<[u8; 40]>,
    },
    Host {
        flow: Arc<Flow>,
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
pub(super) struct DelayedPacket {
    pub(super) qp: Weak<Qp>,
    pub(super) qpn: u32,
    pub(super) to: To,
    pub(super) bytes: Box<[u8]>,
    /// The packet follows as soon as another packet of its QP has passed.
    pub(super) late: bool,
}

/// All waiting packets, by due time and order of arrival.
#[derive(Default)]
pub(super) struct DelayedPackets {
    waiting: Mutex<Waiting>,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    delayed_packets: BTreeMap<(u64, u64), DelayedPacket>,
    order: u64,
}

impl DelayedPackets {
    /// Keeps a packet until `at`; returns false if there is no room.
    fn keep(&self, at: u64, packet: DelayedPacket) -> bool {
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
        let late = |packet: &DelayedPacket| packet.qpn == qpn && packet.late;
        let keys: Vec<_> =
            waiting.delayed_packets.iter().filter(|(_, packet)| late(packet)).map(|(key, _)| *key).collect();
        for key in &keys {
            if let Some(packet) = waiting.delayed_packets.remove(key) {
                waiting.delayed_packets.insert((now.min(key.0), key.1), packet);
            }
        }
        !keys.is_empty()
    }

    fn put_back(&self, key: (u64, u64), packet: DelayedPacket) {
        self.bytes.fetch_add(OWN + packet.bytes.len(), Ordering::Relaxed);
        self.waiting.lock().delayed_packets.insert(key, packet);
    }

    /// Takes the first packet that is due.
    fn take(&self, now: u64) -> Option<((u64, u64), DelayedPacket)> {
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

impl Engine {
    /// Keeps a packet until `at`, in nanoseconds; returns false if it is lost because there is no
    /// room.
    pub(super) fn keep_delayed_packet(&self, at: u64, packet: DelayedPacket) -> bool {
        let kept = self.faults.delayed.keep(at, packet);
        if kept && self.timers.set(Time(at), DELAYED_PACKETS) {
            self.waker.attend();
        }
        kept
    }

    /// A packet of a QP has passed: late packets of the QP follow now.
    pub(super) fn follow_with_delayed_packets(&self, qpn: u32) {
        let now = self.now();
        if self.faults.delayed.follow(qpn, now.0) && self.timers.set(now, DELAYED_PACKETS) {
            self.waker.attend();
        }
    }

    /// Sends and delivers the packets that are due.
    pub(crate) fn send_delayed_packets(self: &Arc<Self>) {
        let now = self.now();
        while let Some((key, packet)) = self.faults.delayed.take(now.0) {
            let Some(qp) = packet.qp.upgrade() else { continue };
            if !send(&qp, &packet) {
                // First again, before the packets behind it.
                self.faults.delayed.put_back(key, packet);
                if self.timers.set(now.after(AGAIN), DELAYED_PACKETS) {
                    self.waker.attend();
                }
                return;
            }
        }
        if let Some(at) = self.faults.delayed.next()
            && self.timers.set(Time(at), DELAYED_PACKETS)
        {
            self.waker.attend();
        }
    }
}

/// Sends a packet to its destination; returns false if there is no room.
fn send(qp: &Arc<Qp>, delayed: &DelayedPacket) -> bool {
    let (len, from) = (delayed.bytes.len() as u32, Origin::Bytes(&delayed.bytes));
    match &delayed.to {
        To::Lane { lane, .. } if lane.is_dead() => true,
        To::Lane { lane, path, headers, grh } => {
            let sent = qp.put(lane, &mut lane.sender.lock(), *path, headers, *grh, len, &from);
            lane.notify();
            !matches!(sent, Sent::Full)
        }
        To::Host { flow, headers, damage } => {
            let mut batch = flow.port.batch.lock();
            // The bytes are already copied, so this cannot fail; and the port reports its own send
            // errors.
            let _ = qp.put_on_wire(flow, &mut batch, headers, len, &from);
            if let Some(bit) = damage {
                batch.damage_last(*bit);
            }
            if let Err(error) = batch.flush(&*flow.port.outlet) {
                flow.complain(&error);
            }
            true
        }
        To::Here { packet, addresses } => {
            let origin = match addresses {
                Some((from, to)) => receive::Origin::Host { from, to },
                None => receive::Origin::Lane,
            };
            qp.arrive(packet, Source::from(&delayed.bytes[..]), origin, false);
            true
        }
    }
}
