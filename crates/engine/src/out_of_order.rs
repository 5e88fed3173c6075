//! Out-of-order packets: kept for a moment, and taken in their order once what they have overtaken has come.
//!
//! The machines say which ones (`protocol::OutOfOrder` says why); here is the memory for them, a few packets for each end of a connection and a
//! bounded number of bytes for the engine. They have been checked as all packets are before they get here, and are handed to the machines
//! again as if they had come now. Everything here is cold: a connection whose packets come in order has nothing but an empty box.
//! Principal type: [`OutOfOrderBuffer`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use protocol::{OutOfOrder, Time};
use wire::Psn;

use crate::access;
use crate::cell::Packet;
use crate::qp::{Inner, Qp};

/// How long a packet waits for one that it has overtaken, in nanoseconds: longer than most packets are late that were not lost, and
/// short beside what a loss costs.
const REORDER_TIME: u64 = 100_000;
/// How long it waits when the loss was told: about as long as it takes until what was lost comes again.
const AFTERWARDS: u64 = 1_000_000;
/// Bytes that wait at all connections of an engine, at most, with those that wait for receive requests.
const AT_ALL: usize = 8 << 20;

/// A packet, its payload, and what is counted for both.
struct Kept {
    packet: Packet,
    payload: Box<[u8]>,
    all: Arc<AtomicUsize>,
}

impl Kept {
    fn new(all: &Arc<AtomicUsize>, packet: &Packet, payload: *const u8) -> Option<Self> {
        let len = usize::from(packet.len);
        let takes = size_of::<Self>() + len;
        if all.fetch_add(takes, Ordering::Relaxed) + takes > AT_ALL {
            all.fetch_sub(takes, Ordering::Relaxed);
            return None;
        }
        let mut bytes = vec![0; len].into_boxed_slice();
        access::plain(bytes.as_mut_ptr(), payload, len);
        Some(Self { packet: *packet, payload: bytes, all: Arc::clone(all) })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.all.fetch_sub(size_of::<Self>() + self.payload.len(), Ordering::Relaxed);
    }
}

/// What waits at one connection.
#[derive(Default)]
pub(crate) struct OutOfOrderBuffer {
    requests: OutOfOrder<Kept>,
    answers: OutOfOrder<Kept>,
}

impl OutOfOrderBuffer {
    /// When it has waited for long enough.
    pub(crate) fn until(&self) -> Time {
        self.requests.until().min(self.answers.until())
    }

    fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.answers.is_empty()
    }
}

impl Qp {
    /// A request has overtaken another one.
    #[cold]
    pub(crate) fn keep_request(&self, inner: &mut Inner, packet: &Packet, payload: *const u8) {
        let until = self.engine().now().after(REORDER_TIME);
        let buffer = &mut inner.rnr_grace.out_of_order.get_or_insert_default().requests;
        if !buffer.keep(packet.headers.psn, until, || Kept::new(&self.engine().waiting_bytes, packet, payload)) {
            self.miss_request(inner);
        }
    }

    /// An answer has overtaken data of another one.
    #[cold]
    pub(crate) fn keep_answer(&self, inner: &mut Inner, packet: &Packet, payload: *const u8) {
        let until = self.engine().now().after(REORDER_TIME);
        let buffer = &mut inner.rnr_grace.out_of_order.get_or_insert_default().answers;
        if !buffer.keep(packet.headers.psn, until, || Kept::new(&self.engine().waiting_bytes, packet, payload)) {
            self.miss_answer(inner, packet.headers.psn);
        }
    }

    /// What was missing may have come: goes on with what has waited for it.
    #[cold]
    pub(crate) fn take_out_of_order(&self, inner: &mut Inner) {
        loop {
            let (waits, expected) = (!inner.rnr_grace.is_empty(), inner.responder.expected_psn());
            let Some(buffer) = &mut inner.rnr_grace.out_of_order else { break };
            // What waits for a receive request has all behind it wait, too.
            let next = if waits { buffer.requests.take_first() } else { buffer.requests.take(expected) };
            let Some(kept) = next else { break };
            let payload = kept.payload.as_ptr();
            if inner.rnr_grace.is_empty() || !self.waits_behind(inner, &kept.packet, payload) {
                self.on_request(inner, &kept.packet, payload);
            }
        }
        while let Some(buffer) = &mut inner.rnr_grace.out_of_order {
            if buffer.answers.first().is_none_or(|(_, kept)| inner.requester.lacks_data_before(&kept.packet.headers)) {
                break;
            }
            let Some(kept) = buffer.answers.take_first() else { break };
            self.on_response(inner, &kept.packet, kept.payload.as_ptr());
        }
        self.drop_empty_buffer(inner);
    }

    /// Time has passed: what has not come by now counts as lost.
    #[cold]
    pub(crate) fn miss(&self, inner: &mut Inner, now: Time) {
        let Some(buffer) = &inner.rnr_grace.out_of_order else { return };
        let answer = buffer.answers.first().filter(|_| buffer.answers.until() <= now).map(|(psn, _)| psn);
        if buffer.requests.until() <= now {
            self.miss_request(inner);
        }
        if let Some(psn) = answer {
            self.miss_answer(inner, psn);
        }
        self.drop_empty_buffer(inner);
    }

    /// A request is lost that others have overtaken.
    fn miss_request(&self, inner: &mut Inner) {
        let until = self.engine().now().after(AFTERWARDS);
        if inner
            .rnr_grace
            .out_of_order
            .as_mut()
            .is_none_or(|buffer| buffer.requests.is_empty() || buffer.requests.run_out(until))
        {
            inner.responder.missed();
        }
    }

    /// Data is lost that answers have overtaken, of which `psn` is one: it is asked for again.
    fn miss_answer(&self, inner: &mut Inner, psn: Psn) {
        let now = self.engine().now();
        let until = now.after(AFTERWARDS);
        if inner
            .rnr_grace
            .out_of_order
            .as_mut()
            .is_none_or(|buffer| buffer.answers.is_empty() || buffer.answers.run_out(until))
        {
            inner.requester.missed_data(now, psn);
        }
    }

    fn drop_empty_buffer(&self, inner: &mut Inner) {
        if inner.rnr_grace.out_of_order.as_ref().is_some_and(|buffer| buffer.is_empty()) {
            inner.rnr_grace.out_of_order = None;
        }
    }
}
