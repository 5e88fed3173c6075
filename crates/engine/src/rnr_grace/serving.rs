//! What a QP does with requests that find no receive request. Adds to [`Qp`].

use abi::reason::Cause;
use protocol::{Outcome, Service, timeout};
use shm::Source;

use super::RNR_GRACE;
use crate::cell::Packet;
use crate::qp::{Inner, Qp};

impl Qp {
    /// Keeps a request for which there is no receive request, or answers it with an RNR NAK.
    #[cold]
    pub(crate) fn lacks_receive(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) {
        let psn = packet.headers.psn;
        let may_wait =
            self.service == Service::Rc && self.srq.is_none() && inner.incoming.rnr_grace.refused != Some(psn);
        if !(may_wait && inner.incoming.rnr_grace.keep(0, packet, payload)) {
            self.lint().inspect(|lint| lint.not_ready(self, inner));
            if !self.service.is_reliable() {
                self.drop_packet(inner, Cause::NoReceive, packet, (0, 0));
            }
            return inner.responder.finish(Outcome::Rnr);
        }
        inner.responder.finish(Outcome::Dropped);
        // The peer's timeout is probably the same as this QP's; the peer should not have to
        // retransmit meanwhile.
        let grace = timeout(inner.attributes.timeout).map_or(RNR_GRACE, |timeout| timeout.min(RNR_GRACE));
        inner.incoming.rnr_grace.until = self.engine().now().after(grace);
        self.look_again(inner, inner.incoming.rnr_grace.until);
    }

    /// Sends the data of earlier READs before a request may overwrite it. If the path has no room,
    /// keeps the request for later. Returns whether the request is to be executed now.
    ///
    /// The IBA lets a request overtake a READ (10.8.3.3: requesters use a fence), but common
    /// responders answer in order, and Open MPI relies on it. If the queue is full, the request
    /// overtakes the READ.
    #[cold]
    #[inline(never)]
    pub(crate) fn follows_reads(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) -> bool {
        if inner.incoming.rnr_grace.overtakes {
            return true;
        }
        if let Some(qp) = self.arc() {
            qp.pump(inner);
        }
        if inner.is_dead() || !inner.state.serves() {
            return false;
        }
        let queue = &mut inner.incoming.rnr_grace;
        let waits = self.service == Service::Rc && inner.responder.owes_read() && queue.keep(0, packet, payload);
        queue.behind_read |= waits;
        !waits
    }

    /// Whether a request has to wait behind others; if so, keeps it.
    #[cold]
    pub(crate) fn waits_behind(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) -> bool {
        let psn = packet.headers.psn;
        if inner.incoming.rnr_grace.is_empty() || psn.is_before(inner.responder.expected_psn()) {
            return false;
        }
        // Packets may come out of order while others wait, too.
        if let Some(before) = inner.incoming.rnr_grace.before(psn)
            && !inner.incoming.rnr_grace.keep(before, packet, payload)
        {
            if inner.incoming.rnr_grace.behind_read {
                self.overtake_reads(inner);
                return self.waits_behind(inner, packet, payload);
            }
            self.end_rnr_grace(inner);
        }
        true
    }

    /// There is a receive request now: serves waiting requests until a receive request is missing
    /// again.
    #[cold]
    pub(crate) fn serve_rnr_grace(&self, inner: &mut Inner) {
        let mut packets = inner.incoming.rnr_grace.take();
        while let Some(kept) = packets.pop_front() {
            if inner.is_dead() || !inner.state.serves() {
                return;
            }
            self.on_request(inner, &kept.packet, Source::from(&kept.payload[..]));
            if !inner.incoming.rnr_grace.is_empty() {
                for kept in packets {
                    inner.incoming.rnr_grace.add(inner.incoming.rnr_grace.packets.len(), kept);
                }
                return;
            }
        }
        if inner.incoming.rnr_grace.out_of_order.is_some() {
            self.take_out_of_order(inner);
        }
    }

    /// The queue is full: serves the requests behind a READ, although its data is not sent yet.
    #[cold]
    fn overtake_reads(&self, inner: &mut Inner) {
        inner.incoming.rnr_grace.overtakes = true;
        self.serve_rnr_grace(inner);
        inner.incoming.rnr_grace.overtakes = false;
    }

    /// The grace time is over: the peer gets an RNR NAK and retransmits all waiting requests.
    #[cold]
    pub(crate) fn end_rnr_grace(&self, inner: &mut Inner) {
        if let Some(kept) = inner.incoming.rnr_grace.take().pop_front() {
            inner.incoming.rnr_grace.refused = Some(kept.packet.headers.psn);
            self.on_request(inner, &kept.packet, Source::from(&kept.payload[..]));
        }
    }
}
