//! Packets that wait: because they are late, come behind another one, or the line is slow.
//!
//! They are put together when they would have left or arrived, so that what becomes of the program's memory meanwhile does not
//! matter to them. Nobody waits for them: the timers say when one is due. Principal type: [`Parcels`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use protocol::Time;
use wire::Headers;

use crate::cell::{Packet, Path};
use crate::engine::Engine;
use crate::lane::Lane;
use crate::net::flow::Flow;
use crate::qp::Qp;
use crate::receive;
use crate::transmit::{Origin, Sent};

/// What stands in the timers for parcels.
pub(crate) const PARCELS: u32 = u32::MAX - 1;

/// Bytes that wait, at most: what comes beyond is lost, as in a network whose queues are full.
const MOST: usize = 64 << 20;
/// What a parcel takes besides its payload.
const OWN: usize = 256;
/// When a parcel is tried again that found its lane full: nanoseconds.
const AGAIN: u64 = 50_000;

/// Where a packet was going.
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
    /// To a QP here: from a lane, or from the first address to the second.
    Here {
        packet: Packet,
        addresses: Option<([u8; 16], [u8; 16])>,
    },
}

/// A packet that waits.
pub(super) struct Parcel {
    pub(super) qp: Weak<Qp>,
    pub(super) qpn: u32,
    pub(super) to: To,
    pub(super) bytes: Box<[u8]>,
    /// It comes as soon as another packet of its QP has passed.
    pub(super) late: bool,
}

/// All that wait, by when they are due and in which order they came.
#[derive(Default)]
pub(super) struct Parcels {
    waiting: Mutex<Waiting>,
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    parcels: BTreeMap<(u64, u64), Parcel>,
    order: u64,
}

impl Parcels {
    /// Keeps a packet until `at`; false if there is no room.
    fn keep(&self, at: u64, parcel: Parcel) -> bool {
        let size = OWN + parcel.bytes.len();
        if self.bytes.fetch_add(size, Ordering::Relaxed) + size > MOST {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            return false;
        }
        let mut waiting = self.waiting.lock();
        waiting.order += 1;
        let order = waiting.order;
        waiting.parcels.insert((at, order), parcel);
        true
    }

    /// Whether packets of a QP wait in the order in which they came.
    pub(super) fn has_line(&self, qpn: u32) -> bool {
        self.waiting.lock().parcels.values().any(|parcel| parcel.qpn == qpn && !parcel.late)
    }

    /// What has waited for the next packet of a QP is due.
    fn follow(&self, qpn: u32, now: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let late = |parcel: &Parcel| parcel.qpn == qpn && parcel.late;
        let keys: Vec<_> = waiting.parcels.iter().filter(|(_, parcel)| late(parcel)).map(|(key, _)| *key).collect();
        for key in &keys {
            if let Some(parcel) = waiting.parcels.remove(key) {
                waiting.parcels.insert((now.min(key.0), key.1), parcel);
            }
        }
        !keys.is_empty()
    }

    fn put_back(&self, key: (u64, u64), parcel: Parcel) {
        self.bytes.fetch_add(OWN + parcel.bytes.len(), Ordering::Relaxed);
        self.waiting.lock().parcels.insert(key, parcel);
    }

    /// Takes the first that is due.
    fn take(&self, now: u64) -> Option<((u64, u64), Parcel)> {
        let mut waiting = self.waiting.lock();
        let (key, _) = waiting.parcels.first_key_value().filter(|((at, _), _)| *at <= now)?;
        let key = *key;
        let parcel = waiting.parcels.remove(&key)?;
        self.bytes.fetch_sub(OWN + parcel.bytes.len(), Ordering::Relaxed);
        Some((key, parcel))
    }

    fn next(&self) -> Option<u64> {
        self.waiting.lock().parcels.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn clear(&self) {
        let gone = std::mem::take(&mut self.waiting.lock().parcels);
        self.bytes.store(0, Ordering::Relaxed);
        drop(gone);
    }
}

impl Engine {
    /// Keeps a packet until `at`, in nanoseconds; false if it is lost because there is no room.
    pub(super) fn keep_parcel(&self, at: u64, parcel: Parcel) -> bool {
        let kept = self.faults.parcels.keep(at, parcel);
        if kept && self.timers.set(Time(at), PARCELS) {
            self.waker.attend();
        }
        kept
    }

    /// A packet of a QP has passed: what waited for that comes now.
    pub(super) fn follow_with_parcels(&self, qpn: u32) {
        let now = self.now();
        if self.faults.parcels.follow(qpn, now.0) && self.timers.set(now, PARCELS) {
            self.waker.attend();
        }
    }

    /// Sends and delivers what is due.
    pub(crate) fn send_parcels(self: &Arc<Self>) {
        let now = self.now();
        while let Some((key, parcel)) = self.faults.parcels.take(now.0) {
            let Some(qp) = parcel.qp.upgrade() else { continue };
            if !send(&qp, &parcel) {
                // First again, before those that were behind it.
                self.faults.parcels.put_back(key, parcel);
                if self.timers.set(now.after(AGAIN), PARCELS) {
                    self.waker.attend();
                }
                return;
            }
        }
        if let Some(at) = self.faults.parcels.next()
            && self.timers.set(Time(at), PARCELS)
        {
            self.waker.attend();
        }
    }
}

/// Has one go where it was going; false if there is no room.
fn send(qp: &Arc<Qp>, parcel: &Parcel) -> bool {
    let (len, from) = (parcel.bytes.len() as u32, Origin::Bytes(&parcel.bytes));
    match &parcel.to {
        To::Lane { lane, .. } if lane.is_dead() => true,
        To::Lane { lane, path, headers, grh } => {
            let sent = qp.put(lane, &mut lane.sender.lock(), *path, headers, *grh, len, &from);
            lane.notify();
            !matches!(sent, Sent::Full)
        }
        To::Host { flow, headers, damage } => {
            let mut batch = flow.port.batch.lock();
            // Its own bytes are there, and a port that does not send has complained.
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
            qp.arrive(packet, parcel.bytes.as_ptr(), origin, false);
            true
        }
    }
}
