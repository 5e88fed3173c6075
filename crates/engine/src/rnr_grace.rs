//! RNR grace: requests that wait for a receive request.
//!
//! An adapter takes packets at the speed of its link, and a program that posts receive requests keeps up with that, or not. Here
//! whoever has a processor takes packets, and may take many while the program that is to post waits for one: it would be told that
//! it was not ready for having been interrupted. So a reliable connection's request that finds no receive request is kept for a
//! moment, with what comes behind it, and served when one is posted; only after that the peer hears that nobody was ready. To the
//! peer it looks like an answer that takes its time. Principal type: [`RnrGraceQueue`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use abi::reason::Cause;
use protocol::{OUT_OF_ORDER_MAX, Outcome, Service, Time, timeout};
use wire::Psn;

use crate::access;
use crate::cell::Packet;
use crate::out_of_order::OutOfOrderBuffer;
use crate::qp::{Inner, Qp};

/// How long a program gets, in nanoseconds. Less than most ACK timeouts; more than processes usually wait for a processor.
const RNR_GRACE: u64 = 50_000_000;
/// Bytes that wait at one QP, and at all of an engine, at most.
const AT_ONE: usize = 512 * 1024;
const AT_ALL: usize = 8 << 20;

/// A packet and its payload.
type Kept = (Packet, Box<[u8]>);

/// The requests of one QP that wait.
pub(crate) struct RnrGraceQueue {
    packets: VecDeque<Kept>,
    bytes: usize,
    /// What waits at all QPs of the engine.
    all: Arc<AtomicUsize>,
    /// When the peer is told.
    until: Time,
    /// Out-of-order packets, if there are any.
    pub(crate) out_of_order: Option<Box<OutOfOrderBuffer>>,
    /// The packet of which the peer was told last: when it comes again, it does not wait again.
    refused: Option<Psn>,
}

impl RnrGraceQueue {
    pub(crate) fn new(all: Arc<AtomicUsize>) -> Self {
        Self { packets: VecDeque::new(), bytes: 0, all, until: Time::NEVER, out_of_order: None, refused: None }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// When the peer is told, if something waits.
    pub(crate) fn until(&self) -> Option<Time> {
        (!self.is_empty()).then_some(self.until)
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        drop(self.take());
        self.out_of_order = None;
        self.refused = None;
    }

    /// Keeps a packet behind `before` others, if there is room.
    fn keep(&mut self, before: usize, packet: &Packet, payload: *const u8) -> bool {
        let len = usize::from(packet.len);
        let takes = size_of::<Kept>() + len;
        let all = self.all.load(Ordering::Relaxed);
        if self.bytes + takes > AT_ONE || all + takes > AT_ALL {
            return false;
        }
        let mut bytes = vec![0; len].into_boxed_slice();
        access::plain(bytes.as_mut_ptr(), payload, len);
        self.add(before, (*packet, bytes));
        true
    }

    fn add(&mut self, before: usize, kept: Kept) {
        let takes = size_of::<Kept>() + kept.1.len();
        self.all.fetch_add(takes, Ordering::Relaxed);
        self.bytes += takes;
        self.packets.insert(before, kept);
    }

    /// How many of those that wait come before packet `psn`. None if it waits already, or is too late: then it counts as come again.
    fn before(&self, psn: Psn) -> Option<usize> {
        let overtaken = self
            .packets
            .iter()
            .rev()
            .take(OUT_OF_ORDER_MAX + 1)
            .position(|(kept, _)| kept.headers.psn.since(psn) <= 0)?;
        let before = self.packets.len() - overtaken;
        (self.packets[before - 1].0.headers.psn != psn).then_some(before)
    }

    fn take(&mut self) -> VecDeque<Kept> {
        self.all.fetch_sub(std::mem::take(&mut self.bytes), Ordering::Relaxed);
        std::mem::take(&mut self.packets)
    }
}

impl Drop for RnrGraceQueue {
    fn drop(&mut self) {
        self.clear();
    }
}

impl Qp {
    /// A request needs a receive request, and there is none.
    #[cold]
    pub(crate) fn lacks_receive(&self, inner: &mut Inner, packet: &Packet, payload: *const u8) {
        let psn = packet.headers.psn;
        let may_wait = self.service == Service::Rc && self.srq.is_none() && inner.rnr_grace.refused != Some(psn);
        if !(may_wait && inner.rnr_grace.keep(0, packet, payload)) {
            self.lint().inspect(|lint| lint.not_ready(self, inner));
            if !self.service.is_reliable() {
                self.drop_packet(inner, Cause::NoReceive, packet, (0, 0));
            }
            return inner.responder.finish(Outcome::Rnr);
        }
        inner.responder.finish(Outcome::Dropped);
        // The peer's timeout is likely to be ours: it shall not have to try again meanwhile.
        let grace = timeout(inner.attributes.timeout).map_or(RNR_GRACE, |timeout| timeout.min(RNR_GRACE));
        inner.rnr_grace.until = self.engine().now().after(grace);
        self.look_again(inner, inner.rnr_grace.until);
    }

    /// Whether a request has to wait behind others, and does.
    #[cold]
    pub(crate) fn waits_behind(&self, inner: &mut Inner, packet: &Packet, payload: *const u8) -> bool {
        let psn = packet.headers.psn;
        if inner.rnr_grace.is_empty() || psn.is_before(inner.responder.expected_psn()) {
            return false;
        }
        // Packets may overtake each other while they wait, too.
        if let Some(before) = inner.rnr_grace.before(psn)
            && !inner.rnr_grace.keep(before, packet, payload)
        {
            self.end_rnr_grace(inner);
        }
        true
    }

    /// There is a receive request now: goes on with what waits, until one is lacking again.
    #[cold]
    pub(crate) fn serve_rnr_grace(&self, inner: &mut Inner) {
        let mut packets = inner.rnr_grace.take();
        while let Some((packet, payload)) = packets.pop_front() {
            if inner.is_dead() || !inner.state.serves() {
                return;
            }
            self.on_request(inner, &packet, payload.as_ptr());
            if !inner.rnr_grace.is_empty() {
                for kept in packets {
                    inner.rnr_grace.add(inner.rnr_grace.packets.len(), kept);
                }
                return;
            }
        }
        if inner.rnr_grace.out_of_order.is_some() {
            self.take_out_of_order(inner);
        }
    }

    /// The grace time is over: the peer is told, and sends it all again.
    #[cold]
    pub(crate) fn end_rnr_grace(&self, inner: &mut Inner) {
        if let Some((packet, payload)) = inner.rnr_grace.take().pop_front() {
            inner.rnr_grace.refused = Some(packet.headers.psn);
            self.on_request(inner, &packet, payload.as_ptr());
        }
    }
}
