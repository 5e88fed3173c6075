//! Sends or delivers delayed packets when they are due. Adds to [`Engine`].

use std::sync::Arc;

use protocol::Time;
use shm::Source;

use super::{DELAYED_PACKETS, DelayedPacket, To};
use crate::access::HeldRegion;
use crate::cell::{Origin, RunHeaders};
use crate::engine::Engine;
use crate::put::Sent;
use crate::qp::Qp;
use crate::receive;

/// When a delayed packet whose lane was full is tried again, in nanoseconds.
const AGAIN: u64 = 50_000;

impl Engine {
    /// Keeps a packet until `at`, in nanoseconds; returns false if it is lost because there is no
    /// room.
    pub(in crate::faults) fn keep_delayed_packet(&self, at: u64, packet: DelayedPacket<Qp>) -> bool {
        let kept = self.faults.delayed.keep(at, packet);
        if kept && self.timers.set(Time(at), DELAYED_PACKETS) {
            self.waker.attend();
        }
        kept
    }

    /// A packet of the QP has passed, so its late packets become due now.
    pub(in crate::faults) fn follow_with_delayed_packets(&self, qpn: u32) {
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
                // Goes back to the front, ahead of later packets.
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
fn send(qp: &Arc<Qp>, delayed: &DelayedPacket<Qp>) -> bool {
    let (len, from) = (delayed.bytes.len() as u32, Origin::Bytes(&delayed.bytes));
    let run = |headers| qp.run(RunHeaders::Full(headers), 1, len, from);
    let region = &mut HeldRegion::new(qp.engine());
    match &delayed.to {
        To::Lane { lane, .. } if lane.is_dead() => true,
        To::Lane { lane, path, headers, grh } => {
            let (_, sent) = qp.put_on_lane(lane, &mut lane.sender.lock(), *path, &run(headers), grh.as_ref(), region);
            lane.notify();
            !matches!(sent, Sent::Full)
        }
        To::Host { flow, headers, damage } => {
            let mut batch = flow.port.batch.lock();
            // The bytes are already copied, so this cannot fail; and the port reports its own send
            // errors.
            let _ = qp.put_on_wire(flow, &mut batch, &run(headers), region);
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
                Some((from, to)) => receive::Ingress::Host { from, to },
                None => receive::Ingress::Lane,
            };
            qp.arrive(packet, Source::from(&delayed.bytes[..]), origin, false);
            true
        }
    }
}
