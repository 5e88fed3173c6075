//! Sends fast-path messages and ACKs. Receiving is in `receiving.rs`. Adds to [`Qp`].

use std::sync::Arc;

use protocol::{Operation, Service};
use shm::memory::CELL_DATA;
use shm::{RECORD_MAX, Sink};

use crate::access::{self, Near};
use crate::cell::Path;
use crate::fast_path::{Envelope, What};
use crate::lane::Sender;
use crate::qp::{Inner, Qp, Route};
use crate::special::Special;
use crate::transmit::wake_peer;
use crate::wqe::{Ring, SendBrief};

impl Qp {
    /// Sends requests and ACKs that qualify for the fast path, in order. Returns whether that was
    /// all; otherwise the general path sends the rest and finds out why it does not qualify.
    #[inline]
    pub(crate) fn pump_fast_path(self: &Arc<Self>, inner: &mut Inner) -> bool {
        if self.service != Service::Rc {
            return false;
        }
        let unsent = inner.requester.has_unsent();
        if !unsent && !inner.responder.has_answers() && !inner.link.on_wire() {
            // If the lane has ended, the general path must fail the requests that are under way.
            return inner.requester.outstanding() == 0
                || matches!(&inner.link.route, Route::Lane(lane) if !lane.is_dead() && inner.requester.may_use_fast_path());
        }
        let (all, called) = self.send_fast_path(inner);
        if called {
            wake_peer(inner);
        }
        all
    }

    /// Sends everything on the general path.
    #[inline(never)]
    pub(crate) fn pump_generally(self: &Arc<Self>, inner: &mut Inner) {
        loop {
            self.pump_connection(inner);
            if !(inner.requester.has_local() && self.carry_out(inner)) {
                break;
            }
        }
    }

    /// Sends what qualifies for the fast path; returns whether that was all, and whether to wake
    /// the peer.
    fn send_fast_path(&self, inner: &mut Inner) -> (bool, bool) {
        let engine = self.engine();
        let needs_general_path = self.special(inner).has_beside(Special::STRICT)
            || !inner.requester.may_use_fast_path()
                && (inner.requester.has_unsent() || inner.requester.outstanding() > 0);
        let Inner { requester, responder, queues, link, fast_path, .. } = inner;
        let (sq, place) = (&queues.sq, link.place);
        let lane = match &link.route {
            Route::Lane(lane) if !needs_general_path && !lane.is_dead() => lane,
            _ => return (false, false),
        };
        let answers = responder.has_answers();
        let ack = responder.fast_ack();
        if answers && ack.is_none() {
            return (false, false);
        }
        let (dest_qp, pkey, migrated) = requester.addresses();
        let path = Path { device: place.device as u8, port: place.port as u8, mtu: link.lane_mtu, ..Path::default() };
        let envelope = Envelope { path, src_qp: wire::Qpn::new(self.qpn()), dest_qp, pkey, migrated };
        let mut sender = lane.sender.lock();
        let Sender { tx, record, load, .. } = &mut *sender;
        let mut cell = [0; CELL_DATA];
        let mut sent = false;
        if let Some((psn, msn)) = ack {
            let (dest_qp, pkey, migrated) = responder.addresses();
            let envelope = Envelope { dest_qp, pkey, migrated, ..envelope };
            envelope.encode((psn, false), 0, What::Ack { msn }, &mut cell);
            if tx.ring.push_cell(&cell).is_err() {
                return (false, false);
            }
            responder.sent_fast_ack();
            sent = true;
        }
        let mut near = Near::new(engine);
        while let Some(fast) = requester.next_fast_message() {
            let op = fast.op;
            let what = match op.operation {
                Operation::Write => What::Write { va: op.remote_addr, rkey: op.rkey, total: op.length },
                _ => What::Send,
            };
            let numbers = (fast.psn, op.solicited && what == What::Send);
            let (len, bytes) = (op.length as u16, what.record_with(op.length));
            let done = if bytes <= CELL_DATA {
                let at = envelope.encode(numbers, len, what, &mut cell);
                let filled = self.fill_fast_path(&mut near, sq, op.slot, &mut cell[at..bytes]);
                if requester.unsent() == 1 {
                    // Before the record is published: each locked instruction after it waits until
                    // the peer has released the cell's cache line.
                    near.forget();
                }
                filled && tx.ring.push_cell(&cell).is_ok()
            } else if bytes <= RECORD_MAX {
                let at = envelope.encode(numbers, len, what, record);
                // Whole cells need no padding: the peer could read the bytes after the record
                // before, too.
                self.fill_fast_path(&mut near, sq, op.slot, &mut record[at..bytes])
                    && tx.ring.push(&record[..bytes.next_multiple_of(CELL_DATA)]).is_ok()
            } else {
                let Ok(Some(slot)) = tx.bulk.reserve(len.into()) else { break };
                envelope.encode_bulk(numbers, len, what, slot.offset, &mut cell);
                let done = self.fill_fast_path(&mut near, sq, op.slot, tx.bulk.sink(&slot))
                    && tx.ring.push_cell(&cell).is_ok();
                if !done {
                    tx.bulk.cancel(slot);
                } else if load.add(len.into()) {
                    engine.waker.copied();
                }
                done
            };
            if !done {
                break;
            }
            requester.sent_fast_message();
            fast_path.sent += 1;
            sent = true;
        }
        drop(near);
        drop(sender);
        (!requester.has_unsent(), sent && lane.peer_needs_wake())
    }

    /// Copies a request's payload to the outgoing record; returns whether it succeeded.
    #[inline(always)]
    fn fill_fast_path<'a>(&self, near: &mut Near<'_>, sq: &Ring, slot: u32, to: impl Into<Sink<'a>>) -> bool {
        let to = to.into();
        if to.is_empty() {
            return true;
        }
        let entry: SendBrief = sq.read(slot);
        if entry.inline != 0 {
            return access::copy(&to, sq.inline(slot, to.len())).is_ok();
        }
        entry.num_sge == 1 && near.gather(self.pd, &sq.element(slot, 0), &to)
    }
}
