//! What a QP does with packets that arrive out of order. All functions here are cold. Adds to
//! [`Qp`].

use protocol::Time;
use shm::Source;
use wire::Psn;

use super::{AFTERWARDS, REORDER_TIME};
use crate::cell::Packet;
use crate::kept::KeptPacket;
use crate::qp::{Inner, Qp};

impl Qp {
    /// A request has arrived out of order.
    #[cold]
    pub(crate) fn keep_request(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) {
        let until = self.engine().now().after(REORDER_TIME);
        let buffer = &mut inner.incoming.rnr_grace.out_of_order.get_or_insert_default().requests;
        if !buffer.keep(packet.headers.psn, until, || KeptPacket::new(&self.engine().kept_bytes, packet, payload)) {
            self.miss_request(inner);
        }
    }

    /// A response has arrived before data of an earlier one.
    #[cold]
    pub(crate) fn keep_answer(&self, inner: &mut Inner, packet: &Packet, payload: Source<'_>) {
        let until = self.engine().now().after(REORDER_TIME);
        let buffer = &mut inner.incoming.rnr_grace.out_of_order.get_or_insert_default().answers;
        if !buffer.keep(packet.headers.psn, until, || KeptPacket::new(&self.engine().kept_bytes, packet, payload)) {
            self.miss_answer(inner, packet.headers.psn);
        }
    }

    /// The missing packet may have arrived: continues with the packets that waited for it.
    #[cold]
    pub(crate) fn take_out_of_order(&self, inner: &mut Inner) {
        loop {
            let (waits, expected) = (!inner.incoming.rnr_grace.is_empty(), inner.responder.expected_psn());
            let Some(buffer) = &mut inner.incoming.rnr_grace.out_of_order else { break };
            // While the RNR grace queue holds a packet, all later packets wait, too.
            let next = if waits { buffer.requests.take_first() } else { buffer.requests.take(expected) };
            let Some(kept) = next else { break };
            let payload = Source::from(&kept.payload[..]);
            if inner.incoming.rnr_grace.is_empty() || !self.waits_behind(inner, &kept.packet, payload) {
                self.on_request(inner, &kept.packet, payload);
            }
        }
        while let Some(buffer) = &mut inner.incoming.rnr_grace.out_of_order {
            if buffer.answers.first().is_none_or(|(_, kept)| inner.requester.lacks_data_before(&kept.packet.headers)) {
                break;
            }
            let Some(kept) = buffer.answers.take_first() else { break };
            self.on_response(inner, &kept.packet, Source::from(&kept.payload[..]));
        }
        self.drop_empty_buffer(inner);
    }

    /// The wait may be over: missing packets now count as lost.
    #[cold]
    pub(crate) fn miss(&self, inner: &mut Inner, now: Time) {
        let Some(buffer) = &inner.incoming.rnr_grace.out_of_order else { return };
        let answer = buffer.answers.first().filter(|_| buffer.answers.until() <= now).map(|(psn, _)| psn);
        if buffer.requests.until() <= now {
            self.miss_request(inner);
        }
        if let Some(psn) = answer {
            self.miss_answer(inner, psn);
        }
        self.drop_empty_buffer(inner);
    }

    /// A request before an out-of-order one is lost.
    fn miss_request(&self, inner: &mut Inner) {
        let until = self.engine().now().after(AFTERWARDS);
        if inner
            .incoming
            .rnr_grace
            .out_of_order
            .as_mut()
            .is_none_or(|buffer| buffer.requests.is_empty() || buffer.requests.run_out(until))
        {
            inner.responder.missed();
        }
    }

    /// Response data before the packet `psn` is lost: the requester asks for it again.
    fn miss_answer(&self, inner: &mut Inner, psn: Psn) {
        let now = self.engine().now();
        let until = now.after(AFTERWARDS);
        if inner
            .incoming
            .rnr_grace
            .out_of_order
            .as_mut()
            .is_none_or(|buffer| buffer.answers.is_empty() || buffer.answers.run_out(until))
        {
            inner.requester.missed_data(now, psn);
        }
    }

    fn drop_empty_buffer(&self, inner: &mut Inner) {
        if inner.incoming.rnr_grace.out_of_order.as_ref().is_some_and(|buffer| buffer.is_empty()) {
            inner.incoming.rnr_grace.out_of_order = None;
        }
    }
}
